"""Files of models: which weights a library opens, and what the heads of weights and vocabularies tell, unloaded.

A file that is not what its name says is refused: cut off, a pointer of git-lfs that was never filled in, not JSON.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from precook.encode.hub import is_unused
from precook.encode.torch_tools import check_weights, named_shards
from precook.errors import EncodeError, printable

_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "vocab.bpe", "tekken.json")
_VOCABULARY_ENDS = (".model", ".tiktoken")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|token_embedding|shared|word_embeddings|wte)\.weight$")
"""How models call their table of tokens."""
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""How safetensors call the types that encoders run in."""
_POINTER = b"version https://git-lfs"
_MOST_HEAD = 100 << 20
"""Bytes that the head of a safetensors file may have."""
_MOST_VOCABULARY = 256 << 20
"""Bytes of a vocabulary that is read; the largest there are have a tenth of it."""


def file_names(folder: Path) -> list[str]:
    """The names in a folder, in order; none where there is no folder."""
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


def weight_files(folder: Path, stem: str) -> list[Path]:
    """The files of weights that the library opens."""
    check_weights(folder)
    single, index = f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if (folder / single).is_file():
        return [folder / single]
    if not index.is_file():
        others = [name for name in file_names(folder) if name.endswith(".safetensors")]
        variants = [name for name in others if is_unused(name)]
        hint = f"rename {printable(others[0])} to {single}" if len(others) == 1 else f"download {single}"
        what = f"only the variant {variants[0]}" if variants == others else f"no {single}, though {others[0]}"
        raise EncodeError(f"{printable(folder)}: {printable(what)} is in there", hint=hint)
    shards = sorted(named_shards(index))
    if not shards:
        raise EncodeError(f"{printable(index)}: not an index of weights", hint="download the model again")
    absent = [name for name in shards if not (folder / name).is_file()]
    if absent:
        message = f"{len(absent)} of the {len(shards)} files that {index.name} names are not there: {absent[0]}"
        more = ", …" if len(absent) > 1 else ""
        raise EncodeError(f"{printable(folder)}: {printable(message)}{more}", hint="download the rest of the model")
    return [folder / name for name in shards]


def token_embeddings(file: Path) -> int | None:
    """How many tokens a file of weights has embeddings for, if it has that table; refused unless the file is whole."""
    shapes = [tensor.shape for name, tensor in _tensors(file).items() if _EMBEDDING.search(name)]
    return max((shape[0] for shape in shapes if len(shape) == 2), default=None)  # noqa: PLR2004 - tokens, width


def saved_dtype(folder: Path, stem: str) -> str | None:
    """What most weights of a model are saved in; None for a type that no encoder runs in."""
    counts = Counter(tensor.dtype for file in weight_files(folder, stem) for tensor in _tensors(file).values())
    return _DTYPES.get(counts.most_common(1)[0][0]) if counts else None


@dataclass(frozen=True, slots=True)
class _TensorHead:
    """One tensor of a file of weights, as its head describes it."""

    dtype: str
    shape: tuple[int, ...]
    end: int


def _tensors(file: Path) -> dict[str, _TensorHead]:
    """What is in a file of weights, by its head; refused unless the file is whole."""
    if file.suffix != ".safetensors":
        hint = "name a .safetensors file, or a folder in the format of the library"
        raise EncodeError(f"{printable(file)}: not a .safetensors file", hint=hint)
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
        length = int.from_bytes(start, "little")
        head = opened.read(length) if 0 < length <= min(size, _MOST_HEAD) else b""
    try:
        tensors = {
            name: _TensorHead(str(entry["dtype"]), tuple(map(int, entry["shape"])), int(entry["data_offsets"][1]))
            for name, entry in json.loads(head).items()
            if name != "__metadata__"
        }
    except (ValueError, OverflowError, LookupError, TypeError, AttributeError, RecursionError):
        raise _no_content(file, "not a safetensors file") from None
    whole = 8 + length + max((tensor.end for tensor in tensors.values()), default=0)
    if size < whole:
        raise EncodeError(f"{printable(file)}: {size} bytes of {whole}: cut off", hint="download this file again")
    return tensors


def _no_content(file: Path, otherwise: str) -> EncodeError:
    with file.open("rb") as opened:
        pointer = opened.read(len(_POINTER)) == _POINTER
    if pointer:
        return EncodeError(f"{printable(file)}: a pointer of git-lfs, not the file", hint="run `git lfs pull` there")
    return EncodeError(f"{printable(file)}: {otherwise}", hint="download this file again")


def vocabulary_files(folder: Path) -> list[Path]:
    """The files that hold a tokenizer's tokens, the one that is loaded first."""
    names = file_names(folder)
    found = [name for name in _VOCABULARIES if name in names]
    return [folder / name for name in (*found, *(name for name in names if name.endswith(_VOCABULARY_ENDS)))]


def highest_token(file: Path) -> int | None:
    """The highest id in a tokenizer's own vocabulary, without what was added to it; None where its form is unknown."""
    if file.stat().st_size > _MOST_VOCABULARY:
        return None
    content = file.read_bytes()
    if content.startswith(_POINTER):
        raise _no_content(file, "")
    if file.suffix == ".json":
        try:
            data = json.loads(content)
            vocabulary = data["model"]["vocab"] if file.name == "tokenizer.json" else data
        except (ValueError, RecursionError):
            raise _no_content(file, "not JSON") from None
        except (LookupError, TypeError):
            return None
        if isinstance(vocabulary, dict):
            return max((number for number in vocabulary.values() if isinstance(number, int)), default=None)
        return len(vocabulary) - 1 if isinstance(vocabulary, list) and vocabulary else None
    if file.name == "vocab.txt":
        return len(content.splitlines()) - 1
    pieces = sum(1 for _ in _pieces(content)) if file.suffix == ".model" else 0
    return pieces - 1 if pieces else None


def _pieces(content: bytes) -> Iterator[int]:
    """Where the pieces begin in a model of sentencepiece: a message of protocol buffers, in which each is field 1."""
    place = 0
    while place < len(content):
        tag, place = _varint(content, place)
        field, form = tag >> 3, tag & 7
        if field == 1 and form == 2:  # noqa: PLR2004 - of a length that follows
            yield place
        elif field > 5:  # noqa: PLR2004 - sentencepiece has no more
            return
        if form == 2:  # noqa: PLR2004
            length, place = _varint(content, place)
            place += length
        elif form == 0:
            _, place = _varint(content, place)
        elif form in (1, 5):
            place += 8 if form == 1 else 4
        else:
            return


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(content) and shift < 64:  # noqa: PLR2004 - bits of the largest number
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:  # noqa: PLR2004 - the last byte of a number
            break
    return value, place
