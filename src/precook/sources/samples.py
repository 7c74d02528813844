"""Samples of a concept, as columns: everything about pictures, captions and masks that keys are made of.

The files of a folder or a table are listed and paired, and the facts about them are collected, from memory or by
reading. A picture with a file that cannot be used becomes a problem; every other one becomes a row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, pairwise
from pathlib import Path

import numpy as np

from precook.config.concept import ColumnName, Concept
from precook.config.further_pictures import OWN, VIDEO
from precook.config.schema import Settings
from precook.config.sections import ImageSettings, TextSettings, VideoSettings
from precook.errors import SourceError
from precook.fs.read import read_small
from precook.fs.stamps import SIZE
from precook.fs.trust import FileSystem
from precook.identity.digest import digest
from precook.memo.memo import Memory
from precook.report import Reporter
from precook.sources.caption_rule import CaptionRule
from precook.sources.captions import MAX_BYTES, CaptionError
from precook.sources.clip_facts import ClipReader, with_audio
from precook.sources.documents import MAX_BYTES as MAX_DOCUMENT
from precook.sources.documents import DocumentRule, DocumentText, split_text
from precook.sources.embedded import ColumnFacts, PageCache, TableFile, collect_embedded
from precook.sources.facts import (
    ALPHA,
    LARGEST,
    CaptionReader,
    FactReader,
    FileFacts,
    PictureReader,
    collect_facts,
    picture_alphas,
    picture_sizes,
)
from precook.sources.frame_choice import FrameTimes
from precook.sources.frame_folder import FrameFolder, frames_digest
from precook.sources.pictures import Facts, RefusedError, check_pixels
from precook.sources.sample_files import SampleFiles, folder_files, mask_path, table_files
from precook.sources.tables import SourceTable, find_tables, is_saved_dataset, read_table
from precook.sources.walk import OUTSIDE, Listing
from precook.values import Bytes, Flags, Numbers

EMPTY = digest("").bytes
"""The digest of the empty prompt."""
_SKEW = 0.01
"""So much a mask's aspect ratio may differ from its picture's."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """A source that cannot be used; its sample is left out."""

    concept: str
    path: str
    """Relative to the concept's folder, or as its table has it."""
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class FurtherColumns:
    """One further picture of each sample, a row each; those of samples without it are zeros."""

    images: Bytes
    """Digests."""
    sizes: Numbers
    """Width and height after orientation."""
    alphas: Flags
    present: Flags

    @classmethod
    def absent(cls, count: int) -> FurtherColumns:
        """That of samples that have none."""
        nothing = np.zeros((2, count), bool)
        return cls(np.zeros((count, 32), np.uint8), np.zeros((count, 2), np.int64), nothing[0], nothing[1])

    def of(self, rows: Flags) -> FurtherColumns:
        """That of some samples."""
        return FurtherColumns(self.images[rows], self.sizes[rows], self.alphas[rows], self.present[rows])

    def same_as(self, other: FurtherColumns) -> bool:
        """Whether both say the same."""
        columns = ("images", "sizes", "alphas", "present")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in columns)


