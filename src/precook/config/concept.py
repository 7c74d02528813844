"""Concepts in the config file: where pictures lie, and where their captions and masks come from; or texts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

from precook.config.field_types import (
    NOT_IN_KEYS,
    Flaw,
    NonEmpty,
    PathText,
    Section,
    Text,
    clean,
    matching,
    one_of,
    refusal,
)
from precook.config.further_pictures import FurtherPicture, FurtherPictures, checked_pattern, numbered
from precook.config.messages import described, did_you_mean, either, quoted
from precook.config.sections import ImageOverrides, TextOverrides, VideoOverrides
from precook.config.texts import CompletionColumns, MessagesColumn, PassageSettings, TextColumn, TextFiles, TextsField

TABLES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
"""How the names of tables end, in lower case; the case does not matter."""

_EXTENSION = r"\.[^/\\]+"
_MAX_SAMPLES = 1 << 62
_NAME = 200
_MAX_TAGS = 1 << 20

OF_PICTURES = {
    *("captions", "prefix", "suffix", "trigger", "tags", "masks", "missing_mask", "images", "image_column"),
    *("image", "text", "video", "clips"),
}
"""Fields that say something of pictures."""

MissingMask = Literal["white", "error"]
Outside = Literal["refuse", "allow"]
ClipForm = Literal["files", "folders"]


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


class WholeSidecar(Section):
    """Captions lie beside the pictures: `cat.txt` for `cat.jpg`, and the whole file is one caption."""

    @model_serializer
    def _spelled(self) -> dict[str, str]:
        return {"whole": "sidecar"}


class JsonSidecar(Section):
    """Captions lie beside the pictures in JSON: `cat.json` for `cat.jpg`, in a field of its object."""

    field: NonEmpty = Field(description="The name of the field.")

    @model_serializer
    def _spelled(self) -> dict[str, str]:
        return {"json": self.field}


class FixedText(Section):
    """Every picture has this caption."""

    text: Text = Field(description="The caption of every picture; empty for the empty prompt.")


class ColumnName(Section):
    """A column of the table."""

    column: NonEmpty = Field(description="Its name.")


class TagSettings(Section):
    """Captions are lists of tags, and each is kept in several variations: shuffled, and with some tags dropped."""

    separator: NonEmpty = Field(
        default=",", description="What stands between tags; they are joined with a space behind it."
    )
    shuffle: bool = Field(default=True, description="Put the tags of each variation into an order of its own.")
    keep_first: int = Field(
        default=0,
        ge=0,
        le=_MAX_TAGS,
        description="So many tags at the beginning stay where they are, and are never dropped.",
    )
    dropout: float = Field(
        default=0.0, ge=0, le=1, allow_inf_nan=False, description="How often each of the other tags is left out."
    )
    variations: int = Field(
        default=8, ge=1, le=1000, description="Texts that are kept of each caption; an epoch shows one of them."
    )
    seed: int = Field(default=0, ge=0, le=2**63 - 1, description="Decides every order and every tag that is dropped.")

    @property
    def texts(self) -> int:
        """How many texts a caption becomes: one where nothing is drawn."""
        return self.variations if self.shuffle or self.dropout else 1

    @property
    def joint(self) -> str:
        """What tags are joined with."""
        return self.separator if self.separator[-1].isspace() else f"{self.separator} "

    def split(self, caption: str) -> list[str]:
        """The tags in a caption, stripped; some may be empty."""
        return [tag.strip() for tag in caption.split(self.separator.strip() or self.separator)]


def _text_of(value: dict[Any, Any], name: str) -> str:
    """The text in a mapping of one field."""
    text = value[name]
    if not isinstance(text, str):
        raise refusal(Flaw(f"must be text, not {described(text)}", "put it in quotes", (name,)))
    return clean(text)


def _column(value: dict[Any, Any]) -> ColumnName:
    if not _text_of(value, "column"):
        raise refusal(Flaw("must not be empty", "name a column of the table", ("column",)))
    return ColumnName(column=value["column"])


def _whole(value: dict[Any, Any]) -> WholeSidecar:
    if value["whole"] != "sidecar":
        hint = "write {whole: sidecar}; a column of a table is taken whole in any case"
        raise refusal(Flaw(f"must be sidecar, not {described(value['whole'])}", hint, ("whole",)))
    return WholeSidecar()


def _json(value: dict[Any, Any]) -> JsonSidecar:
    if not _text_of(value, "json"):
        raise refusal(Flaw("must not be empty", "name a field of the JSON files", ("json",)))
    return JsonSidecar(field=value["json"])


_CAPTION_FORMS: dict[str, Callable[[dict[Any, Any]], Section]] = {
    "whole": _whole,
    "json": _json,
    "text": lambda value: FixedText(text=_text_of(value, "text")),
    "column": _column,
}


def _captions(value: object) -> object:
    if isinstance(value, Sidecar | WholeSidecar | JsonSidecar | FileName | FixedText | ColumnName):
        return value
    if isinstance(value, str) and value in _CAPTION_WORDS:
        return _CAPTION_WORDS[value]()
    if isinstance(value, dict) and len(value) == 1 and (name := next(iter(value))) in _CAPTION_FORMS:
        return _CAPTION_FORMS[name](value)
    meant = did_you_mean(value, _CAPTION_WORDS) if isinstance(value, str) else ""
    if isinstance(value, dict) and len(value) == 1 and isinstance(name := next(iter(value)), str):
        meant = did_you_mean(name, _CAPTION_FORMS)
    forms = 'sidecar, filename, {whole: sidecar}, {json: …}, {text: "…"} or {column: …}'
    raise refusal(Flaw(f"must be {forms}, not {described(value)}{meant}"))


def _masks(value: object) -> object:
    if value is None or isinstance(value, ColumnName):
        return value
    if isinstance(value, dict) and list(value) == ["column"]:
        return _column(value)
    return checked_pattern(value, "{stem}-mask.png")


def _concept_name(text: str) -> str:
    if not 1 <= len(text) <= _NAME or not text.isprintable():
        raise refusal(Flaw(f"must be 1 to {_NAME} printable characters, not {described(text)}"))
    return text


def _encoding(text: str) -> str:
    try:
        # Unlike `codecs.lookup` this refuses codecs such as hex, which turn bytes into bytes.
        "a".encode(text)
    except (LookupError, ValueError):
        raise refusal(Flaw(f"unknown text encoding {quoted(text)}", "write utf-8, latin-1 or cp1252")) from None
    return text


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
_WHOLE_SCHEMA = {
    "type": "object",
    "properties": {"whole": {"const": "sidecar"}},
    "required": ["whole"],
    "additionalProperties": False,
}
_JSON_SCHEMA = {
    "type": "object",
    "properties": {"json": {"type": "string", "minLength": 1}},
    "required": ["json"],
    "additionalProperties": False,
}


class Concept(Section):
    """A named group of samples with its own weight, balancing and settings."""

    name: Annotated[
        str,
        AfterValidator(_concept_name),
        WithJsonSchema({"type": "string", "minLength": 1, "maxLength": _NAME}),
    ] = Field(description="What batches and reports call it.", examples=["cats"], json_schema_extra=NOT_IN_KEYS)
    path: PathText = Field(
        description="Folder of pictures, texts or .parquet files, or table (.jsonl, .csv, .parquet); relative to this "
        "file.",
        examples=["data/cats"],
        json_schema_extra=NOT_IN_KEYS,
    )
    recursive: bool = Field(
        default=True, description="Look into the folders inside it, too.", json_schema_extra=NOT_IN_KEYS
    )
    clips: Annotated[ClipForm, one_of(ClipForm)] = Field(
        default="files",
        description="What a clip is, where an encoder takes clips: one of the files, or of the folders: its frames.",
    )
    outside: Annotated[Outside, one_of(Outside)] = Field(
        default="refuse",
        description="Files that links or the table name outside of its folder: refuse (leave them out) or allow.",
        json_schema_extra=NOT_IN_KEYS,
    )
    captions: Annotated[
        Sidecar | WholeSidecar | JsonSidecar | FileName | FixedText | ColumnName,
        BeforeValidator(_captions),
        # Left alone, pydantic would tell any of them by the words of the first.
        PlainSerializer(lambda captions: captions.model_dump()),
        WithJsonSchema(
            {
                "anyOf": [
                    {"enum": ["sidecar", "filename"]},
                    _WHOLE_SCHEMA,
                    _JSON_SCHEMA,
                    _TEXT_SCHEMA,
                    _COLUMN_SCHEMA,
                ]
            }
        ),
    ] = Field(
        default=Sidecar(),
        description="sidecar (cat.txt, a caption per line), {whole: sidecar} (one caption per file), {json: caption}, "
        'filename, {text: "a cat"} or {column: caption}.',
    )
    caption_extension: (
        Annotated[
            str,
            matching(_EXTENSION, "a dot and an extension", "write .txt, for example"),
            AfterValidator(clean),
            WithJsonSchema({"type": "string", "pattern": f"^{_EXTENSION}$"}),
        ]
        | None
    ) = Field(
        default=None,
        description="Extension of sidecar captions and of the files of texts; without it, .txt, and .json for JSON.",
        examples=[".txt"],
    )
    caption_encoding: Annotated[str, AfterValidator(_encoding)] = Field(
        default="utf-8", description="Text encoding of sidecar captions, and of the files of texts."
    )
    prefix: Text = Field(default="", description="Put before every caption, as it is written.")
    suffix: Text = Field(default="", description="Put after every caption, as it is written.")
    trigger: Text = Field(
        default="",
        description="A word that every caption has: it takes the place of [trigger], or is put in front.",
    )
    tags: TagSettings | None = Field(
        default=None,
        title="Tags",
        description="Captions are tags, to be shuffled and dropped; each caption is kept in several variations.",
        examples=[{"separator": ",", "shuffle": True, "keep_first": 1, "dropout": 0.1, "variations": 8}],
    )
    masks: Annotated[
        str | ColumnName | None,
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
        json_schema_extra=NOT_IN_KEYS,
    )
    texts: TextsField = Field(
        default=None,
        description="Texts without pictures: files, {column: …}, {messages: …} or {prompt: …, completion: …}.",
        examples=[{"column": "text"}],
    )
    passages: PassageSettings | None = Field(
        default=None,
        title="Passages",
        description="Split long texts into passages, each a sample of its own.",
        examples=[{"by": "paragraphs", "size": 4000, "overlap": 0}],
    )
    images: FurtherPictures = Field(
        default={},
        description="Further pictures of each sample, by name: a pattern, {column: …} or {path, fit, optional}.",
        examples=['{control: "../control/{stem}.png"}'],
    )
    image_column: NonEmpty = Field(
        default="image",
        description="Column of the table that names the picture or holds it.",
        json_schema_extra=NOT_IN_KEYS,
    )
    repeats: float = Field(
        default=1.0,
        ge=0,
        allow_inf_nan=False,
        description="Each epoch shows floor(pictures * repeats).",
        json_schema_extra=NOT_IN_KEYS,
    )
    samples: Annotated[int, Field(ge=1, le=_MAX_SAMPLES)] | None = Field(
        default=None,
        description="Instead of repeats: so many, drawn anew each epoch from the whole concept.",
        examples=[200],
        json_schema_extra=NOT_IN_KEYS,
    )
    loss_weight: float = Field(
        default=1.0,
        allow_inf_nan=False,
        description="Weight of its samples in the loss, as the batch tells it.",
        json_schema_extra=NOT_IN_KEYS,
    )

    image: ImageOverrides | None = Field(
        default=None,
        title="Image",
        description="How its pictures are cut, where that is not as the file says.",
        examples=[{"flip": "none"}],
    )
    text: TextOverrides | None = Field(
        default=None,
        title="Text",
        description="Which of its texts are encoded, where that is not as the file says.",
        examples=[{"variations": 1}],
    )
    video: VideoOverrides | None = Field(
        default=None,
        title="Video",
        description="Which frames of its clips are taken, where that is not as the file says.",
        examples=[{"frames": [1, 49]}],
    )
    enabled: bool = Field(
        default=True,
        description="false: leave the whole concept out, and do not even look at its files.",
        json_schema_extra=NOT_IN_KEYS,
    )
    validation: bool = Field(
        default=False,
        description="true: its samples are built with the others, and shown only by a feed for validation.",
        json_schema_extra=NOT_IN_KEYS,
    )

    @property
    def sidecar_extension(self) -> str | None:
        """How the names of caption files end; None where captions do not lie beside the pictures."""
        if isinstance(self.captions, JsonSidecar):
            return self.caption_extension or ".json"
        return self.caption_extension or ".txt" if isinstance(self.captions, Sidecar | WholeSidecar) else None

    @property
    def is_table(self) -> bool:
        """Whether `path` names a table, or a folder of tables, as columns say; the disk is not asked."""
        columns = isinstance(self.captions, ColumnName) or isinstance(self.masks, ColumnName)
        columns = columns or any(picture.column is not None for picture in self.further.values())
        return self.is_table_file or columns

    @property
    def is_table_file(self) -> bool:
        """Whether `path` names a table by its end."""
        return PurePath(self.path).suffix.lower() in TABLES

    @property
    def further(self) -> dict[str, FurtherPicture]:
        """Every further picture by its name; those of a list are numbered."""
        return numbered(self.images)

    @model_validator(mode="after")
    def _agree(self) -> Concept:
        flaws = list(self._text_flaws())
        if self.clips == "folders" and (self.is_table or self.further):
            what = "path is a table" if self.is_table else "it has images"
            flaws.append(Flaw(f"folders of frames are looked for in a folder, and {what}", "write files", ("clips",)))
        if self.samples is not None and self.repeats != 1:
            flaws.append(Flaw("cannot stand beside repeats", "remove one of them", ("samples",)))
        if flaws:
            raise refusal(*flaws)
        return self

    def _text_flaws(self) -> Iterator[Flaw]:
        """What does not go with texts, or not without them."""
        if self.texts is None:
            if self.passages is not None:
                yield Flaw("splits texts, and this concept has pictures", "write texts, or remove it", ("passages",))
            return
        if isinstance(self.texts, TextFiles) and self.is_table_file:
            hint = f"name its column: {{column: text}}; tables end in {either(TABLES)}"
            yield Flaw("files lie in a folder, and path is a table", hint, ("texts",))
        if isinstance(self.texts, TextColumn | MessagesColumn | CompletionColumns) and not self.is_table_file:
            yield Flaw("a column needs a table, and path is a folder", f"tables end in {either(TABLES)}", ("texts",))
        if isinstance(self.texts, MessagesColumn | CompletionColumns) and self.passages is not None:
            yield Flaw("only texts are split, no conversations and no completions", "remove it", ("passages",))
        for name in sorted(self.model_fields_set & OF_PICTURES):
            if getattr(self, name) != type(self).model_fields[name].default:
                yield Flaw("is for pictures, and this concept has texts alone", "remove it, or texts", (name,))
