"""Facts about files: read once, and read again exactly when a file may have changed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import precook
from precook.errors import SourceError
from precook.fs import trust as trust_module
from precook.fs.stamps import FILES, read_stamps, settled, stamp_keys
from precook.fs.trust import FileSystem, file_system_time
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.report import SILENT, Reporter
from precook.sources import facts as facts_module
from precook.sources.caption_rule import CaptionRule
from precook.sources.captions import read_lines
from precook.sources.facts import (
    CaptionReader,
    FactReader,
    FileFacts,
    PictureReader,
    collect_facts,
    picture_alphas,
    picture_sizes,
    remembered_digests,
)
from precook.sources.walk import Listing, walk
from tests.support.descriptors import descriptors

HOUR = 3600 * 10**9
_watching: list[list[str]] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    # Folders are opened to look at their files, and their clock: that reads nothing.
    if event == "open" and _watching and not (args[2] or 0) & os.O_DIRECTORY:
        for seen in _watching:
            seen.append(os.fsdecode(args[0]) if isinstance(args[0], (str, bytes)) else str(args[0]))


sys.addaudithook(_hook)


@contextlib.contextmanager
def opened(root: Path) -> Iterator[list[str]]:
    """The names of the files below `root` that Python opens meanwhile, sorted at the end."""
    seen: list[str] = []
    names: list[str] = []
    _watching.append(seen)
    try:
        yield names
    finally:
        _watching.remove(seen)
        names += sorted(os.path.relpath(path, root) for path in seen if path.startswith(f"{root}/"))


class ByteReader(FactReader):
    """The length of some content, and its first byte; what begins with "bad" is refused."""

    task = "reading"
    kind = Kind("bytes", key=32, value=9)
    refusals = "refused bytes"

    def __init__(self, hook: Callable[[bytes], None] = lambda content: None) -> None:
        self.hook = hook
        self.studied: list[bytes] = []

    def read(self, digest: bytes, content: bytes) -> bytes:
        assert blake3(content).digest() == digest
        self.studied.append(content)
        self.hook(content)
        if content.startswith(b"bad"):
            raise ValueError(f"{len(content)} bad bytes")
        return len(content).to_bytes(4, "little") + content[:1].ljust(4, b"\0") + b"\0"

    def remember_rest(self, memory: Memory) -> None:
        pass


def later(root: Path, *, trusted: bool = True) -> FileSystem:
    """A file_system on which files that were just written count as settled."""
    return FileSystem(file_system_time(root) + HOUR, trusted)


def collect(
    root: Path,
    reader: FactReader,
    memory: Memory,
    *,
    file_system: FileSystem | None = None,
    listing: Listing | None = None,
    save: Callable[[], None] = lambda: None,
    report: Reporter = SILENT,
) -> tuple[Listing, FileFacts]:
    """Walk a folder and collect the facts about its files."""
    listing = listing or walk(root, {"png": 1, "txt": 2}, recursive=True, outside=True)
    file_system = file_system or later(root)
    return listing, collect_facts(
        listing.stamps, listing.full_path, reader, memory, file_system=file_system, save=save, report=report
    )


def answers(listing: Listing, facts: FileFacts) -> dict[str, bytes | str]:
    """The digest of each file, or why it cannot be used."""
    return {
        listing.path(row): facts.problems.get(row, facts.digests[row].tobytes()) for row in range(len(listing.names))
    }


def known(root: Path, memory: Memory) -> list[str]:
    """The files whose digest is remembered."""
    listing = walk(root, {"png": 1, "txt": 2}, recursive=True, outside=True)
    found, _ = memory.recall(FILES, stamp_keys(listing.stamps))
    return sorted(listing.path(row) for row in np.flatnonzero(found).tolist())


def digest(content: bytes) -> bytes:
    found: bytes = blake3(content).digest()
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with three files."""
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.png").write_bytes(b"first")
    (folder / "b.png").write_bytes(b"second")
    (folder / "sub/c.png").write_bytes(b"")
    return folder


@pytest.fixture
def memory() -> Memory:
    """An empty memory."""
    return Memory(None)


ALL = ["a.png", "b.png", "sub/c.png"]