@dataclass(frozen=True, slots=True)
class ConceptSamples:
    """The samples of one concept, a row each."""

    concept: Concept
    image: ImageSettings
    """How its pictures are cut."""
    text: TextSettings
    """Which of its texts are encoded."""
    video: VideoSettings
    """Which frames of its clips are taken."""
    files: SampleFiles
    rows: Numbers
    """Rows of `files` that are samples."""
    images: Bytes
    """Digests of the pictures."""
    sizes: Numbers
    """Width and height after orientation."""
    alphas: Flags
    line_counts: Numbers
    """Captions of each sample; the empty prompt counts as one."""
    lines: Bytes
    """Digests of all captions, sample after sample."""
    uncaptioned: Numbers
    """Samples without a caption: they have the empty prompt, or what the concept puts into every caption."""
    several_lines: int
    """Caption files that have several lines."""
    empty_tags: Numbers
    """Samples whose captions have empty tags, which are passed over."""
    masks: Bytes
    has_mask: Flags
    problems: tuple[SourceProblem, ...]
    frame_digests: tuple[Bytes, ...] = ()
    """Of clips that are folders, the digests of the frames of each."""
    clips: tuple[FrameTimes, ...] | None = None
    """When the frames of each sample are shown, where something wants clips."""
    with_sound: int = 0
    """Clips that have sound, which nobody listens to."""
    passages: Numbers | None = None
    """Of samples that are texts alone: which passage of its document each is, from 0. Then `images` are the digests of
    the texts, and `sizes` are zeros."""
    further: dict[str, FurtherColumns] = field(default_factory=dict)
    """Further pictures that something takes, by name."""

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.rows)

    @property
    def listing(self) -> Listing:
        """The files."""
        return self.files.listing

    def path(self, sample: int) -> str:
        """The picture's path relative to the concept's folder, or as its table has it; of a text, its place."""
        return self.files.path(int(self.rows[sample])) + self._place(sample)

    def full_path(self, sample: int) -> str:
        """The picture's path; of a text also its place in that file: `data/train.jsonl, row 7`."""
        return self.file_path(sample) + self._place(sample)

    def file_path(self, sample: int) -> str:
        """The path of the file that holds the picture or the text."""
        path = self.files.path(int(self.rows[sample]))
        return os.path.join(self.listing.root, path)  # noqa: PTH118 - plain strings: there are many

    def file_size(self, sample: int) -> int:
        """Bytes of the picture's file; of a clip that is a folder, of its largest frame."""
        row = int(self.rows[sample])
        rows = self.files.pictures[[row]] if self.files.frames is None else self.files.frames[row]
        return int(self.listing.stamps[rows, SIZE].max())

    def read(self, sample: int, part: str) -> bytes:
        """The bytes of a picture or a mask as they are now: whoever uses them compares their digest."""
        row = self._listed(sample, part)
        embedded = self.files.embedded
        if embedded is not None and self.files.is_embedded(row):
            return embedded.read(row)
        return read_small(self.listing.full_path(row), LARGEST)

    def table_path(self, sample: int) -> str | None:
        """The path of the table that the picture stands in, where it does."""
        row, embedded = self._listed(sample, OWN), self.files.embedded
        return str(embedded.file(row).path) if embedded is not None and self.files.is_embedded(row) else None

    def _listed(self, sample: int, part: str) -> int:
        """The row of the listing that a picture or a mask has; -1 where there is none."""
        number = int(self.rows[sample])
        if part in (OWN, VIDEO):
            return int(self.files.pictures[number])
        rows = self.files.masks if part == "mask" else self.files.further.get(part)
        return -1 if rows is None else int(rows[number])

    def frame_folder(self, sample: int) -> FrameFolder | None:
        """The frames of a clip that is a folder; None where it is a file."""
        if self.files.frames is None:
            return None
        rows = self.files.frames[int(self.rows[sample])].tolist()
        return FrameFolder(tuple(self.listing.full_path(row) for row in rows), self.frame_digests[sample])

    def order(self, sample: int) -> tuple[bytes, int, int]:
        """Where a sample stands in a list of its concept's sources: by path, row of a table and passage."""
        # By bytes, not by letters: names that are not UTF-8 have an order, too.
        row, embedded = int(self.rows[sample]), self.files.embedded
        picture = int(self.files.pictures[row])
        if embedded is not None and self.files.is_embedded(picture):
            name = embedded.file(picture).name.encode("utf-8", "surrogateescape")
            return name, embedded.place(picture), 0
        path = self.listing.path(picture).encode("utf-8", "surrogateescape")
        return path, row if self.files.documents else 0, 0 if self.passages is None else int(self.passages[sample])

    def names(self, sample: int) -> set[str]:
        """Every path that stands for a sample: of any of its files and, of a text, of its row and its passage."""
        path = self.file_path(sample)
        found = {
            path,
            path + self._row(sample),
            self.full_path(sample),
            self.caption_path(sample),
            self.table_path(sample),
        }
        found |= {
            self.table_path(sample),
            self.mask_path(sample),
            *(self.further_path(sample, name) for name in self.further),
        }
        frames = self.frame_folder(sample)
        found.update(() if frames is None else frames.paths)
        return {path for path in found if path is not None}

    def _place(self, sample: int) -> str:
        """Where in its file a text stands, unless it is all of it."""
        if self.passages is None:
            return ""
        row = self._row(sample)
        return row if self.concept.passages is None else f"{row}, passage {int(self.passages[sample]) + 1}"

    def _row(self, sample: int) -> str:
        documents = self.files.documents
        return "" if documents is None else f", row {documents.numbers[int(self.rows[sample])]}"

    def mask_path(self, sample: int) -> str | None:
        """The mask's path, where there is one."""
        row = self._listed(sample, "mask")
        return self.listing.full_path(row) if row >= 0 else None

    def further_path(self, sample: int, name: str) -> str | None:
        """The path of a further picture, where there is one."""
        row = self._listed(sample, name)
        return self.listing.full_path(row) if row >= 0 else None

    def caption_path(self, sample: int) -> str | None:
        """The caption file's path, where there is one."""
        row = int(self.files.captions[self.rows[sample]])
        return self.listing.full_path(row) if row >= 0 else None

    def place_of(self, line: int) -> tuple[int, int]:
        """Which caption of a sample a text is, and which variation of it: each that has tags has as many."""
        tags = self.concept.tags
        return divmod(line, 1 if tags is None else tags.texts)

    def document(self, sample: int) -> Sequence[DocumentText]:
        """The text that a sample of texts alone is from, in its passages, read now: whoever uses one compares it."""
        documents, passages = self.files.documents, self.concept.passages
        if documents is None:
            content = read_small(self.file_path(sample), MAX_DOCUMENT)
            return DocumentRule(self.concept.caption_encoding, passages).read(content).texts
        texts, row = documents.texts, int(self.rows[sample])
        if row >= len(texts):
            return []  # the table has changed: its text is not found, and the next plan says what is there
        text = texts[row]
        return split_text(text, passages) if isinstance(text, str) else [text]

    def texts(self, sample: int) -> Sequence[DocumentText]:
        """The captions themselves, or the text that the sample is, read now: whoever uses one compares its digest."""
        if self.passages is not None:
            number = int(self.passages[sample])
            return self.document(sample)[number : number + 1]
        rule = CaptionRule.of(self.concept)
        captions = self.files.given_texts(self.concept, int(self.rows[sample]))
        if captions is not None:
            texts = rule.complete(captions).texts
        else:
            path = self.caption_path(sample)
            texts = rule.read(read_small(path, MAX_BYTES)).texts if path else []
        return texts or [rule.bare]

    def same_as(self, other: ConceptSamples) -> bool:
        """Whether both list the same files, pair them alike and found the same content in them."""
        names = [
            (one.listing.names, one.listing.folders, one.files.texts, one.files.documents, one.problems)
            for one in (self, other)
        ]
        columns = ("rows", "images", "sizes", "alphas", "line_counts", "lines", "uncaptioned", "masks", "has_mask")
        return (
            names[0] == names[1]
            and all(
                np.array_equal(getattr(self.files, name), getattr(other.files, name))
                for name in ("pictures", "captions", "masks")
            )
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in columns)
            and self.concept == other.concept  # whose texts are split alike
            and self.files.strays == other.files.strays
            and self.further.keys() == other.further.keys()
            and all(
                self.further[name].same_as(other.further[name])
                and np.array_equal(self.files.further[name], other.files.further[name])
                for name in self.further
            )
        )


