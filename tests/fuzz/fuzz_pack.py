"""Coverage-guided fuzzing of the pack reader: any bytes are a pack, or refused by our own error.

Run by `make fuzz`; needs atheris. Findings are kept in tests/fuzz/findings and replayed by the test suite.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

try:
    import atheris

    instrumented = atheris.instrument_imports(include=["precook"])
except ImportError:  # replaying findings needs no fuzzer
    atheris = None
    instrumented = contextlib.nullcontext()

with instrumented:
    from precook.store.format.build import build_pack, make_entry
    from precook.store.format.header import HeaderError, header_length
    from precook.store.format.pack import parse_head, parse_pack_header
    from precook.store.tree import read_values, take_apart

HERE = Path(__file__).parent
FINDINGS = HERE / "findings"


TOKENS = [
    "$tensor",
    "$plain",
    "$tuple",
    "$dict",
    "$bytes",
    "$str",
    "$bits",
    "$int",
    "leaves",
    "tree",
    "columns",
    "rows",
]
TOKENS += [
    "values",
    "labels",
    "all",
    "null",
    "true",
    "F16",
    "U8",
    "F4",
    "numpy",
    "torch",
    "t0/keys",
    "data_offsets",
    "-1",
]


def read_everything(data: bytes) -> None:
    """The first byte says what the rest is: a file, a header without its length, or the metadata of a good pack."""
    kind, data = data[:1], data[1:]
    if kind == b"h":
        data = struct.pack("<Q", len(data)) + data + bytes(4096)
    elif kind == b"m":
        data = with_metadata(data)
    read_pack(data)


def with_metadata(metadata: bytes) -> bytes:
    """A good pack whose metadata is replaced."""
    good = seeds()[0]
    length = header_length(good)
    form = json.loads(good[8:length])
    form["__metadata__"]["precook"] = metadata.decode("latin-1")
    text = json.dumps(form).encode()
    return struct.pack("<Q", len(text)) + text + good[length:]


def read_pack(data: bytes) -> None:
    """Read a pack as a reader would who has already found its id to match; refuse it or stay inside its file."""
    with contextlib.suppress(HeaderError):
        length = header_length(data)
        header = parse_pack_header(data[:length])
        head = parse_head(header, data[: length + header.directory])
        for table in head.tables:
            assert table.row_bytes().shape == (table.rows,)
            for row in range(min(table.rows, 64)):
                for leaf in table.leaves:
                    begin, size = leaf.span(row)
                    assert head.nbytes <= begin <= begin + size <= head.file_bytes
                    assert len(leaf.row_shape(row)) <= 15
                with contextlib.suppress(ValueError, IndexError, TypeError, RecursionError):
                    # What the reader turns into a damaged entry.
                    leaves = [np.empty(0)] * len(table.leaves)
                    table.build(leaves, read_values(table.values.row(row)))


@functools.cache
def seeds() -> list[bytes]:
    """Good packs to start from."""
    trees = [
        {"latent": np.zeros((2, 3), np.float16), "crop": (1, 2), "caption": "a cat"},
        [np.zeros(3), np.zeros((1, 0), np.int8), {1: b"x", "$tuple": float("nan")}],
        [np.zeros(4), np.zeros((1, 2), np.int8), {1: b"y", "$tuple": 2**70}],
        np.array(1.0),
        "plain",
    ]
    entries = [make_entry(bytes([i]) * 32, take_apart(tree)) for i, tree in enumerate(trees)]
    images = [build_pack(part, created=1, salt="x") for part in (entries, entries[:1], entries[1:3])]
    return [image.head + b"".join(bytes(part) for part in image.body) for image in images]


def main() -> None:
    """Fuzz for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    if atheris is None:
        sys.exit("atheris is not installed: run `make fuzz`")
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    FINDINGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="precook-fuzz-") as scratch:
        corpus, words = Path(scratch) / "corpus", Path(scratch) / "words"
        corpus.mkdir()
        for number, seed in enumerate(seeds()):
            length = header_length(seed)
            form = json.loads(seed[8:length])
            (corpus / f"file-{number}").write_bytes(b"f" + seed)
            (corpus / f"header-{number}").write_bytes(b"h" + seed[8:length].rstrip())
            (corpus / f"metadata-{number}").write_bytes(b"m" + form["__metadata__"]["precook"].encode())
        words.write_text("".join(f'"{token}"\n' for token in TOKENS))
        arguments = [sys.argv[0], str(corpus), f"-max_total_time={options.seconds}", f"-artifact_prefix={FINDINGS}/"]
        arguments.append(f"-dict={words}")
        child = os.fork()
        if child == 0:
            # The fuzzer ends its process by itself, without any cleaning up.
            atheris.Setup([*arguments, "-max_len=65536", "-timeout=20", "-rss_limit_mb=4096"], read_everything)
            atheris.Fuzz()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(status)


if __name__ == "__main__":
    main()