def test_a_second_look_opens_no_file(root: Path, path: Path) -> None:
    """What was facts is remembered in the store, and an unchanged folder is only walked (B2)."""
    with precook.open(path) as store:
        reader = ByteReader()
        memory = store.memory()
        with opened(root) as names:
            listing, facts = collect(root, reader, memory)
        assert names == ALL
        store.remember(memory)
        expected = {"a.png": digest(b"first"), "b.png": digest(b"second"), "sub/c.png": digest(b"")}
        assert answers(listing, facts) == expected
    with precook.open(path) as store:
        again = ByteReader()
        with opened(root) as names:
            listing, facts = collect(root, again, store.memory())
        assert names == []
        assert again.studied == []
        assert answers(listing, facts) == expected
        rows = {listing.path(row): facts.facts[row].tobytes() for row in range(3)}
        assert rows["b.png"] == b"\6\0\0\0s\0\0\0\0"


def test_a_new_file_is_the_only_one_that_is_read(root: Path, memory: Memory) -> None:
    """One more file costs one read, wherever it stands in the folder."""
    collect(root, ByteReader(), memory)
    (root / "0 new.png").write_bytes(b"new")
    with opened(root) as names:
        listing, facts = collect(root, ByteReader(), memory)
    assert names == ["0 new.png"]
    assert answers(listing, facts)["0 new.png"] == digest(b"new")
    assert answers(listing, facts)["a.png"] == digest(b"first")


def keep_times(path: Path, edit: Callable[[], object]) -> None:
    """Edit a file the way `cp -p` does: size and modification time stay."""
    before = path.stat()
    edit()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def test_an_edit_that_keeps_size_and_time_is_seen(root: Path, memory: Memory) -> None:
    """`cp -p` over a file leaves only the change time different (A2)."""
    past = (root / "a.png").stat().st_mtime_ns - HOUR
    os.utime(root / "a.png", ns=(past, past))
    collect(root, ByteReader(), memory)
    wait_for_a_tick(root)
    keep_times(root / "a.png", lambda: (root / "a.png").write_bytes(b"FIRST"))
    with opened(root) as names:
        listing, facts = collect(root, ByteReader(), memory)
    assert names == ["a.png"]
    assert answers(listing, facts)["a.png"] == digest(b"FIRST")


def wait_for_a_tick(root: Path) -> None:
    """Go on when the file system's clock has moved: what happens now gets another time than what happened before."""
    start = file_system_time(root)
    while file_system_time(root) == start:
        pass


def test_a_file_put_in_the_place_of_another_is_seen(root: Path, memory: Memory) -> None:
    """`rsync -t` renames a new file over the old one, with its size and time: the inode tells."""
    collect(root, ByteReader(), memory)
    before = (root / "a.png").stat()
    (root / ".a.png.tmp").write_bytes(b"FIRST")
    os.utime(root / ".a.png.tmp", ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / ".a.png.tmp").replace(root / "a.png")
    after = (root / "a.png").stat()
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    listing, facts = collect(root, ByteReader(), memory)
    assert answers(listing, facts)["a.png"] == digest(b"FIRST")


def test_a_touched_file_is_read_and_is_what_it_was(root: Path, memory: Memory) -> None:
    """touch, chmod and a rename cost one read each and change no digest."""
    _, first = collect(root, ByteReader(), memory)
    for change in (
        lambda: os.utime(root / "a.png", ns=(5, 5)),
        lambda: (root / "a.png").chmod(0o600),
        lambda: (root / "a.png").rename(root / "z.png"),
    ):
        wait_for_a_tick(root)
        change()
        with opened(root) as names:
            listing, facts = collect(root, ByteReader(), memory)
        assert names == (["z.png"] if (root / "z.png").exists() else ["a.png"])
        assert sorted(row.tobytes() for row in facts.digests) == sorted(row.tobytes() for row in first.digests)
        assert not facts.problems
    assert "z.png" in listing.names


def test_a_file_that_was_just_written_is_not_remembered(root: Path, memory: Memory) -> None:
    """Within a tick of the clock it could change unseen, so its digest is not kept; by the real clock of its disk."""
    # As late as it may be: a moment before all of it was written, however long this test then takes.
    file_system = FileSystem(file_system_time(root), trusted=True)
    for name in ALL:
        (root / name).touch()
    past = (root / "a.png").stat().st_mtime_ns - HOUR
    os.utime(root / "a.png", ns=(past, past))  # the change time is now all the same
    collect(root, ByteReader(), memory, file_system=file_system)
    assert known(root, memory) == []
    with opened(root) as names:
        collect(root, ByteReader(), memory, file_system=file_system)
    assert names == ALL


def test_a_file_from_the_future_is_not_remembered(root: Path, memory: Memory) -> None:
    """A modification time that lies ahead says nothing: the file is read each time."""
    ahead = file_system_time(root) + 2 * HOUR
    os.utime(root / "a.png", ns=(ahead, ahead))
    collect(root, ByteReader(), memory)
    assert known(root, memory) == ["b.png", "sub/c.png"]


