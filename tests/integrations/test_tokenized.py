"""Token ids of document sections: the cache as its trainer uses it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.integrations.tokenized import CachedTokens, CacheKey, TokenizedCache, tokenizer_identity
from precook.integrations.vl import VlCache, VlCacheKey
from precook.store import files
from tests.support.commands import run

KEY = CacheKey("section", "tokenizer", 512)


def tokens(*ids: int) -> CachedTokens:
    return CachedTokens(np.array(ids, np.int64), np.ones(len(ids), np.int64))


def same(found: CachedTokens | None, wanted: CachedTokens) -> bool:
    return found is not None and all(
        np.array_equal(getattr(found, part), getattr(wanted, part))
        and getattr(found, part).dtype == getattr(wanted, part).dtype
        for part in ("input_ids", "attention_mask")
    )


def test_a_run_tokenizes_each_section_once(path: Path) -> None:
    """The second run finds every section, counts its hits, and gets the tokens as they were put."""
    sections = {f"section {number}": tokens(*range(number + 1)) for number in range(20)}
    with TokenizedCache.open(path) as cache:
        for section, made in sections.items():
            key = CacheKey(section, "tokenizer", 512)
            assert cache.get(key) is None
            cache.put(key, made)
        assert (cache.hits, cache.misses, cache.hit_rate) == (0, 20, 0.0)
    with TokenizedCache.open(path) as cache:
        assert all(same(cache.get(CacheKey(section, "tokenizer", 512)), made) for section, made in sections.items())
        assert (cache.hits, cache.misses, cache.hit_rate) == (20, 0, 1.0)
        assert cache.entry_count == 20
        assert cache.total_bytes >= sum(2 * made.input_ids.nbytes for made in sections.values())


@pytest.mark.parametrize(
    "other",
    [CacheKey("another", "tokenizer", 512), CacheKey("section", "another", 512), CacheKey("section", "tokenizer", 256)],
)
def test_each_part_of_the_key_counts(path: Path, other: CacheKey) -> None:
    """Another section, tokenizer or length finds nothing of the first."""
    with TokenizedCache.open(path) as cache:
        cache.put(KEY, tokens(1))
        assert cache.get(other) is None
        cache.put(other, tokens(2))
        assert same(cache.get(KEY), tokens(1))
        assert same(cache.get(other), tokens(2))


def test_what_was_put_is_found_at_once(path: Path) -> None:
    """Also before it is durable, and what comes out may be written to."""
    with TokenizedCache.open(path) as cache:
        cache.put(KEY, tokens(1, 2, 3))
        found = cache.get(KEY)
        assert found is not None
        found.input_ids[0] = 9
        assert same(cache.get(KEY), tokens(1, 2, 3))


def test_a_kill_loses_nothing_that_was_flushed(path: Path) -> None:
    """There is no list of entries to be saved at the end of a run: a run that is killed leaves its work."""
    code = """
import os, signal, sys
from tests.integrations.test_tokenized import tokens
from precook.integrations.tokenized import CacheKey, TokenizedCache
cache = TokenizedCache.open(sys.argv[1])
for number in range(50):
    cache.put(CacheKey(f"section {number}", "tokenizer", 512), tokens(number))
cache.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    with TokenizedCache.open(path) as cache:
        assert all(same(cache.get(CacheKey(f"section {n}", "tokenizer", 512)), tokens(n)) for n in range(50))


def test_a_forked_worker_has_a_cache_of_its_own(path: Path) -> None:
    """A data loader's worker puts and finds sections while its parent is about to write its own."""
    with TokenizedCache.open(path) as cache:
        cache.put(KEY, tokens(1))
        other = CacheKey("of the child", "tokenizer", 512)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                cache.put(other, tokens(2))
                status = 0 if same(cache.get(other), tokens(2)) else 1
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert same(cache.get(KEY), tokens(1))
        assert same(cache.get(other), tokens(2))


def test_a_damaged_entry_is_a_miss_that_can_be_mended(path: Path) -> None:
    """A flipped bit is found, counted as a miss, and the section can be put again."""
    with TokenizedCache.open(path) as cache:
        cache.put(KEY, tokens(*range(1000)))
    (pack,) = path.glob("packs/*/*")
    content = bytearray(pack.read_bytes())
    content[-1] ^= 1
    pack.write_bytes(content)
    with TokenizedCache.open(path) as cache:
        assert cache.get(KEY) is None
        assert cache.misses == 1
        cache.put(KEY, tokens(*range(1000)))
        assert same(cache.get(KEY), tokens(*range(1000)))


