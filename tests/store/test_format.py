"""docs/reference/format.md, word for word: its vectors and limits; a store of format 1 stays readable."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors

import precook
from precook.store import commit, leaves
from precook.store.format import header, pack
from precook.store.format.build import build_pack, make_entry
from precook.store.tree import take_apart
from tests.support.trees import same

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "format.md"
GOLDEN = Path(__file__).parents[1] / "golden" / "format-1"
RECIPE = precook.Recipe("vae", {"dtype": "float16", "scale": 0.5})
KEYS = [RECIPE.key("cat"), RECIPE.key("dog", size=(64, 48))]
TREES = [
    {"latent": np.arange(6, dtype=np.float16).reshape(2, 3), "crop": (0, 0)},
    {"latent": np.arange(4, dtype=np.float16).reshape(1, 4), "crop": (64, 48)},
]


@pytest.fixture
def vectors() -> dict[str, str]:
    table = PAGE.read_text().split("## Test vectors")[1]
    return dict(re.findall(r"^\| ([a-z ]+) \| `(.*)` \|$", table, re.MULTILINE))


def test_the_vectors_of_the_format_page_hold(vectors: dict[str, str]) -> None:
    """Recipe, keys, skeleton, values, checksums, sizes and pack id are exactly what the page says."""
    entries = [
        make_entry(key.bytes, take_apart(tree), recipe=RECIPE, labels=labels)
        for key, tree, labels in zip(KEYS, TREES, (b"null", b'{"file":"a"}'), strict=True)
    ]
    image = build_pack(entries, created=1_700_000_000, salt="00")
    assert vectors == {
        "recipe form": RECIPE.form.decode(),
        "recipe digest": RECIPE.hex,
        "first key": KEYS[0].hex,
        "second key": KEYS[1].hex,
        "skeleton": entries[0].parts.skeleton.decode(),
        "first values": entries[0].parts.values.decode(),
        "first checksum": entries[0].checksum.hex(),
        "second checksum": entries[1].checksum.hex(),
        "head bytes": str(len(image.head)),
        "file bytes": str(image.nbytes),
        "pack id": image.id,
    }


def test_a_store_of_format_1_stays_readable(tmp_path: Path, vectors: dict[str, str]) -> None:
    """The store in the repository, written by the first version of the format, opens and answers."""
    shutil.copytree(GOLDEN, tmp_path / "cache")
    for read_only in (True, False):
        with precook.open(tmp_path / "cache", read_only=read_only) as store:
            assert same(store.get_many(KEYS), TREES)
            assert store.verify().clean
            assert [row.recipe for row in store.entries()] == [RECIPE.form] * 2
    assert (GOLDEN / "packs" / vectors["pack id"][:2] / f"{vectors['pack id']}.safetensors").is_file()


def test_any_safetensors_reader_can_use_a_pack(tmp_path: Path) -> None:
    """Keys and leaf columns come out of `safe_open` as they are, for every type that torch has."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from precook.store.dtypes import DTYPES  # noqa: PLC0415

    trees = []
    for dtype in DTYPES.values():
        raw = torch.arange(48, dtype=torch.uint8).reshape(2, 24)
        raw = raw % 2 if dtype.name == "BOOL" else raw
        trees.append({"x": raw.view(getattr(torch, dtype.torch)), "y": raw[:1].view(getattr(torch, dtype.torch))})
    with precook.open(tmp_path / "cache") as store:
        with store.writer() as writer:
            for i, tree in enumerate(trees):
                writer.put(RECIPE.key(i), tree)
        (pack,) = store.path.glob("packs/*/*.safetensors")
        with safetensors.safe_open(pack, framework="pt") as columns:
            for i, tree in enumerate(trees):
                key = RECIPE.key(i)
                assert bytes(columns.get_tensor(f"t{i}/keys")[0].tolist()) == key.bytes
                assert same(columns.get_tensor(f"t{i}/leaf.x")[0], tree["x"])
                assert same(store.get(key), tree)


@pytest.mark.parametrize("number", ["16 MiB", "65,536", "1 GiB", "at most 128", "15, each at most 2^32 - 1", "256 MiB"])
def test_the_limits_on_the_page_are_those_in_the_code(number: str) -> None:
    """A limit that changes in the code has to change on the page."""
    assert number in PAGE.read_text()
    assert (header.MAX_HEADER, header.MAX_COLUMNS, pack.MAX_HEAD) == (16 << 20, 65_536, 1 << 30)
    assert (leaves.MAX_RANK, leaves.MAX_DIM, leaves.MAX_BYTES, commit.MAX_TEXT) == (15, 2**32 - 1, 2**40, 256 << 20)
