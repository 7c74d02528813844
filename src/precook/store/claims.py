"""Claims: who is encoding what, so that two builders share the work instead of doing it twice.

A claim ends by itself after a while, so that nobody waits for a builder that died. Claims save work and nothing else:
two builders that encode the same entry do no harm.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Sequence
from types import TracebackType

from precook import threads
from precook.errors import StoreError
from precook.store.index.index import Index

_log = logging.getLogger("precook")

SECONDS = 10.0
"""How long a claim holds without being prolonged: so long a build may wait for one that was killed."""


class Claims:
    """The claims of one builder; a context manager that prolongs them while it lasts and gives them up at its end.

    A thread of its own prolongs them: a model may take minutes to load, and so may a batch.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._owner = secrets.token_bytes(16)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, keys: Sequence[bytes], *, done: Sequence[bytes] = ()) -> set[bytes]:
        """Claim keys, and give up those that are done; the keys that are ours now."""
        if self._thread is None:
            thread = threading.Thread(target=self._prolong, name="precook-claims", daemon=True)
            threads.start(thread)
            self._thread = thread
        return self._index.claim(keys, self._owner, seconds=SECONDS, done=done)

    def release(self) -> None:
        """Give everything up."""
        if self._thread is None:
            return  # nothing was claimed
        try:
            self._index.release_claims(self._owner)
        except StoreError as error:
            _log.warning("claims could not be given up and end by themselves: %s", error)

    def __enter__(self) -> Claims:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.release()

    def _prolong(self) -> None:
        while not self._over.wait(SECONDS / 4):
            try:
                self._index.keep_claims(self._owner, seconds=SECONDS)
            except StoreError as error:
                # Others may do some of our work again, nothing worse.
                _log.warning("claims could not be prolonged: %s", error)
