"""Documents: texts that are samples of their own, from the rows of a table or the files of a folder.

A text is taken as it is written: nothing is stripped, so that a tokenizer sees what a training loop would have shown
it. A conversation, or a prompt with its completion, is a text in parts; what becomes of them is the encoder's matter.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precook.config.texts import CompletionColumns, MessagesColumn, PassageSettings, TextColumn
from precook.errors import SourceError
from precook.fs.stamps import Stamp
from precook.identity.digest import derived_digest, digest
from precook.sources.caption_rule import CaptionTexts
from precook.sources.captions import CaptionError, checked, decode_caption
from precook.sources.passages import split_passages
from precook.sources.table_formats import JSON, Cells, RowError, RowProblem, TableColumns, kind_name, quoted
from precook.sources.tables import content_digest, read_content, usable_rows

MAX_BYTES = 256 << 20
"""The largest file of a text: it is in memory several times while it is split."""
MAX_PASSAGES = 1_000_000
"""The most passages of a file: each is a sample."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Who says the messages of a conversation."""
SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
"""The same as ShareGPT calls them, where messages have `from` and `value`."""

_CONTEXT = "precook document 1"


@dataclass(frozen=True, slots=True)
class Document:
    """A text in parts: the `messages` of a conversation, or a `prompt` and its `completion`; perhaps with `tools`."""

    form: str
    """The parts as JSON, in the order in which they were written: a chat template may show that order."""

    @property
    def parts(self) -> dict[str, Any]:
        """The parts by name: lists of messages and of tools or, of a prompt and its completion, perhaps texts."""
        parts: dict[str, Any] = json.loads(self.form)
        return parts


DocumentText = str | Document


class TableTexts:
    """The texts of a table, read when first asked for where only their digests are remembered; from any thread."""

    def __init__(self, texts: tuple[DocumentText, ...] | None, read: Callable[[], tuple[DocumentText, ...]]) -> None:
        self._texts = texts
        self._read = read
        self._lock = threading.Lock()

    def all(self) -> tuple[DocumentText, ...]:
        """All of them, or none where the table is no longer what is remembered of it."""
        with self._lock:
            if self._texts is None:
                self._texts = self._read()
            return self._texts


@dataclass(frozen=True, slots=True)
class DocumentTable:
    """A table of texts."""

    digest: bytes
    """Of its content."""
    numbers: tuple[int, ...]
    """Of the rows of its texts, as messages count them."""
    problems: tuple[RowProblem, ...]
    source: TableTexts = field(compare=False)
    stamp: Stamp | None = field(default=None, compare=False)
    """That of its file when it was read; None where it was not."""

    @property
    def texts(self) -> tuple[DocumentText, ...]:
        """The texts themselves; none where the table has changed since they were remembered."""
        return self.source.all()


def text_digest(text: DocumentText) -> bytes:
    """What a text is known by; a text in parts never has the digest of one that is written in one piece."""
    if isinstance(text, str):
        return digest(text).bytes
    return derived_digest(_CONTEXT, text.form.encode("utf-8"))


def read_documents(path: Path, source: TextColumn | MessagesColumn | CompletionColumns) -> DocumentTable:
    """The texts of a table; a row that has none, or something else in its place, is a problem of that row."""
    if isinstance(source, TextColumn):
        columns = TableColumns(source.column, None, None, texts=True)
    elif isinstance(source, MessagesColumn):
        columns = TableColumns(source.messages, None, source.tools, nested=True, texts=True)
    else:
        columns = TableColumns(source.prompt, source.completion, source.tools, nested=True, texts=True)
    table, stamp = read_content(path, columns)
    rows, problems = usable_rows(path, table, columns, lambda cells: (cells[0], _document(cells, source)))
    texts = tuple(text for _, text in rows)
    return DocumentTable(
        digest=content_digest(path, table, stamp).bytes,
        numbers=tuple(number for number, _ in rows),
        problems=tuple(problems),
        source=TableTexts(texts, lambda: texts),
        stamp=stamp,
    )


