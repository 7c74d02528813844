"""The config file: every field it may have, what that means, and what it is without being written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from precook.config.encoders import (
    FREE,
    EncoderSettings,
    Filled,
    Flaw,
    Place,
    Positive,
    Section,
    Text,
    clean,
    filled,
    one_of,
    refusal,
    sequence,
    unique,
    whole_or,
)
from precook.config.messages import described, did_you_mean, either, quoted

BATCH_NAMES = ("sample", "concept", "caption", "loss_weight", "size")
"""What a batch holds beside the encoders' results."""
TABLES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
"""How the names of tables end, in lower case; the case does not matter."""
COLOURS = {"black": (0, 0, 0), "white": (255, 255, 255), "gray": (128, 128, 128), "grey": (128, 128, 128)}

_DATASET = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_ENCODER = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_EXTENSION = r"\.[^/\\]+"
_SIZE = r"[1-9][0-9]{0,4}x[1-9][0-9]{0,4}"
_COLOUR = r"#(?:[0-9A-Fa-f]{3}){1,2}"
_SIDE = 65_536
_NAME = 200
_PLACEHOLDERS = ("stem", "name")


class Sidecar(Section):
    """Captions lie beside the pictures: `cat.txt` for `cat.jpg`, one caption per line."""

    @model_serializer
    def _spelled(self) -> str:
        return "sidecar"


class FileName(Section):
    """The picture's file name is its caption."""

    @model_serializer
    def _spelled(self) -> str:
        return "filename"


_CAPTION_WORDS = {"sidecar": Sidecar, "filename": FileName}


class FixedText(Section):
    """Every picture has this caption."""

    text: Text = Field(description="The caption of every picture; empty for the empty prompt.")


class ColumnCaptions(Section):
    """A column of the table."""

    column: Filled = Field(description="Its name.")


@dataclass(frozen=True, slots=True)
class Resolution:
    """A target: this very size if `exact`, else any size of about its area."""

    width: int
    height: int
    exact: bool


def _named(value: dict[Any, Any], name: str) -> str:
    """The text in a mapping of one field."""
    text = value[name]
    if not isinstance(text, str):
        raise refusal(Flaw(f"must be text, not {described(text)}", "put it in quotes", (name,)))
    return clean(text)


def _column(value: dict[Any, Any]) -> ColumnCaptions:
    if not _named(value, "column"):
        raise refusal(Flaw("must not be empty", "name a column of the table", ("column",)))
    return ColumnCaptions(column=value["column"])


def _captions(value: object) -> object:
    if isinstance(value, Sidecar | FileName | FixedText | ColumnCaptions):
        return value
    if isinstance(value, str) and value in _CAPTION_WORDS:
        return _CAPTION_WORDS[value]()
    if isinstance(value, dict) and list(value) == ["text"]:
        return FixedText(text=_named(value, "text"))
    if isinstance(value, dict) and list(value) == ["column"]:
        return _column(value)
    meant = did_you_mean(value, _CAPTION_WORDS) if isinstance(value, str) else ""
    raise refusal(Flaw(f'must be sidecar, filename, {{text: "…"}} or {{column: …}}, not {described(value)}{meant}'))


def _masks(value: object) -> object:
    if value is None or isinstance(value, ColumnCaptions):
        return value
    if isinstance(value, dict) and list(value) == ["column"]:
        return _column(value)
    if not isinstance(value, str):
        # Without quotes YAML takes {stem} for a mapping.
        hint = 'put a pattern in quotes: "{stem}-mask.png"' if isinstance(value, dict) else ""
        raise refusal(Flaw(f"must be a pattern or {{column: …}}, not {described(value)}", hint))
    usable = f"use {either([f'{{{name}}}' for name in _PLACEHOLDERS])}"
    names = re.findall(r"\{([^{}]*)\}", value)
    for name in names:
        if name not in _PLACEHOLDERS:
            raise refusal(Flaw(f"unknown placeholder {quoted(f'{{{name}}}')}", usable))
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", value)):
        raise refusal(Flaw(f"{quoted(value)} has a brace without its partner", usable))
    if not names:
        raise refusal(Flaw(f"{quoted(value)} would be one file for every picture", usable))
    return clean(value)


def _concept_name(text: str) -> str:
    if not 1 <= len(text) <= _NAME or not text.isprintable():
        raise refusal(Flaw(f"must be 1 to {_NAME} printable characters, not {described(text)}"))
    return text


