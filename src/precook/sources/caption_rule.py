"""The rule of a concept's captions: how what stands in a file, a table or a name becomes the texts that are encoded.

The texts follow from the captions alone, never from a picture's place: so they can be remembered by the content of a
file, and captions that are alike give the same texts everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from precook.config.concept import Concept, JsonSidecar, TagSettings, WholeSidecar
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.sources.captions import MAX_BYTES, MAX_LINES, CaptionError, checked, decode_caption, read_lines
from precook.sources.draws import Purpose, draw, pick
from precook.sources.table_formats import JSON, kind_name, quoted

Form = Literal["lines", "whole", "json"]

_PLACE = "[trigger]"
_LINE_END = re.compile("\r\n?")
_SHOWN_FIELDS = 12
_MAX_LENGTH = 1 << 28
"""Characters of all texts that one file becomes: they are in memory together."""
_FINE = 1 << 32
"""In so many steps the rate of dropout is told apart."""


@dataclass(frozen=True, slots=True)
class CaptionTexts:
    """What the captions of one picture say: the texts that are encoded, and what a plan tells about them."""

    texts: list[str]
    several_lines: bool = False
    """Whether their file has several lines, which one form takes for several captions and the other for one."""
    empty_tags: bool = False
    """Whether there is nothing between two separators of tags, or before or after one."""


@dataclass(frozen=True, slots=True)
class CaptionRule:
    """How captions are read, and what becomes of each."""

    encoding: str = "utf-8"
    form: Form = "lines"
    field: str = ""
    """Of JSON: where in the object the captions stand."""
    prefix: str = ""
    suffix: str = ""
    trigger: str = ""
    tags: TagSettings | None = None

    @classmethod
    def of(cls, concept: Concept) -> CaptionRule:
        """The rule that a concept states."""
        form: Form = "lines"
        field = ""
        if isinstance(concept.captions, WholeSidecar):
            form = "whole"
        elif isinstance(concept.captions, JsonSidecar):
            form, field = "json", concept.captions.field
        return cls(
            encoding=concept.caption_encoding,
            form=form,
            field=field,
            prefix=concept.prefix,
            suffix=concept.suffix,
            trigger=concept.trigger.strip(),
            tags=concept.tags,
        )

    @property
    def is_plain(self) -> bool:
        """Whether each line of a file is a text as it stands."""
        return self == CaptionRule(self.encoding)

    @property
    def name(self) -> str:
        """What facts about caption files are remembered under; the plain rule has the name that it had before others.

        >>> CaptionRule().name, len(CaptionRule(form="whole").name)
        ('1/utf-8', 66)
        """
        if self.is_plain:
            return f"1/{self.encoding}"
        tags = None if self.tags is None else self.tags.model_dump()
        parts = [self.encoding, self.form, self.field, self.prefix, self.suffix, self.trigger, tags]
        # Of tags with a trigger the first version put that in front of tags which had it already; of JSON, the second
        # took lists of tags apart where a tag has the separator in it.
        version = 4 if tags and self.form == "json" else 3 if tags and self.trigger else 2
        return f"{version}/{digest(canonical(parts)).hex}"

    @property
    def bare(self) -> str:
        """The text of a picture without a caption: the empty prompt, unless the concept puts something into each."""
        return self._framed(self.trigger)

    def read(self, content: bytes) -> CaptionTexts:
        """What a caption file of this content says; `CaptionError` says why it cannot be used."""
        if self.form == "lines":
            captions = read_lines(content, self.encoding)
            return self.complete(captions, several_lines=len(captions) > 1)
        if len(content) > MAX_BYTES:
            raise CaptionError(
                f"{len(content):,} bytes, and a caption file has at most {MAX_BYTES:,}: split it, or name another file"
            )
        text = decode_caption(content, self.encoding)
        if self.form == "json":
            found = _from_json(text, self.field, as_tags=self.tags is not None)
            if not isinstance(found, tuple):
                return self.complete(found)
            return self._of_tags([list(map(self._placed, found))], 1, sum(map(len, found)))
        # As every reader of text files does it: a caption must not change with the system it was written on.
        whole = _LINE_END.sub("\n", text).strip()
        return self.complete([whole] if whole else [], several_lines="\n" in whole)

    def complete(self, captions: list[str], *, several_lines: bool = False) -> CaptionTexts:
        """What captions say, from wherever they come: with trigger, prefix and suffix, and in all their variations."""
        if self.tags is None:
            if self.prefix or self.suffix or self.trigger:
                captions = [self._framed(self._with_trigger(caption)) for caption in captions]
            return CaptionTexts(captions, several_lines)
        # One after the other: of a long file, all tags at once would take many times its size.
        parts = (self.tags.split(self._placed(caption)) for caption in captions)
        return self._of_tags(parts, len(captions), sum(map(len, captions)), several_lines=several_lines)

    def _of_tags(
        self, captions: Iterable[list[str]], count: int, length: int, *, several_lines: bool = False
    ) -> CaptionTexts:
        """What captions say that are lists of tags, some of them empty: so many captions of so many characters."""
        assert self.tags is not None, "asked for where captions are tags"
        count, length = count * self.tags.texts, length * self.tags.texts
        if count > MAX_LINES or length > _MAX_LENGTH:
            raise CaptionError(
                f"its tags would make {count:,} texts of {length:,} characters, and at most {MAX_LINES:,} of "
                f"{_MAX_LENGTH:,} are made of one file: name another file, or lower `variations` of the tags"
            )
        texts: list[str] = []
        empty = False
        for parts in captions:
            tags = [tag for tag in parts if tag]
            empty |= len(tags) < len(parts)
            if tags:
                texts += self._variations(tags, self.tags)
        return CaptionTexts(texts, several_lines, empty)

    def _placed(self, caption: str) -> str:
        """The caption with the trigger where it says so."""
        return caption.replace(_PLACE, self.trigger or _PLACE)

    def _variations(self, tags: list[str], settings: TagSettings) -> Iterator[str]:
        """The texts of one caption: drawn by its tags, the number of the variation and the seed."""
        tags = [tag for tag in tags if tag != self.trigger]
        # A longer tag may have it, where it took the place of [trigger]: then that tag stands in front.
        front = next((tag for tag in tags if self._has_trigger(tag)), self.trigger)
        tags = [tag for tag in tags if tag != front]
        first, rest = tags[: settings.keep_first], tags[settings.keep_first :]
        if front:
            first = [front, *first]
        content = np.frombuffer(digest("\n".join(tags)).bytes, np.uint8).reshape(1, 32)
        numbers = (np.arange(settings.texts)[:, None] << 32) + np.arange(len(rest))
        orders = np.broadcast_to(np.arange(len(rest)), numbers.shape)
        if settings.shuffle:
            bits = draw(content, Purpose.TAG_ORDER, number=numbers.ravel(), seed=settings.seed)
            orders = np.argsort(bits.reshape(numbers.shape), axis=1, kind="stable")
        kept = np.ones(numbers.shape, bool)
        if settings.dropout:
            bits = draw(content, Purpose.TAG_DROPOUT, number=numbers.ravel(), seed=settings.seed)
            kept = pick(bits, _FINE).reshape(numbers.shape) >= settings.dropout * _FINE
        for order, keep in zip(orders.tolist(), kept.tolist(), strict=True):
            yield self._framed(settings.joint.join([*first, *(rest[number] for number in order if keep[number])]))

    def _with_trigger(self, caption: str) -> str:
        if not self.trigger:
            return caption
        caption = self._placed(caption)
        return caption if self._has_trigger(caption) else f"{self.trigger}, {caption}"

    def _has_trigger(self, text: str) -> bool:
        return bool(self.trigger and re.search(rf"(?<!\w){re.escape(self.trigger)}(?!\w)", text))

    def _framed(self, caption: str) -> str:
        return f"{self.prefix}{caption}{self.suffix}".strip()


def _from_json(text: str, field: str, *, as_tags: bool) -> list[str] | tuple[str, ...]:
    """The captions in a field of a JSON object; where they are tags, a list of texts is those of one caption."""
    captions = _json_object(text, field)[field]
    if captions is None:
        return []
    listed = isinstance(captions, list)
    texts: list[str] = []
    for caption in captions if isinstance(captions, list) else [captions]:
        if not isinstance(caption, str):
            place = "a list in " if listed else ""
            raise CaptionError(f"{kind_name(caption)} in {place}field {quoted(field)}: write a text or a list of texts")
        texts.append(checked(caption).strip())
    if as_tags and listed:
        return tuple(texts)
    if len(texts) > MAX_LINES:
        raise CaptionError(f"{len(texts):,} captions, and a file has at most {MAX_LINES:,}: name another file")
    return [text for text in texts if text]


def _json_object(text: str, field: str) -> dict[str, object]:
    """The object in a JSON file, which has this field."""
    again = "write one JSON object into it"
    if not text.strip():
        raise CaptionError(f"an empty file is not JSON: {again}, or remove it")
    try:
        value = JSON.decode(text)
    except json.JSONDecodeError as error:
        raise CaptionError(f"broken JSON at line {error.lineno}, column {error.colno}, {error.msg}: {again}") from None
    except RecursionError:
        raise CaptionError(f"JSON that is nested too deeply: {again}") from None
    except ValueError as error:
        raise CaptionError(f"unusable JSON, {error}") from None
    if not isinstance(value, dict):
        raise CaptionError(f"{kind_name(value)}, not an object: {again}")
    if field not in value:
        fields = ", ".join(quoted(name) for name in list(value)[:_SHOWN_FIELDS]) or "none"
        raise CaptionError(f"no field {quoted(field)} in it, fields there: {fields}; write null for no caption")
    return value