def test_two_fronts_share_one_store(path: Path) -> None:
    """Tokens and pictures in one store: each front sees its own, and the store all of it."""
    with precook.open(path) as store:
        with TokenizedCache.open(store) as sections, VlCache(store) as pictures:
            sections.put(KEY, tokens(1))
            pictures.put(VlCacheKey("blob", "processor", 8, 8), np.zeros((3, 8, 8), np.float32))
            assert sections.entry_count == 1
        assert len(store) == 2
        assert {recipe.form.split(b'"')[1] for recipe in store.stats().recipes} == {b"tokenized-sections", b"vl-pixels"}


def make_tokenizer(vocabulary: dict[str, int], **options: Any) -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", **options)


def test_a_tokenizer_is_known_by_what_it_does() -> None:
    """Using it changes nothing, a loaded copy is the same one, another vocabulary or side is another."""
    words = {"[UNK]": 0, "a": 1, "cat": 2}
    one = make_tokenizer(words)
    identity = tokenizer_identity(one)
    one("a cat", truncation=True, max_length=1)
    assert tokenizer_identity(one) == identity == tokenizer_identity(make_tokenizer(dict(words)))
    assert tokenizer_identity(make_tokenizer({**words, "dog": 3})) != identity
    assert tokenizer_identity(make_tokenizer(words, truncation_side="left")) != identity


def test_a_swapped_tokenizer_finds_nothing_stale(path: Path) -> None:
    """Tokens of another vocabulary under the same name are never served."""
    old, new = make_tokenizer({"[UNK]": 0, "a": 1}), make_tokenizer({"[UNK]": 0, "a": 2})
    with TokenizedCache.open(path) as cache:
        for tokenizer, wanted in ((old, 1), (new, 2)):
            key = CacheKey("a", tokenizer_identity(tokenizer), 8)
            assert cache.get(key) is None
            cache.put(key, tokens(*tokenizer("a")["input_ids"]))
            assert same(cache.get(key), tokens(wanted))


def test_clear_and_prune_remove_sections_and_nothing_else(path: Path) -> None:
    """Old sections go and young ones stay; what other fronts keep in the store is not touched."""
    with precook.open(path) as store, TokenizedCache.open(store) as cache, VlCache(store) as pictures:
        picture = VlCacheKey("blob", "processor", 8, 8)
        pictures.put(picture, np.zeros(3))
        pictures.flush()
        for tokenizer in ("one", "two"):
            cache.put(CacheKey("section", tokenizer, 8), tokens(1))
        assert cache.prune(older_than_seconds=3600) == 0
        assert cache.entry_count == 2
        assert cache.prune(older_than_seconds=0) == 2
        assert cache.entry_count == 0
        assert cache.clear() == 0
        cache.put(KEY, tokens(1))
        assert cache.clear() == 1
        assert cache.get(KEY) is None
        cache.put(KEY, tokens(1))
        assert same(cache.get(KEY), tokens(1))
        assert pictures.exists(picture)
        assert pictures.clear() == 1
        assert not pictures.exists(picture)
        assert cache.entry_count == 1


def large(seed: int) -> CachedTokens:
    """About 64 KiB of tokens."""
    ids = np.random.default_rng(seed).integers(0, 1000, 4096)
    return CachedTokens(ids, np.ones_like(ids))


def test_the_least_recently_used_sections_make_room(path: Path) -> None:
    """Under a bound, old sections go when new ones come; what this run has read or put stays."""
    bound = 1 << 20
    for first in (0, 4):  # two runs of four, the first one's are used least recently
        with TokenizedCache.open(path, max_bytes=bound) as cache:
            for number in range(first, first + 4):
                cache.put(CacheKey(f"old {number}", "t", 8), large(number))
                cache.flush()
    with TokenizedCache.open(path, max_bytes=bound) as cache:
        assert same(cache.get(CacheKey("old 0", "t", 8)), large(0))
        for number in range(10):
            cache.put(CacheKey(f"new {number}", "t", 8), large(100 + number))
            cache.flush()
        assert all(same(cache.get(CacheKey(f"new {n}", "t", 8)), large(100 + n)) for n in range(10))
        assert same(cache.get(CacheKey("old 0", "t", 8)), large(0))
        left = [n for n in range(1, 8) if cache.get(CacheKey(f"old {n}", "t", 8)) is not None]
        assert len(left) < 7
        assert left == list(range(8 - len(left), 8))
        assert cache.store.stats().pack_bytes <= bound