def collect_samples(
    concept: Concept,
    base: Path,
    settings: Settings,
    memory: Memory,
    *,
    taken: Collection[str],
    save: Callable[[], None],
    report: Reporter,
) -> ConceptSamples:
    """Find a concept's samples and collect the facts about their files.

    `taken` are the inputs of all encoders: of masks and further pictures only those are looked at that one takes, and
    only where one takes videos are these samples. `save` is called now and then while files are read.
    """
    trust = settings.stamps == "trust"

    def look(file: TableFile, column: str) -> ColumnFacts | None:
        if column == concept.image_column and "video" in taken:
            hint = "write the clips as files, and name their paths in that column"
            raise SourceError(file.path, "an encoder takes clips, and the table holds pictures itself", hint=hint)
        if column not in _taken_columns(concept, taken):
            return None
        file_system = FileSystem.of(file.path.parent, trust=trust)
        return collect_embedded(
            file, column, PictureReader(), memory, file_system=file_system, save=save, report=report
        )

    listed = list_files(concept, base, clips="video" in taken, look=look)
    file_system = FileSystem.of(listed.root, trust=trust)
    collection = _Collection(concept, listed.files, settings, memory, file_system, save, report)
    collection.problems += [SourceProblem(concept.name, path, reason) for path, reason in listed.problems]
    return collection.collect(taken)


