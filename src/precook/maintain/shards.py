"""Shards: a dataset as plain safetensors files and a manifest, for people without precook.

Entries of one encoder whose leaves have the same types and shapes lie stacked in one tensor for each leaf; the manifest
says in which file and stack and in which row each one lies. docs/guides/share.md shows how to read them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precook.fs.read import open_source
from precook.maintain.export import FOREIGN, EntryReader, hold_snapshot, name_taken
from precook.report import SILENT, Reporter
from precook.store import files
from precook.store.format.build import Entry, leaf_names
from precook.store.format.header import Column, dump_header
from precook.store.format.pack import lanes_shape
from precook.store.snapshot import Snapshot
from precook.store.snapshot_content import SnapshotContent
from precook.store.store import Store
from precook.values import Bytes

FORMAT = 1
SHARD_BYTES = 512 << 20
"""About what a file holds, at the most."""
_MANIFEST = "manifest.json"
_BEGINNING = re.compile(rb'\{\s*"precook_shards"\s*:')
_MARK = ".precook-export"
"""In a folder that is not finished: whoever finds it there may remove the folder."""
_BATCH = 256
"""Entries read at a time."""


@dataclass(frozen=True, slots=True)
class Sharded:
    """Shards that were written."""

    path: Path
    dataset: str
    snapshot: str
    samples: int
    entries: int
    files: tuple[str, ...]
    nbytes: int


def export_shards(
    store: Store,
    dataset: str,
    path: Path,
    *,
    snapshot: str | None = None,
    force: bool = False,
    shard_bytes: int = SHARD_BYTES,
    report: Reporter = SILENT,
) -> Sharded:
    """Write a dataset to a folder of safetensors files with a manifest; neither paths nor captions go with it.

    A folder that is there stays unless `force` is given and a manifest of ours lies in it.
    """
    if os.path.lexists(path) and not (force and _is_ours(path)):
        raise name_taken(path) if _is_ours(path) else name_taken(path, FOREIGN)
    partial = path.with_name(path.name + files.PARTIAL)
    with hold_snapshot(store, dataset, snapshot) as chosen, files.explained(path.parent):
        _begin(partial)
        reader = EntryReader(store, dataset)
        entries = {encoder: reader.find(_keys_of(chosen, encoder)) for encoder in chosen.content.encoders}
        reader.check()
        shards = {encoder: _ShardWriter(encoder, partial, shard_bytes) for encoder in chosen.content.encoders}
        total = sum(int(some.nbytes.sum()) for some in entries.values())
        with report.task("export", total=total, unit="bytes") as task:
            for encoder, writer in shards.items():
                for start in range(0, len(entries[encoder]), _BATCH):
                    batch = slice(start, start + _BATCH)
                    for entry in reader.read(entries[encoder], batch):
                        # Once an entry is lost nothing comes of it: the rest is only looked at, for the list.
                        if reader.complete:
                            writer.add(entry)
                    task.advance(int(entries[encoder].nbytes[batch].sum()))
                writer.write()
        reader.check()
        content = _manifest(chosen, shards)
        files.publish(partial / _MANIFEST, [json.dumps(content, indent=1).encode()])
        if path.exists():
            shutil.rmtree(path)
        (partial / _MARK).unlink()
        files.publish_file(partial, path)
    names = tuple(name for writer in shards.values() for name in writer.files)
    nbytes = sum((path / name).stat().st_size for name in (*names, _MANIFEST))
    count = sum(len(writer.places) for writer in shards.values())
    return Sharded(path, dataset, chosen.file.id, chosen.samples, count, names, nbytes)


class _ShardWriter:
    """Writes the shards of one encoder."""

    def __init__(self, encoder: str, folder: Path, shard_bytes: int) -> None:
        self._encoder = encoder
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._stacks: dict[tuple[Any, ...], tuple[int, list[Entry]]] = {}
        """Number and entries of each stack, by the types and shapes that its leaves share."""
        self._nbytes = 0
        self.files: list[str] = []
        """Names of the shards that were written."""
        self.places: dict[bytes, list[Any]] = {}
        """File, stack and row of each entry, and its plain values."""
        self.made: dict[bytes, None] = {}
        """What entries were made with, each once."""

    def add(self, entry: Entry) -> None:
        """Put an entry where it belongs; a full shard is written."""
        shapes = tuple(leaf.shape for leaf in entry.parts.leaves)
        stack, entries = self._stacks.setdefault((entry.parts.skeleton, shapes), (len(self._stacks), []))
        self.places[entry.key] = [len(self.files), stack, len(entries), json.loads(entry.parts.values)]
        entries.append(entry)
        if entry.made:
            self.made[entry.made] = None
        self._nbytes += entry.nbytes
        if self._nbytes >= self._shard_bytes:
            self.write()

    def write(self) -> None:
        """Write what has been gathered."""
        if not self._stacks:
            return
        columns = sorted(self._columns(), key=lambda column: -column[1].dtype.size)
        header, start = [], 0
        for name, leaf, entries, _ in columns:
            header.append(Column(name, leaf.dtype.name, (entries, *lanes_shape(leaf.dtype, leaf.shape)), start))
            start = header[-1].end
        content = [dump_header(header, {"format": "pt"}), *(data for *_, parts in columns for data in parts)]
        name = f"{self._encoder}-{len(self.files):05d}.safetensors"
        files.publish(self._folder / name, content)
        self.files.append(name)
        self._stacks, self._nbytes = {}, 0

    def _columns(self) -> Iterator[tuple[str, Any, int, list[Any]]]:
        """Name, a leaf to go by, number of entries and their bytes, for each leaf of each stack."""
        for stack, entries in self._stacks.values():
            first = entries[0].parts
            for number, label in enumerate(leaf_names(first.paths)):
                parts = [entry.parts.leaves[number].data for entry in entries]
                name = f"{stack}/{label.removeprefix('leaf.')}"
                yield name, first.leaves[number], len(entries), [data for data in parts if data.nbytes]


def _begin(partial: Path) -> None:
    """An empty folder to write into; what an interrupted export has left there goes, and nothing else."""
    if (partial / _MARK).is_file():
        shutil.rmtree(partial)
    elif os.path.lexists(partial):
        try:
            partial.rmdir()  # killed before it had its mark
        except OSError:
            raise name_taken(partial, FOREIGN) from None
    partial.mkdir(parents=True)
    (partial / _MARK).touch()


def _is_ours(path: Path) -> bool:
    """Whether shards of ours lie there; only the beginning is read, whatever is called a manifest."""
    try:
        with open_source(path / _MANIFEST) as (descriptor, _):
            return _BEGINNING.match(os.read(descriptor, 64)) is not None
    except OSError:
        return False


def _keys_of(snapshot: Snapshot, encoder: str) -> Bytes:
    """The keys of an encoder's entries, each once."""
    content = snapshot.content
    columns = [
        keys[encoder] for keys in (content.picture_keys, content.line_keys, content.pair_keys) if encoder in keys
    ]
    if encoder in content.empty_keys:
        columns.append(content.empty_keys[encoder].reshape(1, 32))
    keys = np.concatenate([np.zeros((0, 32), np.uint8), *columns])
    return np.unique(keys[keys.any(axis=1)], axis=0)


