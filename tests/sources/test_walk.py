"""The walk: every file that matters and no other, whatever lies in the folder and whoever does the work."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.errors import SourceError
from precook.fs import stat_many as stat_many_module
from precook.fs import stat_names as helper
from precook.fs.stamps import stamp_of
from precook.fs.trust import file_system_time, file_system_type, stamps_are_reliable
from precook.sources.walk import Listing, list_names, walk
from tests.store.test_processes import in_child
from tests.support.descriptors import descriptors

ROLES = {"jpg": 1, "png": 1, "txt": 2}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def make(root: Path, *names: str) -> None:
    """Files with a few bytes each."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))


def paths(listing: Listing) -> list[str]:
    return sorted(listing.path(row) for row in range(len(listing.names)))


def usable(listing: Listing) -> list[str]:
    return sorted(listing.path(row) for row, good in enumerate(listing.regular()) if good)


def reasons(listing: Listing) -> dict[str, str]:
    """Why files cannot be used, and folders and links neither."""
    files = {listing.path(row): listing.problem(row) for row, good in enumerate(listing.regular()) if not good}
    return {**files, **dict(listing.problems)}


def the_same(one: Listing, other: Listing) -> bool:
    return (
        (one.names, one.roles, one.folders, one.problems) == (other.names, other.roles, other.folders, other.problems)
        and (one.modes == other.modes).all()
        and (one.stamps == other.stamps).all()
    )


def test_folders_below_are_walked_only_when_asked(root: Path) -> None:
    """`recursive` is the difference between a folder and a tree."""
    make(root, "a.png", "sub/b.png", "sub/deep/c.txt", "other/d.jpg")
    assert paths(walk(root, ROLES, recursive=False)) == ["a.png"]
    assert paths(walk(root, ROLES, recursive=True)) == ["a.png", "other/d.jpg", "sub/b.png", "sub/deep/c.txt"]


def test_roles_go_by_what_follows_the_last_dot_in_any_case(root: Path) -> None:
    """A file is not a picture because it is called "jpg", nor because a folder is."""
    named = ["a.png", "b.PNG", "c.pNg", "d.tar.png", "e.TXT"]
    make(root, *named, "jpg", "png", "f.", "g.png.bak", "h.pngx", "noend", "x.jpg/inside.png", "x.jpg/other")
    listing = walk(root, ROLES, recursive=True)
    assert paths(listing) == [*named, "x.jpg/inside.png"]
    assert {listing.path(row): listing.roles[row] for row in range(6)}["e.TXT"] == 2
    assert paths(walk(root, ROLES, recursive=False)) == named


def test_hidden_files_and_folders_are_passed_over(root: Path) -> None:
    """What begins with a dot belongs to programs: thumbnails, version control, half-finished copies."""
    make(root, "a.png", ".b.png", ".png", ".cache/c.png", "sub/.d.txt")
    assert paths(walk(root, ROLES, recursive=True)) == ["a.png"]


def test_every_file_gets_its_own_stamp(root: Path) -> None:
    """The stamp in the listing is the one that the file has."""
    make(root, "a.png", "sub/b.png", "sub/c.txt", "sub/deep/d.jpg")
    os.utime(root / "a.png", ns=(1, 1_234_567_891))
    os.utime(root / "sub/b.png", ns=(1, -5_000_000_001))
    listing = walk(root, ROLES, recursive=True)
    for row in range(4):
        status = os.stat(listing.full_path(row))
        assert tuple(listing.stamps[row].tolist()) == stamp_of(status)
        assert listing.stamps[row].tolist()[2:4] == [status.st_size, status.st_mtime_ns]
        assert listing.modes[row] == status.st_mode


def test_a_file_from_the_far_future_is_listed_like_any_other(root: Path) -> None:
    """A time beyond what 63 bits of nanoseconds can say is cut, the same way everywhere."""
    make(root, *(f"{number}.png" for number in range(6)))
    try:
        os.utime(root / "2.png", (0, 13_000_000_000))
    except OSError as error:
        pytest.skip(f"this file system has no such time: {error}")
    if os.stat(root / "2.png").st_mtime_ns < 1 << 63:
        pytest.skip("this file system has no such time")
    for helpers in (0, 1):
        listing = walk(root, ROLES, recursive=True, helpers=helpers)
        assert len(usable(listing)) == 6
        for row in range(6):
            assert tuple(listing.stamps[row].tolist()) == stamp_of(os.stat(listing.full_path(row)))