def test_a_file_of_yesterday_is_remembered_by_the_real_clock(memory: Memory) -> None:
    """The standard library was installed before this test began: a second look does not open it."""
    folder = Path(os.__file__).resolve().parent
    stamps = read_stamps([folder / "os.py"])
    if not settled(stamps, file_system_time(folder))[0]:
        pytest.skip("the standard library was changed a moment ago")
    for names in (["os.py"], []):
        with opened(folder) as seen:
            collect_facts(
                stamps,
                lambda row: str(folder / "os.py"),
                ByteReader(),
                memory,
                file_system=FileSystem(file_system_time(folder), trusted=True),
                save=lambda: None,
                report=SILENT,
            )
        assert seen == names


@given(modified=st.integers(-(2**62), 2**62), changed=st.integers(-(2**62), 2**62), now=st.integers(-(2**61), 2**61))
def test_settled_means_two_seconds_old_by_both_times(modified: int, changed: int, now: int) -> None:
    """Modification and change time must both lie two seconds back."""
    stamps = np.array([[1, 1, 1, modified, changed]])
    assert settled(stamps, now).tolist() == [max(modified, changed) <= now - 2 * 10**9]


def test_stamps_are_not_believed_where_they_are_not_trusted(root: Path, memory: Memory) -> None:
    """On a network drive everything is read each time, also what was remembered while stamps were trusted."""
    collect(root, ByteReader(), memory, file_system=later(root, trusted=False))
    assert known(root, memory) == []
    collect(root, ByteReader(), memory)
    assert known(root, memory) == ALL
    for _ in range(2):
        with opened(root) as names:
            collect(root, ByteReader(), memory, file_system=later(root, trusted=False))
        assert names == ALL
    with opened(root) as names:
        collect(root, ByteReader(), memory)
    assert names == []


def test_files_on_another_device_are_judged_on_their_own(
    root: Path, tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link onto a network drive is not believed because the folder with the link lies on a good disk."""
    device = root.stat().st_dev
    elsewhere = Path("/dev/shm")
    if not os.access(elsewhere, os.W_OK) or elsewhere.stat().st_dev == device:
        pytest.skip("no second file system to write to")
    target = elsewhere / f"precook-test-{os.getpid()}.png"
    target.write_bytes(b"elsewhere")
    try:
        (root / "link.png").symlink_to(target)
        real = trust_module.file_system_time
        monkeypatch.setattr(trust_module, "file_system_time", lambda folder: real(folder) + HOUR)
        file_system = FileSystem(file_system_time(root) + HOUR, trusted=True, device=device)
        monkeypatch.setattr(trust_module, "stamps_are_reliable", lambda folder: folder != elsewhere)
        for _ in range(2):
            with opened(root) as names:
                listing, facts = collect(root, ByteReader(), memory, file_system=file_system)
            assert "link.png" in names
            assert known(root, memory) == ALL
        assert answers(listing, facts)["link.png"] == digest(b"elsewhere")
        monkeypatch.setattr(trust_module, "stamps_are_reliable", lambda folder: folder == elsewhere)
        collect(root, ByteReader(), memory, file_system=FileSystem(0, trusted=False, device=device))
        assert known(root, memory) == [*ALL[:2], "link.png", ALL[2]]
        with opened(root) as names:
            collect(root, ByteReader(), memory, file_system=file_system)
        assert names == []
        with opened(root) as names:
            collect(root, ByteReader(), memory, file_system=FileSystem(0, trusted=False, device=device))
        assert names == ALL
    finally:
        target.unlink()


@pytest.fixture
def editing(root: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Another program that edits a.png each time somebody has just begun to read it, so many `times`."""
    state = SimpleNamespace(times=0, target=str(root / "a.png"))
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        status = real(descriptor)
        if state.times and os.readlink(f"/proc/self/fd/{descriptor}") == state.target:
            state.times -= 1
            with open(state.target, "ab") as file:
                file.write(b"!")
        return status

    monkeypatch.setattr(os, "fstat", fstat)
    return state


def test_a_file_that_changes_while_it_is_read_is_tried_again(
    root: Path, memory: Memory, editing: SimpleNamespace
) -> None:
    """Once or twice does not matter: the digest is that of all the bytes."""
    editing.times = 1
    listing, facts = collect(root, ByteReader(), memory)
    assert answers(listing, facts)["a.png"] == digest(b"first!")
    assert not editing.times


def test_a_file_that_never_rests_is_refused_by_name(root: Path, memory: Memory, editing: SimpleNamespace) -> None:
    """The others are facts, and nothing about it is remembered."""
    editing.times = 1000
    listing, facts = collect(root, ByteReader(), memory)
    assert answers(listing, facts) == {
        "a.png": "changed while it was being read",
        "b.png": digest(b"second"),
        "sub/c.png": digest(b""),
    }
    assert 990 < editing.times < 1000
    editing.times = 0
    assert known(root, memory) == ["b.png", "sub/c.png"]


def test_a_file_edited_while_it_is_studied_is_read_again_next_time(root: Path, memory: Memory) -> None:
    """The old bytes stay with the old stamp: neither digest ends up with the other's content."""
    wait_for_a_tick(root)

    def edit(content: bytes) -> None:
        if content == b"first":
            (root / "a.png").write_bytes(b"FIRST")

    listing, facts = collect(root, ByteReader(edit), memory)
    assert answers(listing, facts)["a.png"] == digest(b"first")
    reader = ByteReader()
    listing, facts = collect(root, reader, memory)
    assert answers(listing, facts)["a.png"] == digest(b"FIRST")
    assert reader.studied == [b"FIRST"]


def replaced_by_a_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


REPLACEMENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda path: None, "cannot be read: No such file or directory"),
    "fifo": (os.mkfifo, "a FIFO, not a file"),
    "folder": (os.mkdir, "a folder, not a file"),
    "device": (replaced_by_a_link, "a device, not a file"),
    "loop": (lambda path: path.symlink_to(path.name), "cannot be read: Too many levels of symbolic links"),
}


