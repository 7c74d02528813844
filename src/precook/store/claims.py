"""Claims: who is encoding what, so that two builders share the work instead of doing it twice.

A claim ends by itself after a while, so that nobody waits for a builder that died. Claims save work and nothing else:
two builders that encode the same entry do no harm.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from precook.store.index import Index

SECONDS = 60.0
"""How long a claim holds without being prolonged."""


class Claims:
    """The claims of one builder; to be used by one thread at a time."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._owner = secrets.token_bytes(16)
        self._prolonged = time.monotonic()

    def take(self, keys: Sequence[bytes]) -> set[bytes]:
        """Claim keys; those that are ours now."""
        self._prolonged = time.monotonic()
        return self._index.claim(keys, self._owner, seconds=SECONDS)

    def prolong(self) -> None:
        """Keep what is claimed, if it is time to say so again."""
        if time.monotonic() - self._prolonged > SECONDS / 4:
            self._prolonged = time.monotonic()
            self._index.keep_claims(self._owner, seconds=SECONDS)

    def release(self) -> None:
        """Give everything up."""
        self._index.release_claims(self._owner)
