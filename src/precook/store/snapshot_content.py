"""What a snapshot says: settings, samples and keys as typed columns, and the tree in which they are stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from precook.values import Bytes, Numbers

FORMAT = 2
"""The newest that is read. Only what older readers must not take for something else is written as such: a concept for
validation, whose samples they would train on."""
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
    validation: bool = False
    """Whether its samples are shown by feeds for validation, and by no others."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrozenEos:
    """How a tokenizer ends a text that somebody has put its end-of-sequence token behind."""

    id: int
    """The token: it comes last, after all that the text has without it."""
    before: int
    """How many tokens the tokenizer puts before a text."""
    after: int
    """How many it puts behind one: this token, of the tokenizer's own accord."""
    limit: int | None
    """To how many tokens texts were cut, where they were."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrozenEncoder:
    """What made the entries that a batch has under one name."""

    input: str
    """`image`, `text`, `mask`, `video` or the name of a further picture; of several, all with a + between them."""
    recipe: str
    """The recipe's canonical form."""
    pad: int | None = None
    """What token ids are padded with, where the tokenizer says it."""
    eos: FrozenEos | None = None
    """How texts of token ids end, where the tokenizer says it; older snapshots do not."""
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
    original: Small | None = None
    """Height and width of the picture itself; older snapshots and other writers do not say it."""
    crop: Small | None = None
    """Top and left of the cut, in the picture as it was scaled and perhaps mirrored; known where `original` is."""
    frames: Small | None = None
    """Of clips: how many frames; pictures do not say it."""
    further: dict[str, Small] | None = None
    """Height and width of the cuts of further pictures, by name, where some are of another size; zeros for none."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class LineColumns:
    """A row for each caption."""

    sample: Small
    order: Small | None = None
    """The number of each caption in the order of the sources; older snapshots and other writers do not say it."""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PairColumns:
    """A row for each pair of a cut and a caption, for encoders that take both; in the order of these."""

    cut: Small
    """Its row among the cuts."""
    line: Small
    """Its row among the captions; their number stands for the empty prompt."""
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

    @classmethod
    def of(cls, form: Any) -> Texts:
        """The column that was stored, whoever wrote it; `ValueError` where it is none."""
        texts = _part(cls, form)
        size, count = _rows(texts.text), _rows(texts.ends)
        if not _is_column(texts.text, (size,), "u1", None) or not _is_column(texts.ends, (count,), "i8", size + 1):
            _refuse(_MISFIT)
        if bool((texts.ends[1:] < texts.ends[:-1]).any()):
            _refuse(_MISFIT)
        return texts

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
    pairs: PairColumns | None = None
    """Where an encoder takes pictures and texts together."""
    pair_keys: dict[str, Bytes] = field(default_factory=dict)
    """By encoder: the entry of each pair."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kept(self) -> set[str]:
        """Which of the private columns it has."""
        return {name for name in ("paths", "captions") if getattr(self, name) is not None}

    def key_columns(self) -> list[Bytes]:
        """Every column of keys where it lies, with the zeros of masks that nobody has."""
        columns = [*self.picture_keys.values(), *self.line_keys.values(), *self.pair_keys.values()]
        return columns + [key.reshape(1, 32) for key in self.empty_keys.values()]

    def tree(self) -> dict[str, Any]:
        """The tree that is stored. The order of its parts never changes: equal content must give equal bytes."""
        tree = {
            "format": 2 if any(concept.validation for concept in self.concepts) else 1,
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
        if self.pairs is not None:
            tree |= {"pairs": as_plain(self.pairs), "pair_keys": self.pair_keys}
        return {**tree, **self.extra}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> SnapshotContent:
        """Read a tree that was stored, whoever wrote it.

        `ValueError` where it is not the tree of docs/reference/format.md, with the reason: a part is missing or of
        another type, a column does not have its type and shape, or a number lies outside of what it counts.
        """
        samples = _part(SampleColumns, _get(tree, "samples"))
        pictures, lines = _part(PictureColumns, _get(tree, "pictures")), _part(LineColumns, _get(tree, "lines"))
        count, cuts, texts = (_rows(column) for column in (samples.id, pictures.sample, lines.sample))
        encoders = {_name(name): _encoder(form) for name, form in _mapping(_get(tree, "encoders")).items()}
        pairs = _part(PairColumns, tree["pairs"]) if "pairs" in tree else None
        count_pairs = 0 if pairs is None else _rows(pairs.cut)
        concepts = _get(tree, "concepts")
        if not isinstance(concepts, list):
            _refuse("its concepts are no list")
        content = cls(
            dataset=_dataset(_get(tree, "dataset")),
            image=_image(_get(tree, "image")),
            concepts=[_concept(form) for form in concepts],
            encoders=encoders,
            samples=samples,
            pictures=pictures,
            picture_keys=_keys(_get(tree, "picture_keys"), encoders, (cuts, 32)),
            lines=lines,
            line_keys=_keys(_get(tree, "line_keys"), encoders, (texts, 32)),
            empty_keys=_keys(_get(tree, "empty_keys"), encoders, (32,)),
            paths=Texts.of(tree["paths"]) if "paths" in tree else None,
            captions=Texts.of(tree["captions"]) if "captions" in tree else None,
            pairs=pairs,
            pair_keys=_keys(tree.get("pair_keys", {}), encoders, (count_pairs, 32)),
            extra={name: part for name, part in tree.items() if name not in _PARTS},
        )
        columns = [
            (samples.id, (count, 32), "u1", None),
            (samples.image, (count, 32), "u1", None),
            (samples.concept, (count,), "i4", len(concepts)),
            (pictures.sample, (cuts,), "i4", count),
            (pictures.target, (cuts, 2), "i4", _MAX_NUMBER),
            (pictures.size, (cuts, 2), "i4", _MAX_NUMBER),
            (lines.sample, (texts,), "i4", count),
        ]
        if pictures.original is not None or pictures.crop is not None:
            columns += [(column, (cuts, 2), "i4", _MAX_NUMBER) for column in (pictures.original, pictures.crop)]
        if pictures.frames is not None:
            columns.append((pictures.frames, (cuts,), "i4", _MAX_FRAMES))
        if pairs is not None:
            columns += [(pairs.cut, (count_pairs,), "i4", cuts), (pairs.line, (count_pairs,), "i4", texts + 1)]
        if pictures.further is not None:
            columns += [(column, (cuts, 2), "i4", _MAX_NUMBER) for column in _mapping(pictures.further).values()]
        if lines.order is not None:
            columns.append((lines.order, (texts,), "i4", texts))
        if not all(_is_column(*column) for column in columns):
            _refuse(_MISFIT)
        # Those that were frozen without a text encoder, by an older precook, have captions and no lines, or neither.
        owners = ((content.paths, {count}), (content.captions, {0, texts}))
        if any(column is not None and len(column) not in counts for column, counts in owners):
            _refuse(_MISFIT)
        return content


_DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENCODER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")
_INPUTS = re.compile(r"[a-z_][a-z0-9_]{0,63}(?:\+[a-z_][a-z0-9_]{0,63}){0,63}")
_MISFIT = "its columns do not fit together"
_MAX_NUMBER = 1 << 31
_MAX_FRAMES = 1 << 12
_MAX_SHOWN = 1 << 62
_MAX_WEIGHT = 1e308
_MAX_NAME = 1024
_PARTS = {"format", *(part.name for part in fields(SnapshotContent) if part.name != "extra")}
_Part = TypeVar("_Part", bound=Any)


def as_plain(part: Any) -> dict[str, Any]:
    """One part of the content as it is stored; what only some writers know is left out where it is not known."""
    form = {known.name: getattr(part, known.name) for known in fields(part) if known.name != "extra"}
    for name in ("pad", "eos", "original", "crop", "frames", "further", "order"):
        if form.get(name, 0) is None:
            del form[name]
    if form.get("validation") is False:
        del form["validation"]
    if "eos" in form:
        form["eos"] = as_plain(form["eos"])
    return {**form, **part.extra}


def is_dataset(name: object) -> bool:
    """Whether a dataset can have this name."""
    return isinstance(name, str) and _DATASET.fullmatch(name) is not None


def _refuse(reason: str) -> NoReturn:
    raise ValueError(f"not a snapshot: {reason}")


def _get(form: Mapping[str, Any], name: str) -> Any:
    if name not in form:
        _refuse(f"it has no {name!r}")
    return form[name]


def _mapping(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict) or not all(isinstance(name, str) for name in form):
        _refuse("one of its parts has no names")
    return form


def _part(kind: type[_Part], form: Any) -> _Part:
    """One part of the content from what is stored; the error names a field that is not there."""
    form = _mapping(form)
    known = {field.name: field.default for field in fields(kind) if field.name != "extra"}
    values = {name: _get(form, name) for name, default in known.items() if default is MISSING or name in form}
    part: _Part = kind(**values, extra={name: value for name, value in form.items() if name not in known})
    return part


def _rows(column: Any) -> int:
    """How many rows a column has."""
    if not isinstance(column, np.ndarray) or not column.ndim:
        _refuse(_MISFIT)
    return len(column)


def _is_column(column: Any, shape: tuple[int, ...], kind: str, limit: int | None) -> bool:
    """Whether something is a column of this type and shape whose numbers count something of this size."""
    if not isinstance(column, np.ndarray) or column.shape != shape or column.dtype != np.dtype(kind):
        return False
    return limit is None or bool(column.min(initial=0) >= 0 and column.max(initial=-1) < limit)


def _keys(form: Any, encoders: Mapping[str, FrozenEncoder], shape: tuple[int, ...]) -> dict[str, Bytes]:
    """Columns of keys by encoder."""
    columns = _mapping(form)
    if not all(name in encoders and _is_column(keys, shape, "u1", None) for name, keys in columns.items()):
        _refuse(_MISFIT)
    return columns


def _dataset(name: Any) -> str:
    if not is_dataset(name):
        _refuse("its dataset has no name that one can have")
    return str(name)


def _name(name: str) -> str:
    """The name of an encoder, which may become part of a file's name."""
    if _ENCODER.fullmatch(name) is None:
        _refuse(f"an encoder is called {name[:80]!a}")
    return name


def _is_whole(value: Any, limit: int = _MAX_NUMBER) -> bool:
    return type(value) is int and 0 <= value <= limit


def _image(form: Any) -> FrozenImage:
    image = _part(FrozenImage, form)
    resolutions = image.resolutions
    if (
        not isinstance(resolutions, list)
        or not all(_is_whole(one) or (isinstance(one, str) and len(one) <= _MAX_NAME) for one in resolutions)
        or not _is_whole(image.variations)
        or not isinstance(image.pick, str)
    ):
        _refuse("it does not say how pictures were cut")
    return image


def _concept(form: Any) -> FrozenConcept:
    concept = _part(FrozenConcept, form)
    # NaN is neither above nor below anything.
    weights = [(concept.loss_weight, -_MAX_WEIGHT), (concept.repeats, 0)]
    if not isinstance(concept.name, str) or not all(
        type(weight) in (int, float) and lowest <= weight <= _MAX_WEIGHT for weight, lowest in weights
    ):
        _refuse("one of its concepts has no name or no weights")
    if type(concept.validation) is not bool:
        _refuse("one of its concepts does not say whether it is for validation")
    if concept.samples is not None and not _is_whole(concept.samples, _MAX_SHOWN):
        _refuse("one of its concepts shows no number of samples")
    return concept


def _encoder(form: Any) -> FrozenEncoder:
    encoder = _part(FrozenEncoder, form)
    given = encoder.input
    if not isinstance(given, str) or _INPUTS.fullmatch(given) is None or not isinstance(encoder.recipe, str):
        _refuse("one of its encoders has no input or no recipe")
    if encoder.pad is not None and (type(encoder.pad) is not int or abs(encoder.pad) > _MAX_SHOWN):
        _refuse("one of its encoders pads with no number")
    if encoder.eos is None:
        return encoder
    eos = _part(FrozenEos, encoder.eos)
    numbers = [eos.id, eos.before, eos.after, *([] if eos.limit is None else [eos.limit])]
    if not all(_is_whole(number) for number in numbers):
        _refuse("one of its encoders ends texts with no token")
    return replace(encoder, eos=eos)