@pytest.mark.parametrize("what", REPLACEMENTS)
def test_what_takes_a_files_place_after_the_walk_is_named(root: Path, memory: Memory, what: str) -> None:
    """Nothing hangs, nothing endless is read, no descriptor stays open, and the others are facts."""
    replace, reason = REPLACEMENTS[what]
    listing = walk(root, {"png": 1}, recursive=True)
    (root / "a.png").unlink()
    replace(root / "a.png")
    before = descriptors()
    _, facts = collect(root, ByteReader(), memory, listing=listing)
    assert answers(listing, facts) == {
        "a.png": reason,
        "b.png": digest(b"second"),
        "sub/c.png": digest(b""),
    }
    assert descriptors() == before


def test_a_file_too_large_to_be_a_source_is_named_and_not_read(root: Path, memory: Memory) -> None:
    """A sparse file of a terabyte under a picture's name costs no memory."""
    os.truncate(root / "a.png", 1 << 40)
    listing, facts = collect(root, ByteReader(), memory)
    problem = answers(listing, facts)["a.png"]
    assert isinstance(problem, str)
    assert problem.startswith("1,099,511,627,776 bytes")
    assert len(facts.problems) == 1


def test_a_file_whose_size_is_not_what_it_says_is_refused(root: Path, memory: Memory) -> None:
    """The system's own files, and drives that lose their connection, give more or less than they promise."""
    (root / "a.png").unlink()
    (root / "a.png").symlink_to("/proc/version")
    listing, facts = collect(root, ByteReader(), memory)
    (problem,) = facts.problems.values()
    assert "bytes were read of a file that is said to have 0" in problem
    assert known(root, memory) == ["b.png", "sub/c.png"]
    assert listing.names[next(iter(facts.problems))] == "a.png"


def test_names_that_no_file_can_have_are_refused(root: Path, memory: Memory) -> None:
    """A table may name what the system does not even look for."""
    names = ["a.png", "nul\0.png", "\ud800.png"]
    facts = collect_facts(
        np.zeros((3, 5), np.int64),
        lambda row: f"{root}/{names[row]}",
        ByteReader(),
        memory,
        file_system=later(root),
        save=lambda: None,
        report=SILENT,
    )
    assert facts.problems == dict.fromkeys([1, 2], "cannot be read: no file can have such a name")
    assert facts.digests[0].tobytes() == digest(b"first")


def many(root: Path, count: int) -> list[str]:
    """Files with a content of their own each."""
    names = [f"{number:04}.png" for number in range(count)]
    for name in names:
        (root / name).write_bytes(name.encode())
    return names


def test_every_file_gets_its_own_facts(root: Path, memory: Memory) -> None:
    """Hundreds of files, read by many threads in any order: each row is about its own file."""
    names = many(root, 500)
    listing, facts = collect(root, ByteReader(), memory)
    found = answers(listing, facts)
    assert all(found[name] == digest(name.encode()) for name in names)
    listing, facts = collect(root, ByteReader(), memory)
    assert answers(listing, facts) == found


