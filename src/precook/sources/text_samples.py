"""Samples of texts alone: the texts of a folder or a table, each of them or each of its passages a sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from precook.config.concept import Concept
from precook.config.schema import Settings
from precook.config.texts import TextFiles
from precook.fs.trust import FileSystem
from precook.memo.memo import Memory
from precook.report import Reporter
from precook.sources.documents import DocumentRule, read_documents, split_text, text_digest
from precook.sources.facts import DocumentReader, collect_facts
from precook.sources.sample_files import SampleFiles, document_files, document_table
from precook.sources.samples import ConceptSamples, SourceProblem
from precook.values import Bytes, Numbers


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
        table = read_documents(root, concept.texts)
        files = document_table(root, table)
        problems = [(f"{root.name}, row {problem.number}", problem.reason) for problem in table.problems]
        passages = [split_text(text, concept.passages) if isinstance(text, str) else [text] for text in table.texts]
        chosen, counts = np.arange(len(passages)), np.array([len(some) for some in passages], np.int64)
        joined = b"".join(text_digest(passage) for some in passages for passage in some)
        digests = np.frombuffer(joined, np.uint8).reshape(-1, 32)
    count = len(digests)
    return ConceptSamples(
        concept=concept,
        image=settings.image_of(concept),
        text=settings.text_of(concept),
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