def _add_pairs(
    content: SnapshotContent, samples: list[dict[str, Any]], entries: Callable[[dict[str, Bytes], int], dict[str, int]]
) -> None:
    """Put what was made of a picture and a caption together beside both: their numbers among those of the sample."""
    assert content.pairs is not None
    firsts = [
        np.searchsorted(column, np.arange(len(samples))) for column in (content.pictures.sample, content.lines.sample)
    ]
    for row, (cut, line) in enumerate(zip(content.pairs.cut.tolist(), content.pairs.line.tolist(), strict=True)):
        sample = int(content.pictures.sample[cut])
        samples[sample].setdefault("pairs", []).append(
            {
                "picture": cut - int(firsts[0][sample]),
                "caption": None if line == len(content.lines.sample) else line - int(firsts[1][sample]),
                "entries": entries(content.pair_keys, row),
            }
        )


def _manifest(snapshot: Snapshot, shards: dict[str, _ShardWriter]) -> dict[str, Any]:
    content = snapshot.content
    numbers = {name: {key: number for number, key in enumerate(writer.places)} for name, writer in shards.items()}

    def entries(columns: dict[str, Bytes], row: int) -> dict[str, int]:
        keys = {name: column[row].tobytes() for name, column in columns.items()}
        return {name: numbers[name][key] for name, key in keys.items() if any(key)}

    samples: list[dict[str, Any]] = [
        {"id": identity.tobytes().hex(), "concept": int(concept), "pictures": [], "captions": []}
        for identity, concept in zip(content.samples.id, content.samples.concept, strict=True)
    ]
    # Datasets that no plan made have none.
    resolutions = dict(enumerate(content.image.resolutions))
    told = {"original_size": content.pictures.original, "crop": content.pictures.crop}
    for row, sample in enumerate(content.pictures.sample.tolist()):
        resolution, variation = content.pictures.target[row].tolist()
        samples[sample]["pictures"].append(
            {
                "resolution": resolutions.get(resolution),
                "variation": variation,
                "size": content.pictures.size[row].tolist(),
                **{name: column[row].tolist() for name, column in told.items() if column is not None},
                "entries": entries(content.picture_keys, row),
            }
        )
    for row, sample in enumerate(content.lines.sample.tolist()):
        samples[sample]["captions"].append(entries(content.line_keys, row))
    if content.pairs is not None:
        _add_pairs(content, samples, entries)
    return {
        "precook_shards": FORMAT,
        "dataset": snapshot.file.dataset,
        "concepts": [
            {
                **{name: getattr(concept, name) for name in ("name", "loss_weight", "repeats", "samples")},
                **({"validation": True} if concept.validation else {}),
            }
            for concept in content.concepts
        ],
        "encoders": {
            name: {
                "input": content.encoders[name].input,
                "made_with": [json.loads(made) for made in writer.made],
                "files": writer.files,
                "entries": list(writer.places.values()),
            }
            for name, writer in shards.items()
        },
        "empty": {name: numbers[name][key.tobytes()] for name, key in content.empty_keys.items() if key.any()},
        "samples": samples,
    }