class Interrupting:
    """A reporter in whose hands Ctrl-C is pressed after so many files."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, amount: int = 1) -> None:
        self.left -= amount
        if self.left <= 0:
            signal.raise_signal(signal.SIGINT)

    def task(self, name: str, *, total: int | None, unit: str) -> Any:
        return contextlib.nullcontext(self)


def test_what_was_read_before_ctrl_c_is_not_read_again(root: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that was studied is kept, and the second run reads exactly the rest."""
    names = many(root, 1000)
    ending = threading.Event()

    class Pool(ThreadPoolExecutor):
        """Holds each thread back after the first files that it is given, until no further work is handed out."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            ending.set()
            super().shutdown(wait=wait)

    studied: Counter[int] = Counter()

    def hold(content: bytes) -> None:
        # Each by itself, and never inside of its first ones: Ctrl-C waits for the first of all, whoever has them.
        studied[threading.get_ident()] += 1
        if studied[threading.get_ident()] > facts_module._BATCH and not ending.wait(120):
            ending.set()  # nobody ended it: the test fails, and need not take all day

    with precook.open(path) as store, monkeypatch.context() as patch:
        patch.setattr(facts_module, "ThreadPool", Pool)
        memory = store.memory()
        first = ByteReader(hold)
        with pytest.raises(KeyboardInterrupt):
            collect(root, first, memory, report=Interrupting(after=1))
        assert facts_module._BATCH <= len(first.studied) < 1000
        store.remember(memory)
    with precook.open(path) as store:
        second = ByteReader()
        listing, facts = collect(root, second, store.memory())
    assert sorted(first.studied + second.studied) == sorted([b"first", b"second", b"", *map(str.encode, names)])
    assert not facts.problems
    assert all(answers(listing, facts)[name] == digest(name.encode()) for name in names)


def test_what_is_learnt_is_saved_now_and_then(root: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed in the middle has lost seconds of work, not hours."""
    many(root, 500)
    monkeypatch.setattr(facts_module, "_SAVE_SECONDS", 0)
    with precook.open(path) as store:
        memory = store.memory()
        saved = []

        def save() -> None:
            store.remember(memory)
            saved.append(len(known(root, store.memory())))

        collect(root, ByteReader(), memory, save=save)
    assert saved == sorted(set(saved))
    assert len(saved) > 10
    assert saved[-1] > 450


def test_a_failing_save_is_an_error_and_loses_nothing(root: Path, memory: Memory, monkeypatch: Any) -> None:
    """What was read stays in memory, so that it can be saved once there is room."""
    many(root, 100)
    monkeypatch.setattr(facts_module, "_SAVE_SECONDS", 0)

    def save() -> None:
        raise precook.NoSpaceError(root, "no space left")

    reader = ByteReader()
    with pytest.raises(precook.NoSpaceError):
        collect(root, reader, memory, save=save)
    assert len(known(root, memory)) == len(reader.studied) > 0


def test_refused_content_is_remembered_with_its_reason(root: Path, path: Path) -> None:
    """It is not read again, under whatever name, until it changes."""
    (root / "a.png").write_bytes(b"bad!")
    with precook.open(path) as store:
        memory = store.memory()
        listing, facts = collect(root, ByteReader(), memory)
        assert answers(listing, facts)["a.png"] == "4 bad bytes"
        store.remember(memory)
    with precook.open(path) as store:
        memory = store.memory()
        with opened(root) as names:
            listing, facts = collect(root, ByteReader(), memory)
        assert names == []
        assert facts.problems == {listing.names.index("a.png"): "4 bad bytes"}
        (root / "copy.png").write_bytes(b"bad!")
        listing, facts = collect(root, ByteReader(), memory)
        assert answers(listing, facts)["copy.png"] == "4 bad bytes"
        (root / "a.png").write_bytes(b"good")
        listing, facts = collect(root, ByteReader(), memory)
        assert answers(listing, facts)["a.png"] == digest(b"good")


def picture_reader(monkeypatch: pytest.MonkeyPatch, version: str) -> FactReader:
    """The reader about pictures as another version of Pillow would teach it."""
    spec = importlib.util.find_spec("precook.sources.facts")
    assert spec is not None
    assert spec.loader is not None
    with monkeypatch.context() as patch:
        patch.setattr(PIL, "__version__", version)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    reader: FactReader = module.PictureReader()
    return reader