@pytest.mark.parametrize("flushed", [True, False])
def test_a_run_that_is_larger_than_the_bound_is_kept_whole(path: Path, *, flushed: bool) -> None:
    """Of what this run has put nothing goes, though older sections all do; the next run that puts makes room again."""
    with TokenizedCache.open(path, max_bytes=300_000) as cache:
        cache.put(CacheKey("older", "t", 8), large(99))
    with TokenizedCache.open(path, max_bytes=300_000) as cache:
        for number in range(8):
            cache.put(CacheKey(f"section {number}", "t", 8), large(number))
            if flushed:
                cache.flush()
        assert all(same(cache.get(CacheKey(f"section {n}", "t", 8)), large(n)) for n in range(8))
        assert cache.get(CacheKey("older", "t", 8)) is None
        assert cache.entry_count == 8
    with TokenizedCache.open(path, max_bytes=300_000) as cache:
        cache.put(CacheKey("newer", "t", 8), large(100))
        cache.flush()
        assert cache.store.stats().pack_bytes <= 300_000
        assert cache.get(CacheKey("newer", "t", 8)) is not None


def test_a_bound_that_is_another_stores_is_kept(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a store that its owner has bounded, what does not fit is not kept, the log says so, and the run goes on."""
    with precook.open(path, max_bytes=300_000, flush_bytes=1) as store, TokenizedCache.open(store) as cache:
        for number in range(8):
            cache.put(CacheKey(f"section {number}", "t", 8), large(number))
            cache.flush()
        found = [cache.get(CacheKey(f"section {n}", "t", 8)) is not None for n in range(8)]
    assert found[0]
    assert not found[-1]
    assert "not kept" in caplog.text


def test_a_disk_that_fails_does_not_end_the_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sections that cannot be written are not kept, the log says so, and later ones are."""
    with TokenizedCache.open(path) as cache:

        def fail(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(files, "publish", fail)
            cache.put(KEY, tokens(1))
            assert cache.get(KEY) is None
        assert "not kept" in caplog.text
        cache.put(KEY, tokens(1))
        assert same(cache.get(KEY), tokens(1))


def test_save_manifest_makes_what_was_put_durable(path: Path) -> None:
    """As its trainer ends a run: another object finds everything, though nobody has closed the first."""
    cache = TokenizedCache.open(path, flush_seconds=3600)
    cache.put(KEY, tokens(1, 2))
    cache.save_manifest(tokenizer_sha="tokenizer")
    with TokenizedCache.open(path) as other:
        assert other.root == cache.root == path
        assert other.entry_count == 1
        assert same(other.get(KEY), tokens(1, 2))
    cache.close()


def test_old_names_are_those_of_its_files() -> None:
    """A key says the name and the folder that dlm's own cache would use."""
    key = CacheKey("ab12cd34ef567890", "c" * 64, 2048)
    assert (key.shard(), key.as_filename()) == ("ab", "ab12cd34ef567890.cccccccccccc.seq2048.npz")


def test_the_counts_of_the_last_run_are_shown(path: Path) -> None:
    """`precook status` shows what the last runs found and missed; an object that nobody asked adds nothing."""
    for sections in (2, 3):
        with TokenizedCache.open(path) as cache:
            for number in range(sections):
                key = CacheKey(f"section {number}", "t", 8)
                if cache.get(key) is None:
                    cache.put(key, tokens(number))
            cache.save_manifest()
    with TokenizedCache.open(path) as cache:
        assert cache.entry_count == 3
    runs = run("status", "--store", path, "--json").document["runs"]
    assert [(one["dataset"], one["reused"], one["encoded"]) for one in runs] == [
        ("tokenized-sections", 0, 2),
        ("tokenized-sections", 2, 1),
    ]
    assert [one["hit_rate"] for one in runs] == [0.0, pytest.approx(2 / 3)]
    assert "66.7%" in run("status", "--store", path).out


def test_a_folder_with_dlms_own_files_is_used_beside_them(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever swaps the import has an old cache there: it stays as it is, the log says how to adopt it, once."""
    (path / "entries").mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    for _ in range(2):
        with TokenizedCache.open(path) as cache:
            cache.put(KEY, tokens(1))
            assert cache.root == path
            assert same(cache.get(KEY), tokens(1))
    assert caplog.text.count("sections that dlm has tokenized") == 1
    assert "precook adopt" in caplog.text
    assert sorted(entry.name for entry in path.iterdir()) == ["entries", "manifest.json", "precook"]


def test_options_of_a_store_that_is_open_are_refused(store: precook.Store) -> None:
    """A bound that would be ignored is an error."""
    with pytest.raises(TypeError, match="max_bytes"):
        TokenizedCache.open(store, max_bytes=1 << 20)
