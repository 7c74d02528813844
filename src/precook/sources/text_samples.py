"""Samples of texts alone: the texts of a folder or a table, each of them or each of its passages a sample."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precook.config.concept import Concept
from precook.config.schema import Settings
from precook.config.texts import CompletionColumns, MessagesColumn, TextColumn, TextFiles
from precook.fs.stamps import FILES, Stamps, read_stamps, stamp_keys
from precook.fs.trust import FileSystem, FileSystems
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.report import Reporter
from precook.sources.documents import (
    DocumentRule,
    DocumentTable,
    read_documents,
    remembered_documents,
    split_text,
    text_digest,
)
from precook.sources.facts import DocumentReader, collect_facts
from precook.sources.sample_files import SampleFiles, document_files, document_table
from precook.sources.samples import ConceptSamples, SourceProblem
from precook.sources.table_formats import RowProblem
from precook.values import Bytes, Numbers

_LONGEST_NOTE = 1 << 20
"""Characters in which the bad rows of a table are remembered; one with more is read again."""
_LARGEST_NUMBER = 1 << 32


def collect_texts(
    concept: Concept, base: Path, settings: Settings, memory: Memory, *, save: Callable[[], None], report: Reporter
) -> ConceptSamples:
    """Find the texts of a concept without pictures and what each is known by; files that are remembered stay closed."""
    root = base / concept.path
    assert concept.texts is not None, "whoever has pictures is collected by `collect_samples`"
    if isinstance(concept.texts, TextFiles):
        files = document_files(concept, root)
        problems = list(files.listing.problems)
        chosen, counts, digests = _read_files(
            concept, files, memory, problems, FileSystem.of(root, trust=settings.stamps == "trust"), save, report
        )
    else:
        trust = settings.stamps == "trust"
        table, rows = _TableMemory(concept, concept.texts, root, memory, trust=trust).read()
        files = document_table(root, table)
        problems = [(f"{root.name}, row {problem.number}", problem.reason) for problem in table.problems]
        chosen, counts, digests = np.arange(len(table.numbers)), rows.counts, rows.digests
    count = len(digests)
    return ConceptSamples(
        concept=concept,
        image=settings.image_of(concept),
        text=settings.text_of(concept),
        video=settings.video_of(concept),
        files=files,
        rows=np.repeat(chosen, counts),
        images=digests,
        sizes=np.zeros((count, 2), np.int64),
        alphas=np.zeros(count, bool),
        line_counts=np.ones(count, np.int64),
        lines=digests,
        uncaptioned=np.zeros(0, np.int64),
        several_lines=0,
        empty_tags=np.zeros(0, np.int64),
        masks=np.zeros((count, 32), np.uint8),
        has_mask=np.zeros(count, bool),
        problems=tuple(SourceProblem(concept.name, path, reason) for path, reason in problems),
        passages=np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts),
    )


def _read_files(
    concept: Concept,
    files: SampleFiles,
    memory: Memory,
    problems: list[tuple[str, str]],
    file_system: FileSystem,
    save: Callable[[], None],
    report: Reporter,
) -> tuple[Numbers, Numbers, Bytes]:
    """The files that hold a text, how many passages each has, and the digests of all of them."""
    listing = files.listing
    regular = listing.regular()
    problems += [(listing.path(row), listing.problem(row)) for row in np.flatnonzero(~regular).tolist()]
    rows = np.flatnonzero(regular)
    reader = DocumentReader(DocumentRule(concept.caption_encoding, concept.passages))

    def read() -> tuple[Numbers, Numbers, Bytes]:
        facts = collect_facts(
            listing.stamps[rows],
            lambda number: listing.full_path(int(rows[number])),
            reader,
            memory,
            file_system=file_system,
            save=save,
            report=report,
        )
        counts, digests = reader.lines(facts.digests, facts.facts, memory)
        usable = np.ones(len(rows), bool)
        usable[list(facts.problems)] = False
        problems.extend((listing.path(int(rows[number])), reason) for number, reason in facts.problems.items())
        return rows[usable], counts[usable], digests[np.repeat(usable, counts)]

    try:
        return read()
    except LookupError:
        # Memory may lose any part of itself. Files with several passages are read again then.
        memory.forget(reader.kind)
        return read()


@dataclass(frozen=True, slots=True, eq=False)
class _TableRows:
    """The passages of a table's texts, text after text."""

    counts: Numbers
    """How many passages each text has."""
    digests: Bytes