def test_another_pillow_looks_again_at_what_was_refused(
    root: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version may read it; what was understood is not read again."""
    for path in (root / "sub/c.png", root / "b.png"):
        Image.new("RGB", (3, 2)).save(path)
    for reader, expected in (
        (PictureReader(), ALL),
        (PictureReader(), []),
        (picture_reader(monkeypatch, "99.0"), ["a.png"]),
        (picture_reader(monkeypatch, "99.0"), []),
        (PictureReader(), []),
    ):
        with opened(root) as names:
            listing, facts = collect(root, reader, memory)
        assert names == expected
        assert list(facts.problems) == [listing.names.index("a.png")]


def test_pictures_say_their_size_orientation_and_alpha_once(root: Path, path: Path) -> None:
    """Sizes come from memory on the second look, and no picture is opened to learn them (B8)."""
    rotated = Image.new("RGB", (30, 20))
    exif = rotated.getexif()
    exif[0x0112] = 6
    rotated.save(root / "a.png", exif=exif)
    Image.new("RGBA", (7, 9)).save(root / "b.png")
    Image.new("L", (1, 70_000)).save(root / "sub/c.png")
    expected = {"a.png": ([20, 30], False), "b.png": ([7, 9], True), "sub/c.png": ([1, 70_000], False)}
    for names in (ALL, []):
        with precook.open(path) as store:
            memory = store.memory()
            with opened(root) as seen:
                listing, facts = collect(root, PictureReader(), memory)
            store.remember(memory)
        assert seen == names
        sizes, alphas = picture_sizes(facts.facts).tolist(), picture_alphas(facts.facts).tolist()
        assert {listing.path(row): (sizes[row], alphas[row]) for row in range(3)} == expected


def test_a_reader_that_breaks_on_one_file_does_not_end_the_others(root: Path, memory: Memory) -> None:
    """A defect in a decoder names its file, and is tried again next time."""

    def breaks(content: bytes) -> None:
        if content == b"first":
            raise KeyError("a defect")

    listing, facts = collect(root, ByteReader(breaks), memory)
    assert answers(listing, facts) == {
        "a.png": "cannot be understood: KeyError: 'a defect'",
        "b.png": digest(b"second"),
        "sub/c.png": digest(b""),
    }
    assert known(root, memory) == ["b.png", "sub/c.png"]
    listing, facts = collect(root, ByteReader(), memory)
    assert not facts.problems


def test_too_few_descriptors_stop_the_reading_and_condemn_no_file(root: Path, memory: Memory) -> None:
    """The error names the cause; afterwards everything can be facts."""
    listing = walk(root, {"png": 1}, recursive=True)
    descriptors()  # no garbage that is collected meanwhile makes room
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.open("/dev/null", os.O_RDONLY)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, limits[1]))
        with pytest.raises(SourceError, match="Too many open files") as caught:
            collect(root, ByteReader(), memory, listing=listing, file_system=FileSystem(0, trusted=True))
        assert "ulimit" in caught.value.hint
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(used)
    _, facts = collect(root, ByteReader(), memory)
    assert not facts.problems


def test_two_names_of_one_file_are_the_same_file(root: Path, memory: Memory) -> None:
    """Hard links and links share what is remembered; one of them going away costs the other a read at most."""
    os.link(root / "a.png", root / "hard.png")
    (root / "soft.png").symlink_to("a.png")
    listing, facts = collect(root, ByteReader(), memory)
    found = answers(listing, facts)
    assert found["a.png"] == found["hard.png"] == found["soft.png"] == digest(b"first")
    with opened(root) as names:
        collect(root, ByteReader(), memory)
    assert names == []
    (root / "a.png").unlink()
    listing, facts = collect(root, ByteReader(), memory)
    assert answers(listing, facts)["hard.png"] == digest(b"first")
    assert answers(listing, facts)["soft.png"] == "cannot be read: No such file or directory"


def test_equal_content_is_learnt_once_for_another_reader(root: Path, memory: Memory) -> None:
    """A second reader about the same files reads them for itself, and then both are remembered."""

    class Other(ByteReader):
        kind = Kind("other", key=32, value=9)

    collect(root, ByteReader(), memory)
    with opened(root) as names:
        collect(root, Other(), memory)
    assert names == ALL
    with opened(root) as names:
        collect(root, Other(), memory)
        collect(root, ByteReader(), memory)
    assert names == []


texts = st.lists(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12).map(str.encode),
        st.binary(max_size=8),
        st.sampled_from([b"", b"\n\n", b"one", b"one\ntwo", b"two\r\none\r\n", b"x\n" * 40]),
    ),
    max_size=12,
)


@given(contents=texts, again=st.booleans())
def test_caption_lines_come_out_of_memory_as_they_were_read(contents: list[bytes], again: bool) -> None:
    """Any files, with none, one or many lines: the digests of all lines in order, read or remembered."""
    memory = Memory(None)
    reader = CaptionReader(CaptionRule())
    facts, expected, digests = [], [], []
    for content in contents:
        try:
            lines = read_lines(content, "utf-8")
        except ValueError:
            continue
        digests.append(digest(content))
        facts.append(reader.read(digests[-1], content))
        expected.append([digest(line.encode()) for line in lines])
    reader.remember_rest(memory)
    if again:
        reader = CaptionReader(CaptionRule())
    rows = np.frombuffer(b"".join(facts), np.uint8).reshape(-1, reader.kind.value)
    keys = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    counts, lines = reader.lines(keys, rows, memory)
    assert counts.tolist() == [len(one) for one in expected]
    assert [line.tobytes() for line in lines] == [line for one in expected for line in one]


def test_lost_caption_lines_are_noticed(root: Path, memory: Memory) -> None:
    """Where memory has lost the further lines of a file, nobody gets fewer captions than there are."""
    (root / "a.txt").write_text("one\ntwo\nthree")
    reader = CaptionReader(CaptionRule())
    listing = walk(root, {"txt": 1}, recursive=True)
    _, facts = collect(root, reader, memory, listing=listing)
    counts, lines = reader.lines(facts.digests, facts.facts, memory)
    assert (counts.tolist(), len(lines)) == ([3], 3)
    memory.forget(reader.further)
    with pytest.raises(LookupError):
        reader.lines(facts.digests, facts.facts, memory)
    memory.forget(reader.kind)
    _, facts = collect(root, reader, memory, listing=listing)
    assert len(reader.lines(facts.digests, facts.facts, memory)[1]) == 3


def test_captions_in_another_encoding_are_read_anew(root: Path, memory: Memory) -> None:
    """The same bytes are another text then; each encoding remembers its own."""
    (root / "a.txt").write_bytes(b"caf\xe9\nth\xe9")
    listing = walk(root, {"txt": 1}, recursive=True)
    found = {}
    for encoding in ("utf-8", "cp1252", "cp437", "cp1252"):
        reader = CaptionReader(CaptionRule(encoding))
        _, facts = collect(root, reader, memory, listing=listing)
        found[encoding] = facts.problems.get(0) or reader.lines(facts.digests, facts.facts, memory)[1].tobytes()
    assert "0xe9" in found["utf-8"]
    assert found["cp1252"] == digest("café".encode()) + digest("thé".encode())
    assert found["cp437"] == digest("cafΘ".encode()) + digest("thΘ".encode())


@pytest.fixture
def coarse(tmp_path: Path) -> Iterator[Path]:
    """An ext4 file system whose inodes have room for whole seconds only."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    image, target = tmp_path / "image", tmp_path / "mounted"
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-I", "128", str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(target)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no ext4 image can be mounted here: {error}")
    try:
        yield target
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_an_edit_within_one_second_is_seen_where_times_are_seconds(coarse: Path, memory: Memory) -> None:
    """Same size, same second, same stamp: what was read too young was not remembered (git's racy rule)."""
    path = coarse / "a.png"
    for turn in range(50):
        content = f"{turn:08}".encode()
        with open(path, "r+b" if turn else "xb") as file:
            file.write(content)
        assert path.stat().st_mtime_ns % 10**9 == 0
        file_system = FileSystem.of(coarse)
        listing, facts = collect(coarse, ByteReader(), memory, file_system=file_system)
        assert file_system.trusted
        assert answers(listing, facts) == {"a.png": digest(content)}