def remembered_documents(
    path: Path,
    source: TextColumn | MessagesColumn | CompletionColumns,
    content: bytes,
    numbers: Sequence[int],
    problems: Sequence[RowProblem],
) -> DocumentTable:
    """A table of this content's digest as it is remembered; it is opened when one of its texts is needed."""

    def read() -> tuple[DocumentText, ...]:
        try:
            table = read_documents(path, source)
        except SourceError:
            return ()  # gone, or no table any more: whoever asks for a text does not find it
        return table.texts if table.digest == content else ()

    return DocumentTable(content, tuple(numbers), tuple(problems), TableTexts(None, read))


@dataclass(frozen=True, slots=True)
class DocumentRule:
    """How text files are read, in the place of the rule of captions."""

    encoding: str
    passages: PassageSettings | None

    is_plain = False

    @property
    def name(self) -> str:
        """What is remembered of a file under this rule is remembered under this name."""
        split = self.passages
        rule = "whole" if split is None else f"{split.by}/{split.size}/{split.overlap}"
        return f"documents/2/{self.encoding}/{rule}"

    def read(self, content: bytes) -> CaptionTexts:
        """The texts in a text file: one, or its passages; `CaptionError` where it is none."""
        if len(content) > MAX_BYTES:
            message = f"{len(content):,} bytes, and a text file has at most {MAX_BYTES:,}: split it"
            raise CaptionError(message)
        text = decode_caption(content, self.encoding)
        if not text.strip():
            raise CaptionError("the file is empty, or has nothing but white space: write a text into it, or remove it")
        texts = split_text(text, self.passages, most=MAX_PASSAGES + 1)
        if len(texts) > MAX_PASSAGES:
            raise CaptionError(f"more than {MAX_PASSAGES:,} passages: raise the size of passages, or split the file")
        return CaptionTexts(texts)


def split_text(text: str, passages: PassageSettings | None, *, most: int | None = None) -> list[str]:
    """A text as one piece or, where the config says so, in passages, of which there may be a number that is enough."""
    return [text] if passages is None else list(itertools.islice(split_passages(text, passages), most))


def _document(cells: Cells, source: TextColumn | MessagesColumn | CompletionColumns) -> DocumentText:
    _, first, second, third, _ = cells
    if isinstance(source, TextColumn):
        return _text(first, source.column)
    tools = {} if third is None else {"tools": _tools(third, source.tools or "")}
    if isinstance(source, MessagesColumn):
        return _in_parts(messages=_messages(first, source.messages), **tools)
    if {type(first), type(second)} == {str, list}:
        columns = f"{kind_name(first)} in column {quoted(source.prompt)} and {kind_name(second)} in "
        raise RowError(f"{columns}{quoted(source.completion)}: write a text into both, or messages")
    if isinstance(first, str):
        if tools:
            raise RowError(f"tools in column {quoted(source.tools or '')} beside texts: write messages, or null there")
        # A prompt may be empty: then the completion follows nothing.
        return _in_parts(prompt=checked(first), completion=_text(second, source.completion))
    return _in_parts(
        prompt=_messages(first, source.prompt, or_text=True),
        completion=_messages(second, source.completion, or_text=True),
        **tools,
    )