def _dataset_name(text: str) -> str:
    if re.fullmatch(_DATASET, text) is None:
        rule = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
        raise refusal(Flaw(f"must be {rule}, not {described(text)}"))
    return text


def _encoder_name(text: str) -> str:
    if re.fullmatch(_ENCODER, text) is None:
        rule = "1 to 64 letters, digits and underscores, and not begin with a digit"
        raise refusal(Flaw(f"an encoder's name must be {rule}"))
    if text in BATCH_NAMES:
        raise refusal(Flaw("a batch has something of that name already", "choose another name"))
    return text


def _extension(text: str) -> str:
    if re.fullmatch(_EXTENSION, text) is None:
        raise refusal(Flaw(f"must be a dot and an extension, not {described(text)}", "write .txt, for example"))
    return clean(text)


def _encoding(text: str) -> str:
    try:
        # Unlike `codecs.lookup` this refuses codecs such as hex, which turn bytes into bytes.
        "a".encode(text)
    except (LookupError, ValueError):
        raise refusal(Flaw(f"unknown text encoding {quoted(text)}", "write utf-8, latin-1 or cp1252")) from None
    return text


def _resolution(value: object) -> object:
    if type(value) is int and 1 <= value <= _SIDE:
        return value
    if isinstance(value, str) and re.fullmatch(_SIZE, value) and max(map(int, value.split("x"))) <= _SIDE:
        return value
    rule = f'a whole number from 1 to {_SIDE}, or a size such as "768x512"'
    raise refusal(Flaw(f"must be {rule}, not {described(value)}"))


def _colour(text: str) -> str:
    if text not in COLOURS and re.fullmatch(_COLOUR, text) is None:
        meant = did_you_mean(text, COLOURS)
        raise refusal(Flaw(f'must be {either(list(COLOURS))}, or such as "#ff8800", not {described(text)}{meant}'))
    return text


Crop = Literal["center", "random"]
Flip = Literal["none", "random", "always"]
Resampling = Literal["nearest", "area", "bilinear", "bicubic", "lanczos"]
Permission = Literal["allow", "refuse"]
Extreme = Literal["crop", "refuse"]
Pick = Literal["one", "each"]
MissingMask = Literal["white", "error"]
Keep = Literal["paths", "captions"]
Stamps = Literal["auto", "trust"]

_Kept = tuple[Annotated[Keep, one_of(Keep)], ...]

_COLUMN_SCHEMA = {
    "type": "object",
    "properties": {"column": {"type": "string", "minLength": 1}},
    "required": ["column"],
    "additionalProperties": False,
}
_TEXT_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


