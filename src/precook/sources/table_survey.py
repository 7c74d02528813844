"""The survey of tables that hold pictures, as datasets of the hub do, so that `precook init` can say what is there."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from precook.config.template import FoundConcept
from precook.errors import SourceError, printable
from precook.fs.stamps import SIZE
from precook.sources.arrow import ArrowFile
from precook.sources.embedded import PageCache, TableFile
from precook.sources.parquet import ParquetFooter, TableFileError, read_footer
from precook.sources.pictures import RefusedError, read_facts
from precook.sources.table_formats import broken, check_rows, require_pyarrow
from precook.sources.tables import SPLITS, SourceTable, find_tables, is_saved_dataset, open_table
from precook.sources.walk import walk

_CAPTIONS = ("text", "caption", "captions", "prompt", "tags", "description")
"""What the column of captions is called, the likeliest first."""
_IMAGES = ("image", "img", "picture", "photo", "jpg", "png", "jpeg", "webp")
"""What the column of pictures is called, where there are several that hold some."""
_VALIDATION = ("validation", "valid", "val", "test", "dev", "eval")
"""What the parts of a dataset are called that nobody trains on."""
_SHARD = re.compile(r"(.+?)-[0-9]{5}-of-[0-9]{5}(?:-[0-9a-f]+)?\.parquet", re.IGNORECASE)
_MEASURED = 25
"""Pictures whose size is read: enough to tell the usual one."""
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """A concept whose pictures stand in tables."""

    concept: FoundConcept
    captioned: int
    """Rows with a column of captions."""
    usual_side: int
    """The side of a square as large as the usual picture; 0 where none could be read."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """What the columns of a table hold."""

    rows: int
    pictures: tuple[str, ...]
    texts: tuple[str, ...]


def survey_tables(path: Path, relative: Callable[[Path], str]) -> list[SurveyedTable]:
    """The parts of a dataset of the hub in a folder or a file, each a concept; nothing where there is none.

    What is trained on comes first. `relative` writes a path as the config does.
    """
    found = [
        _surveyed(name, place, relative(place), files, columns)
        for name, place, files in _parts(path)
        if (columns := [_columns(file) for file in files]) and all(one.pictures for one in columns)
    ]
    found.sort(key=lambda each: "validation" in each.concept.settings)
    names = Counter(each.concept.name for each in found)
    return [
        each
        if names[each.concept.name] == 1
        else replace(each, concept=replace(each.concept, name=each.concept.path[-_LONGEST_NAME:]))
        for each in found
    ]


def _parts(path: Path) -> Iterator[tuple[str, Path, list[Path]]]:
    """Tables that belong together: a name, the path of the concept, and the files."""
    if path.is_file():
        if path.suffix.lower() == ".parquet":
            yield path.stem, path, [path]
        return
    if (path / SPLITS).is_file() or is_saved_dataset(path):
        folders = [path] if is_saved_dataset(path) else sorted(file for file in path.iterdir() if file.is_dir())
        for folder in filter(is_saved_dataset, folders):
            yield folder.absolute().name, folder, [folder / name for name in find_tables(folder)[1]]
        return
    listing = walk(path, {"parquet": 1}, recursive=True)
    regular = listing.regular()
    files = sorted(path / listing.path(row) for row in np.flatnonzero(regular).tolist())
    if len(regular) and not files:
        # The hub's own cache: whether links may be followed is its owner's word, and not to be guessed.
        hint = "`hf download --local-dir` writes files and no links; or write a config by hand"
        raise SourceError(path / listing.path(0), listing.problem(0), hint=hint)
    groups: dict[tuple[Path, str], list[Path]] = {}
    for file in files:
        shard = _SHARD.fullmatch(file.name)
        groups.setdefault((file.parent, shard[1] if shard else ""), []).append(file)
    for (folder, split), some in groups.items():
        if split:
            yield split, folder / f"{split}-*.parquet", some
        elif len(some) == 1:
            yield some[0].stem, some[0], some
        else:
            yield folder.absolute().name, folder / "*.parquet", some


def _columns(file: Path) -> _Columns:
    require_pyarrow(file)
    try:
        with open_table(file) as (descriptor, stamp):
            if file.suffix.lower() == ".parquet":
                footer = read_footer(descriptor, stamp[SIZE])
                check_rows(file, footer.rows, stamp[SIZE])
                return _parquet_columns(footer)
            table = ArrowFile(descriptor, stamp[SIZE])
            check_rows(file, table.rows, stamp[SIZE])
            pictures = tuple(name for name in table.names if table.pictures(name) is not None)
            texts = tuple(name for name in table.names if str(table.kind(name)) in ("string", "large_string"))
            return _Columns(table.rows, pictures, texts)
    except (TableFileError, EOFError) as error:
        raise broken(file, error) from error


def _parquet_columns(footer: ParquetFooter) -> _Columns:
    pictures = tuple(name for name in footer.names if footer.pictures(name) is not None)
    texts = tuple(
        name
        for name in footer.names
        if len(leaves := footer.leaves(name)) == 1 and leaves[0].is_text and leaves[0].repetition <= 1
    )
    return _Columns(footer.rows, pictures, texts)


def _surveyed(name: str, place: Path, path: str, files: Sequence[Path], columns: Sequence[_Columns]) -> SurveyedTable:
    rows = sum(one.rows for one in columns)
    pictures = [column for column in columns[0].pictures if all(column in one.pictures for one in columns)]
    texts = [column for column in columns[0].texts if all(column in one.texts for one in columns)]
    image = next((known for known in _IMAGES if known in pictures), pictures[0] if pictures else "")
    if not image:
        raise SourceError(place, "its files have pictures in other columns", hint="write a concept for each by hand")
    caption = next((known for known in _CAPTIONS if known in texts), None)
    settings: dict[str, object] = {} if image == "image" else {"image_column": image}
    remarks = [f"the pictures stand in column {image}"]
    if caption is None:
        settings["captions"] = {"text": ""}
        remarks.append(f"no column reads like captions among: {', '.join(texts) or 'none'}")
    else:
        settings["captions"] = {"column": caption}
        remarks.append(f"the captions stand in column {caption}")
    others = [column for column in pictures if column != image]
    if others:
        example = f"{{{others[0].lower()}: {{column: {others[0]}}}}}"
        remarks.append(f"pictures in {', '.join(others)} as well: `images: {example}` gives them to encoders")
    if name.lower() in _VALIDATION:
        settings["validation"] = True
        remarks.append("by its name it is for validation, and never trained on")
    sides = _sides(files[0], image, columns[0].rows)
    concept = FoundConcept(
        name=printable(name)[:_LONGEST_NAME] or "pictures",
        path=path,
        images=rows,
        captions="none",
        masks=None,
        min_side=min(sides, default=0),
        max_side=max(sides, default=0),
        settings=settings,
        remarks=tuple(map(printable, remarks)),
    )
    return SurveyedTable(concept, rows if caption else 0, round(statistics.median(sides)) if sides else 0)


def _sides(path: Path, column: str, rows: int) -> list[int]:
    """The side of a square of the same area, of some pictures."""
    sides = []
    with open_table(path) as (descriptor, stamp):
        file = TableFile(path, path.name, SourceTable((), (), stamp), PageCache())
        for row in range(0, rows, rows // _MEASURED + 1):
            try:
                content = file.read_open(descriptor, stamp, column, row)
                facts = None if content is None else read_facts(content)
            except (TableFileError, EOFError, RefusedError):
                continue  # `plan` names it
            if facts is not None:
                sides.append(round((facts.width * facts.height) ** 0.5))
    return sides