def test_linked_files_are_files_and_linked_folders_are_walked_once(root: Path, tmp_path: Path) -> None:
    """Links inside the root, out of it, in circles and twice to one folder."""
    make(root, "real/a.png")
    make(tmp_path, "outside/b.png", "file.png")
    (root / "link.png").symlink_to("real/a.png")
    (root / "out.png").symlink_to(tmp_path / "file.png")
    (root / "real/up").symlink_to("..")
    (root / "again").symlink_to("real")
    (root / "beyond").symlink_to(tmp_path / "outside")
    (root / "beyond too").symlink_to(tmp_path / "outside")
    (tmp_path / "outside/back").symlink_to(root)
    listing = walk(root, ROLES, recursive=True)
    assert usable(listing) == ["again/a.png", "beyond/b.png", "link.png", "out.png"]
    assert reasons(listing) == {}
    assert usable(walk(root, ROLES, recursive=False)) == ["link.png", "out.png"]
    rows = {listing.path(row): row for row in range(4)}
    assert listing.stamps[rows["link.png"]].tolist() == listing.stamps[rows["again/a.png"]].tolist()


def test_links_that_lead_nowhere_are_named_and_spoil_nothing(root: Path) -> None:
    """A dangling link, a link to itself, and a link that might have been a folder on a drive that is not mounted."""
    make(root, "a.png", "sub/b.png")
    (root / "gone.png").symlink_to("nothing.png")
    (root / "self.png").symlink_to("self.png")
    (root / "sub/self").symlink_to("self")
    (root / "drive").symlink_to("/no/such/mount/cats")
    (root / ".hidden").symlink_to("nothing")
    listing = walk(root, ROLES, recursive=True)
    assert usable(listing) == ["a.png", "sub/b.png"]
    found = reasons(listing)
    assert sorted(found) == ["drive", "gone.png", "self.png", "sub/self"]
    assert found["gone.png"] == "no such file or directory"
    assert found["self.png"] == "too many levels of symbolic links"
    assert "not there" in found["drive"]
    assert "cannot be followed" in found["sub/self"]
    assert sorted(reasons(walk(root, ROLES, recursive=False))) == ["gone.png", "self.png"]


