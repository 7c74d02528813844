"""The store directory: what lies where, and whether a directory is a store at all."""

from __future__ import annotations

import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from precook.errors import NewerFormatError, NotAStoreError, StoreError, printable
from precook.fs.old_caches import name_old_cache
from precook.fs.read import NotAFileError, TooLargeError, read_small
from precook.store import files
from precook.store.format.pack import FORMAT

_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This directory is a precook store: what it holds can be made again.\n"
    "# About this tag: https://bford.info/cachedir/\n"
)
_LINE = re.compile(r'([a-z_]+) = (?:([0-9]{1,9})|"([^"\\\x00-\x1f]*)")')
MAX_MARKER = 64 << 10
_OURS_BEFORE_CREATION = {"CACHEDIR.TAG", "index.lock"}
_RESTORE = "restore store.toml from a backup, or choose another directory"
_LONGEST = 474
"""Most bytes of the path of a store that is written to: SQLite takes 512 with the 8 that it adds to a name itself, and
the longest name that we give it is that of an index in the making."""
_LONGEST_READ = 3900
"""The same of one that is only read: with a name in it, that of a snapshot at the longest, the system takes 4095."""
_PACK = re.compile(r"([0-9a-f]{64})\.safetensors")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names inside a store; pure, apart from the functions below."""

    root: Path

    @property
    def marker(self) -> Path:
        """The file that makes a directory a store."""
        return self.root / "store.toml"

    @property
    def packs(self) -> Path:
        """Where packs lie, spread over 256 directories."""
        return self.root / "packs"

    @property
    def snapshots(self) -> Path:
        """Where snapshots lie, a directory for each dataset."""
        return self.root / "snapshots"

    @property
    def leases(self) -> Path:
        """Where those who use the store say what they need."""
        return self.root / "leases"

    @property
    def index(self) -> Path:
        """The derived database."""
        return self.root / "index.sqlite"

    @property
    def next_index(self) -> Path:
        """A database made anew, while it takes the place of the other one: where it is there, it is the index."""
        return self.root / "index.sqlite.next"

    @property
    def lock(self) -> Path:
        """Held while the index or the marker is written."""
        return self.root / "index.lock"

    @property
    def reserve(self) -> Path:
        """Space that is given back when the disk is full."""
        return self.root / "reserve"

    @property
    def maintenance(self) -> Path:
        """Held while entries are removed or moved: one at a time."""
        return self.root / "maintenance.lock"

    @property
    def changed(self) -> tuple[Path, ...]:
        """The files that everybody writes to who writes to the store: the index with SQLite's own, and the locks."""
        index = (self.index.with_name(self.index.name + ending) for ending in ("", "-wal", "-shm"))
        return (*index, self.lock, self.maintenance)

    def pack(self, pack_id: str) -> Path:
        """The file of a pack."""
        return self.packs / pack_id[:2] / f"{pack_id}.safetensors"

    def written(self, pack_id: str) -> Path:
        """The file whose time says when a pack was written."""
        return self.pack(pack_id)


@dataclass(frozen=True, slots=True)
class Marker:
    """What store.toml says."""

    format: int
    id: str
    """Random, so that an index copied from another store is noticed."""
    created: str


def check_path(layout: Layout, *, read_only: bool) -> None:
    """Refuse a place whose path is too long for what would be made there; nothing is looked at but the path."""
    try:
        # With and without links: SQLite goes by the one or by the other.
        paths = os.path.abspath(layout.root), os.path.realpath(layout.root)  # noqa: PTH100
    except FileNotFoundError:
        return  # the working directory is gone, and with it what is relative to it
    nbytes = max(len(os.fsencode(path)) for path in paths)
    limit = _LONGEST_READ if read_only else _LONGEST
    if nbytes > limit:
        hint = "use a shorter path"
        if nbytes <= _LONGEST_READ:
            hint += "; a store there can be read, with read_only=True"
        doing = "read" if read_only else "written to"
        raise StoreError(
            layout.root, f"this path has {nbytes} bytes, a store that is {doing} at most {limit}", hint=hint
        )


