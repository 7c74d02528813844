"""The rule of a concept's captions: how what stands in a file, a table or a name becomes the texts that are encoded.

The texts follow from the captions alone, never from a picture's place: so they can be remembered by the content of a
file, and captions that are alike give the same texts everywhere.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from precook.config.concept import Concept, JsonSidecar, WholeSidecar
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.sources.captions import MAX_BYTES, CaptionError, checked, decode_caption, read_lines
from precook.sources.table_formats import JSON, kind_name, quoted

Form = Literal["lines", "whole", "json"]

_PLACE = "[trigger]"
_LINE_END = re.compile("\r\n?")
_SHOWN_FIELDS = 12


@dataclass(frozen=True, slots=True)
class FileCaptions:
    """What a caption file says: the texts that are encoded, and what a plan tells about them."""

    texts: list[str]
    several_lines: bool
    """Whether it has several lines, which one form takes for several captions and the other for one."""


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
        parts = [self.encoding, self.form, self.field, self.prefix, self.suffix, self.trigger]
        return f"2/{digest(canonical(parts)).hex}"

    @property
    def bare(self) -> str:
        """The text of a picture without a caption: the empty prompt, unless the concept puts something into each."""
        return self._complete("")

    def read(self, content: bytes) -> FileCaptions:
        """What a caption file of this content says; `CaptionError` says why it cannot be used."""
        if self.form == "lines":
            captions = read_lines(content, self.encoding)
            return FileCaptions(self.texts(captions), several_lines=len(captions) > 1)
        if len(content) > MAX_BYTES:
            raise CaptionError(
                f"{len(content):,} bytes, and a caption file has at most {MAX_BYTES:,}: split it, or name another file"
            )
        text = decode_caption(content, self.encoding)
        if self.form == "json":
            return FileCaptions(self.texts(_from_json(text, self.field)), several_lines=False)
        # As every reader of text files does it: a caption must not change with the system it was written on.
        whole = _LINE_END.sub("\n", text).strip()
        return FileCaptions(self.texts([whole] if whole else []), several_lines="\n" in whole)

    def texts(self, captions: list[str]) -> list[str]:
        """The texts that are encoded for these captions."""
        if not (self.prefix or self.suffix or self.trigger):
            return captions
        return [self._complete(caption) for caption in captions]

    def _complete(self, caption: str) -> str:
        """A caption with its trigger, prefix and suffix."""
        if self.trigger:
            caption = caption.replace(_PLACE, self.trigger)
            if not re.search(rf"(?<!\w){re.escape(self.trigger)}(?!\w)", caption):
                caption = f"{self.trigger}, {caption}" if caption else self.trigger
        return f"{self.prefix}{caption}{self.suffix}".strip()


def _from_json(text: str, field: str) -> list[str]:
    """The captions in a field of a JSON object."""
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
    captions = value[field]
    if captions is None:
        return []
    texts = captions if isinstance(captions, list) else [captions]
    for caption in texts:
        if not isinstance(caption, str):
            place = "a list in " if captions is texts else ""
            raise CaptionError(f"{kind_name(caption)} in {place}field {quoted(field)}: write a text or a list of texts")
    return [stripped for caption in texts if (stripped := checked(caption).strip())]