def test_what_is_no_file_is_named_and_not_opened(root: Path) -> None:
    """FIFO, socket, device and a link to one, all called .png: nothing hangs."""
    make(root, "a.png")
    os.mkfifo(root / "fifo.png")
    (root / "link.png").symlink_to("fifo.png")
    (root / "null.png").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(root, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{here}/socket.png")
        finally:
            os.close(here)
        listing = walk(root, ROLES, recursive=True)
    assert usable(listing) == ["a.png"]
    assert reasons(listing) == {
        "fifo.png": "a FIFO, not a file",
        "link.png": "a FIFO, not a file",
        "null.png": "a device, not a file",
        "socket.png": "a socket, not a file",
    }


def as_nobody(work: Callable[[], None]) -> None:
    """Run `work` in a child that permissions apply to, also if we are root."""

    def as_somebody_else() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        work()

    in_child(as_somebody_else)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach."""
    folder = Path(tempfile.mkdtemp())
    mask = os.umask(0o022)
    try:
        folder.chmod(0o755)
        if not all(place.stat().st_mode & 0o001 for place in folder.parents):
            pytest.skip("the folder for temporary files is closed to other users")
        yield folder
    finally:
        os.umask(mask)
        for path in folder.iterdir():
            if not path.is_symlink() and path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_folder_without_permission_is_named_and_the_rest_is_walked(public: Path) -> None:
    """One closed folder, one that can be listed but not entered, and a link through a closed one."""
    make(public, "a.png", "closed/b.png", "closed/deep/c.png", "flat/d.png", "open/e.png")
    (public / "through").symlink_to("closed/deep")
    (public / "flat").chmod(0o744)
    (public / "closed").chmod(0o700)
    if os.geteuid() != 0:
        (public / "flat").chmod(0o400)
        (public / "closed").chmod(0)

    def work() -> None:
        listing = walk(public, ROLES, recursive=True)
        assert usable(listing) == ["a.png", "open/e.png"], paths(listing)
        found = reasons(listing)
        assert sorted(found) == ["closed/", "flat/d.png", "through"], found
        assert "cannot be read: Permission denied" in found["closed/"]
        assert found["flat/d.png"] == "permission denied"
        with pytest.raises(SourceError, match="cannot be read: Permission denied"):
            walk(public / "closed", ROLES, recursive=True)

    as_nobody(work)


def test_files_of_a_table_are_found_in_a_folder_that_may_not_be_listed(public: Path) -> None:
    """Whoever names a file needs no permission to list its neighbours."""
    make(public, "table/a.png")
    (public / "table").chmod(0o711)
    as_nobody(lambda: _expect(usable(list_names(public / "table", ["a.png"], bytearray(1))) == ["a.png"]))


def _expect(fact: bool) -> None:
    assert fact


ODD = [
    "two words.png",
    " lead and trail .png",
    "new\nline.png",
    "tab\tESC\x1b[31m.png",
    "\x01\x7f.png",
    os.fsdecode(b"caf\xe9.png"),
    os.fsdecode(b"\xff\xfe.png"),
    "n" * 251 + ".png",
    unicodedata.normalize("NFC", "caf\u00e9.png"),
    unicodedata.normalize("NFD", "caf\u00e9.png"),
    "\u202ecod.png",
    "case.png",
    "Case.png",
    "CASE.PNG",
    "trailing. .png",
    "..png",
    "*?[a].png",
    "-rf.png",
    "%00.png",
]
"""Names that a file system takes, and programs often do not."""


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_any_name_is_found_as_it_is(root: Path, helpers: int) -> None:
    """Bytes in, the same bytes out; twins that look alike stay apart."""
    visible = [name for name in ODD if not name.startswith(".")]
    for folder in ("", "sub folder\n/", os.fsdecode(b"\xe9/")):
        (root / folder).mkdir(exist_ok=True)
        for name in visible:
            with open(os.path.join(os.fsencode(root), os.fsencode(folder + name)), "xb") as file:
                file.write(os.fsencode(name))
    listing = walk(root, ROLES, recursive=True, helpers=helpers)
    assert len(usable(listing)) == 3 * len(visible) == len(set(paths(listing)))
    for row, name in enumerate(listing.names):
        with open(listing.full_path(row), "rb") as file:
            assert file.read() == os.fsencode(name)
        assert listing.stamps[row, 2] == len(os.fsencode(name))


def test_a_path_longer_than_the_system_takes_is_named(root: Path) -> None:
    """Folders in folders beyond 4096 bytes: what is deeper is left out with its reason, and nothing crashes."""
    make(root, "a.png")
    here = os.open(root, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
        os.close(os.open("x.png", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    listing = walk(root, ROLES, recursive=True)
    assert len(usable(listing)) > 15
    (reason,) = [reason for path, reason in listing.problems]
    assert "File name too long" in reason


def test_a_store_in_the_folder_is_passed_over(root: Path, recipe: precook.Recipe) -> None:
    """Neither the store below the data nor what somebody put into it is a source."""
    with precook.open(root / "cache") as store:
        store.put(recipe.key(1), 1)
    make(root, "a.png", "cache/packs/b.png", "sub/c.png")
    assert paths(walk(root, ROLES, recursive=True)) == ["a.png", "sub/c.png"]


def test_a_root_that_is_not_there_is_an_error_and_not_an_empty_dataset(root: Path) -> None:
    """A drive that is not mounted must not look like deleted files (E3)."""
    make(root, "file")
    (root / "link").symlink_to("/no/such/mount")
    for name, message in {"absent": "no such folder", "link": "no such folder", "file": "not a folder"}.items():
        with pytest.raises(SourceError, match=message) as caught:
            walk(root / name, ROLES, recursive=True)
        assert caught.value.path == root / name
        assert bool(caught.value.hint) == (message == "no such folder")
    with pytest.raises(SourceError, match="not a folder"):
        walk(root / "file" / "below", ROLES, recursive=True)
    assert paths(walk(root, ROLES, recursive=True)) == []


def test_a_root_may_be_a_link_or_relative(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is found as it was given, by helpers too."""
    make(root, "a.png", "sub/b.png")
    (root.parent / "link").symlink_to(root)
    monkeypatch.chdir(root)
    for given_root in (Path(), Path("../link"), Path("../data/sub/.."), root.parent / "link"):
        for helpers in (0, 2):
            listing = walk(given_root, ROLES, recursive=True, helpers=helpers)
            assert usable(listing) == ["a.png", "sub/b.png"]
            assert all(os.path.samefile(listing.full_path(row), root / listing.path(row)) for row in range(2))


def test_files_by_name_are_looked_at_wherever_they_lie(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Relative and absolute names; what is absent is marked, and so is what no file can be called."""
    make(root, "a.png", "sub/b.png")
    make(tmp_path, "c.png")
    names = [
        "a.png",
        "sub/b.png",
        str(tmp_path / "c.png"),
        "../c.png",
        "absent.png",
        "a.png/below.png",
        "sub",
        "",
        "nul\0.png",
        "\ud800.png",
        "new\nline.png",
        "x" * 300,
        "sub/b.png",
    ]
    good = [True] * 4 + [False] * 8 + [True]
    absent = [False] * 4 + [True, True, False, True, False, False, True, True, False]
    first = list_names(root, names, bytearray(len(names)))
    for helpers in (0, 1, 2, 5, 20):
        listing = list_names(root, names, bytearray(len(names)), helpers=helpers)
        assert listing.regular().tolist() == good
        assert listing.absent().tolist() == absent
        assert the_same(listing, first)
    assert first.problem(6) == "a folder, not a file"
    assert first.problem(8) == first.problem(9) == "invalid argument"
    assert first.full_path(2) == str(tmp_path / "c.png")
    assert len(list_names(root, [], bytearray()).names) == 0
    assert not caplog.records


def test_a_listing_takes_in_another(root: Path) -> None:
    """Files that are looked at later are found under their own paths."""
    make(root, "a.png", "sub/b.png", "sub/c.txt", "masks/d.webp")
    listing = walk(root, ROLES, recursive=True)
    before = {listing.path(row): listing.stamps[row].tolist() for row in range(3)}
    listing.add(list_names(root, ["masks/d.webp", "masks/none.webp"], bytearray(b"\3\3")))
    assert paths(listing) == sorted([*before, "masks/d.webp", "masks/none.webp"])
    assert {listing.path(row): listing.stamps[row].tolist() for row in range(3)} == before
    assert listing.path(3) == "masks/d.webp"
    assert listing.stamps[3].tolist() == list(stamp_of(os.stat(root / "masks/d.webp")))
    assert usable(listing) == sorted([*before, "masks/d.webp"])


words = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
names = st.builds(lambda word, end: word + end, words, st.sampled_from([".png", ".PNG", ".Jpg", ".txt", "", ".gif"]))
trees = st.lists(
    st.tuples(st.lists(st.sampled_from(["a", "b.png", "ü", "n\n", "x y"]), max_size=2), names), max_size=25
)


@settings(max_examples=15)
@given(tree=trees, recursive=st.booleans())
def test_helpers_change_nothing(tree: list[tuple[list[str], str]], recursive: bool) -> None:
    """Any tree gives the same listing with no helper, with one and with three: all that matters, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        expected = set()
        for folders, name in tree:
            relative = os.path.join(*folders, name)
            if len(os.fsencode(name)) > 255 or name in (".", ".."):
                continue
            (root / relative).parent.mkdir(parents=True, exist_ok=True)
            if (root / relative).is_dir():
                continue
            (root / relative).write_bytes(os.fsencode(relative))
            matters = name.rpartition(".")[2].lower() in ROLES and "." in name
            if matters and name[0] != "." and (recursive or not folders):
                expected.add(relative)
        alone = walk(root, ROLES, recursive=recursive, helpers=0)
        assert set(usable(alone)) == set(paths(alone)) == expected
        for helpers in (1, 3):
            assert the_same(walk(root, ROLES, recursive=recursive, helpers=helpers), alone)


def test_large_folders_are_shared_with_helpers(root: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]) -> None:
    """From a number of files on, and only then; asked or not."""
    make(root, *(f"{number}.png" for number in range(30)))
    alone = walk(root, ROLES, recursive=True)
    assert not started
    monkeypatch.setattr(stat_many_module, "_MANY", 30)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert the_same(walk(root, ROLES, recursive=True), alone)
    assert len(started) == 2


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The processes that are started; none of them may be left running, nor a pipe open."""
    processes: list[Any] = []
    real = subprocess.Popen

    def start(*args: Any, **options: Any) -> Any:
        processes.append(real(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    before = descriptors()
    yield processes
    assert all(process.returncode is not None for process in processes)
    assert descriptors() == before


FAULTY = {
    "fails": "raise SystemExit(3)",
    "fails in the end": "import os; os.write(1, bytes(48 * 8)); raise SystemExit(1)",
    "says nothing": "pass",
    "says too little": "import os; os.write(1, bytes(48))",
    "says too much": "import os; os.write(1, bytes(48 * 1000))",
    "is killed": "import os, signal; os.write(1, bytes(48)); os.kill(os.getpid(), signal.SIGKILL)",
    "is no program": "this is not Python",
}


@pytest.mark.parametrize("how", FAULTY)
def test_a_helper_that_fails_is_made_up_for(
    root: Path, how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, started: list[Any]
) -> None:
    """Its part of the work is done here, the log says so, and the result is the same."""
    make(root, *(f"{number}.png" for number in range(20)), *(f"sub/{number}.png" for number in range(4)))
    alone = walk(root, ROLES, recursive=True, helpers=0)
    program = root / "program.py"
    program.write_text(FAULTY[how])
    monkeypatch.setattr(helper, "__file__", str(program))
    with caplog.at_level(logging.WARNING, "precook"):
        assert the_same(walk(root, ROLES, recursive=True, helpers=2), alone)
    assert len(started) == 2
    assert [record for record in caplog.records if "helper" in record.message]


def test_no_helper_is_started_where_python_cannot_be(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, started: list[Any]
) -> None:
    """No interpreter, an application that holds one, a frozen one: all alone, and no program is started by mistake."""
    make(root, *(f"{number}.png" for number in range(20)))
    alone = walk(root, ROLES, recursive=True, helpers=0)
    changes: list[tuple[object, str, object]] = [
        (sys, "executable", None),
        (sys, "executable", ""),
        (sys, "executable", "/usr/sbin/webserver"),
        (sys, "frozen", True),
        (helper, "__file__", str(tmp_path / "app.zip/precook/stat_names.py")),
    ]
    for thing, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(thing, name, value, raising=False)
            assert the_same(walk(root, ROLES, recursive=True, helpers=2), alone)
            assert not started, (name, value)
    assert not caplog.records
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    with caplog.at_level(logging.WARNING, "precook"):
        assert the_same(walk(root, ROLES, recursive=True, helpers=2), alone)
    assert "no helper process could be started" in caplog.text


def test_a_helper_does_not_outlive_an_interruption(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    """Ctrl-C in the middle leaves no process behind, even one that would wait for ever."""
    make(root, *(f"{number}.png" for number in range(20)))
    program = tmp_path / "program.py"
    program.write_text("import signal; signal.pause()")
    monkeypatch.setattr(helper, "__file__", str(program))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stat_many_module, "_stat_part", interrupted)
    with pytest.raises(KeyboardInterrupt):
        walk(root, ROLES, recursive=True, helpers=2)
    assert len(started) == 2


def test_a_helper_starts_without_anybodys_packages(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, started: list[Any]
) -> None:
    """What the environment would import at every start of Python costs a helper nothing, and has no say in it."""
    make(root, *(f"{number}.png" for number in range(20)))
    canary = tmp_path / "canary"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(canary)!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONHOME", str(tmp_path))  # nothing starts with this unless it is ignored
        listing = walk(root, ROLES, recursive=True, helpers=1)
    assert len(started) == 1
    assert len(usable(listing)) == 20
    assert not caplog.records
    assert not canary.exists()
    program = subprocess.run(
        [*started[0].args[:-1], "-X", "importtime", helper.__file__], input=b"", capture_output=True, check=True
    )
    imported = {line.split(b"|")[-1].strip() for line in program.stderr.splitlines()}
    assert b"array" in imported
    assert not imported & {b"site", b"numpy", b"precook", b"sitecustomize", b"json", b"typing"}
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert canary.exists()


def test_too_few_descriptors_are_no_verdict_on_files(root: Path) -> None:
    """A process that has too many files open says so, and calls no folder and no file unusable."""
    make(root, "a.png", "sub/b.png")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors()  # no garbage that is collected meanwhile makes room
    used = [os.open("/dev/null", os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used[0] + 1, limits[1]))
        for look in (
            lambda: walk(root, ROLES, recursive=True),
            lambda: list_names(root, ["a.png"], bytearray(1)),
        ):
            with pytest.raises(SourceError, match="Too many open files") as caught:
                look()
            assert "ulimit" in caught.value.hint
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(used[0])
    assert usable(walk(root, ROLES, recursive=True)) == ["a.png", "sub/b.png"]


def test_too_few_descriptors_are_no_verdict_on_a_folder_below(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a dataset is not a dataset: the walk ends with the cause."""
    make(root, "a.png", "sub/b.png")
    real = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("sub/"):
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SourceError, match="Too many open files in system") as caught:
        walk(root, ROLES, recursive=True)
    assert caught.value.path == root / "sub"