def _taken_columns(concept: Concept, taken: Collection[str]) -> set[str]:
    """The columns of a table whose pictures something takes."""
    columns = {concept.image_column}
    if isinstance(concept.masks, ColumnName) and "mask" in taken:
        columns.add(concept.masks.column)
    return columns | {one.column for name, one in concept.further.items() if one.column and name in taken}


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """The files of a concept, none of which was opened but tables, and the folder that they are in."""

    files: SampleFiles
    root: Path
    problems: list[tuple[str, str]]
    """Folders that cannot be listed, or rows of the table that cannot be used: where, and why."""


def list_files(
    concept: Concept, base: Path, *, clips: bool, look: Callable[[TableFile, str], ColumnFacts | None]
) -> ListedFiles:
    """List a concept's folder, with `clips` also its videos, or read its table; pair what belongs together.

    `look` tells what is known of the pictures in a column of a table that holds them itself; None where nothing has to
    be.
    """
    path = base / concept.path
    if not concept.is_table and not is_saved_dataset(path):
        files = folder_files(concept, path, clips=clips)
        return ListedFiles(files, path, files.listing.problems)
    root, names = find_tables(path, recursive=concept.recursive, outside=concept.outside == "allow")
    cache = PageCache()
    tables = [TableFile(root / name, name, _read_table(concept, root / name), cache) for name in names]
    found = {
        (number, column): facts
        for number, file in enumerate(tables)
        for column in sorted(file.table.embedded)
        if (facts := look(file, column)) is not None
    }
    cache.clear()  # what was hashed last is hardly what is encoded first
    files, problems = table_files(concept, root, tables, found)
    bad_rows = [
        (f"{file.name}, row {problem.number}", problem.reason) for file in tables for problem in file.table.problems
    ]
    return ListedFiles(files, root, bad_rows + problems)


def _read_table(concept: Concept, path: Path) -> SourceTable:
    return read_table(
        path,
        image_column=concept.image_column,
        caption_column=concept.captions.column if isinstance(concept.captions, ColumnName) else None,
        mask_column=concept.masks.column if isinstance(concept.masks, ColumnName) else None,
        further_columns=tuple(one.column for one in concept.further.values() if one.column is not None),
    )