@pytest.fixture
def weights(tmp_path: Path) -> list[Path]:
    """Two files of a model."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.safetensors").write_bytes(name.encode() * 1000)
    return [folder / "one.safetensors", folder / "two.safetensors"]


@pytest.fixture
def hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written count as settled."""
    real = trust_module.file_system_time
    monkeypatch.setattr(facts_module, "file_system_time", lambda folder: real(folder) + HOUR)


def weigh(paths: list[Path], memory: Memory, *, trust: bool = False) -> list[bytes]:
    return [one.bytes for one in remembered_digests(paths, memory, trust=trust, report=SILENT)]


@pytest.mark.usefixtures("hour_later")
def test_weights_are_read_once(weights: list[Path], path: Path) -> None:
    """A second start reads no byte of a model (B3), and a third model none of the first two."""
    expected = [digest(weight.read_bytes()) for weight in weights]
    folder = weights[0].parent
    for names in ([weight.name for weight in weights], []):
        with precook.open(path) as store:
            memory = store.memory()
            with opened(folder) as seen:
                assert weigh(weights, memory) == expected
            assert seen == names
            store.remember(memory)
    third = folder / "three.safetensors"
    third.write_bytes(b"three")
    with precook.open(path) as store, opened(folder) as seen:
        assert weigh([third, *reversed(weights), third], store.memory())[1:3] == expected[::-1]
    assert set(seen) == {third.name}
    assert weigh([], Memory(None)) == []


