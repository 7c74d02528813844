"""Reads that the system refuses: once, as a cable that comes loose does, or for as long as a test likes."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock


class Refusals:
    """Counts every opening and every read of some files, and refuses those with some numbers; None refuses all.

    With a `sector`, a byte of the files, only reads of it count.
    """

    def __init__(
        self,
        files: Collection[Path],
        at: Collection[int] | None = (),
        error: int = errno.EIO,
        *,
        sector: int | None = None,
    ) -> None:
        self.count = 0
        self._sector = sector
        self._files = {str(file) for file in files}
        self._at = at
        self._error = error
        self._open: dict[int, str] = {}
        """The files' descriptors."""

    @contextlib.contextmanager
    def active(self) -> Iterator[Refusals]:
        """Refuse what is asked for meanwhile, in this process."""
        with contextlib.ExitStack() as stack:
            for name in ("open", "pread", "preadv"):
                stack.enter_context(mock.patch.object(os, name, self._patched(name, getattr(os, name))))
            yield self

    def _patched(self, name: str, call: Any) -> Any:
        def patched(subject: Any, *args: Any, **options: Any) -> Any:
            file = self._file(name, subject)
            if file is not None and self._is_meant(name, args):
                self.count += 1
                if self._at is None or self.count in self._at:
                    raise OSError(self._error, os.strerror(self._error), file)
            result = call(subject, *args, **options)
            if name == "open":
                # Also of other files: a number is given again when its file was closed.
                self._open[result] = str(subject)
            return result

        return patched

    def _is_meant(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether a call counts."""
        if self._sector is None or name == "open":
            return self._sector is None
        what, offset = args
        size = what if name == "pread" else sum(memoryview(buffer).nbytes for buffer in what)
        return bool(offset <= self._sector < offset + size)

    def _file(self, name: str, subject: Any) -> str | None:
        """The file that is asked for, if it is one of ours."""
        path = str(subject) if name == "open" else self._open.get(subject, "")
        return path if path in self._files else None