class Concept(Section):
    """A named group of samples with its own weight, balancing and settings."""

    name: Annotated[
        str,
        AfterValidator(_concept_name),
        WithJsonSchema({"type": "string", "minLength": 1, "maxLength": _NAME}),
    ] = Field(description="What batches and reports call it.", examples=["cats"], json_schema_extra=FREE)
    path: Place = Field(
        description="Folder of pictures, or table (.jsonl, .csv, .parquet), relative to this file.",
        examples=["data/cats"],
        json_schema_extra=FREE,
    )
    recursive: bool = Field(default=True, description="Look into the folders inside it, too.", json_schema_extra=FREE)
    captions: Annotated[
        Sidecar | FileName | FixedText | ColumnCaptions,
        BeforeValidator(_captions),
        # Left alone, pydantic would tell any of them by the words of the first.
        PlainSerializer(lambda captions: captions.model_dump()),
        WithJsonSchema({"anyOf": [{"enum": ["sidecar", "filename"]}, _TEXT_SCHEMA, _COLUMN_SCHEMA]}),
    ] = Field(
        default=Sidecar(),
        description='sidecar (cat.txt beside cat.jpg, one per line), filename, {text: "a cat"} or {column: caption}.',
    )
    caption_extension: Annotated[
        str, AfterValidator(_extension), WithJsonSchema({"type": "string", "pattern": f"^{_EXTENSION}$"})
    ] = Field(default=".txt", description="Extension of sidecar captions.")
    caption_encoding: Annotated[str, AfterValidator(_encoding)] = Field(
        default="utf-8", description="Text encoding of sidecar captions."
    )
    masks: Annotated[
        str | ColumnCaptions | None,
        BeforeValidator(_masks),
        WithJsonSchema(
            {"anyOf": [{"type": "string", "pattern": r"\{(?:stem|name)\}"}, _COLUMN_SCHEMA, {"type": "null"}]}
        ),
    ] = Field(
        default=None,
        description="Pattern with {stem} or {name}, from the picture's folder; or {column: mask}.",
        examples=["{stem}-masklabel.png"],
    )
    missing_mask: Annotated[MissingMask, one_of(MissingMask)] = Field(
        default="white",
        description="A picture without its mask: white (train on all of it) or error (leave it out).",
        json_schema_extra=FREE,
    )
    image_column: Filled = Field(
        default="image", description="Column of the table that names the picture.", json_schema_extra=FREE
    )
    repeats: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="Each epoch shows floor(pictures * repeats).",
        json_schema_extra=FREE,
    )
    samples: Positive | None = Field(
        default=None,
        description="Instead of repeats: so many, drawn anew each epoch from the whole concept.",
        examples=[200],
        json_schema_extra=FREE,
    )
    loss_weight: float = Field(
        default=1.0,
        allow_inf_nan=False,
        description="Weight of its samples in the loss, as the batch tells it.",
        json_schema_extra=FREE,
    )

    @property
    def is_table(self) -> bool:
        """Whether `path` names a table; the disk is not asked."""
        return PurePath(self.path).suffix.lower() in TABLES

    @model_validator(mode="after")
    def _agree(self) -> Concept:
        flaws = [
            Flaw("a column needs a table, and path is a folder", f"tables end in {either(TABLES)}", (name,))
            for name, value in (("captions", self.captions), ("masks", self.masks))
            if isinstance(value, ColumnCaptions) and not self.is_table
        ]
        if self.samples is not None and self.repeats != 1:
            flaws.append(Flaw("cannot stand beside repeats", "remove one of them", ("samples",)))
        if flaws:
            raise refusal(*flaws)
        return self


