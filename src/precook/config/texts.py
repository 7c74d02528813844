"""Texts in the config file: what a concept without pictures is made of, and how long texts are split."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_serializer, model_validator

from precook.config.field_types import Flaw, NonEmpty, Section, clean, one_of, refusal
from precook.config.messages import described, did_you_mean, quoted

SplitAt = Literal["paragraphs", "headings", "characters"]


class TextFiles(Section):
    """Every text file of the folder is a text."""

    @model_serializer
    def _spelled(self) -> str:
        return "files"


class TextColumn(Section):
    """A column of the table holds texts."""

    column: NonEmpty = Field(description="Its name.")


class _Spoken(Section):
    """What chat templates show."""

    tools: NonEmpty | None = Field(
        default=None, description="The column of the tools that a conversation may call, for the chat template."
    )

    @model_serializer
    def _spelled(self) -> dict[str, str]:
        names = sorted(type(self).model_fields, key="tools".__eq__)
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class MessagesColumn(_Spoken):
    """A column of the table holds conversations, each a list of messages with role and content, or from and value."""

    messages: NonEmpty = Field(description="Its name.")


class CompletionColumns(_Spoken):
    """Two columns of the table hold prompts and what is to follow them."""

    prompt: NonEmpty = Field(description="The column of prompts.")
    completion: NonEmpty = Field(description="The column of completions.")


TextSource = TextFiles | TextColumn | MessagesColumn | CompletionColumns

_FORMS: tuple[type[TextColumn | MessagesColumn | CompletionColumns], ...] = (
    TextColumn,
    MessagesColumn,
    CompletionColumns,
)
_USUAL: tuple[TextColumn | MessagesColumn | CompletionColumns, ...] = (
    MessagesColumn(messages="messages"),
    MessagesColumn(messages="conversations"),
    CompletionColumns(prompt="prompt", completion="completion"),
    CompletionColumns(prompt="instruction", completion="output"),
    TextColumn(column="text"),
    TextColumn(column="content"),
)
"""What the columns of texts are usually called; the first that is there is taken."""
_SHOWN = 4
"""Names of a mapping that a message shows."""
_RULE = "files, {column: text}, {messages: messages} or {prompt: prompt, completion: completion}, perhaps with tools"


def usual_texts(columns: Collection[str]) -> TextColumn | MessagesColumn | CompletionColumns | None:
    """The texts of a table, by what its columns are called; None where that says nothing.

    >>> usual_texts(["id", "messages", "text"])
    MessagesColumn(tools=None, messages='messages')
    """
    return next((source for source in _USUAL if set(source.model_dump().values()) <= set(columns)), None)


def _texts(value: object) -> object:
    if value is None or isinstance(value, TextSource):
        return value
    if value == "files":
        return TextFiles()
    if isinstance(value, dict):
        for form in _FORMS:
            if _required(form) <= set(value) <= set(form.model_fields):
                return form(**{name: _column(value[name], name) for name in value})
        names = [name for form in _FORMS for name in form.model_fields]
        unknown = next((name for name in value if name not in names), None)
        found = ", ".join(map(quoted, list(value)[:_SHOWN])) or "nothing"
        meant = did_you_mean(unknown, names) if isinstance(unknown, str) else ""
        raise refusal(Flaw(f"must be {_RULE}, not a mapping of {found}{meant}"))
    meant = did_you_mean(value, ["files"]) if isinstance(value, str) else ""
    raise refusal(Flaw(f"must be {_RULE}, not {described(value)}{meant}"))


def _required(form: type[Section]) -> set[str]:
    return {name for name, field in form.model_fields.items() if field.is_required()}


def _column(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise refusal(Flaw(f"must be text, not {described(value)}", "put it in quotes", (name,)))
    if not value:
        raise refusal(Flaw("must not be empty", "name a column of the table", (name,)))
    return clean(value)


def _schema(form: type[Section]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "minLength": 1} for name in form.model_fields},
        "required": [name for name in form.model_fields if name in _required(form)],
        "additionalProperties": False,
    }


TextsField = Annotated[
    TextSource | None,
    BeforeValidator(_texts),
    # Left alone, pydantic would tell any of them by the words of the first.
    PlainSerializer(lambda texts: None if texts is None else texts.model_dump()),
    WithJsonSchema({"anyOf": [{"enum": ["files"]}, *map(_schema, _FORMS), {"type": "null"}]}),
]
"""Where the texts of a concept come from; None where it has pictures."""


class PassageSettings(Section):
    """How long texts are split into passages, each of which is a sample."""

    by: Annotated[SplitAt, one_of(SplitAt)] = Field(
        default="paragraphs", description="Where passages may end: paragraphs, headings (of Markdown) or characters."
    )
    size: int = Field(default=4000, ge=16, le=1 << 24, description="Characters of a passage, at the most.")
    overlap: int = Field(default=0, ge=0, description="Characters of the passage before that a passage begins with.")

    @model_validator(mode="after")
    def _agree(self) -> PassageSettings:
        if 2 * self.overlap > self.size:
            message = f"{self.overlap} is more than half of size, {self.size}"
            raise refusal(Flaw(message, "lower it, or raise size", ("overlap",)))
        return self
