"""Archives: any bytes are imported, and then everything works, or they are refused and the store is as it was.

The first byte of an input says what the rest is: `f` a file, `j` JSON with what somebody has changed: fields of the
manifest, the tree of the snapshot, and the metadata of each pack. Then names, sizes, digests and checksums fit.
"""

from __future__ import annotations

import functools
import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import precook
from precook.maintain.bundle import export_bundle, import_bundle
from precook.maintain.gc import plan_gc
from precook.store.format.header import header_length
from tests.fuzz import fuzz_snapshot
from tests.fuzz.frame import Target, mutate_bytes, mutate_json
from tests.support.forged import make_archive, pack_of, signed, take_archive, with_metadata

RECIPE = precook.Recipe("other", {})


def metadata(pack: bytes) -> Any:
    """What precook's metadata of a pack says."""
    return json.loads(json.loads(pack[8 : header_length(pack)])["__metadata__"]["precook"])


@functools.cache
def archive() -> bytes:
    """The archive of a built dataset, in several packs."""
    path = fuzz_snapshot.template().with_name("good.tar")
    with precook.open(fuzz_snapshot.template()) as store:
        export_bundle(store, "test", path, pack_bytes=20_000, keep=["captions"])
    return path.read_bytes()


def forge(form: Any) -> bytes:
    """The archive with what somebody has changed."""
    manifest, members = take_archive(archive())
    members[0] = pack_of(fuzz_snapshot.from_json(form["snapshot"]))
    for number, changed in enumerate(form["packs"][: len(members) - 1], 1):
        members[number] = signed(with_metadata(members[number], lambda _, changed=changed: changed))

    def change(text: bytes) -> bytes:
        return json.dumps({**json.loads(text), **form["manifest"]}).encode()

    return make_archive(manifest, members[: 1 + len(form["packs"])], change if form["manifest"] else bytes)


@functools.cache
def template() -> Path:
    """A store with one entry of its own."""
    path = fuzz_snapshot.template().with_name("target")
    with precook.open(path) as store:
        store.put(RECIPE.key(1), {"x": np.arange(3)}, recipe=RECIPE)
    return path


def check(data: bytes) -> bool:
    """Import an archive into a copy of the store, and use what came."""
    kind, data = data[:1], data[1:]
    if kind == b"j":
        try:
            data = forge(json.loads(data))
        except (ValueError, LookupError, TypeError, RecursionError, OverflowError, precook.TreeError):
            return False  # there is no such archive
    path = template().with_name("copy of target")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template(), path)
    with precook.open(path) as store:
        try:
            done = import_bundle(store, io.BytesIO(data))
        except (precook.BundleError, precook.NoSpaceError):
            assert (len(store), store.snapshots(), store.verify().clean) == (1, [], True)
            return False
    with precook.open(path) as store:
        assert store.get(RECIPE.key(1))["x"].tolist() == [0, 1, 2]
        assert store.verify().clean
        snapshot = store.snapshot(done.dataset)
        assert store.present(snapshot.entry_keys()).all()
        for row in snapshot.entry_keys():
            store.get(precook.Key(row.tobytes()), tensors="numpy")
        fuzz_snapshot.use(snapshot)
        plan_gc(store, grace=0).execute()
        store.reindex()
        assert store.present(snapshot.entry_keys()).all()
        export_bundle(store, done.dataset, path.with_name("again.tar"), force=True)
    return True


def seeds() -> list[bytes]:
    """The archive as it is, and what could be changed about it."""
    _, members = take_archive(archive())
    with precook.open(fuzz_snapshot.template()) as store:
        content = store.snapshot("test").content
    tree = {name: part for name, part in content.tree().items() if name != "paths"}
    form = {"manifest": {}, "snapshot": fuzz_snapshot.to_json(tree), "packs": [metadata(pack) for pack in members[1:]]}
    asking = {**form, "manifest": {"dataset": "test", "samples": 3, "keep": ["captions"]}}
    return [b"j" + json.dumps(one).encode() for one in (form, asking)] + [b"f" + archive()]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """JSON is changed as JSON, a file as bytes."""
    kind, rest = data[:1], data[1:]
    return kind + (mutate_json if kind == b"j" else mutate_bytes)(rest, rng)


TARGET = Target("archive", seeds, check, mutate)
