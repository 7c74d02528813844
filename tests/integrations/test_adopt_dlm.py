"""Old caches of dlm: sections by the keys of their manifest, pictures by digests that somebody names."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.integrations.adopt.dlm import plan_adopt_dlm
from precook.integrations.tokenized import CachedTokens, CacheKey, TokenizedCache
from precook.integrations.vl import VlCache, VlCacheKey
from precook.store import files
from tests.support.commands import run

SHA = "3c" * 32
KEYS = [CacheKey(f"{number:016x}", SHA, 512) for number in (1, 0xAB << 56)]


def section(folder: Path, key: CacheKey, **arrays: Any) -> Path:
    """A file as dlm writes it: compressed, in a folder by the first digits of the section."""
    path = folder / "entries" / key.shard() / key.as_filename()
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.arange(2048) % 7
    np.savez_compressed(path, **{"input_ids": ids, "attention_mask": np.ones_like(ids), **arrays})
    return path


def manifest(folder: Path, keys: list[CacheKey]) -> None:
    """The list of sections, as dlm saves it at the end of a run."""
    rows = {
        f"{key.section_id}|{key.tokenizer_sha}|{key.sequence_len}": {
            "size": 1,
            "last_access_ts": 1.0,
            "shard": key.shard(),
            "filename": key.as_filename(),
            "tokenizer_sha": key.tokenizer_sha,
        }
        for key in keys
    }
    listed = {"version": 1, "tokenizer_sha256": SHA, "total_bytes": len(keys), "entries": rows}
    (folder / "manifest.json").write_text(json.dumps(listed))


def picture(folder: Path, key: VlCacheKey, pixels: Any) -> Path:
    path = folder / key.shard() / key.as_filename()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, pixel_values=pixels)
    return path


def test_sections_are_found_by_their_keys(tmp_path: Path) -> None:
    """In the store beside the old files, where the front looks; the files stay as they are."""
    old = tmp_path / "tokenized-cache"
    before = {section(old, key): section(old, key).read_bytes() for key in KEYS}
    manifest(old, KEYS)
    shown = run("adopt", old, "--store", old / "precook")
    assert "2 sections" in shown.out
    assert not (old / "precook").exists()
    assert run("adopt", old, "--store", old / "precook", "--yes").code == 0
    with TokenizedCache.open(old) as cache:
        for key in KEYS:
            tokens = cache.get(key)
            assert tokens is not None
            assert tokens.input_ids.dtype == np.int64
            assert np.array_equal(tokens.input_ids, np.arange(2048) % 7)
            assert np.array_equal(tokens.attention_mask, np.ones(2048))
        assert cache.entry_count == 2
    assert {path: path.read_bytes() for path in before} == before
    # Whoever has no more use for the old files removes them, and the front still looks where it has looked.
    shutil.rmtree(old / "entries")
    (old / "manifest.json").unlink()
    with TokenizedCache.open(old) as cache:
        assert cache.get(KEYS[0]) is not None


def test_a_run_that_was_killed_before_its_manifest_is_adopted_too(tmp_path: Path) -> None:
    """Such sections are lost to dlm itself: their tokenizer is known by those that the manifest has."""
    for key in KEYS:
        section(tmp_path, key)
    manifest(tmp_path, KEYS[:1])
    assert [entry.key for entry in plan_adopt_dlm(tmp_path).entries] == KEYS


def test_what_the_manifest_does_not_tell_is_left_out_or_said(tmp_path: Path) -> None:
    """Twelve digits are no tokenizer: without a manifest, or with a broken one, somebody has to name it."""
    for key in KEYS:
        section(tmp_path, key)
    (tmp_path / "manifest.json").write_text("{not json")
    plan = plan_adopt_dlm(tmp_path)
    assert plan.entries == ()
    assert "unreadable" in plan.left_out[0].reason
    assert all("--digest" in left.reason for left in plan.left_out[1:])
    named = plan_adopt_dlm(tmp_path, digests={SHA[:12]: "ours"})
    assert [entry.key for entry in named.entries] == [CacheKey(key.section_id, "ours", 512) for key in KEYS]
    with pytest.raises(precook.PrecookError, match="no digest"):
        plan_adopt_dlm(tmp_path, digests={"3c": "ours"})


def test_files_that_are_no_tokens_are_left_out(tmp_path: Path, path: Path) -> None:
    """A torn file, a lacking array, another length: each is named, and the others are adopted."""
    bad = {
        "torn": {},
        "lacking": {},
        "lengths": {"attention_mask": np.ones(3)},
        "floats": {"input_ids": np.ones(2048, np.float32)},
    }
    for name, arrays in bad.items():
        file = section(tmp_path, CacheKey(name, SHA, 8), **arrays)
        if name == "torn":
            file.write_bytes(file.read_bytes()[:50])
        if name == "lacking":
            np.savez_compressed(file, input_ids=np.arange(3))
    section(tmp_path, KEYS[0])
    manifest(tmp_path, [])
    ended = run("adopt", tmp_path, "--store", path, "--yes", "--json")
    assert ended.code == 3
    assert ended.document["sections"] == 1
    assert {Path(left["path"]).name.partition(".")[0] for left in ended.document["left_out"]} == set(bad)
    with TokenizedCache.open(path) as cache:
        assert cache.get(KEYS[0]) is not None
        assert cache.get(CacheKey("torn", SHA, 8)) is None


def test_pictures_are_adopted_for_the_processor_that_is_named(tmp_path: Path, path: Path) -> None:
    """Under dlm's own digest, or under the one that keys have since the import was changed."""
    old, blob = tmp_path / "old", "ab" * 32
    key = VlCacheKey(blob, SHA, 224, 336)
    pixels = np.random.default_rng(0).normal(size=(1, 3, 4, 4)).astype(np.float32)
    picture(old, key, pixels)
    picture(old, VlCacheKey(blob, "9" * 64, 224, 336), pixels)
    picture(old, VlCacheKey("cd" * 32, SHA, 224, 336), pixels * np.nan)
    ended = run("adopt", old, "--store", path, "--digest", f"{SHA}=ours", "--yes", "--json")
    assert ended.code == 3
    assert ended.document["pictures"] == 1
    reasons = sorted(left["reason"] for left in ended.document["left_out"])
    assert "not finite" in reasons[0]
    assert "--digest" in reasons[1]
    with VlCache(path) as cache:
        assert np.array_equal(cache.get(VlCacheKey(blob, "ours", 224, 336)), pixels)
        assert cache.get(key) is None


def test_what_is_there_already_stays(tmp_path: Path, path: Path) -> None:
    """Adopting is no reason to replace what was tokenized since; twice is as good as once."""
    section(tmp_path, KEYS[0])
    manifest(tmp_path, KEYS[:1])
    with TokenizedCache.open(path) as cache:
        cache.put(KEYS[0], CachedTokens(np.arange(3), np.ones(3)))
    for _ in range(2):
        assert run("adopt", tmp_path, "--store", path, "--yes").code == 0
    with TokenizedCache.open(path) as cache:
        found = cache.get(KEYS[0])
        assert found is not None
        assert len(found.input_ids) == 3
        assert cache.entry_count == 1


def test_sections_that_a_full_disk_has_no_room_for_are_not_called_adopted(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training run goes on without its cache; whoever adopts one is told, and keeps the old files."""
    section(tmp_path, KEYS[0])
    manifest(tmp_path, KEYS[:1])
    with precook.open(path) as store:
        plan = plan_adopt_dlm(tmp_path)

        def fail(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files, "publish", fail)
        with pytest.raises(precook.NoSpaceError):
            plan.execute(store)