class ImageSettings(Section):
    """How pictures are cut."""

    resolutions: Annotated[
        tuple[
            Annotated[
                int | str,
                BeforeValidator(_resolution),
                WithJsonSchema(
                    {
                        "anyOf": [
                            {"type": "integer", "minimum": 1, "maximum": _SIDE},
                            {"type": "string", "pattern": f"^{_SIZE}$"},
                        ]
                    }
                ),
            ],
            ...,
        ],
        BeforeValidator(sequence),
        BeforeValidator(filled),
        AfterValidator(unique),
    ] = Field(
        default=(512,),
        description='Sides of a square of equal area, or exact sizes: "768x512".',
        json_schema_extra={"minItems": 1, "uniqueItems": True},
    )
    step: int = Field(default=64, ge=1, le=_SIDE, description="Widths and heights are multiples of this.")
    crop: Annotated[Crop, one_of(Crop)] = Field(default="center", description="center or random.")
    flip: Annotated[Flip, one_of(Flip)] = Field(
        default="none", description="none, random or always: mirrored left to right."
    )
    variations: int = Field(default=1, ge=1, le=1000, description="Draws of crop and flip that are kept per picture.")
    resampling: Annotated[Resampling, one_of(Resampling)] = Field(
        default="lanczos", description="nearest, area, bilinear, bicubic or lanczos."
    )
    upscale: Annotated[Permission, one_of(Permission)] = Field(
        default="allow", description="Pictures smaller than their size: allow, or refuse them.", json_schema_extra=FREE
    )
    max_aspect: float = Field(
        default=4.0, ge=1, allow_inf_nan=False, description="No size is more elongated than this, 4.0 being 4:1."
    )
    extreme_aspect: Annotated[Extreme, one_of(Extreme)] = Field(
        default="crop",
        description="Pictures more elongated than any size: crop or refuse them.",
        json_schema_extra=FREE,
    )
    background: Annotated[
        str,
        AfterValidator(_colour),
        WithJsonSchema({"type": "string", "pattern": f"^(?:{'|'.join(COLOURS)}|{_COLOUR})$"}),
    ] = Field(default="white", description='What shows through transparency: white, black, gray or "#rrggbb".')
    max_pixels: int = Field(
        default=89_478_485,
        ge=1,
        le=178_956_970,
        description="Pictures of more pixels are refused unread.",
        json_schema_extra=FREE,
    )
    pick: Annotated[Pick, one_of(Pick)] = Field(
        default="one",
        description="Of several resolutions an epoch shows one of each picture, drawn anew, or each.",
        json_schema_extra=FREE,
    )
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="Decides every draw.")

    @property
    def sizes(self) -> tuple[Resolution, ...]:
        """The resolutions as numbers."""
        return tuple(_parsed(value) for value in self.resolutions)

    @property
    def rgb(self) -> tuple[int, int, int]:
        """The background as red, green and blue."""
        text = self.background
        if text in COLOURS:
            return COLOURS[text]
        digits = text[1:] if len(text) > 4 else "".join(digit * 2 for digit in text[1:])  # noqa: PLR2004 - #rgb
        red, green, blue = bytes.fromhex(digits)
        return red, green, blue

    @model_validator(mode="after")
    def _agree(self) -> ImageSettings:
        flaws = []
        for number, size in enumerate(self.sizes):
            path = ("resolutions", number)
            if size.exact and (size.width % self.step or size.height % self.step):
                message = f"{size.width}x{size.height} is not made of multiples of step, {self.step}"
                width, height = (max(self.step, side // self.step * self.step) for side in (size.width, size.height))
                flaws.append(Flaw(message, f'write "{width}x{height}", or change step', path))
            if not size.exact and size.width < self.step:
                flaws.append(Flaw(f"{size.width} is less than step, {self.step}", "raise it, or lower step", path))
        if flaws:
            raise refusal(*flaws)
        return self


def _parsed(value: int | str) -> Resolution:
    if isinstance(value, int):
        return Resolution(value, value, exact=False)
    width, height = map(int, value.split("x"))
    return Resolution(width, height, exact=True)


class TextSettings(Section):
    """Which texts are encoded."""

    variations: Annotated[Positive | Literal["all"], whole_or("all")] = Field(
        default="all", description="Caption lines that are kept per picture: all, or at most so many."
    )
    empty_prompt: bool = Field(default=True, description='Also encode "", for caption dropout and guidance.')


def _distinct(concepts: tuple[Concept, ...]) -> tuple[Concept, ...]:
    first: dict[str, int] = {}
    flaws = [
        Flaw(f"another concept is called {quoted(concept.name)}", "give each a name of its own", (number, "name"))
        for number, concept in enumerate(concepts)
        if first.setdefault(concept.name, number) != number
    ]
    if flaws:
        raise refusal(*flaws)
    return concepts


def _no_mask_clash(encoders: dict[str, Any]) -> dict[str, Any]:
    flaws = [
        Flaw(f"is where a batch puts the mask of {quoted(name.removesuffix('_mask'))}", "choose another name", (name,))
        for name in encoders
        if name.endswith("_mask") and name.removesuffix("_mask") in encoders
    ]
    if flaws:
        raise refusal(*flaws)
    return encoders


class Settings(Section):
    """The whole file."""

    store: Place = Field(
        default="cache", description="Folder of the store, relative to this file.", json_schema_extra=FREE
    )
    dataset: Annotated[
        str, AfterValidator(_dataset_name), WithJsonSchema({"type": "string", "pattern": f"^{_DATASET}$"})
    ] = Field(description="The snapshot's name.", examples=["portraits"], json_schema_extra=FREE)
    concepts: Annotated[
        tuple[Concept, ...], BeforeValidator(sequence), BeforeValidator(filled), AfterValidator(_distinct)
    ] = Field(description="Groups of samples.", json_schema_extra={"minItems": 1})
    image: ImageSettings = Field(default_factory=ImageSettings, description="How pictures are cut.")
    text: TextSettings = Field(default_factory=TextSettings, description="Which texts are encoded.")
    encoders: Annotated[
        dict[Annotated[str, AfterValidator(_encoder_name)], EncoderSettings],
        BeforeValidator(filled),
        AfterValidator(_no_mask_clash),
    ] = Field(
        description="What is kept of each sample, by its name in the batch.",
        json_schema_extra={
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{_ENCODER}$", "not": {"enum": [*BATCH_NAMES]}},
        },
    )
    keep: Annotated[_Kept, BeforeValidator(sequence), AfterValidator(unique)] = Field(
        default=(),
        description="What a snapshot tells beside its entries: paths, captions.",
        json_schema_extra={**FREE, "uniqueItems": True},
    )
    stamps: Annotated[Stamps, one_of(Stamps)] = Field(
        default="auto",
        description="auto, or trust: believe file times on network file systems too.",
        json_schema_extra=FREE,
    )
