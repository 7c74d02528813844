"""Everything precook can complain about.

    PrecookError
    ├── ConfigError              a config that cannot be used
    ├── IdentityError            a value that cannot be identified (also a TypeError)
    ├── SourceError              a source that cannot be read
    │   └── SourceChangedError   ... because it changed meanwhile
    ├── TreeError                a tree that cannot be stored (also a TypeError)
    ├── IncompleteError          a plan that is not fully built
    ├── MissingTorchError        a torch tensor is asked for and torch is not installed
    ├── EncodeError              an encoder that broke its promise
    ├── StoppedError             a build that was told to stop
    ├── FeedError                a batch that cannot be made, or a state that belongs to another feed
    ├── BundleError              an archive that is not what `precook export` wrote
    ├── MissingEntryError        no entry under that key (also a KeyError)
    │   └── DamagedEntryError    ... because its bytes are not what was put
    └── StoreError
        ├── NoStoreError         nothing there
        ├── NoSnapshotError      no snapshot of that dataset
        ├── SnapshotEntriesError ... or one that names entries that are damaged or missing
        ├── NotAStoreError       something else is there
        ├── NewerFormatError     made by a newer precook
        ├── LockedError          somebody else holds the lock, or there are no locks
        ├── LostLeaseError       our lease was broken by force
        ├── NoLeaseError         no such lease
        ├── PinnedError          a pinned snapshot is not removed
        ├── ReadOnlyError        writing is not allowed here
        ├── AccessError          a bucket refused the credentials, or they lack a right
        ├── UnreachableError     a bucket did not answer for as long as we wait
        ├── NoSpaceError         the disk or the quota is full
        │   └── StoreFullError   ... or the store has reached its max_bytes
        ├── StoreReadError       the system refused a read
        ├── StoreWriteError      the disk refused a write
        ├── DamagedPackError     a pack that is not what its name says
        └── ClosedStoreError     used after close, or across a fork

An error carries its facts as attributes, a `hint` with the next step, and the `exit_code` of the command line. All exit
codes stand here, also those of commands that end without an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precook.values import Key

FAILED = 1
"""It was not done, or `precook doctor` found a problem."""
WRONG_USAGE = 2
SOME_FAILED = 3
"""Everything was tried, and some of it could not be made."""
DAMAGED = 4
"""Bytes are not what was put, or a source is not what was remembered of it; repaired or not."""
NO_STORE = 10
LOCKED = 11
NEWER_FORMAT = 12
READ_ONLY = 13
NO_SPACE = 14
"""The disk is full, a size cannot be reached, or a bucket did not answer for as long as we wait."""
INTERRUPTED = 130
"""As a shell tells of a process that SIGINT ended."""
BROKEN_PIPE = 141
"""As a shell tells of a process that SIGPIPE ended: whoever read our output has stopped reading."""


class PrecookError(Exception):
    """Base of every error of ours."""

    hint: str = ""
    exit_code: int = FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing wrong with a config: its place, the line it stands on if that is known, and the next step."""

    where: str
    """Such as `encoders.latent.dtyp`; empty for the file as a whole."""
    line: int | None
    message: str
    hint: str = ""

    def told(self, file: Path | None) -> str:
        """The problem as one line, without its hint: `precook.yaml:12: encoders.latent: …`."""
        place = "" if file is None else printable(file) if self.line is None else f"{printable(file)}:{self.line}"
        return ": ".join(part for part in (place, self.where, self.message) if part)


class ConfigError(PrecookError):
    """A config that cannot be used; `problems` is everything wrong with it, and the first one is the message."""

    exit_code = WRONG_USAGE

    def __init__(self, *problems: ConfigProblem, file: Path | None = None) -> None:
        first = problems[0]
        super().__init__(first.told(file), hint=first.hint)
        self.problems = problems
        self.file = file
        self.line = first.line
        self.where = first.where

    def __str__(self) -> str:
        more = len(self.problems) - 1
        return super().__str__() + (f"; and {more} more problem{'s' if more > 1 else ''}" if more else "")