class _TableMemory:
    """What is remembered of one table of texts: of its content of today, not of what it was before."""

    def __init__(
        self,
        concept: Concept,
        source: TextColumn | MessagesColumn | CompletionColumns,
        path: Path,
        memory: Memory,
        *,
        trust: bool,
    ) -> None:
        self._passages = concept.passages
        self._source = source
        self._path = path
        self._memory = memory
        self._file_system: FileSystem | None = None
        """None where there is none: whoever reads the table says so."""
        if path.parent.is_dir():
            self._file_system = FileSystem.of(path.parent, trust=trust)
        split = None if concept.passages is None else concept.passages.model_dump()
        # By its place, too, so that what a table was before can be forgotten: tables are long, and grow.
        name = digest(canonical([source.model_dump(), split, os.path.abspath(path)])).hex  # noqa: PTH100
        # The number goes up with every change of what `documents` makes of a row: bad ones are remembered, too.
        self._kind = Kind(f"rows of a table/2/{name}", key=40, value=40)
        self._notes = f"tables of texts/2/{name}"

    def read(self) -> tuple[DocumentTable, _TableRows]:
        """The table and its passages; it is opened where its stamp, or what stood in it, is not remembered."""
        found = self._recall()
        if found is not None:
            return found
        table = read_documents(self._path, self._source)
        passages = [split_text(text, self._passages) if isinstance(text, str) else [text] for text in table.texts]
        joined = b"".join(text_digest(passage) for some in passages for passage in some)
        counts = np.array([len(some) for some in passages], np.int64)
        rows = _TableRows(counts, np.frombuffer(joined, np.uint8).reshape(-1, 32))
        self._remember(table, rows)
        return table, rows

    def _recall(self) -> tuple[DocumentTable, _TableRows] | None:
        try:
            stamps = read_stamps([self._path])
        except (OSError, ValueError):  # ValueError: a NUL in the path
            return None  # whoever reads it says what is wrong
        known, content = self._memory.recall(FILES, stamp_keys(stamps))
        systems = self._file_systems(stamps)
        if systems is None or not (known & systems.trusted(stamps))[0]:
            return None
        noted = _read_note(self._memory.note(self._notes, content[0].tobytes()))
        if noted is None or noted[0] > len(self._memory.rows(self._kind)[0]):
            return None
        count, problems = noted
        known, values = self._memory.recall(self._kind, _row_keys(content[0], count))
        if not known.all():
            return None  # memory may lose any part of itself
        places = np.ascontiguousarray(values[:, 32:]).view("<u4")
        # Each text has a passage at least, and a row of its own.
        firsts = np.flatnonzero(np.diff(places[:, 0], prepend=-1))
        table = remembered_documents(
            self._path,
            self._source,
            content[0].tobytes(),
            places[firsts, 1].tolist(),
            problems,
        )
        return table, _TableRows(np.diff(np.append(firsts, count)), np.ascontiguousarray(values[:, :32]))

    def _remember(self, table: DocumentTable, rows: _TableRows) -> None:
        stamps = np.array([table.stamp], np.int64)
        numbers = np.array(table.numbers, np.int64)
        note = json.dumps([len(rows.digests), [[problem.number, problem.reason] for problem in table.problems]])
        fits = len(note) <= _LONGEST_NOTE and numbers.max(initial=0) < _LARGEST_NUMBER and rows.counts.all()
        systems = self._file_systems(stamps)
        if not fits or systems is None or not systems.lasting(stamps)[0]:
            return
        content = np.frombuffer(table.digest, np.uint8)
        places = np.stack([np.repeat(np.arange(len(numbers)), rows.counts), np.repeat(numbers, rows.counts)], axis=1)
        values = np.concatenate([rows.digests, places.astype("<u4").view(np.uint8)], axis=1)
        if self._memory.note(self._notes, table.digest) is None:
            for before in list(self._memory.notes(self._notes)):
                self._memory.write_note(self._notes, before, None)
            self._memory.forget(self._kind)
        self._memory.remember(FILES, stamp_keys(stamps), content.reshape(1, 32))
        self._memory.remember(self._kind, _row_keys(content, len(values)), values)
        self._memory.write_note(self._notes, table.digest, note)

    def _file_systems(self, stamps: Stamps) -> FileSystems | None:
        if self._file_system is None:
            return None
        return FileSystems(self._file_system, stamps, lambda _: str(self._path))


def _read_note(note: str | None) -> tuple[int, list[RowProblem]] | None:
    """How many passages a table has, and its bad rows; None where that is not what was noted."""
    try:
        count, problems = json.loads(note or "")
        read = [RowProblem(int(number), str(reason)) for number, reason in problems]
    except (ValueError, TypeError, RecursionError):
        return None
    return (count, read) if type(count) is int and count >= 0 else None


def _row_keys(content: Bytes, count: int) -> Bytes:
    """What the passages of a table of this content's digest are remembered under."""
    numbers = np.arange(count, dtype="<u8")[:, None].view(np.uint8)
    return np.concatenate([np.broadcast_to(content, (count, 32)), numbers], axis=1)
