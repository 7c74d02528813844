"""The survey of texts: what a folder or a table without pictures holds, so that `precook init` can say it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from precook.config.concept import TABLES
from precook.config.template import FoundConcept
from precook.config.texts import CompletionColumns, MessagesColumn, TextColumn, usual_texts
from precook.errors import SourceError, printable
from precook.sources.documents import read_documents
from precook.sources.tables import read_columns
from precook.sources.walk import Listing
from precook.units import format_count

_LONGEST_NAME = 200
_TOOLS = "tools"
_BESIDE = ("system", "input", "history")
"""Columns that other trainers put into a text: their owner should know that nobody does here."""


def survey_files(listing: Listing, name: str, path: str) -> FoundConcept | None:
    """The text files that a folder without pictures has; None where it has none."""
    # Captions may end otherwise, and were looked for, too.
    plain = sum(name.lower().endswith(".txt") for name in listing.names)
    found = {".txt": plain, ".md": listing.ignored["md"]}
    extension = max(found, key=lambda ending: found[ending])
    if not found[extension]:
        return None
    texts = {"texts": "files", **({} if extension == ".txt" else {"caption_extension": extension})}
    return _found(name, path, found[extension], texts)


def survey_table(file: Path, path: str) -> FoundConcept:
    """The texts of a table, by what its columns are called; `SourceError` where that says nothing."""
    if file.suffix.lower() not in TABLES:
        hint = f"name a folder of pictures or texts, or a table of texts: it ends in {', '.join(TABLES)}"
        raise SourceError(file, "not a folder", hint=hint)
    columns = read_columns(file)
    if "image" in columns:
        hint = "name the folder that holds the pictures; this table goes into the config, as the path of a concept"
        raise SourceError(file, "a table of pictures, not of texts", hint=hint)
    source = usual_texts(columns)
    if source is not None:
        spoken = not isinstance(source, TextColumn) and _TOOLS in columns
        return _from_table(file, path, source.model_copy(update={"tools": _TOOLS}) if spoken else source, columns)
    shown = ", ".join(map(repr, columns[:12])) or "none"
    hint = "write texts into a config: {column: …}, {messages: …} or {prompt: …, completion: …}"
    raise SourceError(file, f"no column of texts that is known among {printable(shown)}", hint=hint)


def _from_table(
    file: Path, path: str, source: TextColumn | MessagesColumn | CompletionColumns, columns: Collection[str]
) -> FoundConcept:
    table, form = read_documents(file, source), source.model_dump()
    remarks = []
    if table.problems:
        first = table.problems[0]
        rows = format_count(len(table.problems), "row")
        remarks.append(f"{rows} cannot be used; row {first.number}: {first.reason}")
    if aside := [name for name in _BESIDE if name in columns and name not in form.values()]:
        remarks.append(f"left aside: column {' and '.join(aside)}, of which no text is made")
    return _found(file.stem, path, len(table.texts), {"texts": form}, remarks)


def _found(name: str, path: str, count: int, texts: Mapping[str, Any], remarks: Iterable[str] = ()) -> FoundConcept:
    return FoundConcept(
        name=printable(name)[:_LONGEST_NAME] or "texts",
        path=path,
        images=count,
        captions="none",
        masks=None,
        min_side=0,
        max_side=0,
        texts=texts,
        remarks=tuple(remarks),
    )