class IdentityError(PrecookError, TypeError):
    """A value whose identity cannot be stated; `where` is its place inside what was given."""

    exit_code = WRONG_USAGE

    def __init__(self, where: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.where = where


class SourceError(PrecookError):
    """A source that cannot be read."""

    def __init__(self, path: Path, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{printable(path)}: {message}", hint=hint)
        self.path = path


class SourceChangedError(SourceError):
    """A source that changed while it was being read."""

    hint = "try again when nothing writes to it"

    def __init__(self, path: Path) -> None:
        super().__init__(path, "changed while it was being read")


class TreeError(PrecookError, TypeError):
    """A tree that cannot be stored; `where` is the path of the offending part."""

    exit_code = WRONG_USAGE

    def __init__(self, where: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{where}: {message}", hint=hint)
        self.where = where


class IncompleteError(PrecookError):
    """A plan that is not fully built and cannot be frozen."""

    hint = "build what is missing first"


class MissingTorchError(PrecookError):
    """An entry holds torch tensors and torch is not installed here."""

    hint = 'install precook[torch], or read with tensors="numpy"'

    def __init__(self) -> None:
        super().__init__("this entry holds torch tensors and torch is not installed")


class EncodeError(PrecookError):
    """An encoder that returned something else than it promised; nothing of that batch was stored."""


class BundleError(PrecookError):
    """An archive that is not what `precook export` wrote; nothing of it was taken."""

    hint = "get the archive again from whoever made it; the store is as it was"
    exit_code = DAMAGED

    def __init__(self, archive: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{printable(archive)}: {reason}", hint=hint)
        self.archive = archive
        self.reason = reason


class FeedError(PrecookError):
    """A batch that cannot be made as asked, or a state that does not belong to this feed."""


class StoppedError(PrecookError):
    """A build that was told to stop before it was done; what was made is kept."""

    hint = "start again to go on"
    exit_code = INTERRUPTED


class MissingEntryError(PrecookError, KeyError):
    """No entry is stored under this key."""

    def __init__(self, key: Key, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or f"no entry {key.hex}", hint=hint)
        self.key = key


class DamagedEntryError(MissingEntryError):
    """An entry whose bytes are not what was put: a miss that says so."""

    hint = "encode it again; `precook verify` lists every damaged entry"
    exit_code = DAMAGED

    def __init__(self, key: Key, pack: Path, reason: str) -> None:
        super().__init__(key, f"entry {key.hex} in {printable(pack)} is damaged: {reason}")
        self.pack = pack
        self.reason = reason


class StoreError(PrecookError):
    """Something about the store as a whole."""

    def __init__(self, path: Path | str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{printable(path)}: {message}", hint=hint)
        self.path = Path(path)
        """The store, or a file of it; of a URL, what a path makes of it."""
        self.reason = message


class NoStoreError(StoreError):
    """There is no store at this place."""

    hint = "check the path, or write a first entry to create one"
    exit_code = NO_STORE

    def __init__(self, path: Path | str, message: str = "no store there", *, hint: str | None = None) -> None:
        super().__init__(path, message, hint=hint)


class NoSnapshotError(StoreError):
    """The store has no snapshot of this dataset."""

    hint = "build the dataset to the end; `precook status` lists the snapshots there are"

    def __init__(self, path: Path | str, dataset: str) -> None:
        super().__init__(path, f"no snapshot of {printable(dataset)!r}")
        self.dataset = dataset


class SnapshotEntriesError(StoreError):
    """Entries that a snapshot names are damaged or missing; `entries` lists them, each with the reason."""

    hint = "`precook verify --repair` drops what is damaged; then build the dataset again"
    exit_code = DAMAGED

    def __init__(self, path: Path | str, dataset: str, entries: tuple[tuple[Key, str], ...]) -> None:
        few = "; ".join(f"{key.hex[:16]}…: {reason}" for key, reason in entries[:5])
        more = f"; and {len(entries) - 5:,} more" if len(entries) > 5 else ""  # noqa: PLR2004 - a few say enough
        named = f"{len(entries):,} entries that {printable(dataset)} needs cannot be read"
        super().__init__(path, f"{named}: {few}{more}")
        self.dataset = dataset
        self.entries = entries


class NotAStoreError(StoreError):
    """This directory holds something that is not a store."""

    hint = "choose an empty or a new directory"
    exit_code = NO_STORE


class NewerFormatError(StoreError):
    """This store, or a pack in it, was made by a newer precook."""

    hint = "upgrade precook; nothing was changed"
    exit_code = NEWER_FORMAT

    def __init__(self, path: Path | str, found: int, known: int) -> None:
        super().__init__(path, f"format {found}, this precook knows formats up to {known}")
        self.found = found
        self.known = known


class LockedError(StoreError):
    """Somebody else held a lock for longer than we waited, or the file system has no locks."""

    hint = "wait for the other process, or look for one that hangs"
    exit_code = LOCKED


class LostLeaseError(StoreError):
    """A lease that we hold was broken by force: what it protected may be gone, and there is no safe way to go on."""

    hint = "start again; do not break the leases of what still runs"


class NoLeaseError(StoreError):
    """No lease, or more than one, has an id that begins so."""

    hint = "`precook leases` lists them"

    def __init__(self, path: Path, prefix: str, found: int) -> None:
        super().__init__(path, f"{found or 'no'} leases begin with {printable(prefix)!r}")
        self.prefix = prefix


class PinnedError(StoreError):
    """A snapshot that is pinned and therefore stays."""

    hint = "unpin it first"


class ReadOnlyError(StoreError):
    """Writing is not allowed: opened read-only, a read-only mount, or missing permission."""

    hint = "open a store you may write to"
    exit_code = READ_ONLY


class AccessError(StoreError):
    """A bucket refused the credentials, or they lack a right; no secret is part of the message."""

    hint = "look at the credentials in the environment, and at the rights they have"
    exit_code = READ_ONLY


class UnreachableError(StoreError):
    """A bucket did not answer for as long as we wait; what was committed before is unharmed."""

    hint = "look whether the server runs and can be reached, then start again: what was committed is there"
    exit_code = NO_SPACE


class NoSpaceError(StoreError):
    """The disk or the quota is full; what was stored before is unharmed."""

    hint = "free some space and try again"
    exit_code = NO_SPACE


class StoreFullError(NoSpaceError):
    """The store has reached its `max_bytes` and nothing in it may be evicted; nothing was written."""

    hint = "raise max_bytes, or let go of what protects the rest; `precook evict` shows what does"


class StoreReadError(StoreError):
    """The operating system refused a read for a reason that says nothing about the bytes."""

    hint = "mend the cause, then try again"


class StoreWriteError(StoreError):
    """The operating system refused a write; what was stored before is unharmed."""

    hint = "look at the disk's health, then try again"


class DamagedPackError(StoreError):
    """A pack that is not what its name says: none of its entries is used."""

    hint = "run `precook verify`; its entries will be encoded again"
    exit_code = DAMAGED


class ClosedStoreError(StoreError):
    """A store or writer used after it was closed, or in a process forked from the one that opened it."""

    hint = "open it again"


def printable(text: object) -> str:
    """`text` with everything that could steer a terminal or forge a line escaped."""
    return "".join(
        char if char.isprintable() and not "\ud800" <= char <= "\udfff" else char.encode("unicode_escape").decode()
        for char in str(text)
    )