def _in_parts(**parts: object) -> Document:
    try:
        return Document(json.dumps(parts, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    except (TypeError, ValueError, RecursionError) as error:
        raise RowError(f"messages that JSON has no words for, {error}: write texts, numbers and lists") from None


def _text(value: object, column: str) -> str:
    if value is None:
        raise RowError(f"no text in column {quoted(column)}: write one there, or remove the row")
    if not isinstance(value, str):
        raise RowError(f"{kind_name(value)} in column {quoted(column)}: write a text there")
    if not value.strip():
        raise RowError(f"an empty text in column {quoted(column)}: write one there, or remove the row")
    return checked(value)


def _messages(value: object, column: str, *, or_text: bool = False) -> list[dict[str, Any]]:
    if isinstance(value, str) and not or_text:
        # Cells of .csv and .tsv are texts.
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RowError(f"text in column {quoted(column)}: write a list of messages there") from None
    if value is None:
        what = "text and no messages" if or_text else "messages"
        raise RowError(f"no {what} in column {quoted(column)}: write them there, or remove the row")
    if not isinstance(value, list):
        what = "a text, or a list of messages" if or_text else "a list of messages"
        raise RowError(f"{kind_name(value)} in column {quoted(column)}: write {what} there")
    if not value:
        raise RowError(f"an empty list in column {quoted(column)}: write messages there, or remove the row")
    return [
        _message(message, f"message {number} in column {quoted(column)}") for number, message in enumerate(value, 1)
    ]


def _tools(value: object, column: str) -> list[dict[str, Any]]:
    """The tools of a conversation, which tables often hold as JSON."""
    if isinstance(value, str):
        try:
            value = JSON.decode(value)
        except (ValueError, RecursionError):
            raise RowError(f"text in column {quoted(column)} that is no JSON: write a list of tools there") from None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        found = "a list of something else" if isinstance(value, list) else kind_name(value)
        raise RowError(f"{found} in column {quoted(column)}: write a list of tools, each an object")
    for text in _strings(value):
        checked(text)
    return value


def _message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RowError(f"{where} is {kind_name(message)}: write an object with role and content")
    # Columns of a Parquet file have null where a message has no such field.
    fields = {name: value for name, value in message.items() if value is not None or name == "content"}
    if "role" not in fields and "from" in fields:
        fields = _from_sharegpt(fields, where)
    role = fields.get("role")
    if not isinstance(role, str):
        raise RowError(f"{where} has no role: write one of {', '.join(ROLES)}")
    if role not in ROLES:
        raise RowError(f"{where} has the role {quoted(role)}, which is not known: write one of {', '.join(ROLES)}")
    content = fields.get("content")
    if content is None and not fields.get("tool_calls"):
        raise RowError(f"{where} has no content: write a text")
    if isinstance(content, list):
        _check_parts(content, where)
    elif content is not None and not isinstance(content, str):
        raise RowError(f"{where} has {kind_name(content)} for its content: write a text")
    for text in _strings(fields):
        checked(text)
    return fields


def _from_sharegpt(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """A message of `from` and `value` as chat templates take it; a call of a function becomes a call of a tool."""
    speaker = fields["from"]
    if not isinstance(speaker, str):
        raise RowError(f"{where} is from {kind_name(speaker)}: write one of {', '.join(SPEAKERS)}")
    if speaker not in SPEAKERS:
        known = ", ".join(SPEAKERS)
        raise RowError(f"{where} is from {quoted(speaker)}, who is not known: write one of {known}")
    if fields.pop("content", None) is not None:
        raise RowError(f"{where} has from and content: write role and content, or from and value")
    names = {"from": "role", "value": "content"}
    renamed = {names.get(name, name): value for name, value in fields.items()} | {"role": SPEAKERS[speaker]}
    if speaker == "function_call":
        renamed["tool_calls"] = _calls(renamed.pop("content", None), where)
    return renamed


def _calls(value: object, where: str) -> list[dict[str, Any]]:
    """The calls that a message makes, which ShareGPT writes as JSON: an object with name and arguments, or several."""
    try:
        calls = JSON.decode(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        calls = None
    calls = calls if isinstance(calls, list) else [calls]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
            raise RowError(f"{where} calls no function: write JSON with name and arguments as its value")
    return [{"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls]


def _check_parts(content: list[object], where: str) -> None:
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RowError(f"{where} has content that is no text: a concept of texts has no pictures")


def _strings(value: object) -> Iterator[str]:
    """All texts in plain data; without calling itself, for it may be nested deeper than Python calls go."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