@pytest.mark.usefixtures("hour_later")
def test_a_changed_weight_is_read_again(weights: list[Path], memory: Memory) -> None:
    """Also one of the same size and time; the other one is not opened."""
    weigh(weights, memory)
    wait_for_a_tick(weights[0].parent)
    keep_times(weights[1], lambda: weights[1].write_bytes(b"TWO" * 1000))
    with opened(weights[0].parent) as names:
        assert weigh(weights, memory) == [digest(b"one" * 1000), digest(b"TWO" * 1000)]
    assert names == ["two.safetensors"]


@pytest.mark.usefixtures("hour_later")
def test_a_weight_that_changes_while_it_is_read_is_not_remembered(weights: list[Path], memory: Memory) -> None:
    """Its digest is that of the bytes that were read, and neither its old nor its new stamp keeps it."""
    before = read_stamps(weights)
    wait_for_a_tick(weights[0].parent)

    class Editing(Interrupting):
        def task(self, name: str, *, total: int | None, unit: str) -> Any:
            keep_times(weights[1], lambda: weights[1].write_bytes(b"TWO" * 1000))
            return contextlib.nullcontext(SILENT)

    found = remembered_digests(weights, memory, trust=True, report=Editing(0))
    assert [one.bytes for one in found] == [digest(b"one" * 1000), digest(b"TWO" * 1000)]
    for stamps in (before, read_stamps(weights)):
        assert memory.recall(FILES, stamp_keys(stamps))[0].tolist() == [True, False]


def test_a_weight_that_was_just_written_is_read_again(
    weights: list[Path], memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of its disk: a download that ended this second is not yet to be relied on."""
    now = file_system_time(weights[0].parent)
    for weight in weights:
        weight.touch()
    # However long this test takes, no more than this second passes.
    monkeypatch.setattr(facts_module, "file_system_time", lambda _: now)
    for _ in range(2):
        with opened(weights[0].parent) as names:
            weigh(weights, memory, trust=True)
        assert len(names) == 2


@pytest.mark.usefixtures("hour_later")
def test_weights_on_a_drive_that_is_not_trusted_are_read_each_time(
    weights: list[Path], memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the config trusts stamps; a link does not make them trusted either."""
    remote = weights[0].parent
    (tmp_path / "linked").mkdir()
    links = [tmp_path / "linked" / weight.name for weight in weights]
    for link, weight in zip(links, weights, strict=True):
        link.symlink_to(weight)
    monkeypatch.setattr(facts_module, "stamps_are_reliable", lambda folder: folder != remote)
    for trust, paths, count in (
        (False, weights, 2),
        (False, weights, 2),
        (False, links, 2),
        (True, links, 2),
        (True, weights, 0),
        (False, weights, 2),
        (False, links, 2),
    ):
        with opened(tmp_path) as names:
            weigh(paths, memory, trust=trust)
        assert len(names) == count


@pytest.mark.usefixtures("hour_later")
@pytest.mark.parametrize(
    ("replace", "reason"),
    [
        (lambda path: None, "No such file"),
        (os.mkfifo, "a FIFO, not a file"),
        (os.mkdir, "a folder, not a file"),
        (lambda path: path.symlink_to(path.name), "Too many levels"),
    ],
)
def test_a_weight_that_cannot_be_read_is_an_error_with_its_name(
    weights: list[Path], memory: Memory, replace: Callable[[Path], object], reason: str
) -> None:
    """A model without one of its files is no model; nothing hangs."""
    weights[1].unlink()
    replace(weights[1])
    with pytest.raises(SourceError, match=reason) as caught:
        weigh(weights, memory)
    assert caught.value.path == weights[1]


@pytest.mark.usefixtures("hour_later")
def test_weights_that_were_read_before_a_failure_are_remembered(weights: list[Path], memory: Memory) -> None:
    """Half an hour of hashing is not lost because the last file cannot be read."""
    third = weights[0].parent / "three"
    third.write_bytes(b"three")

    class Vanishing(Interrupting):
        def advance(self, amount: int = 1) -> None:
            third.unlink(missing_ok=True)

    with pytest.raises(SourceError):
        remembered_digests([*weights, third], memory, trust=True, report=Vanishing(0))
    with opened(third.parent) as names:
        weigh(weights, memory)
    assert names == []
