"""The survey of texts: what a folder or a table without pictures holds, so that `precook init` can say it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precook.config.concept import TABLES
from precook.config.template import FoundConcept
from precook.config.texts import usual_texts
from precook.errors import SourceError, printable
from precook.sources.documents import read_documents
from precook.sources.walk import Listing

_LONGEST_NAME = 200
_BEGINNING = 16 << 20
"""Bytes of a table that are looked at for its columns: a line of JSON has no more."""


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
    columns = _columns(file)
    if "image" in columns:
        hint = "name the folder that holds the pictures; this table goes into the config, as the path of a concept"
        raise SourceError(file, "a table of pictures, not of texts", hint=hint)
    source = usual_texts(columns)
    if source is not None:
        count = len(read_documents(file, source).texts)
        return _found(file.stem, path, count, {"texts": source.model_dump()})
    shown = ", ".join(map(repr, columns[:12])) or "none"
    hint = "write texts into a config: {column: …}, {messages: …} or {prompt: …, completion: …}"
    raise SourceError(file, f"no column of texts that is known among {printable(shown)}", hint=hint)


def _found(name: str, path: str, count: int, texts: Mapping[str, Any]) -> FoundConcept:
    return FoundConcept(
        name=printable(name)[:_LONGEST_NAME] or "texts",
        path=path,
        images=count,
        captions="none",
        masks=None,
        min_side=0,
        max_side=0,
        texts=texts,
    )


def _columns(file: Path) -> list[str]:
    """What the columns of a table are called, by its beginning."""
    try:
        if file.suffix.lower() == ".parquet":
            return _parquet_columns(file)
        with file.open("rb") as opened:
            text = opened.read(_BEGINNING).decode("utf-8-sig", "replace")
    except OSError as error:
        raise SourceError(file, error.strerror or str(error)) from error
    lines = io.StringIO(text, newline="")
    if file.suffix.lower() in (".csv", ".tsv"):
        return next(csv.reader(lines, delimiter="," if file.suffix.lower() == ".csv" else "\t"), [])
    for line in filter(str.strip, lines):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return list(row)
    return []


def _parquet_columns(file: Path) -> list[str]:
    try:
        import pyarrow  # noqa: PLC0415, ICN001 - an extra, and slow to import
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise SourceError(file, "parquet needs pyarrow", hint="pip install 'precook[parquet]'") from error
    try:
        names: list[str] = parquet.read_schema(file).names
    except pyarrow.ArrowException as error:
        raise SourceError(file, f"broken parquet: {printable(error)}", hint="write the file again") from error
    return names