def test_the_clock_is_the_file_systems_and_leaves_no_trace(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies between two files written around it, whatever time the process believes in."""
    monkeypatch.setattr(time, "time_ns", lambda: 12345)
    for folder in (root, Path("/proc")):  # in the second, nothing can be made
        make(root, "before")
        looks = os.stat(root)
        now = file_system_time(folder)
        if folder == root:
            assert os.stat(root) == looks
            assert os.listdir(root) == ["before"]
        make(root, "after")
        assert (root / "before").stat().st_mtime_ns <= now <= (root / "after").stat().st_mtime_ns
        (root / "after").unlink()


def test_file_systems_that_keep_no_change_time_are_not_trusted(root: Path) -> None:
    """A kind that nobody has vouched for is not believed."""
    assert file_system_type(Path("/proc/self/status")) == "proc"
    assert not stamps_are_reliable(Path("/proc/self"))
    if file_system_type(root) in ("ext4", "xfs", "btrfs", "tmpfs", "overlay"):
        assert stamps_are_reliable(root)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, mounted under a name with a space, an umlaut and a backslash."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    libc = ctypes.CDLL(None, use_errno=True)
    target = tmp_path / "B\u00fccher und\\Bilder"
    target.mkdir()
    if libc.mount(b"none", bytes(target), b"ramfs", 0, None) != 0:
        pytest.skip(f"no permission to mount here: {os.strerror(ctypes.get_errno())}")
    try:
        yield target
    finally:
        libc.umount2(bytes(target), 2)


def test_a_mount_is_recognised_whatever_its_name(mounted: Path, tmp_path: Path) -> None:
    """A network drive under a name that is not ASCII must not be taken for the disk it is mounted on."""
    make(mounted, "sub/a.png")
    assert file_system_type(mounted) == file_system_type(mounted / "sub/a.png") == "ramfs"
    (tmp_path / "link").symlink_to(mounted / "sub")
    assert file_system_type(tmp_path / "link") == "ramfs"
    assert file_system_type(tmp_path) != "ramfs"
    assert file_system_type(tmp_path / "B\u00fccher") != "ramfs"
    assert file_system_type(mounted.with_name(mounted.name + " 2")) != "ramfs"
    assert stat.S_ISREG(int(walk(mounted, ROLES, recursive=True).modes[0]))
