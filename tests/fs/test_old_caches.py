"""A folder that holds an old cache is told what it is and how to adopt it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import precook
from precook.fs.old_caches import name_old_cache
from precook.integrations.tokenized import TokenizedCache
from tests.support.commands import run

GROUP = "3f" * 32
OLD = {
    "image/" + GROUP + "/variation-0/aggregate.pt": "a DiskCache of mgds",
    "variation-12/7.pt": "a DiskCache of mgds",
    "0123456789ab_512x768_1.pt": "a SmartDiskCache of mgds",
    "shard_0003.pkl": "ComfyUI",
    f"entries/ab/abcd.{'0' * 12}.seq512.npz": "sections that dlm has tokenized",
    f"ab/{'ab' * 32}.{'0' * 12}.224x224.npz": "pictures that dlm has processed",
    "_latent_cache/cat_AAAAAAAAAAAAAAAAAAAAAA.safetensors": "ai-toolkit",
    "cat_qi_te.safetensors": "musubi-tuner",
    "cats/cat_1024x0768_sdxl.npz": "sd-scripts",
}


def make(folder: Path, name: str) -> None:
    """A folder with one file of an old cache, and what lies beside it always."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    if name.startswith("0123"):
        (folder / "cache.json").write_text("{}")


@pytest.mark.parametrize("name", OLD)
def test_a_folder_with_an_old_cache_is_named_when_it_is_opened_as_a_store(tmp_path: Path, name: str) -> None:
    """By its library call, and the hint says how to adopt it."""
    make(tmp_path, name)
    with pytest.raises(precook.NotAStoreError, match=OLD[name]) as caught:
        precook.open(tmp_path).put(precook.Recipe("test", {}).key(1), 1)
    assert "precook" in (caught.value.hint or "")
    assert "elsewhere" in (caught.value.hint or "")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name.startswith("store")) == []


def test_a_front_says_what_its_folder_holds(tmp_path: Path) -> None:
    """Whoever swaps the import and keeps the folder learns what to do."""
    make(tmp_path, "variation-0/0.pt")
    with pytest.raises(precook.NotAStoreError, match="a DiskCache of mgds"):
        TokenizedCache(tmp_path).flush()


def test_a_command_says_what_a_folder_holds(tmp_path: Path) -> None:
    """The hint is the one for old caches, not the one for a wrong path."""
    make(tmp_path, "variation-0/0.pt")
    result = run("ls", "--store", str(tmp_path))
    assert result.code == precook.NotAStoreError.exit_code
    assert "a DiskCache of mgds" in result.err
    assert "precook adopt" in result.err


@pytest.mark.parametrize(
    "name", ["thesis.docx", "array.npz", "model.safetensors", "variation-0/notes.txt", "cache.json"]
)
def test_what_no_tool_has_cached_is_not_named(tmp_path: Path, name: str) -> None:
    """Nothing is called a cache on the strength of its suffix."""
    make(tmp_path, name)
    assert name_old_cache(tmp_path) is None


def test_a_folder_that_cannot_be_listed_is_not_named(tmp_path: Path) -> None:
    """Neither is one that is gone."""
    assert name_old_cache(tmp_path / "gone") is None


def test_what_cannot_be_looked_at_is_named_by_nothing(tmp_path: Path) -> None:
    """As a folder that is closed to us: here one whose files have paths that are longer than the system takes."""
    folder = tmp_path
    while (left := os.pathconf(tmp_path, "PC_PATH_MAX") - 1 - len("/image/cache") - len(str(folder))) > 0:
        folder /= "a" * min(200, max(1, left - 1))
        folder.mkdir()
    (folder / "image").mkdir()
    assert name_old_cache(folder) is None