def read_marker(layout: Layout) -> Marker | None:
    """The marker of an existing store, None where a store may be made, an error where something else lies."""
    try:
        text = read_small(layout.marker, MAX_MARKER).decode("utf-8")
    except FileNotFoundError:
        if not _is_made(layout):
            return None
        if layout.marker.exists():
            # Another process has made the store since we looked.
            return read_marker(layout)
        raise NotAStoreError(layout.root, "store.toml leads nowhere", hint=_RESTORE) from None
    except NotADirectoryError as error:
        raise NotAStoreError(layout.root, "not a directory") from error
    except (NotAFileError, TooLargeError) as error:
        raise NotAStoreError(layout.root, f"store.toml cannot be read: {error.strerror}", hint=_RESTORE) from error
    except OSError as error:
        # Said about this read, and not about the file: nobody should restore it for that.
        raise files.read_error(layout.marker, error) from error
    except UnicodeDecodeError as error:
        raise NotAStoreError(layout.root, "store.toml is not text", hint=_RESTORE) from error
    return parse_marker(layout.root, text)


def parse_marker(root: Path | str, text: str) -> Marker:
    """The few lines of TOML that precook writes, and nothing else."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise NotAStoreError(root, f"store.toml has a line {line[:60]!a} that precook does not write")
        fields[match[1]] = match[2] if match[2] is not None else match[3]
    if not fields.get("format", "").isdigit():
        raise NotAStoreError(root, "store.toml does not say which format it has")
    version = int(fields["format"])
    if version > FORMAT:
        raise NewerFormatError(root, version, FORMAT)
    return Marker(version, fields.get("id", ""), fields.get("created", ""))


def create_store(layout: Layout) -> Marker:
    """Write the marker of a new store; the caller holds the lock and has seen that there is none."""
    files.publish(layout.root / "CACHEDIR.TAG", [_TAG.encode()])
    marker, text = new_marker("docs/format.md describes it; index.sqlite can be deleted, the rest cannot.")
    files.publish(layout.marker, [text])
    return marker


def new_marker(remark: str) -> tuple[Marker, bytes]:
    """What makes a place a store, and the bytes that say so; `remark` is for people."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    marker = Marker(FORMAT, secrets.token_hex(16), created)
    fields = f'format = {marker.format}\nid = "{marker.id}"\ncreated = "{marker.created}"\n'
    return marker, f"# A precook store. {remark}\n{fields}".encode()


def share_store(layout: Layout) -> None:
    """Share what is ours in the store of a group with the others: what was made before its directory was shared."""
    if files.is_shared(layout.root):
        for folder in (layout.packs, layout.snapshots, layout.leases):
            files.share_again(folder)
        for path in (
            *layout.changed,
            *(folder / name for folder in (layout.packs, layout.snapshots) for name in list_names(folder)),
        ):
            files.share_again(path)


def list_packs(layout: Layout) -> tuple[set[str], list[Path]]:
    """Ids of the packs that lie in the store, and the partial files beside them."""
    ids: set[str] = set()
    partials: list[Path] = []
    # Plain strings: a large store has tens of thousands of packs, and this is most of what opening it costs.
    for folder in list_names(layout.packs):
        if len(folder) != 2:  # noqa: PLR2004
            continue
        for name in list_names(layout.packs / folder):
            match = _PACK.fullmatch(name)
            if match is not None and name.startswith(folder):
                ids.add(match[1])
            elif name.endswith(files.PARTIAL):
                partials.append(layout.packs / folder / name)
    return ids, partials


def list_names(folder: Path) -> list[str]:
    """The names in a folder; none where there is no such folder."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - one call that either tells all of them or fails
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # Not as if nothing were there: what is not listed counts as gone.
        raise files.read_error(folder, error) from error


def _is_made(layout: Layout) -> bool:
    """Whether a directory has a marker after all; an error where something else lies."""
    root = layout.root
    try:
        names = {path.name for path in root.iterdir()}
    except FileNotFoundError:
        return False
    except NotADirectoryError as error:
        raise NotAStoreError(root, "not a directory") from error
    except OSError as error:
        raise files.read_error(root, error) from error
    if layout.marker.name in names:
        return True
    foreign = {name for name in names - _OURS_BEFORE_CREATION if not name.endswith(files.PARTIAL)}
    if "packs" in foreign and "index.sqlite" in foreign:
        raise NotAStoreError(root, "packs without store.toml", hint=_RESTORE)
    if foreign:
        old = name_old_cache(root)
        if old is not None:
            raise NotAStoreError(root, f"not a store: it holds {old.what} ({printable(old.found)})", hint=old.adopt)
        raise NotAStoreError(root, f"not a store: it holds {min(foreign)!a} and no store.toml")
    return False
