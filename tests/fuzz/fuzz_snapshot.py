"""Snapshots: any tree is refused, or everything works that a snapshot is for: feeds, exports, verification, collection.

An input is the tree as JSON, its columns as `{"$column": [type, shape, hex]}`. The file around it is always whole: ids
and checksums protect against accidents, not against somebody.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import precook
from precook.maintain.bundle import export_bundle, import_bundle
from precook.maintain.gc import plan_gc
from precook.maintain.owners import find_owners
from precook.maintain.shards import export_shards
from precook.store.layout import Layout
from tests.fuzz.frame import Target, mutate_json
from tests.support.feeds import everything, images
from tests.support.forged import name_of, pack_of

BATCHES = 3
"""Of each epoch that is fed."""


def to_json(part: Any) -> Any:
    """A tree as JSON."""
    if isinstance(part, np.ndarray):
        return {"$column": [part.dtype.str, list(part.shape), part.tobytes().hex()]}
    if isinstance(part, dict):
        return {name: to_json(item) for name, item in part.items()}
    return [to_json(item) for item in part] if isinstance(part, list) else part


def from_json(form: Any) -> Any:
    """The tree that some JSON stands for; a column that cannot be one is left as it is."""
    if isinstance(form, list):
        return [from_json(item) for item in form]
    if not isinstance(form, dict):
        return form
    if set(form) == {"$column"}:
        try:
            dtype, shape, text = form["$column"]
            return column(np.dtype(dtype), tuple(shape), bytes.fromhex(text))
        except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, OverflowError):
            return form
    return {name: from_json(item) for name, item in form.items()}


def column(dtype: np.dtype[Any], shape: tuple[int, ...], data: bytes) -> Any:
    """A column of this shape, its bytes cut off or repeated as it takes."""
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or not 0 <= size <= 1 << 20 or (size and not data):
        message = "no column"
        raise ValueError(message)
    data = (data * (size // max(len(data), 1) + 1))[:size]
    return np.frombuffer(data, dtype).reshape(shape)


@functools.cache
def template() -> Path:
    """A built store of pictures, masks and texts."""
    base = Path(tempfile.mkdtemp())
    with everything(images(base, 3), keep=["captions", "paths"]) as made:
        assert not made.build().failed
    return base / "cache"


def fresh() -> Path:
    """A copy of it without its snapshot, in the place of the last one."""
    path = template().with_name("copy")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template(), path)
    shutil.rmtree(path / "snapshots")
    return path


def check(data: bytes) -> bool:
    """Put a snapshot into a store and use it."""
    try:
        content = pack_of(from_json(json.loads(data)))
    except (ValueError, RecursionError, precook.TreeError):
        return False
    path = fresh()
    folder = Layout(path).snapshots / "test"
    folder.mkdir(parents=True)
    (folder / f"00000001-{name_of(content)}.safetensors").write_bytes(content)
    with precook.open(path) as store:
        try:
            snapshot = store.snapshot("test")
        except precook.NewerFormatError:
            return False
        except precook.DamagedPackError:
            assert store.verify().damage
            return False
        assert not store.verify().damage
        use(snapshot)
        plan_gc(store, grace=0)
        find_owners(store, [bytes(row) for row in snapshot.entry_keys()])
        bring(store, path)
        with contextlib.suppress(precook.PrecookError):
            export_shards(store, "test", path.with_name("shards") / "of test", force=True)
        names = {found.name for found in path.parent.rglob("*-00000.safetensors")}
        assert len(names) <= len(snapshot.content.encoders)
    return True


def use(snapshot: Any) -> None:
    """Feed a snapshot: batches come, or an error of ours says why not."""
    for tensors, pad in (("numpy", None), ("torch", {"words": "list"})):
        try:
            with snapshot.feed(batch_size=2, tensors=tensors, on_missing="skip", threads=0, pad=pad) as feed:
                for epoch in range(2):
                    for _ in itertools.islice(feed.epoch(epoch), BATCHES):
                        pass
                feed.state_dict()
        except precook.FeedError as error:
            assert str(error)


def bring(store: precook.Store, path: Path) -> None:
    """Export it, if all it names is there: then it can be imported and is the same."""
    archive = path.with_name("out.tar")
    keep = sorted(store.snapshot("test").content.kept)
    try:
        export_bundle(store, "test", archive, keep=keep, force=True)
    except precook.PrecookError:
        return
    there = path.with_name("there")
    shutil.rmtree(there, ignore_errors=True)
    with precook.open(there) as other:
        if store.snapshot("test").content.extra or store.snapshot("test").content.dataset != "test":
            return  # what another writer has added does not travel
        import_bundle(other, io.BytesIO(archive.read_bytes()))
        assert np.array_equal(other.snapshot("test").entry_keys(), store.snapshot("test").entry_keys())
        assert other.verify().clean


def seeds() -> list[bytes]:
    """The snapshot of a real project, and one that another tool has made."""
    with precook.open(template()) as store:
        tree = store.snapshot("test").content.tree()
    listed = {**tree, "order": np.arange(3), "image": {"resolutions": [], "variations": 1, "pick": "one"}}
    return [json.dumps(to_json(form)).encode() for form in (tree, listed)]


TARGET = Target("snapshot", seeds, check, mutate_json)
