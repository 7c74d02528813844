"""The walk: every file that matters and no other, whatever lies in the folder."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.errors import SourceError
from precook.fs.stamps import stamp_of
from precook.sources.walk import Listing, list_names, walk
from tests.store.test_processes import in_child
from tests.support.descriptors import descriptors
from tests.support.listings import ROLES, make, paths, the_same, usable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def reasons(listing: Listing) -> dict[str, str]:
    """Why files cannot be used, and folders and links neither."""
    files = {listing.path(row): listing.problem(row) for row, good in enumerate(listing.regular()) if not good}
    return {**files, **dict(listing.problems)}


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
    listing = walk(root, ROLES, recursive=True, outside=True)
    assert usable(listing) == ["again/a.png", "beyond/b.png", "link.png", "out.png"]
    assert reasons(listing) == {}
    assert usable(walk(root, ROLES, recursive=False, outside=True)) == ["link.png", "out.png"]
    rows = {listing.path(row): row for row in range(4)}
    assert listing.stamps[rows["link.png"]].tolist() == listing.stamps[rows["again/a.png"]].tolist()
    listing = walk(root, ROLES, recursive=True)
    assert usable(listing) == ["again/a.png", "link.png"]
    found = reasons(listing)
    assert sorted(found) == ["beyond", "beyond too", "out.png"]
    assert all("leads out of the concept's folder" in reason for reason in found.values())
    assert str(tmp_path / "file.png") in found["out.png"]


def test_a_root_may_itself_be_a_link(root: Path, tmp_path: Path) -> None:
    """What lies in the folder that the config names is inside, wherever that folder is; and so is a link back to it."""
    make(root, "a.png", "sub/b.png")
    (root / "sub/again.png").symlink_to("../a.png")
    (root / "sub/absolute.png").symlink_to(root / "a.png")
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "data too").mkdir()
    make(tmp_path, "data too/c.png")
    (root / "c.png").symlink_to("../data too/c.png")
    listing = walk(tmp_path / "link", ROLES, recursive=True)
    assert usable(listing) == ["a.png", "sub/absolute.png", "sub/again.png", "sub/b.png"]
    assert list(reasons(listing)) == ["c.png"]


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
