"""A disk under the strictest reading of POSIX: what is sure to survive a power cut, and what may.

- What was written to a file is durable once that file was synced after the write, and not before.
- A name (create, rename, link, unlink, mkdir) is durable once its directory was synced after it. Syncing a new file
  does not make its name durable.
- Of what is not durable, any part may survive, in any combination: names without data, sizes without data, data without
  names, single pages of one write. One rename inside a directory is atomic; across directories it is two changes.
- A sync of a file that failed loses what it was to keep: the kernel marks the pages clean, and a later sync of the same
  file returns success without them. Names wait for the next sync of their directory: no program could do them again.
"""

from __future__ import annotations

import enum
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .trace import Kind, Operation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PAGE = 4096
_SECTOR = 512
_RENAME_EXCHANGE = 2


class UnmodelledError(Exception):
    """The trace holds something whose fate in a power cut this model cannot tell."""


@dataclass(frozen=True)
class Write:
    """Bytes put at an offset; extends the file where it has to."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Resize:
    """A new size: cut off, or filled with zeros."""

    size: int
    shrinks: bool = True


@dataclass(eq=False)
class File:
    """A file: what a power cut cannot take, and the changes since."""

    durable: bytes = b""
    pending: list[Write | Resize] = field(default_factory=list)


@dataclass(frozen=True)
class Link:
    """A symbolic link: it has no content apart from its name."""

    target: str


@dataclass(frozen=True)
class Alias:
    """A further name of the file at `path`."""

    path: str


@dataclass(eq=False)
class Directory:
    """A directory: its names as programs see them, those a power cut cannot take, and the changes since."""

    live: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[Names] = field(default_factory=list)


Node = File | Directory | Link

Names = tuple[tuple[str, Node | None], ...]
"""Names of one directory that change together; None takes a name away."""

Tree = dict[str, bytes | Link | Alias | None]
"""A crash state: what lies at each path, parents first; None stands for a directory."""


class Survivors(enum.Enum):
    """Which of the changes that were not durable survive."""

    NOTHING = "nothing unsynced survives"
    EVERYTHING = "everything survives"
    NAMES = "names survive, data does not"
    SIZES = "names and sizes survive, data is zeros"
    DATA = "data survives, names do not"
    CHOSEN = "data and some names survive"
    RANDOM = "a random part survives"


class Disk:
    """What programs see and what the disk is sure to hold, after each operation of a trace."""

    def __init__(self, start: Path) -> None:
        self._directories: list[Directory] = []
        self._root = self._load(start)
        self._inodes: dict[int, Node] = {}
        self._handlers = {
            Kind.OPEN: self._open,
            Kind.WRITE: self._write,
            Kind.SIZE: self._size,
            Kind.ALLOCATE: self._allocate,
            Kind.RENAME: self._change_name,
            Kind.LINK: self._link,
            Kind.SYMLINK: self._symlink,
            Kind.MKDIR: self._mkdir,
            Kind.UNLINK: self._remove,
            Kind.RMDIR: self._remove,
        }

    def apply(self, operation: Operation, *, lying: bool = False) -> None:
        """Take one operation into account. A lying disk answers syncs and does nothing."""
        if operation.kind is Kind.SYNC:
            if not lying:
                self._sync(operation)
        elif operation.kind is Kind.MAP:
            # SQLite's wal-index: rebuilt by whoever opens the database first, never read after a crash.
            if not operation.path.endswith("-shm"):
                message = f"{operation.path} is written through a shared mapping"
                raise UnmodelledError(message)
        elif operation.result >= 0 and operation.kind in self._handlers:
            self._handlers[operation.kind](operation)

    @property
    def unsynced(self) -> list[Names]:
        """Every change of names that may be lost, in no particular order."""
        return [names for directory in self._directories for names in directory.pending]

    def crash(self, survivors: Survivors, seed: str = "", lost: Collection[Names] = ()) -> Tree:
        """A state the disk may be in if the power is cut now.

        `seed` picks one of the random states; `lost` are the changes of names that a chosen state is without.
        """
        rng = random.Random(seed)
        # Cuts are rarely fair: most states that break something lose almost nothing, or keep almost nothing.
        odds = rng.choice((0.1, 0.5, 0.9))
        tree: Tree = {}
        seen: dict[int, str] = {}
        # By identity: the same change may have been made twice, and one of the two be lost.
        without = {id(names) for names in lost}

        def walk(directory: Directory, prefix: str) -> None:
            for name, node in sorted(_names(directory, survivors, rng, odds, without).items()):
                path = prefix + name
                if isinstance(node, Directory):
                    tree[path] = None
                    walk(node, f"{path}/")
                elif isinstance(node, Link):
                    tree[path] = node
                elif id(node) in seen:
                    tree[path] = Alias(seen[id(node)])
                else:
                    seen[id(node)] = path
                    tree[path] = _content(node, survivors, rng, odds)

        walk(self._root, "")
        return tree

    def _open(self, operation: Operation) -> None:
        if operation.a & os.O_TMPFILE == os.O_TMPFILE:
            self._inodes[operation.inode] = File()
        elif not operation.b:
            created = self._inodes[operation.inode] = File()
            directory, name = self._place(operation.path)
            _change(directory, (name, created))
        else:
            node = self._inodes[operation.inode] = self._find(operation.path)
            if operation.a & os.O_TRUNC and isinstance(node, File):
                node.pending.append(Resize(0))

    def _write(self, operation: Operation) -> None:
        self._file(operation).pending.append(Write(operation.a, operation.data))

    def _size(self, operation: Operation) -> None:
        self._file(operation).pending.append(Resize(operation.a))

    def _allocate(self, operation: Operation) -> None:
        if operation.b:
            message = f"fallocate mode {operation.b} on {operation.path}"
            raise UnmodelledError(message)
        self._file(operation).pending.append(Resize(operation.a, shrinks=False))

    def _sync(self, operation: Operation) -> None:
        failed = operation.result < 0
        node = self._find(operation.path) if operation.b else self._file(operation)
        if isinstance(node, Directory):
            if not failed:
                for names in node.pending:
                    _rename(node.durable, names)
                node.pending.clear()
        elif isinstance(node, File):
            node.durable = _content(node, Survivors.SIZES if failed else Survivors.EVERYTHING, random.Random(), 1.0)
            node.pending.clear()

    def _change_name(self, operation: Operation) -> None:
        if operation.a & _RENAME_EXCHANGE:
            message = f"names exchanged: {operation}"
            raise UnmodelledError(message)
        old, old_name = self._place(operation.path)
        new, new_name = self._place(operation.other)
        node = old.live[old_name]
        if new.live.get(new_name) is node:
            return  # POSIX: two names of one file, rename does nothing
        if old is new:
            _change(old, (old_name, None), (new_name, node))
        else:
            _change(new, (new_name, node))
            _change(old, (old_name, None))

    def _link(self, operation: Operation) -> None:
        # A file without a name is linked through /proc/self/fd, which says nothing; its inode does.
        node = self._inodes.get(operation.inode) or self._find(operation.path)
        directory, name = self._place(operation.other)
        _change(directory, (name, node))

    def _symlink(self, operation: Operation) -> None:
        directory, name = self._place(operation.path)
        _change(directory, (name, Link(operation.other)))

    def _mkdir(self, operation: Operation) -> None:
        directory, name = self._place(operation.path)
        _change(directory, (name, self._new_directory()))

    def _remove(self, operation: Operation) -> None:
        directory, name = self._place(operation.path)
        _change(directory, (name, None))

    def _load(self, place: Path) -> Directory:
        """All that is there before the trace begins is taken to be durable."""
        directory = self._new_directory()
        for child in place.iterdir():
            node: Node
            if child.is_symlink():
                node = Link(os.readlink(child))
            elif child.is_dir():
                node = self._load(child)
            else:
                node = File(child.read_bytes())
            directory.live[child.name] = directory.durable[child.name] = node
        return directory

    def _new_directory(self) -> Directory:
        directory = Directory()
        self._directories.append(directory)
        return directory

    def _file(self, operation: Operation) -> File:
        # By inode first: the file may have been renamed or unlinked since it was opened. A number that is used again
        # belongs to a file whose creation we saw, so the entry is never stale.
        node = self._inodes.get(operation.inode)
        if node is None:
            node = self._inodes[operation.inode] = self._find(operation.path)
        if not isinstance(node, File):
            message = f"not a file: {operation}"
            raise UnmodelledError(message)
        return node

    def _find(self, path: str) -> Node:
        node: Node = self._root
        for name in Path(path).parts:
            if not isinstance(node, Directory) or name not in node.live:
                message = f"{path}: no such file in the model"
                raise UnmodelledError(message)
            node = node.live[name]
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        if Path(path).is_absolute():
            message = f"{path} lies outside of what is watched"
            raise UnmodelledError(message)
        parent = self._find(str(Path(path).parent))
        if not isinstance(parent, Directory):
            message = f"{path}: its parent is no directory in the model"
            raise UnmodelledError(message)
        return parent, Path(path).name


def lay_out(tree: Tree, area: Path) -> None:
    """Make `area`, a new directory, hold exactly `tree`."""
    area.mkdir()
    for path, content in tree.items():
        place = area / path
        if content is None:
            place.mkdir()
        elif isinstance(content, Link):
            place.symlink_to(content.target)
        elif isinstance(content, Alias):
            os.link(area / content.path, place)
        else:
            place.write_bytes(content)


def _change(directory: Directory, *names: tuple[str, Node | None]) -> None:
    """Change names now, for programs; and perhaps for good, later."""
    _rename(directory.live, names)
    directory.pending.append(names)


def _rename(names: dict[str, Node], changes: Names) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _names(
    directory: Directory, survivors: Survivors, rng: random.Random, odds: float, without: set[int]
) -> dict[str, Node]:
    if survivors in (Survivors.NOTHING, Survivors.DATA):
        return directory.durable
    names = dict(directory.durable)
    for changes in directory.pending:
        if id(changes) not in without and (survivors is not Survivors.RANDOM or rng.random() < odds):
            _rename(names, changes)
    return names


def _content(file: File, survivors: Survivors, rng: random.Random, odds: float) -> bytes:
    if not file.pending or survivors in (Survivors.NOTHING, Survivors.NAMES):
        return file.durable
    content = bytearray(file.durable)
    for change in file.pending:
        if isinstance(change, Resize):
            if survivors is not Survivors.RANDOM or rng.random() < odds:
                _resize(content, change)
        elif survivors in (Survivors.EVERYTHING, Survivors.DATA, Survivors.CHOSEN):
            _put(content, change.offset, change.data)
        elif survivors is Survivors.SIZES:
            _resize(content, Resize(change.offset + len(change.data), shrinks=False))
        else:
            for offset, piece in _pieces(change, rng.choice((_PAGE, _PAGE, _SECTOR))):
                if rng.random() < odds:
                    _put(content, offset, piece)
            if rng.random() < odds:  # the new size is metadata, and may survive without the data
                _resize(content, Resize(change.offset + len(change.data), shrinks=False))
    return bytes(content)


def _pieces(write: Write, unit: int) -> Iterator[tuple[int, bytes]]:
    """The parts of a write that reach the disk one by one."""
    at = 0
    while at < len(write.data):
        size = unit - (write.offset + at) % unit
        yield write.offset + at, write.data[at : at + size]
        at += size


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, change: Resize) -> None:
    if len(content) < change.size:
        content.extend(bytes(change.size - len(content)))
    elif change.shrinks:
        del content[change.size :]
