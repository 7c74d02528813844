"""Token ids of document sections: tokenized once for each section, tokenizer and length."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import StoreFullError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.identify import identify
from precook.identity.recipe import Recipe
from precook.integrations.front import MISSING, Front, Place
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


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """What a tokenizer returned for one section."""

    input_ids: Ids
    attention_mask: Ids


def tokenizer_identity(tokenizer: object) -> str:
    """A digest of everything that decides what a tokenizer returns: class, vocabulary, special tokens, settings."""
    return digest(canonical(identify(tokenizer))).hex


class TokenizedCache(Front):
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

    def __init__(self, place: Place, **options: Any) -> None:
        if not isinstance(place, Store):
            options = {"max_bytes": MAX_BYTES, **options}
            if options["max_bytes"] is not None:
                # A commit that does not fit is refused as a whole: small ones let a small cache fill up, too.
                options.setdefault("flush_bytes", min(FLUSH_BYTES, max(1, options["max_bytes"] // _MIN_COMMITS)))
        super().__init__(place, KIND, **options)
        self._hits = 0
        self._misses = 0
        self._recipes: dict[str, Recipe] = {}

    @classmethod
    def open(cls, root: Place, **options: Any) -> TokenizedCache:
        """Open the cache in a store; a folder without one becomes a store at the first put.

        The packs in a folder take `max_bytes` at most, 10 GiB if you do not say otherwise: the least recently used
        entries make room for new ones. What this run has put or read stays; where that fills the cache, the rest of
        the run is not kept, and the log says so.
        """
        return cls(root, **options)

    @property
    def hits(self) -> int:
        """Calls of `get` that found tokens."""
        return self._hits

    @property
    def misses(self) -> int:
        """Calls of `get` that found none."""
        return self._misses

    @property
    def hit_rate(self) -> float:
        """Share of the calls of `get` that found tokens; 0 before the first."""
        asked = self._hits + self._misses
        return self._hits / asked if asked else 0.0

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
            self._misses += 1
            return None
        self._hits += 1
        return CachedTokens(tree["input_ids"], tree["attention_mask"])

    def put(self, key: CacheKey, tokens: CachedTokens) -> None:
        """Keep the tokens of a section; the first under a key stay."""
        tree = {"input_ids": np.asarray(tokens.input_ids), "attention_mask": np.asarray(tokens.attention_mask)}
        self.write(self._key(key), tree, self._recipe(key.tokenizer_sha))

    def write(self, key: Key, tree: Tree, recipe: Recipe) -> None:
        """Put a tree, if there is room for it."""
        with _while_there_is_room():
            super().write(key, tree, recipe)

    def flush(self) -> None:
        """Return when everything is durable that there is room for."""
        with _while_there_is_room():
            super().flush()

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
def _while_there_is_room() -> Iterator[None]:
    """A full cache costs tokenizing again, and is no reason to end a training run."""
    try:
        yield
    except StoreFullError as error:
        _log.warning("%s; these sections are not kept", error)
