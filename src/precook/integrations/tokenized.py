"""Token ids of document sections: tokenized once for each section, tokenizer and length."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import NoSpaceError, StoreWriteError
from precook.fs.old_caches import DLM_SECTIONS
from precook.identity.recipe import Recipe
from precook.integrations.front import MISSING, CountingFront, Place
from precook.integrations.processor import processor_digest
from precook.store.store import FLUSH_BYTES, Store
from precook.store.tree import Tree
from precook.values import Key

KIND = "tokenized-sections"
MAX_BYTES = 10 << 30
_MIN_COMMITS = 16
"""A full cache was written in at least so many commits."""
_log = logging.getLogger("precook")
Ids = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What decides a section's tokens."""

    section_id: str
    tokenizer_sha: str
    """`tokenizer_identity` of the tokenizer."""
    sequence_len: int

    def as_filename(self) -> str:
        """What dlm's own cache calls the section's file, as `precook adopt` finds it. Here no file has this name."""
        return f"{self.section_id}.{self.tokenizer_sha[:12]}.seq{self.sequence_len}.npz"

    def shard(self) -> str:
        """The folder in which dlm's own cache has it."""
        return self.section_id[:2]


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """What a tokenizer returned for one section."""

    input_ids: Ids
    attention_mask: Ids


def tokenizer_identity(tokenizer: object) -> str:
    """A digest of everything that decides what a tokenizer returns: class, vocabulary, special tokens, settings.

    Of a class of your own, its code too; what cannot be identified raises `IdentityError`.
    """
    return processor_digest(tokenizer)


tokenizer_sha256 = tokenizer_identity
"""The same under the name that dlm imports."""


class TokenizedCache(CountingFront):
    """Tokens by section, tokenizer and sequence length. Opened with `TokenizedCache.open`.

    >>> import tempfile, numpy
    >>> with TokenizedCache.open(tempfile.mkdtemp() + "/cache") as cache:
    ...     key = CacheKey("section 1", "tokenizer", 512)
    ...     cache.get(key) is None
    ...     cache.put(key, CachedTokens(numpy.array([5, 7]), numpy.array([1, 1])))
    ...     cache.get(key).input_ids.tolist(), cache.hit_rate
    True
    ([5, 7], 0.5)
    """

    def __init__(self, place: Place, *, strict: bool = False, **options: Any) -> None:
        self._strict = strict
        """Whether what there is no room for is an error."""
        if not isinstance(place, Store):
            options = {"max_bytes": MAX_BYTES, "keep_run": True, **options}
            if options["max_bytes"] is not None:
                # What is in one commit comes and goes together: small ones let a small cache be full, and no fuller.
                options.setdefault("flush_bytes", min(FLUSH_BYTES, max(1, options["max_bytes"] // _MIN_COMMITS)))
        super().__init__(place, KIND, old=DLM_SECTIONS, **options)
        self._recipes: dict[str, Recipe] = {}

    @classmethod
    def open(cls, root: Place, **options: Any) -> TokenizedCache:
        """Open the cache in a store; a folder without one becomes a store at the first put.

        The packs in a folder take `max_bytes`, 10 GiB if you do not say otherwise: the least recently used entries
        make room for new ones. What this run has put or read stays, also where that alone is more; the next run that
        puts something makes room.
        """
        return cls(root, **options)

    @property
    def entry_count(self) -> int:
        """Sections in the cache."""
        return sum(entries for _, entries, _ in self.totals().values())

    @property
    def total_bytes(self) -> int:
        """Bytes of their tokens."""
        return sum(nbytes for _, _, nbytes in self.totals().values())

    def get(self, key: CacheKey) -> CachedTokens | None:
        """The tokens under a key, in arrays of the caller's own, or None."""
        tree = self.read(self._key(key))
        if tree is MISSING:
            return None
        return CachedTokens(tree["input_ids"], tree["attention_mask"])

    def put(self, key: CacheKey, tokens: CachedTokens) -> None:
        """Keep the tokens of a section; the first under a key stay."""
        tree = {"input_ids": np.asarray(tokens.input_ids), "attention_mask": np.asarray(tokens.attention_mask)}
        self.write(self._key(key), tree, self._recipe(key.tokenizer_sha))

    def write(self, key: Key, tree: Tree, recipe: Recipe) -> None:
        """Put a tree, if there is room for it."""
        with self._while_there_is_room():
            super().write(key, tree, recipe)

    def flush(self) -> None:
        """Return when everything is durable that there is room for."""
        with self._while_there_is_room():
            super().flush()

    def save_manifest(self, *, tokenizer_sha: str | None = None) -> None:
        """Return when everything put so far is durable, and what was read is noted as used.

        There is no list of entries that would have to be saved, and each section's key has its `tokenizer_sha`.
        """
        del tokenizer_sha
        self.flush()
        self.note_counts()
        self.store.record_uses()

    def prune(self, *, older_than_seconds: float) -> int:
        """Remove the sections that nobody has put or read for so long; how many."""
        return self.remove(older_than=older_than_seconds)

    def clear(self) -> int:
        """Remove every section; how many there were."""
        return self.remove()

    def _key(self, key: CacheKey) -> Key:
        return self._recipe(key.tokenizer_sha).key(key.section_id, sequence_len=key.sequence_len)

    def _recipe(self, tokenizer: str) -> Recipe:
        return self._recipes.setdefault(tokenizer, Recipe(KIND, {"tokenizer": tokenizer}))

    @contextmanager
    def _while_there_is_room(self) -> Iterator[None]:
        """A full cache or disk costs tokenizing again, and is no reason to end a training run."""
        try:
            yield
        except (NoSpaceError, StoreWriteError) as error:
            if self._strict:
                raise
            _log.warning("%s; these sections are not kept", error)
