"""What a snapshot says: settings, samples and keys as typed columns, and the tree in which they are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from precook.values import Bytes, Numbers

FORMAT = 1
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
            "image": as_plain(self.image),
            "concepts": [as_plain(concept) for concept in self.concepts],
            "encoders": {name: as_plain(encoder) for name, encoder in self.encoders.items()},
            "samples": as_plain(self.samples),
            "pictures": as_plain(self.pictures),
            "picture_keys": self.picture_keys,
            "lines": as_plain(self.lines),
            "line_keys": self.line_keys,
            "empty_keys": self.empty_keys,
        }
        for name in ("paths", "captions"):
            column = getattr(self, name)
            if column is not None:
                tree[name] = as_plain(column)
        return {**tree, **self.extra}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> SnapshotContent:
        """Read a tree that was stored, whoever wrote it.

        `ValueError`, `KeyError`, `TypeError` or `AttributeError` where it is not the tree of docs/reference/format.md.
        """
        content = cls(
            dataset=tree["dataset"],
            image=_part(FrozenImage, tree["image"]),
            concepts=[_concept(form) for form in tree["concepts"]],
            encoders={name: _encoder(form) for name, form in tree["encoders"].items()},
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


def as_plain(part: Any) -> dict[str, Any]:
    """One part of the content as it is stored; an encoder without a pad has no such field."""
    form = {known.name: getattr(part, known.name) for known in fields(part) if known.name != "extra"}
    if isinstance(part, FrozenEncoder) and part.pad is None:
        del form["pad"]
    return {**form, **part.extra}


def _part(kind: type[_Part], form: Mapping[str, Any]) -> _Part:
    """One part of the content from what is stored; `KeyError` names a field that is not there."""
    known = {field.name: field.default for field in fields(kind) if field.name != "extra"}
    values = {name: form[name] for name, default in known.items() if default is MISSING or name in form}
    part: _Part = kind(**values, extra={name: value for name, value in form.items() if name not in known})
    return part


def _concept(form: object) -> FrozenConcept:
    if isinstance(form, dict) and isinstance(form.get("name"), str):
        weights = [form.get("loss_weight"), form.get("repeats")]
        if all(isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0 for weight in weights):
            return _part(FrozenConcept, form)
    message = "one of its concepts has no name or no weights"
    raise ValueError(message)


def _encoder(form: object) -> FrozenEncoder:
    known = ("image", "text", "mask")
    if isinstance(form, dict) and form.get("input") in known and isinstance(form.get("recipe"), str):
        return _part(FrozenEncoder, form)
    message = "one of its encoders has no input or no recipe"
    raise ValueError(message)


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