class _Collection:
    """Collects the facts about a concept's files and notes which pictures are no samples, and why."""

    def __init__(
        self,
        concept: Concept,
        files: SampleFiles,
        settings: Settings,
        memory: Memory,
        file_system: FileSystem,
        save: Callable[[], None],
        report: Reporter,
    ) -> None:
        self.problems: list[SourceProblem] = []
        self._concept = concept
        self._rule = CaptionRule.of(concept)
        self._files = files
        self._image = settings.image_of(concept)
        self._text = settings.text_of(concept)
        self._video = settings.video_of(concept)
        self._memory = memory
        self._file_system = file_system
        self._save = save
        self._report = report
        self._usable = files.listing.regular()[files.pictures]
        self._several_lines = np.zeros(len(files.pictures), bool)
        self._empty_tags = np.zeros(len(files.pictures), bool)

    def collect(self, taken: Collection[str]) -> ConceptSamples:
        """The samples; a problem with any of its files leaves a sample out."""
        files, listing = self._files, self._files.listing
        for number in np.flatnonzero(~self._usable).tolist():
            row = int(files.pictures[number])
            self._leave_out(number, row, listing.problem(row))
        chosen = np.flatnonzero(self._usable)
        frames: list[Bytes] = []
        if "video" in taken and files.frames is not None:
            pictures, clips, frames = self._frame_folders(chosen)
        elif "video" in taken:
            pictures, clips = self._clips(files.pictures[chosen])
        else:
            pictures, clips = self._facts(files.pictures[chosen], PictureReader()), None
        sizes, alphas = picture_sizes(pictures.facts), picture_alphas(pictures.facts)
        for index, reason in self._unusable_pictures(pictures, sizes):
            self._leave_out(int(chosen[index]), int(files.pictures[chosen[index]]), reason)
        counts, lines, bare = self._captions(chosen)
        masks, has_mask = np.zeros((len(chosen), 32), np.uint8), np.zeros(len(chosen), bool)
        if "mask" in taken and self._concept.masks is not None:
            self._masks(chosen, sizes, masks, has_mask)
        others = {name: self._further(name, chosen, sizes) for name in self._concept.further if name in taken}
        keep = self._usable[chosen]
        if not keep.all():
            lines = lines[np.repeat(keep, counts)]
        return ConceptSamples(
            concept=self._concept,
            image=self._image,
            text=self._text,
            video=self._video,
            files=files,
            rows=chosen[keep],
            images=pictures.digests[keep],
            sizes=sizes[keep],
            alphas=alphas[keep],
            line_counts=counts[keep],
            lines=lines,
            uncaptioned=np.flatnonzero(bare[keep]),
            several_lines=int(self._several_lines[chosen[keep]].sum()),
            empty_tags=np.flatnonzero(self._empty_tags[chosen[keep]]),
            masks=masks[keep],
            has_mask=has_mask[keep],
            problems=tuple(self.problems),
            clips=None if clips is None else tuple(compress(clips, keep.tolist())),
            with_sound=0 if clips is None else int(with_audio(pictures.facts)[keep].sum()),
            further={name: columns.of(keep) for name, columns in others.items()},
            frame_digests=tuple(compress(frames, keep.tolist())),
        )

    def _frame_folders(self, chosen: Numbers) -> tuple[FileFacts, list[FrameTimes], list[Bytes]]:
        """The facts about clips that are folders, when their frames are shown, and the digests of these."""
        assert self._files.frames is not None, "asked for where clips are folders"
        folders = [self._files.frames[number] for number in chosen.tolist()]
        rows = np.concatenate([np.zeros(0, np.int64), *folders])
        found = self._facts(rows, PictureReader())
        starts = np.cumsum([0, *(len(folder) for folder in folders)]).tolist()
        digests = np.zeros((len(folders), 32), np.uint8)
        facts = np.zeros((len(folders), found.facts.shape[1]), np.uint8)
        problems: dict[int, str] = {}
        for number, (start, stop) in enumerate(pairwise(starts)):
            of_all, sizes = found.facts[start:stop], picture_sizes(found.facts[start:stop])
            facts[number] = of_all[0]
            facts[number, ALPHA] = of_all[:, ALPHA].any()
            digests[number] = np.frombuffer(frames_digest(found.digests[start:stop]), np.uint8)
            bad = next((row for row in range(start, stop) if row in found.problems), None)
            other = np.flatnonzero((sizes != sizes[0]).any(axis=1))
            if bad is not None:
                problems[number] = f"{self._files.listing.names[int(rows[bad])]}: {found.problems[bad]}"
            elif len(other):
                name = self._files.listing.names[int(rows[start + int(other[0])])]
                problems[number] = f"its frames have several sizes: {name} is another than the first"
        times = [FrameTimes(np.arange(len(folder)), 0, 1) for folder in folders]
        frames = [found.digests[start:stop] for start, stop in pairwise(starts)]
        return FileFacts(digests, facts, problems), times, frames

    def _clips(self, rows: Numbers) -> tuple[FileFacts, list[FrameTimes]]:
        """The facts about clips, and their time stamps."""
        reader = ClipReader()
        clips = self._facts(rows, reader)
        try:
            return clips, reader.times(clips.digests, clips.facts, self._memory)
        except LookupError:
            # Memory may lose any part of itself. Clips of a rate that varies are read again then.
            self._memory.forget(reader.kind)
            clips = self._facts(rows, reader)
            return clips, reader.times(clips.digests, clips.facts, self._memory)

    def _facts(self, rows: Numbers, reader: FactReader) -> FileFacts:
        """What is known of some files; of pictures in tables that was found out with these."""
        embedded = self._files.embedded
        inside = np.zeros(len(rows), bool) if embedded is None else rows >= embedded.first
        if embedded is None or not inside.any():
            return self._file_facts(rows, reader)
        plain = self._file_facts(rows[~inside], reader)
        cells = rows[inside] - embedded.first
        digests, facts = (np.zeros((len(rows), width), np.uint8) for width in (32, reader.kind.value))
        digests[inside], facts[inside] = embedded.facts.digests[cells], embedded.facts.facts[cells]
        digests[~inside], facts[~inside] = plain.digests, plain.facts
        outside = np.flatnonzero(~inside)
        problems = {int(outside[row]): reason for row, reason in plain.problems.items()}
        for row, cell in zip(np.flatnonzero(inside).tolist(), cells.tolist(), strict=True):
            if cell in embedded.facts.problems:
                problems[row] = embedded.facts.problems[cell]
        return FileFacts(digests, facts, problems)

    def _file_facts(self, rows: Numbers, reader: FactReader) -> FileFacts:
        listing = self._files.listing
        return collect_facts(
            listing.stamps[rows],
            lambda number: listing.full_path(int(rows[number])),
            reader,
            self._memory,
            file_system=self._file_system,
            save=self._save,
            report=self._report,
        )

    def _leave_out(self, number: int, row: int, reason: str) -> None:
        """A picture is no sample because of the file in this row."""
        self._usable[number] = False
        # Of a clip that is a folder, the folder: its first frame need not be the one to blame.
        own = row == int(self._files.pictures[number])
        path = self._files.path(number) if own else self._files.listing.path(row)
        if not own and row != int(self._files.captions[number]):
            # A caption lies beside its picture; what else a sample has may lie anywhere, under any name.
            reason = f"for {self._files.path(number)}: {reason}"
        self.problems.append(SourceProblem(self._concept.name, path, reason))

    def _unusable_pictures(self, pictures: FileFacts, sizes: Numbers) -> Iterator[tuple[int, str]]:
        yield from pictures.problems.items()
        # Without multiplying: a header may claim sides whose product has more than 64 bits.
        width, height = sizes.T
        limit = self._image.most_pixels
        for number in np.flatnonzero(width > limit // np.maximum(height, 1)).tolist():
            try:
                check_pixels(Facts(int(width[number]), int(height[number]), 1, alpha=False), limit)
            except RefusedError as error:
                yield number, str(error)

    def _captions(self, chosen: Numbers) -> tuple[Numbers, Bytes, Flags]:
        """How many captions each sample has, the digests of all of them, and which samples have none."""
        if self._files.texts is None and self._concept.sidecar_extension is not None:
            counts, lines = self._sidecar_captions(chosen)
        else:
            counts, lines = self._given_captions(chosen)
        bare = counts == 0
        if bare.any():
            ends = np.cumsum(counts)
            lines = np.insert(lines, ends[bare], np.frombuffer(digest(self._rule.bare).bytes, np.uint8), axis=0)
            counts = np.maximum(counts, 1)
        return counts, lines, bare

    def _sidecar_captions(self, chosen: Numbers) -> tuple[Numbers, Bytes]:
        rows = self._files.captions[chosen]
        with_file = self._inside(chosen, rows)
        reader = CaptionReader(self._rule)
        texts = self._facts(rows[with_file], reader)
        try:
            line_counts, lines = reader.lines(texts.digests, texts.facts, self._memory)
        except LookupError:
            # Memory may lose any part of itself. Files with several lines are read again then.
            self._memory.forget(reader.kind)
            texts = self._facts(rows[with_file], reader)
            line_counts, lines = reader.lines(texts.digests, texts.facts, self._memory)
        for index, reason in texts.problems.items():
            self._leave_out(int(chosen[with_file[index]]), int(rows[with_file[index]]), reason)
        self._several_lines[chosen[with_file]] = reader.several_lines(texts.facts)
        self._empty_tags[chosen[with_file]] = reader.empty_tags(texts.facts)
        counts = np.zeros(len(chosen), np.int64)
        counts[with_file] = line_counts
        return counts, lines

    def _inside(self, chosen: Numbers, rows: Numbers) -> Numbers:
        """Which samples have a file in these rows that may be read; those whose file lies outside are left out."""
        present = np.flatnonzero(rows >= 0)
        outside = self._files.listing.modes[rows[present]] == OUTSIDE
        for index in present[outside].tolist():
            row = int(rows[index])
            self._leave_out(int(chosen[index]), row, self._files.listing.problem(row))
        return np.asarray(present[~outside])

    def _given_captions(self, chosen: Numbers) -> tuple[Numbers, Bytes]:
        """Captions that stand in names, in the table or in the config."""
        counts: list[int] = []
        lines: list[bytes] = []
        for number in chosen.tolist():
            try:
                captions = self._rule.complete(self._files.given_texts(self._concept, number) or [])
                texts, self._empty_tags[number] = captions.texts, captions.empty_tags
            except CaptionError as error:
                self._leave_out(number, int(self._files.pictures[number]), str(error))
                texts = []
            counts.append(len(texts))
            lines += [digest(text).bytes for text in texts]
        return np.array(counts, np.int64), np.frombuffer(b"".join(lines), np.uint8).reshape(-1, 32)

    def _masks(self, chosen: Numbers, sizes: Numbers, masks: Bytes, has_mask: Flags) -> None:
        """Fill in the masks' digests, and who has one."""
        rows = self._files.masks[chosen]
        present = self._inside(chosen, rows)
        mask_facts = self._facts(rows[present], PictureReader())
        masks[present], has_mask[present] = mask_facts.digests, True
        mask_sizes = picture_sizes(mask_facts.facts)
        for index, reason in self._unusable_pictures(mask_facts, mask_sizes):
            self._leave_out(int(chosen[present[index]]), int(rows[present[index]]), reason)
        if self._concept.missing_mask == "error":
            for number in chosen[rows < 0].tolist():
                row = int(self._files.pictures[number])
                self._leave_out(number, row, "no mask for it, and missing_mask is error")
        self._compare_shapes(chosen, rows, present, sizes, mask_sizes, "")

    def _further(self, name: str, chosen: Numbers, sizes: Numbers) -> FurtherColumns:
        """One further picture of each sample; a sample that needs one that is not there is left out."""
        settings = self._concept.further[name]
        rows = self._files.further[name][chosen]
        present = self._inside(chosen, rows)
        pictures = self._facts(rows[present], PictureReader())
        columns = FurtherColumns.absent(len(chosen))
        columns.images[present], columns.present[present] = pictures.digests, True
        columns.sizes[present], columns.alphas[present] = picture_sizes(pictures.facts), picture_alphas(pictures.facts)
        for index, reason in self._unusable_pictures(pictures, columns.sizes[present]):
            self._leave_out(int(chosen[present[index]]), int(rows[present[index]]), reason)
        if not settings.optional:
            for number in chosen[rows < 0].tolist():
                row = int(self._files.pictures[number])
                self._leave_out(number, row, self._why_missing(name, number))
        if settings.fit == "target":
            hint = ": write `fit: own` if it is to be cut by its own shape"
            self._compare_shapes(chosen, rows, present, sizes, columns.sizes[present], hint)
        return columns

    def _why_missing(self, name: str, number: int) -> str:
        pattern = self._concept.further[name].path
        if pattern is None:
            return f"no {name} picture for it: its row names none"
        picture = self._files.listing.path(int(self._files.pictures[number]))
        return f"no {name} picture for it: there is no {mask_path(picture, pattern)}"

    def _compare_shapes(
        self, chosen: Numbers, rows: Numbers, present: Numbers, sizes: Numbers, others: Numbers, hint: str
    ) -> None:
        """Leave out samples whose mask or further picture, of which `others` are the sizes, has another shape."""
        width, height = sizes[present].T
        other_width, other_height = others.T
        readable = (other_height > 0) & (height > 0)  # what was refused has no size
        skew = (other_width[readable] / other_height[readable]) / (width[readable] / height[readable])
        for index in np.flatnonzero(readable)[np.abs(skew - 1) > _SKEW].tolist():
            shapes = f"{other_width[index]}x{other_height[index]}, its picture {width[index]}x{height[index]}"
            reason = f"another shape than its picture: {shapes}{hint}"
            self._leave_out(int(chosen[present[index]]), int(rows[present[index]]), reason)


def stray_problems(concepts: Sequence[ConceptSamples]) -> list[ConceptSamples]:
    """The same samples with a problem for every further picture that belongs to no picture of any concept."""
    if not any(concept.files.strays for concept in concepts):
        return list(concepts)
    told = {
        os.path.abspath(concept.listing.full_path(row))  # noqa: PTH100 - plain strings: there are many
        for concept in concepts
        for name in concept.further
        for row in concept.files.further[name].tolist()
        if row >= 0
    }
    result = []
    for concept in concepts:
        problems = []
        for name, path in concept.files.strays:
            place = os.path.abspath(os.path.join(concept.listing.root, path))  # noqa: PTH100, PTH118
            if name in concept.further and place not in told:
                told.add(place)
                problems.append(SourceProblem(concept.concept.name, path, f"no picture for this {name}"))
        result.append(replace(concept, problems=(*concept.problems, *problems)))
    return result
