"""Snapshots: frozen lists of samples with their entry keys, enough to train without sources.

A snapshot is a pack of its own with a single entry, so that everything that is checked about packs is checked about
snapshots. It is written once and never changed; the one with the highest number is a dataset's latest.
"""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedPackError, NewerFormatError, NoSnapshotError, PinnedError
from precook.identity.digest import derived_digest
from precook.store import files
from precook.store.format.build import build_pack, make_entry
from precook.store.layout import Layout
from precook.store.packfile import Guard, PackFile, RowDamagedError, damage_reason
from precook.store.reader import build_tree
from precook.store.tree import take_apart
from precook.values import Bytes, Numbers

if TYPE_CHECKING:
    from precook.store.store import Store

FORMAT = 1
_CONTEXT = "precook snapshot 1"
_NAME = re.compile(r"([0-9]{8})-([0-9a-f]{64})\.safetensors")
_DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Small = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FrozenImage:
    """What the config said about cutting pictures."""

    resolutions: list[int | str]
    variations: int
    pick: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Here and below: fields that other writers have added. They survive a copy of the snapshot."""


@dataclass(frozen=True, slots=True)
class FrozenConcept:
    """A concept, and how much of it an epoch shows: `repeats`, or so many `samples`."""

    name: str
    loss_weight: float
    repeats: float
    samples: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrozenEncoder:
    """What made the entries that a batch has under one name."""

    input: str
    """`image`, `text` or `mask`."""
    recipe: str
    """The recipe's canonical form."""
    pad: int | None = None
    """What token ids are padded with, where the tokenizer says it."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class SampleColumns:
    """A row for each sample, in the order of their identities."""

    id: Bytes
    image: Bytes
    """The digest of its picture, which seeds its draws."""
    concept: Small
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PictureColumns:
    """A row for each cut of each picture."""

    sample: Small
    target: Small
    """Resolution and variation."""
    size: Small
    """Height and width."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class LineColumns:
    """A row for each caption."""

    sample: Small
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Texts of any length, as bytes, one after the other."""

    text: Bytes
    ends: Numbers
    """Where each ends."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def join(cls, texts: list[bytes]) -> Texts:
        """The column of these texts."""
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        return cls(np.frombuffer(b"".join(texts), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> bytes:
        return self.text[int(self.ends[row - 1]) if row else 0 : int(self.ends[row])].tobytes()

    def split(self) -> list[bytes]:
        """Every text."""
        return [self[row] for row in range(len(self))]


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotContent:
    """What a snapshot says, as docs/reference/format.md describes it: settings, samples and keys, as columns.

    Of a snapshot that was read, the columns are mapped copy-on-write: whoever writes to one changes its own copy only.
    """

    dataset: str
    image: FrozenImage
    concepts: list[FrozenConcept]
    encoders: dict[str, FrozenEncoder]
    """By their names in the batch."""
    samples: SampleColumns
    pictures: PictureColumns
    picture_keys: dict[str, Bytes]
    """By encoder: the entry of each cut; zeros where a concept has no masks."""
    lines: LineColumns
    line_keys: dict[str, Bytes]
    """By encoder: the entry of each caption."""
    empty_keys: dict[str, Bytes]
    """By encoder: the entry of the empty prompt."""
    paths: Texts | None = None
    """Where `keep` asks for them: the path of each sample's picture."""
    captions: Texts | None = None
    """Where `keep` asks for them: each caption."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kept(self) -> set[str]:
        """Which of the private columns it has."""
        return {name for name in ("paths", "captions") if getattr(self, name) is not None}

    def key_columns(self) -> list[Bytes]:
        """Every column of keys where it lies, with the zeros of masks that nobody has."""
        columns = [*self.picture_keys.values(), *self.line_keys.values()]
        return columns + [key.reshape(1, 32) for key in self.empty_keys.values()]

    def tree(self) -> dict[str, Any]:
        """The tree that is stored. The order of its parts never changes: equal content must give equal bytes."""
        tree = {
            "format": FORMAT,
            "dataset": self.dataset,
            "image": _form(self.image),
            "concepts": [_form(concept) for concept in self.concepts],
            "encoders": {name: _form(encoder) for name, encoder in self.encoders.items()},
            "samples": _form(self.samples),
            "pictures": _form(self.pictures),
            "picture_keys": self.picture_keys,
            "lines": _form(self.lines),
            "line_keys": self.line_keys,
            "empty_keys": self.empty_keys,
        }
        for name in ("paths", "captions"):
            column = getattr(self, name)
            if column is not None:
                tree[name] = _form(column)
        return {**tree, **self.extra}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> SnapshotContent:
        """Read a tree that was stored, whoever wrote it.

        An error of the built-in kinds says what is not as docs/reference/format.md has it.
        """
        content = cls(
            dataset=tree["dataset"],
            image=_part(FrozenImage, tree["image"]),
            concepts=_concepts(tree["concepts"]),
            encoders=_encoders(tree["encoders"]),
            samples=_part(SampleColumns, tree["samples"]),
            pictures=_part(PictureColumns, tree["pictures"]),
            picture_keys=tree["picture_keys"],
            lines=_part(LineColumns, tree["lines"]),
            line_keys=tree["line_keys"],
            empty_keys=tree["empty_keys"],
            paths=_part(Texts, tree["paths"]) if "paths" in tree else None,
            captions=_part(Texts, tree["captions"]) if "captions" in tree else None,
            extra={name: part for name, part in tree.items() if name not in _PARTS},
        )
        if not _fits(content):
            message = "not a snapshot: its columns do not fit together"
            raise ValueError(message)
        return content


_PARTS = {"format", *(part.name for part in fields(SnapshotContent) if part.name != "extra")}
_Part = TypeVar("_Part", bound=Any)


def _part(kind: type[_Part], form: Mapping[str, Any]) -> _Part:
    """One part of the tree; `KeyError` names a field that is not there."""
    own = [one for one in fields(kind) if one.name != "extra"]
    values = {one.name: form[one.name] for one in own if one.default is MISSING or one.name in form}
    names = {one.name for one in own}
    part: _Part = kind(**values, extra={name: value for name, value in form.items() if name not in names})
    return part


def _form(part: Any) -> dict[str, Any]:
    """The same as it is stored; an encoder without a pad has no such field."""
    form = {one.name: getattr(part, one.name) for one in fields(part) if one.name != "extra"}
    if isinstance(part, FrozenEncoder) and part.pad is None:
        del form["pad"]
    return {**form, **part.extra}


def _concepts(forms: object) -> list[FrozenConcept]:
    if isinstance(forms, list) and all(map(_is_concept, forms)):
        return [_part(FrozenConcept, form) for form in forms]
    message = "one of its concepts has no name or no weights"
    raise ValueError(message)


def _is_concept(form: object) -> bool:
    if not isinstance(form, dict) or not isinstance(form.get("name"), str):
        return False
    numbers = [form.get("loss_weight"), form.get("repeats")]
    return all(isinstance(number, int | float) and math.isfinite(number) and number >= 0 for number in numbers)


def _encoders(forms: object) -> dict[str, FrozenEncoder]:
    if isinstance(forms, dict) and all(map(_is_encoder, forms.values())):
        return {name: _part(FrozenEncoder, form) for name, form in forms.items()}
    message = "one of its encoders has no input or no recipe"
    raise ValueError(message)


def _is_encoder(form: object) -> bool:
    if not isinstance(form, dict) or form.get("input") not in ("image", "text", "mask"):
        return False
    return isinstance(form.get("recipe"), str)


def _fits(content: SnapshotContent) -> bool:
    """Whether every column has its type and shape, and every number lies inside what it counts."""
    samples, pictures, lines = content.samples, content.pictures, content.lines
    count, cuts, texts = len(samples.id), len(pictures.sample), len(lines.sample)
    shapes: list[tuple[npt.NDArray[Any], tuple[int, ...], str]] = [
        (samples.id, (count, 32), "u1"),
        (samples.image, (count, 32), "u1"),
        (samples.concept, (count,), "i4"),
        (pictures.sample, (cuts,), "i4"),
        (pictures.target, (cuts, 2), "i4"),
        (pictures.size, (cuts, 2), "i4"),
        (lines.sample, (texts,), "i4"),
        *((keys, (cuts, 32), "u1") for keys in content.picture_keys.values()),
        *((keys, (texts, 32), "u1") for keys in content.line_keys.values()),
        *((key, (32,), "u1") for key in content.empty_keys.values()),
    ]
    if not all(array.shape == shape and array.dtype == np.dtype(kind) for array, shape, kind in shapes):
        return False
    bounds = [(samples.concept, len(content.concepts)), (pictures.sample, count), (lines.sample, count)]
    if not all(column.min(initial=0) >= 0 and column.max(initial=-1) < limit for column, limit in bounds):
        return False
    return set(content.encoders) >= {*content.picture_keys, *content.line_keys, *content.empty_keys}


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """Where a snapshot lies."""

    dataset: str
    number: int
    """Higher ones are newer."""
    id: str
    path: Path
    pinned: bool = False
    """Whether it is kept although a newer one is there."""

    @property
    def pin(self) -> Path:
        """The file beside it that pins it."""
        return self.path.with_suffix(".pin")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A dataset as it was when it was last fully built."""

    file: SnapshotFile
    created: int
    """Unix seconds."""
    content: SnapshotContent
    store: Store | None = field(default=None, compare=False, repr=False)
    """Where its entries lie."""

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.content.samples.id)

    @property
    def encoders(self) -> dict[str, dict[str, Any]]:
        """Input and recipe of each encoder, by its name in the batch, as plain data."""
        return {name: _form(encoder) for name, encoder in self.content.encoders.items()}

    def entry_keys(self) -> Bytes:
        """Every entry that the snapshot needs, each once."""
        return np.unique(self.all_keys(), axis=0)

    def all_keys(self) -> Bytes:
        """The same as they come, some more than once: sorting a million keys takes a while."""
        keys = np.concatenate([np.zeros((0, 32), np.uint8), *self.key_columns()])
        return keys[keys.any(axis=1)]  # zeros stand for a mask that nobody has

    def key_columns(self) -> list[Bytes]:
        """The same where they lie, in the mapped file, with the zeros of masks that nobody has."""
        return self.content.key_columns()


def is_dataset(name: str) -> bool:
    """Whether a dataset can have this name."""
    return _DATASET.fullmatch(name) is not None


def list_snapshots(layout: Layout) -> list[SnapshotFile]:
    """Every snapshot in a store, by dataset and then from the oldest to the newest."""
    found = []
    for folder in _folders(layout):
        names = {path.name for path in folder.iterdir()}
        for name in names:
            match = _NAME.fullmatch(name)
            if match is not None:
                path = folder / name
                pinned = path.with_suffix(".pin").name in names
                found.append(SnapshotFile(folder.name, int(match[1]), match[2], path, pinned))
    return sorted(found, key=lambda snapshot: (snapshot.dataset, snapshot.number, snapshot.id))


def pin_snapshot(file: SnapshotFile) -> None:
    """Keep a snapshot, and all it names, for good; the caller holds the store's lock."""
    if not file.path.exists():
        raise NoSnapshotError(file.path.parent, file.dataset)
    with files.explained(file.path.parent):
        files.publish(file.pin, [b"kept by `precook snapshots pin`\n"])


def unpin_snapshot(file: SnapshotFile) -> None:
    """Let a snapshot go when a newer one takes its place; the caller holds the store's lock."""
    with files.explained(file.path.parent):
        file.pin.unlink(missing_ok=True)
        files.sync_directory(file.path.parent)


def remove_snapshot(file: SnapshotFile) -> None:
    """Remove a snapshot; `PinnedError` where it is pinned. The caller holds the store's lock."""
    if file.pin.exists():
        raise PinnedError(file.path, "this snapshot is pinned")
    with files.explained(file.path.parent):
        file.path.unlink(missing_ok=True)
        # Before anything that only it named goes: a name that came back after a power cut would lead nowhere.
        files.sync_directory(file.path.parent)


def list_partials(layout: Layout) -> list[Path]:
    """What writers of snapshots that died may have left."""
    return [path for folder in _folders(layout) for path in folder.glob(f"*{files.PARTIAL}")]


def write_snapshot(
    layout: Layout,
    directories: files.Directories,
    exclusive: Callable[[], AbstractContextManager[None]],
    dataset: str,
    content: SnapshotContent,
) -> Snapshot:
    """Write the dataset's latest snapshot: durable when it returns. An equal latest one stays as it is."""
    parts = take_apart(content.tree())
    # Equal content, equal key: what is already the latest is not written again.
    entry = make_entry(bytes(32), parts)
    key = derived_digest(_CONTEXT, entry.checksum + parts.skeleton + parts.values)
    entry = make_entry(key, parts)
    folder = layout.snapshots / dataset
    with exclusive():
        earlier = [snapshot for snapshot in list_snapshots(layout) if snapshot.dataset == dataset]
        with files.explained(layout.root):
            directories.make(layout.snapshots)
            directories.make(folder)
            # One that is damaged, or newer than we are, is no reason not to write another.
            with contextlib.suppress(DamagedPackError, NewerFormatError):
                if earlier and (latest := _open(earlier[-1]))[1] == key:
                    files.sync_directory(folder)  # whoever wrote it may have died before its name was durable
                    return latest[0]
            number = earlier[-1].number + 1 if earlier else 1
            image = build_pack([entry], created=int(time.time()), salt=secrets.token_hex(8))
            file = SnapshotFile(dataset, number, image.id, folder / f"{number:08d}-{image.id}.safetensors")
            files.publish(file.path, [image.head, *image.body])
        return read_snapshot(file)


def read_snapshot(file: SnapshotFile) -> Snapshot:
    """Read a snapshot whole and check every byte; `DamagedPackError` where it is not what was written.

    Large columns are then mapped, not held: pages of the file, which the system takes back when it needs them.
    """
    return _open(file)[0]


def _open(file: SnapshotFile) -> tuple[Snapshot, bytes]:
    try:
        pack = PackFile(file.path, file.id, Guard())
        (table,) = pack.tables
        with pack.open() as descriptor:
            table.verify_large(descriptor, 0)
        # Of a private mapping: whoever writes to a column changes nothing but its own copy.
        leaves, _ = table.take(0)
        make = table.converters("numpy")
        tree = build_tree(table, 0, [convert(leaf) for convert, leaf in zip(make, leaves, strict=True)])
        key = table.key(0)
    except (RowDamagedError, OSError, ValueError) as error:
        raise DamagedPackError(file.path, f"this snapshot is damaged: {damage_reason(error, file.path)}") from error
    if not isinstance(tree, dict) or type(tree.get("format")) is not int:
        raise DamagedPackError(file.path, "not a snapshot")
    if tree["format"] > FORMAT:
        raise NewerFormatError(file.path, tree["format"], FORMAT)
    try:
        content = SnapshotContent.of(tree)
    except ValueError as error:
        raise DamagedPackError(file.path, str(error)) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedPackError(file.path, f"not a snapshot: {error!r}") from error
    return Snapshot(file, pack.head.created, content), key


def _folders(layout: Layout) -> list[Path]:
    if not layout.snapshots.is_dir():
        return []
    return sorted(path for path in layout.snapshots.iterdir() if path.is_dir() and _DATASET.fullmatch(path.name))
