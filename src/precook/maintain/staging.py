"""Staging: where the packs of an archive wait, unused, until the whole of it has passed.

`imports/<digest>/` in the store, named after the archive's manifest, so that an import that was interrupted finds what
had passed. One that failed its checks leaves nothing; one that nobody goes on with is removed after a week.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from blake3 import blake3

from precook.errors import LockedError, StoreError, printable
from precook.fs.trust import clock
from precook.store import files
from precook.store.internals import StoreInternals
from precook.store.packfile import Guard, PackFile

FOLDER = "imports"
_LEFT = 7 * 86400
"""Seconds after which what nobody went on with is removed."""


class Staging:
    """The folder of one archive, held by one import at a time; a context manager."""

    def __init__(self, internals: StoreInternals, digest: str) -> None:
        self._root = internals.layout.root
        self._directories = internals.directories
        self._home = self._root / FOLDER
        self.folder = self._home / digest
        self._descriptor = -1

    def __enter__(self) -> Staging:
        with files.explained(self._root):
            if self._home.is_symlink():
                # What lies behind it is not ours to remove.
                raise StoreError(self._root, f"{FOLDER} is a link", hint=f"remove it: rm {printable(self._home)}")
            self._sweep()
            while self._descriptor < 0:
                # Made anew where somebody has removed it since: what another import has finished or refused.
                self._home.mkdir(exist_ok=True)
                self.folder.mkdir(exist_ok=True)
                self._hold()
            try:
                files.sync_directory(self._root)
                files.sync_directory(self._home)
                for left in self.folder.glob(f"*{files.PARTIAL}"):
                    left.unlink()
            except BaseException:
                self._let_go()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()

    def pack(self, name: str) -> Path:
        """Where a pack waits that has passed."""
        return self.folder / f"{name}.safetensors"

    def has(self, name: str, nbytes: int) -> bool:
        """Whether a pack of this size has passed before."""
        try:
            return self.pack(name).stat().st_size == nbytes
        except FileNotFoundError:
            return False

    def receive(self, name: str, pieces: Iterator[bytes], check: Callable[[PackFile, str], None]) -> None:
        """Write a pack; it gets its name when it is durable and `check`, given it and its BLAKE3, does not object."""
        partial = self.folder / f"{name}.{secrets.token_hex(4)}{files.PARTIAL}"
        hasher = blake3()
        with files.explained(self._root):
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                for piece in pieces:
                    hasher.update(piece)
                    with files.explained(self._root):
                        files.write_all(descriptor, [piece])
                with files.explained(self._root):
                    files.sync_file(descriptor)
            finally:
                os.close(descriptor)
            check(PackFile(partial, name, Guard()), hasher.hexdigest())
            with files.explained(self._root):
                os.rename(partial, self.pack(name))  # noqa: PTH104 - the order of writes stands here by name
                files.sync_directory(self.folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)  # noqa: PTH108
            raise

    def remove(self) -> None:
        """Remove everything that waits here."""
        with files.explained(self._root):
            shutil.rmtree(self.folder)
            with contextlib.suppress(OSError):
                self._home.rmdir()  # another import may be at work in it

    def _let_go(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1

    def _hold(self) -> None:
        try:
            descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                self._descriptor = descriptor
                return
        except BlockingIOError:
            os.close(descriptor)
            raise LockedError(self.folder, "another process imports this archive") from None
        os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what imports that nobody went on with have left."""
        if not self._home.is_dir():
            return
        now = clock(self._root) / 1e9
        for folder in self._home.iterdir():
            if folder == self.folder or folder.is_symlink() or now - folder.stat().st_mtime < _LEFT:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            finally:
                os.close(descriptor)
