"""Archives: what goes out comes in the same, and what is not what we wrote stays outside."""

from __future__ import annotations

import dataclasses
import gzip
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.maintain.archive import (
    BLOCK,
    END,
    MAX_MANIFEST,
    MAX_MEMBERS,
    Manifest,
    Member,
    make_header,
    manifest_name,
    padding,
    read_manifest,
)
from precook.maintain.bundle import Staging, export_bundle, import_bundle
from precook.store import files
from precook.store.format.build import build_pack, make_entry
from precook.store.snapshot import read_snapshot
from precook.store.snapshot_content import SnapshotContent, Texts
from precook.store.tree import take_apart
from tests.support.projects import Watched, dataset, project
from tests.support.snapshots import repeated
from tests.support.stores import flip, keys_of, state
from tests.support.trees import same, trees


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built project whose snapshot keeps captions and paths, in `cache`."""
    base = tmp_path_factory.mktemp("home")
    dataset(base / "data", 3)
    encoders = {"pixels": {"uses": "image"}, "words": Watched(make=lambda item: np.arange(len(item.text or "") + 1))}
    with project(base, encoders=encoders, keep=["captions", "paths"]) as made:
        assert not made.build().failed
    return base


@pytest.fixture(scope="module")
def archive(home: Path) -> bytes:
    """Its archive, in several packs."""
    with precook.open(home / "cache") as store:
        export_bundle(store, "test", home / "out.tar", pack_bytes=4000)
    return (home / "out.tar").read_bytes()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[precook.Store]:
    """Another store that holds something already: one entry and a snapshot of another dataset."""
    with precook.open(tmp_path / "target") as store:
        store.put(precook.Recipe("other", {}).key(1), {"x": np.arange(5)})
        yield store


def bring(store: precook.Store, content: bytes, **options: Any) -> Any:
    return import_bundle(store, io.BytesIO(content), **options)


def test_what_is_imported_equals_what_was_exported(home: Path, archive: bytes, target: precook.Store) -> None:
    """Snapshot and entries are the same in the other store, and it verifies."""
    done = bring(target, archive)
    assert (done.dataset, done.samples, done.new, done.reused) == ("test", 3, done.entries, 0)
    with precook.open(home / "cache") as store:
        ours, theirs = store.snapshot("test"), target.snapshot("test")
        assert ours.entry_keys().tobytes() == theirs.entry_keys().tobytes()
        for row in ours.entry_keys():
            key = precook.Key(row.tobytes())
            assert np.array_equal(store.get(key), target.get(key))
            assert store.get(key).dtype == target.get(key).dtype
        for name in ("samples", "pictures", "lines"):
            for column, values in ours.content.tree()[name].items():
                assert np.array_equal(values, theirs.content.tree()[name][column])
    assert target.verify().clean
    assert not (target.path / "imports").exists()


def test_neither_paths_nor_captions_nor_labels_leave_unless_asked_for(home: Path, tmp_path: Path) -> None:
    """The archive holds no name of a file, no caption and no label; with `keep` it holds what was asked for."""
    shutil.copytree(home, tmp_path / "copy")
    with precook.open(tmp_path / "copy" / "cache") as store:
        content = store.snapshot("test").content
        key = precook.Recipe("labelled", {}).key(1)
        store.put(key, np.arange(3), labels={"file": "secret-label.png"})
        content.picture_keys["pixels"][0] = np.frombuffer(key.bytes, np.uint8)
        store.freeze("test", content)
        for keep, present in (((), set()), (("captions",), {b"line 0"}), (("paths",), {b"p0.png", os.fsencode(home)})):
            export_bundle(store, "test", tmp_path / "out.tar", keep=keep, force=True)
            written = (tmp_path / "out.tar").read_bytes()
            for secret in (b"line 0", b"p0.png", b"secret-label", os.fsencode(home)):
                assert (secret in written) == (secret in present)
        with precook.open(tmp_path / "there") as there, open(tmp_path / "out.tar", "rb") as stream:
            import_bundle(there, stream)
            assert there.snapshot("test").content.kept == {"paths"}
            assert np.array_equal(there.get(key), np.arange(3))


def test_what_the_snapshot_does_not_have_cannot_be_asked_for(home: Path, tmp_path: Path) -> None:
    """Asking for captions that were not kept is an error that says how to keep them."""
    shutil.copytree(home / "cache", tmp_path / "cache")
    with precook.open(tmp_path / "cache") as store:
        content = store.snapshot("test").content
        store.freeze("test", dataclasses.replace(content, captions=None))
        with pytest.raises(precook.PrecookError, match="has no captions") as caught:
            export_bundle(store, "test", tmp_path / "out.tar", keep=["captions"])
        assert "keep: [captions]" in caught.value.hint
    assert not (tmp_path / "out.tar").exists()


def test_equal_datasets_give_equal_archives(home: Path, archive: bytes, tmp_path: Path) -> None:
    """Exporting again writes the same bytes."""
    with precook.open(home / "cache") as store:
        export_bundle(store, "test", tmp_path / "again.tar", pack_bytes=4000)
    assert (tmp_path / "again.tar").read_bytes() == archive


def test_existing_entries_are_reused(home: Path, archive: bytes, target: precook.Store) -> None:
    """An entry that is there is not written again, in any pack; a second import writes nothing."""
    with precook.open(home / "cache") as store:
        keys = [precook.Key(row.tobytes()) for row in store.snapshot("test").entry_keys()]
        target.put(keys[0], store.get(keys[0]))
    done = bring(target, archive)
    assert (done.reused, done.new) == (1, len(keys) - 1)
    assert all(sum(row.key == key.bytes for row in target.entries()) == 1 for key in keys)
    before = state(target)
    again = bring(target, archive)
    assert (again.reused, again.new) == (len(keys), 0)
    assert state(target) == before


def test_a_damaged_entry_is_brought_again(home: Path, archive: bytes, target: precook.Store) -> None:
    """An entry that rotted in the store is not taken for present."""
    bring(target, archive)
    key = precook.Key(target.snapshot("test").content.picture_keys["pixels"][0].tobytes())
    flip(target, key)
    with precook.open(target.path) as fresh:
        assert bring(fresh, archive).new == 1
        assert fresh.get(key) is not None


def test_an_import_takes_another_name(archive: bytes, target: precook.Store) -> None:
    """`dataset` names the dataset here; a name that no dataset can have is refused."""
    assert bring(target, archive, dataset="cats").dataset == "cats"
    assert target.snapshot("cats").content.dataset == "cats"
    with pytest.raises(precook.NoSnapshotError):
        target.snapshot("test")
    with pytest.raises(precook.PrecookError, match="no name of a dataset"):
        bring(target, archive, dataset="../cats")


def test_an_import_becomes_the_latest_snapshot(archive: bytes, target: precook.Store) -> None:
    """A dataset of that name keeps its older snapshots."""
    bring(target, archive)
    content = target.snapshot("test").content
    target.freeze("test", repeated(content, 3.0))
    bring(target, archive)
    assert [file.number for file in target.snapshots()] == [1, 2, 3]
    assert target.snapshot("test").content.concepts[0].repeats == 1.0


def test_an_older_snapshot_can_be_exported(home: Path, tmp_path: Path) -> None:
    """By its number or its id; a name for none, or for a dataset that is not there, is an error that lists them."""
    shutil.copytree(home / "cache", tmp_path / "cache")
    with precook.open(tmp_path / "cache") as store:
        old = store.snapshot("test")
        store.freeze("test", repeated(old.content, 3.0))
        for name in ("1", old.file.id[:8]):
            done = export_bundle(store, "test", tmp_path / "out.tar", snapshot=name, force=True)
            assert done.snapshot == old.file.id
        with pytest.raises(precook.PrecookError, match="no snapshot of 'test'"):
            export_bundle(store, "test", tmp_path / "out.tar", snapshot="7", force=True)
        with pytest.raises(precook.NoSnapshotError):
            export_bundle(store, "cats", tmp_path / "new.tar")


def test_a_file_that_is_there_stays(home: Path, tmp_path: Path) -> None:
    """Without force nothing is replaced, neither the file nor another one where the partial file would be."""
    with precook.open(home / "cache") as store:
        for name in ("out.tar", "out.tar.partial"):
            (tmp_path / name).write_text("mine")
            with pytest.raises(precook.PrecookError, match="exists already"):
                export_bundle(store, "test", tmp_path / "out.tar")
            assert (tmp_path / name).read_text() == "mine"
            (tmp_path / name).unlink()
        with pytest.raises(precook.PrecookError, match="no such directory") as caught:
            export_bundle(store, "test", tmp_path / "nowhere" / "out.tar")
        assert caught.value.hint == "create it first"


def test_damaged_and_missing_entries_stop_an_export_with_a_list(home: Path, tmp_path: Path) -> None:
    """Every entry that cannot be read is named, and there is no archive."""
    shutil.copytree(home / "cache", tmp_path / "cache")
    with precook.open(tmp_path / "cache") as store:
        content = store.snapshot("test").content
        keys = [precook.Key(row.tobytes()) for row in content.picture_keys["pixels"]]
        for key in keys[:2]:
            flip(store, key)
    with precook.open(tmp_path / "cache") as store:
        with pytest.raises(precook.SnapshotEntriesError) as caught:
            export_bundle(store, "test", tmp_path / "out.tar", pack_bytes=4000)
        assert {key for key, _ in caught.value.entries} == set(keys[:2])
        assert all("checksum" in reason or "damaged" in reason for _, reason in caught.value.entries)
        content.picture_keys["pixels"][2] = 7
        store.freeze("test", content)
        with pytest.raises(precook.SnapshotEntriesError, match="no such entry"):
            export_bundle(store, "test", tmp_path / "out.tar")
    assert not (tmp_path / "out.tar").exists()


def test_a_pack_that_cannot_be_read_is_the_reason_why_its_entries_are_lost(home: Path, tmp_path: Path) -> None:
    """The list says what is wrong with the pack, not only that its entries are missing."""
    shutil.copytree(home / "cache", tmp_path / "cache")
    with precook.open(tmp_path / "cache") as store:
        lost = keys_of(store)
        pack = store.locate(lost[0]).pack
    content = bytearray(pack.read_bytes())
    content[20] ^= 1
    pack.write_bytes(content)
    with precook.open(tmp_path / "cache") as store:
        with pytest.raises(precook.SnapshotEntriesError) as caught:
            export_bundle(store, "test", tmp_path / "out.tar")
        assert lost[0] in {key for key, _ in caught.value.entries}
        assert all("not a pack" in reason for _, reason in caught.value.entries)


def test_of_two_copies_the_sound_one_is_exported(home: Path, tmp_path: Path, target: precook.Store) -> None:
    """An entry that is damaged in one pack comes from the other."""
    shutil.copytree(home / "cache", tmp_path / "cache")
    with precook.open(tmp_path / "cache") as store, precook.open(tmp_path / "twin") as twin:
        key = keys_of(store)[0]
        tree = store.get(key)
        twin.put(key, tree)
        copy = twin.locate(key).pack
        place = tmp_path / "cache" / "packs" / copy.parent.name / copy.name
        place.parent.mkdir(exist_ok=True)
        shutil.copy(copy, place)
    with precook.open(tmp_path / "cache") as store:
        store.reindex()
        flip(store, key)
    with precook.open(tmp_path / "cache") as store:
        assert store.locate(key).copies == 2
        export_bundle(store, "test", tmp_path / "out.tar")
    bring(target, (tmp_path / "out.tar").read_bytes())
    assert np.array_equal(target.get(key), tree)


@given(stored=st.lists(st.tuples(trees, st.booleans()), min_size=1, max_size=6))
@settings(max_examples=20)
def test_any_tree_comes_through(
    home: Path, tmp_path_factory: pytest.TempPathFactory, stored: list[tuple[Any, bool]]
) -> None:
    """Whatever can be stored, in any type and shape, with labels or without, is the same on the other side."""
    folder = tmp_path_factory.mktemp("trees")
    recipe = precook.Recipe("any", {})
    keys = [recipe.key(number) for number in range(len(stored))]
    with precook.open(folder / "ours") as ours, precook.open(folder / "theirs") as theirs:
        with ours.writer() as writer:
            for key, (tree, labelled) in zip(keys, stored, strict=True):
                writer.put(key, tree, recipe=recipe if labelled else None, labels={"a": "b"} if labelled else None)
        content = pieces(home)
        column = np.frombuffer(b"".join(key.bytes for key in keys), np.uint8).reshape(-1, 32)
        numbers = np.zeros(len(keys), np.int32)
        content["pictures"] = {
            "sample": numbers,
            "target": np.zeros((len(keys), 2), np.int32),
            "size": np.ones((len(keys), 2), np.int32),
        }
        content |= {"picture_keys": {"pixels": column}, "lines": {"sample": numbers[:0]}}
        content |= {"line_keys": {}, "empty_keys": {}}
        ours.freeze("test", SnapshotContent.of(content))
        export_bundle(ours, "test", folder / "out.tar", pack_bytes=100)
        bring(theirs, (folder / "out.tar").read_bytes())
        for key, (tree, _) in zip(keys, stored, strict=True):
            assert same(theirs.get(key), tree)
            assert theirs.locate(key).recipe == ours.locate(key).recipe
            assert theirs.locate(key).labels == b"null"


class Stopping:
    """A reporter that interrupts the work after some steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    @contextmanager
    def task(self, name: str, **options: Any) -> Iterator[Any]:
        yield self

    def advance(self, amount: int = 1, **options: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_interrupted_export_goes_on(home: Path, archive: bytes, tmp_path: Path, steps: int) -> None:
    """The second run takes over what was finished and the archive is the same, byte for byte."""
    path = tmp_path / "out.tar"
    with precook.open(home / "cache") as store:
        with pytest.raises(KeyboardInterrupt):
            export_bundle(store, "test", path, pack_bytes=4000, report=Stopping(steps))
        assert not path.exists()
        assert export_bundle(store, "test", path, pack_bytes=4000).resumed == steps + 2
    assert path.read_bytes() == archive
    assert os.listdir(tmp_path) == ["out.tar"]


@given(data=st.data())
@settings(max_examples=40)
def test_any_half_written_partial_file_becomes_the_same_archive(
    home: Path, archive: bytes, data: st.DataObject
) -> None:
    """Cut off or torn anywhere, as a power cut leaves it, it is never taken for more than it is."""
    path = home / "torn.tar"
    torn = bytearray(bytes(BLOCK) + archive[BLOCK : data.draw(st.integers(BLOCK, len(archive)))])
    if len(torn) > BLOCK:
        at = data.draw(st.integers(BLOCK, len(torn) - 1))
        torn[at : at + 100] = bytes(len(torn[at : at + 100]))
    path.with_name("torn.tar.partial").write_bytes(torn)
    with precook.open(home / "cache") as store:
        export_bundle(store, "test", path, pack_bytes=4000, force=True)
    assert path.read_bytes() == archive


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_an_import_that_ends_early_goes_on(archive: bytes, target: precook.Store, share: float) -> None:
    """What had passed is not read again, nothing of it is to be seen before, and nothing is left behind after."""
    before = state(target)
    with pytest.raises(precook.BundleError, match="ends early"):
        bring(target, archive[: int(len(archive) * share)])
    assert state(target) == before
    staged = len(list(target.path.glob("imports/*/*.safetensors"))) - 1
    assert bring(target, archive).resumed == staged
    assert target.verify().clean
    assert not (target.path / "imports").exists()


def test_an_interrupted_import_goes_on(archive: bytes, target: precook.Store) -> None:
    """Ctrl-C keeps what has passed, and the store is as it was until the second run."""
    before = state(target)
    with pytest.raises(KeyboardInterrupt):
        bring(target, archive, report=Stopping(3))
    assert state(target) == before
    assert bring(target, archive).resumed == 2


def test_an_archive_may_come_by_a_pipe(archive: bytes, target: precook.Store) -> None:
    """A stream that cannot be rewound is read once, in order, also when it goes on after an interruption."""
    with pytest.raises(KeyboardInterrupt):
        bring(target, archive, report=Stopping(3))
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(archive)
            pipe.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert import_bundle(target, pipe).resumed == 2
    os.wait()


@pytest.mark.parametrize("offset", [20, -1], ids=["head", "entry"])
def test_an_import_goes_on_after_a_disk_has_torn_what_it_had_staged(
    archive: bytes, target: precook.Store, offset: int
) -> None:
    """What waits from an interrupted run is read again: damaged packs are received once more, and nobody clears up."""
    with pytest.raises(precook.BundleError, match="ends early"):
        bring(target, archive[: int(len(archive) * 0.9)])
    staged = list(target.path.glob("imports/*/*.safetensors"))
    assert len(staged) > 1
    for path in staged:
        torn = bytearray(path.read_bytes())
        torn[offset] ^= 0xFF
        path.write_bytes(torn)
    assert bring(target, archive).resumed == 0
    assert target.verify().clean


def test_two_imports_of_one_archive_do_not_meet(archive: bytes, target: precook.Store) -> None:
    """The second is told that another one is at it, and works once that has ended."""
    digest = archive[len("manifest-") :][:64].decode()
    with Staging(target.internals(), digest), pytest.raises(precook.LockedError, match="another process imports"):
        bring(target, archive)
    assert bring(target, archive).samples == 3


@pytest.mark.parametrize("moment", ["before it has a folder", "as it looks for old ones"])
def test_an_import_that_begins_as_another_ends_is_none_the_worse(
    archive: bytes, target: precook.Store, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """What the other one has used goes away at its end, at any moment, and the next one makes it anew."""
    home = target.path / "imports"
    home.mkdir()
    owner, name = (files, "make_directory") if moment == "before it has a folder" else (Path, "iterdir")
    call = getattr(owner, name)

    def end_before(path: Path) -> Any:
        if (path == home and name == "iterdir") or path.parent == home:
            monkeypatch.undo()
            home.rmdir()
        return call(path)

    monkeypatch.setattr(owner, name, end_before)
    assert bring(target, archive).samples == 3
    assert not home.exists()


def test_two_exports_to_one_file_do_not_meet(home: Path, archive: bytes, tmp_path: Path) -> None:
    """The second is told so, and the first one's file stays as it is."""
    path = tmp_path / "out.tar"

    class Meeting(Stopping):
        def advance(self, amount: int = 1, **options: Any) -> None:
            with precook.open(home / "cache") as other, pytest.raises(precook.LockedError, match="another export"):
                export_bundle(other, "test", path, pack_bytes=4000)

    with precook.open(home / "cache") as store:
        export_bundle(store, "test", path, pack_bytes=4000, report=Meeting(0))
    assert path.read_bytes() == archive


def test_left_staging_is_removed_after_a_week(archive: bytes, target: precook.Store) -> None:
    """What nobody went on with goes; what is young stays."""
    left, young = target.path / "imports" / "old", target.path / "imports" / "young"
    for folder in (left, young):
        folder.mkdir(parents=True)
        (folder / "x.safetensors").write_bytes(b"x")
    os.utime(left, (0, 0))
    bring(target, archive)
    assert (left.exists(), young.exists()) == (False, True)


def test_a_read_only_store_takes_no_archive(archive: bytes, target: precook.Store) -> None:
    """The error says so before anything is read."""
    with precook.open(target.path, read_only=True) as store, pytest.raises(precook.ReadOnlyError):
        bring(store, archive)


# Archives that somebody forged: each differs from a good one in one respect, and is consistent in every other.


@dataclass(frozen=True)
class File:
    """A member of a forged archive."""

    name: str
    content: bytes
    entries: int = 0
    kind: bytes = b"0"
    size: int | None = None
    """What its header says, where that is a lie."""


def take_archive(archive: bytes) -> tuple[Manifest, list[File]]:
    """The parts of a good archive."""
    size = int(archive[124:135], 8)
    manifest = read_manifest(archive[BLOCK : BLOCK + size])
    files, at = [], BLOCK + size
    for member in manifest.members:
        start = at + BLOCK
        files.append(File(member.name, archive[start : start + member.nbytes], member.entries))
        at = start + member.nbytes + padding(member.nbytes)
    return manifest, files


def forge(manifest: Manifest, files: list[File], *, change: Callable[[bytes], bytes] | None = None) -> bytes:
    """An archive of these files whose manifest fits them; `change` alters the manifest before it is signed."""
    members = []
    for file in files:
        folder, _, rest = file.name.rpartition("/")
        members.append(
            Member(rest.partition(".")[0], folder, len(file.content), file.entries, blake3(file.content).hexdigest())
        )
    whole = dataclasses.replace(manifest, members=tuple(members))
    content = whole.to_bytes()
    content = change(content) if change else content
    out = make_header(manifest_name(content), len(content)) + content + bytes(padding(len(content)))
    for file in files:
        out += header(file) + file.content + bytes(padding(len(file.content)))
    return out + END


def header(file: File) -> bytes:
    size = len(file.content) if file.size is None else file.size
    block = bytearray(make_header(file.name, size))
    block[156:157] = file.kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pack_of(entries: dict[bytes, Any]) -> File:
    """A pack with these entries, as a member."""
    made = [make_entry(key, take_apart(tree)) for key, tree in entries.items()]
    image = build_pack(made, created=0, salt="forged")
    return File(f"packs/{image.id}.safetensors", b"".join([image.head, *map(bytes, image.body)]), len(entries))


def snapshot_of(content: dict[str, Any]) -> File:
    made = pack_of({bytes(32): content})
    return dataclasses.replace(made, name=made.name.replace("packs", "snapshot"))


def changed(files: list[File], at: int, **fields: Any) -> list[File]:
    return [dataclasses.replace(file, **fields) if number == at else file for number, file in enumerate(files)]


def renamed(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(old, new)


def header_bomb(files: list[File], text: bytes, length: int | None = None) -> list[File]:
    """The second pack with another safetensors header."""
    content = (len(text) if length is None else length).to_bytes(8, "little") + text
    return changed(files, 1, content=content)


def pieces(home: Path) -> dict[str, Any]:
    with precook.open(home / "cache") as store:
        snapshot = read_snapshot(store.snapshots()[-1])
    return dataclasses.replace(snapshot.content, captions=None, paths=None).tree()


def with_captions(content: dict[str, Any]) -> dict[str, Any]:
    """A snapshot's parts with captions that nobody has asked for."""
    hidden = Texts.join([b"a cat"] * len(content["lines"]["sample"]))
    return {**content, "captions": {"text": hidden.text, "ends": hidden.ends}}


Forged = Callable[[Manifest, list[File], Path], bytes]
HOSTILE: dict[str, tuple[Forged, str]] = {
    "dots": (lambda m, f, _: forge(m, changed(f, 1, name="packs/../../x.safetensors")), "names a member"),
    "dots in the frame only": (
        lambda m, f, _: forge(m, f).replace(header(f[1]), header(dataclasses.replace(f[1], name="../../x"))),
        "has a member '../../x'",
    ),
    "absolute": (lambda m, f, _: forge(m, changed(f, 1, name="/tmp/x.safetensors")), "names a member"),
    "absolute in the frame only": (
        lambda m, f, _: forge(m, f).replace(header(f[1]), header(dataclasses.replace(f[1], name="/tmp/x"))),
        "has a member '/tmp/x'",
    ),
    "case twin": (
        lambda m, f, _: forge(m, [*f[:2], dataclasses.replace(f[1], name=f[1].name.upper())]),
        "names a member",
    ),
    "another folder": (
        lambda m, f, _: forge(m, changed(f, 1, name=f[1].name.replace("packs", "snapshots"))),
        "names a member",
    ),
    "twice": (lambda m, f, _: forge(m, [*f, f[1]]), "names a member twice"),
    "two snapshots": (lambda m, f, _: forge(m, [f[0], *f]), "one snapshot and then packs"),
    "no snapshot": (lambda m, f, _: forge(m, f[1:]), "one snapshot and then packs"),
    "a member more than announced": (
        lambda m, f, _: forge(m, f)[: -len(END)] + header(f[1]) + END,
        "something follows",
    ),
    "a member less": (
        lambda m, f, _: forge(m, f)[: -len(END) - BLOCK - len(f[-1].content) - padding(len(f[-1].content))] + END,
        "ends before",
    ),
    "another order": (lambda m, f, _: forge(m, f).replace(header(f[1]), header(f[2])), "where packs/"),
    "something after the end": (lambda m, f, _: forge(m, f) + b"x", "something follows"),
    "something in the padding": (lambda m, f, _: forge(m, f)[: -len(END) - 1] + b"x" + END, "between its members"),
    "compressed": (lambda m, f, _: gzip.compress(forge(m, f)), "not an archive"),
    "bomb": (lambda m, f, _: gzip.compress(bytes(10_000_000)), "not an archive"),
    "another file": (
        lambda m, f, _: header(File("readme.txt", b"hello")) + b"hello".ljust(BLOCK, b"\0") + END,
        "not an archive",
    ),
    "size in the frame": (lambda m, f, _: forge(m, changed(f, 1, size=10**9)), "has a member"),
    "size far too large": (lambda m, f, _: forge(m, changed(f, 1, size=2**60)), "has a member"),
    "size with a sign": (
        lambda m, f, _: forge(m, f).replace(make_header(f[1].name, len(f[1].content))[124:136], b"-0000000001\0"),
        "not one that precook writes",
    ),
    "bytes after a pack": (lambda m, f, _: forge(m, changed(f, 1, content=f[1].content + b"x")), "the file has"),
    "bytes missing at a pack's end": (lambda m, f, _: forge(m, changed(f, 1, content=f[1].content[:-1])), "damaged"),
    "wrong sums": (lambda m, f, _: forge(m, f, change=renamed(b'"entries":', b'"entries": 1')), "sums"),
    "wrong digest": (
        lambda m, f, _: forge(m, f, change=renamed(blake3(f[1].content).hexdigest().encode(), b"0" * 64)),
        "not what its manifest says",
    ),
    "wrong count": (lambda m, f, _: forge(m, changed(f, 1, entries=99)), "entries, not 99"),
    "a large manifest": (lambda m, f, _: make_header(manifest_name(b""), MAX_MANIFEST + 1), "at most"),
    "a million members": (
        lambda m, f, _: forge(
            m, f, change=lambda c: c[:-1].split(b"[\n")[0] + b"[" + b"0," * MAX_MEMBERS + b'0],"entries":0,"bytes":0}'
        ),
        "members; from 1 to",
    ),
    "a manifest of braces": (lambda m, f, _: forge(m, f, change=lambda c: b"[" * 200_000), "not JSON"),
    "a name twice in the manifest": (
        lambda m, f, _: forge(m, f, change=renamed(b'"format"', b'"dataset":"x","format"')),
        "twice",
    ),
    "NaN in the manifest": (lambda m, f, _: forge(m, f, change=renamed(b'"samples":3', b'"samples":NaN')), "NaN"),
    "a negative count": (lambda m, f, _: forge(m, f, change=renamed(b'"samples":3', b'"samples":-3')), "not a count"),
    "a newer version": (lambda m, f, _: forge(m, f, change=renamed(b'"format":1', b'"format":2')), "another version"),
    "an unknown field": (
        lambda m, f, _: forge(m, f, change=renamed(b'"format"', b'"more":1,"format"')),
        "one too many",
    ),
    "a dataset with dots": (lambda m, f, _: forge(dataclasses.replace(m, dataset="../x"), f), "no name of a dataset"),
    "another dataset": (lambda m, f, _: forge(dataclasses.replace(m, dataset="cats"), f), "another dataset"),
    "more samples": (lambda m, f, _: forge(dataclasses.replace(m, samples=4), f), "another dataset"),
    "a pack under another name": (
        lambda m, f, _: forge(m, changed(f, 1, name=f"packs/{'ab' * 32}.safetensors")),
        "does not match its name",
    ),
    "a changed number": (
        lambda m, f, _: forge(m, changed(f, 1, content=f[1].content[:-1] + bytes([f[1].content[-1] ^ 1]))),
        "checksum",
    ),
    "header length 2^63": (lambda m, f, _: forge(m, header_bomb(f, b"{}", 2**63)), "cannot be accepted"),
    "header beyond the file": (lambda m, f, _: forge(m, header_bomb(f, b"{}", 10**6)), "cut short"),
    "header of braces": (lambda m, f, _: forge(m, header_bomb(f, b'{"a":' * 50_000)), "not JSON"),
    "a column twice": (
        lambda m, f, _: forge(m, header_bomb(f, b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}')),
        "given twice",
    ),
    "a huge empty shape": (
        lambda m, f, _: forge(
            m, header_bomb(f, b'{"a":{"dtype":"U8","shape":[0,1099511627777],"data_offsets":[0,0]}}')
        ),
        "absurd shape",
    ),
    "a thousand dimensions": (
        lambda m, f, _: forge(
            m, header_bomb(f, b'{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % b",".join([b"1"] * 1000))
        ),
        "too many dimensions",
    ),
    "no pack": (lambda m, f, _: forge(m, changed(f, 1, content=b"")), "cannot be accepted"),
    "an entry more": (lambda m, f, _: forge(m, [*f, pack_of({b"k" * 32: np.arange(3)})]), "and no others"),
    "a pack less": (lambda m, f, _: forge(m, f[:-1]), "do not have the entries"),
    "an entry in two packs": (
        lambda m, f, home: forge(m, [*f, pack_of({bytes(pieces(home)["picture_keys"]["pixels"][0]): np.arange(3)})]),
        "an entry twice",
    ),
    "a snapshot that is none": (lambda m, f, _: forge(m, [snapshot_of({"format": 1}), *f[1:]]), "not a snapshot"),
    "a snapshot of the future": (
        lambda m, f, home: forge(m, [snapshot_of({**pieces(home), "format": 9}), *f[1:]]),
        "format 9",
    ),
    "a snapshot with hidden captions": (
        lambda m, f, home: forge(m, [snapshot_of(with_captions(pieces(home))), *f[1:]]),
        "other parts",
    ),
    "a snapshot with odd concepts": (
        lambda m, f, home: forge(m, [snapshot_of({**pieces(home), "concepts": [{"name": 1}]}), *f[1:]]),
        "'loss_weight'",
    ),
    "a snapshot with odd encoders": (
        lambda m, f, home: forge(m, [snapshot_of({**pieces(home), "encoders": {"pixels": 1, "words": 2}}), *f[1:]]),
        "no names",
    ),
    "nothing": (lambda m, f, _: b"", "ends early"),
    "zeros": (lambda m, f, _: bytes(10_000), "not an archive"),
}
KINDS = {b"1": "hard link", b"2": "symbolic link", b"3": "device", b"4": "device", b"5": "folder", b"6": "FIFO"}
KINDS |= {b"S": "sparse", b"x": "extended header", b"g": "extended header", b"L": "long name", b"7": "not one that"}
HOSTILE |= {
    f"kind {kind.decode()}": (lambda m, f, _, kind=kind: forge(m, changed(f, 1, kind=kind)), reason)
    for kind, reason in KINDS.items()
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_forged_archive_is_refused(home: Path, archive: bytes, target: precook.Store, kind: str) -> None:
    """Each hostile kind is a named error, and store and disk are as they were."""
    make, reason = HOSTILE[kind]
    forged = make(*take_archive(archive), home)
    before = state(target)
    with pytest.raises(precook.BundleError, match=reason) as caught:
        bring(target, forged)
    assert caught.value.hint
    assert state(target) == before
    assert not list(target.path.glob("imports/*"))
    assert target.verify().clean


def test_the_forger_itself_makes_good_archives(archive: bytes, target: precook.Store) -> None:
    """So that what is refused above is refused for the one thing that is wrong with it."""
    forged = forge(*take_archive(archive))
    assert forged == archive
    assert bring(target, forged).samples == 3


def test_an_archive_larger_than_the_disk_is_refused_at_once(archive: bytes, target: precook.Store) -> None:
    """Before anything is written, on the word of the manifest."""
    manifest, files = take_archive(archive)
    line = b'"%s","bytes":' % files[1].name.encode()
    lie = renamed(line + b"%d" % len(files[1].content), line + b"%d" % 2**49)
    total = renamed(
        b'"bytes":%d}' % manifest.nbytes, b'"bytes":%d}' % (manifest.nbytes - len(files[1].content) + 2**49)
    )
    forged = forge(manifest, files, change=lambda content: total(lie(content)))
    with pytest.raises(precook.NoSpaceError):
        bring(target, forged)
    assert not (target.path / "imports").exists()


@given(data=st.data())
@settings(max_examples=60)
def test_a_changed_byte_anywhere_is_noticed(
    archive: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whichever byte it is, the archive is refused and nothing of it stays."""
    at = data.draw(st.integers(0, len(archive) - 1))
    flipped = bytearray(archive)
    flipped[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "flips"
    with precook.open(path) as store:
        with pytest.raises((precook.BundleError, precook.NoSpaceError)):
            bring(store, bytes(flipped))
        assert state(store) == ({}, [])


@given(data=st.data())
@settings(max_examples=60)
def test_any_mangled_archive_is_a_named_error(
    archive: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Pieces cut out, doubled, moved or replaced by anything: never another error, never anything in the store."""
    mangled = archive
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(mangled)))
        piece = mangled[start : start + data.draw(st.sampled_from([1, 7, BLOCK, 4000, len(mangled)]))]
        new = data.draw(st.sampled_from([b"", piece + piece, piece[::-1], bytes(len(piece)), b"x" * BLOCK, END]))
        mangled = mangled[:start] + new + mangled[start + len(piece) :]
    path = tmp_path_factory.getbasetemp() / "mangled"
    with precook.open(path) as store:
        if mangled == archive:
            return
        # What an archive that ended early has left would stand in for a piece that is mangled here.
        shutil.rmtree(path / "imports", ignore_errors=True)
        with pytest.raises((precook.BundleError, precook.NoSpaceError)):
            bring(store, mangled)
        assert state(store) == ({}, [])


def test_a_newer_store_format_is_refused_by_its_frame(archive: bytes, target: precook.Store) -> None:
    """A pack of another format cannot come in."""
    manifest, files = take_archive(archive)
    content = files[1].content.replace(b'\\"format\\":1', b'\\"format\\":2')
    with pytest.raises(precook.BundleError, match="format 2"):
        bring(target, forge(manifest, changed(files, 1, content=content)))


def test_a_link_leads_an_import_nowhere(archive: bytes, target: precook.Store, tmp_path: Path) -> None:
    """Where `imports` is a link, old folders behind it stay, and the archive is refused."""
    mine = tmp_path / "mine" / "thesis"
    mine.mkdir(parents=True)
    os.utime(mine, (0, 0))
    (target.path / "imports").symlink_to(mine.parent)
    with pytest.raises(precook.StoreError, match="imports is a link"):
        bring(target, archive)
    assert mine.exists()


def test_an_import_keeps_to_max_bytes(archive: bytes, tmp_path: Path) -> None:
    """A store that may take only so much refuses an archive that is larger, with the error of any other write."""
    with precook.open(tmp_path / "small", max_bytes=len(archive) // 2) as store:
        with pytest.raises(precook.StoreFullError, match="max_bytes"):
            bring(store, archive)
        assert sum(pack.stat().st_size for pack in store.path.glob("packs/*/*")) <= len(archive) // 2
