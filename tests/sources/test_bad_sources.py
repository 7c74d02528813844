"""Bad input, with real files: what cannot be used is named with its reason, and the others go on."""

from __future__ import annotations

import io
import os
import shutil
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.projects import dataset, picture, project

Make = Callable[[Path], object]


def _bytes(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _noise(mode: str = "RGB", size: tuple[int, int] = (96, 64)) -> Image.Image:
    rng = np.random.default_rng(5)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8)).convert(mode)


def _animated(path: Path) -> None:
    _noise().save(path, save_all=True, append_images=[_noise().rotate(90), _noise().rotate(180)])


def _bomb(path: Path) -> None:
    """A few kilobytes that would be 169 million pixels."""
    side = 13_000

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compress(bytes((side // 8 + 1) * side), 9)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def _holes(path: Path) -> None:
    """A gigabyte that takes no room on the disk."""
    _noise().save(path)
    os.truncate(path, 1 << 30)


def _socket(path: Path) -> None:
    # Addresses are short, and the test's folder may not be.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


REFUSED: dict[str, tuple[str, Make, str]] = {
    "an empty file": ("x.png", lambda path: path.write_bytes(b""), "empty"),
    "a text file named .png": ("x.png", lambda path: path.write_text("hello"), "not a picture"),
    "a truncated JPEG": ("x.jpg", lambda path: path.write_bytes(_bytes(_noise(), "JPEG")[:-300]), "cut off"),
    "a truncated PNG": ("x.png", lambda path: path.write_bytes(_bytes(_noise(), "PNG")[:-300]), "cut off"),
    "a truncated WebP": ("x.webp", lambda path: path.write_bytes(_bytes(_noise(), "WEBP")[:-300]), "cut off"),
    "a header without its picture": ("x.jpg", lambda path: path.write_bytes(_bytes(_noise(), "JPEG")[:40]), ""),
    "a decompression bomb": ("x.png", _bomb, "pixels"),
    "a picture of another kind": ("x.png", lambda path: path.write_bytes(_bytes(_noise(), "PPM")), "PPM"),
    "a FIFO": ("x.png", os.mkfifo, "a FIFO, not a file"),
    "a socket": ("x.png", _socket, "a socket, not a file"),
    "a picture of holes": ("x.png", _holes, "most of which are not on the disk"),
    "a dangling link": ("x.png", lambda path: path.symlink_to("nowhere.png"), "no such file"),
    "a link to itself": ("x.png", lambda path: path.symlink_to(path.name), "too many levels"),
}
"""A kind of bad picture: its name, how to make it, and what the reason says."""

ACCEPTED: dict[str, tuple[str, Make]] = {
    "a name with spaces": ("a b  c.png", lambda path: _noise().save(path)),
    "a name with a newline": ("a\nb.png", lambda path: _noise().save(path)),
    "a name with an escape": ("a\x1b[31mb.png", lambda path: _noise().save(path)),
    "a name that is not UTF-8": (os.fsdecode(b"caf\xe9.png"), lambda path: _noise().save(path, "PNG")),
    "a name of 255 bytes": ("n" * 251 + ".png", lambda path: _noise().save(path)),
    "a name in capitals": ("X.PNG", lambda path: _noise().save(path, "PNG")),
    "a name with braces": ("{stem}{name}.png", lambda path: _noise().save(path)),
    "CMYK": ("x.jpg", lambda path: _noise("CMYK").save(path)),
    "16 bits": ("x.png", lambda path: Image.fromarray(np.full((64, 96), 40_000, np.uint16)).save(path)),
    "a palette": ("x.png", lambda path: _noise("P").save(path)),
    "alpha": ("x.png", lambda path: _noise("RGBA").save(path)),
    "greyscale": ("x.png", lambda path: _noise("L").save(path)),
    "one bit": ("x.png", lambda path: _noise("1").save(path)),
    "an animated GIF": ("x.gif", _animated),
    "an animated WebP": ("x.webp", _animated),
    "another extension": ("x.png", lambda path: path.write_bytes(_bytes(_noise(), "JPEG"))),
    "a link to a picture": ("x.png", lambda path: path.symlink_to("p0.png")),
}
"""A kind of picture that is unusual and fine."""

CAPTIONS: dict[str, tuple[bytes, int | str]] = {
    "a BOM": (b"\xef\xbb\xbfa cat\n", 1),
    "CRLF": (b"a cat\r\na dog\r\n", 2),
    "UTF-16 with a BOM": ("a cat\na dög\n".encode("utf-16"), 2),
    "a megabyte": (b"cat " * (1 << 18), 1),
    "empty": (b"", 1),
    "only blank lines": (b"\n \r\n\t\n", 1),
    "latin-1": ("a café\n".encode("latin-1"), "UTF-8"),
    "UTF-16 without a BOM": ("a cat\n".encode("utf-16-le"), "UTF-16"),
    "a NUL": (b"a\0cat\n", "NUL"),
    "a binary file": (bytes(range(256)), ""),
}
"""A kind of caption file, and how many captions it has or what the reason says."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two good samples."""
    return dataset(tmp_path / "data", count=2)


def _plan(data: Path) -> tuple[int, dict[str, str], str]:
    """Samples, what was left out with its reason, and the table."""
    with project(data.parent) as opened:
        plan = opened.plan()
        return plan.samples.count, {str(failure.path): failure.reason for failure in plan.failed}, str(plan)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_bad_picture_is_named_and_the_others_go_on(data: Path, kind: str) -> None:
    """The sample is reported with its reason; the two good ones are planned."""
    name, make, reason = REFUSED[kind]
    make(data / name)
    count, failed, table = _plan(data)
    assert count == 2
    assert list(failed) == [name]
    assert failed[name]
    assert reason.lower() in failed[name].lower()
    assert f"{name}: {failed[name]}" in table
    assert _plan(data)[:2] == (count, failed)  # the reason is remembered


@pytest.mark.parametrize("kind", ACCEPTED)
def test_an_unusual_picture_is_a_sample(data: Path, kind: str) -> None:
    """It is planned like any other, and whatever its name is, the table can be printed."""
    name, make = ACCEPTED[kind]
    make(data / name)
    count, failed, table = _plan(data)
    assert (count, failed) == (3, {})
    assert table.isprintable() or all(line.isprintable() for line in table.split("\n"))


@pytest.mark.parametrize("kind", CAPTIONS)
def test_caption_files_of_every_kind(data: Path, kind: str) -> None:
    """A caption is read, or refused by name with the next step; the other samples go on."""
    content, expected = CAPTIONS[kind]
    picture(data / "x.png", 30)
    (data / "x.txt").write_bytes(content)
    count, failed, _ = _plan(data)
    if isinstance(expected, str):
        assert count == 2
        assert list(failed) == ["x.txt"]
        assert expected in failed["x.txt"]
    else:
        assert (count, failed) == (3, {})
        with project(data.parent) as opened:
            plan = opened.plan()
            assert plan.samples.line_counts.sum() == 2 + expected


def test_a_symlink_loop_of_folders_ends(data: Path) -> None:
    """A folder that links to its parent is listed once."""
    (data / "inner").mkdir()
    (data / "inner/up").symlink_to(data, target_is_directory=True)
    assert _plan(data)[:2] == (2, {})


def test_a_linked_folder_is_followed_once(data: Path) -> None:
    """Two links to one folder of pictures give its pictures once."""
    dataset(data / "inner", count=3)
    shutil.move(data / "inner/p2.png", data / "inner/far.png")
    for name in ("one", "two"):
        (data / name).symlink_to("inner", target_is_directory=True)
    assert _plan(data)[0] == 2 + 3


def test_twins_that_differ_in_case_or_normal_form_are_two_samples(data: Path) -> None:
    """Names are bytes: nothing is folded together, and each has its own caption."""
    for number, name in enumerate(("é", "e\u0301", "Twin", "twin")):
        picture(data / f"{name}.png", 40 + number)
        (data / f"{name}.txt").write_text(f"caption {number}")
    count, failed, _ = _plan(data)
    assert (count, failed) == (6, {})
    with project(data.parent) as opened:
        plan = opened.plan()
        texts = {
            text for part in plan.samples.by_concept for number in range(part.count) for text in part.texts(number)
        }
        assert {f"caption {number}" for number in range(4)} < texts


def test_a_file_name_that_is_not_utf8_cannot_be_a_caption(data: Path) -> None:
    """With `captions: filename` such a file is refused by name, and the table can be printed."""
    _noise().save(data / os.fsdecode(b"caf\xe9.png"), "PNG")
    with project(data.parent, concepts=[{"name": "things", "path": "data", "captions": "filename"}]) as opened:
        plan = opened.plan()
        assert plan.samples.count == 2
        (failure,) = plan.failed
        assert "UTF-8" in failure.reason
        assert str(plan).encode("utf-8")


def test_an_unreadable_file_is_named(data: Path) -> None:
    """Without permission to read a picture, that picture is left out."""
    if os.geteuid() == 0:
        pytest.skip("root may read everything: run the tests as another user")
    picture(data / "x.png", 30).chmod(0)
    assert _plan(data)[:2] == (2, {"x.png": "cannot be read: Permission denied"})


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1), (5000, 40), (3, 3)])
def test_tiny_and_elongated_pictures_are_cut_or_refused_by_setting(data: Path, size: tuple[int, int]) -> None:
    """By default they are scaled and cut; `upscale: refuse` leaves small ones out, with the reason."""
    picture(data / "x.png", 30, size)
    assert _plan(data)[:2] == (3, {})
    with project(data.parent, image={"resolutions": [48], "step": 16, "upscale": "refuse"}) as opened:
        plan = opened.plan()
        small = min(size) < 16
        assert {str(failure.path) for failure in plan.failed} == ({"x.png"} if small else set())
    with project(data.parent, image={"resolutions": [48], "step": 16, "extreme_aspect": "refuse"}) as opened:
        failed = {str(failure.path) for failure in opened.plan().failed}
        assert failed == ({"x.png"} if max(size) > 4 * min(size) else set())


def test_a_mask_of_another_shape_is_refused(data: Path) -> None:
    """A mask must have its picture's aspect ratio; the reason tells both sizes."""
    picture(data / "p0-masklabel.png", 50, (96, 64))
    picture(data / "p1-masklabel.png", 51, (64, 96))
    concepts = [{"name": "things", "path": "data", "masks": "{stem}-masklabel.png"}]
    encoders = {"pixels": {"uses": "image"}, "mask": {"uses": "mask"}}
    with project(data.parent, concepts=concepts, encoders=encoders) as opened:
        plan = opened.plan()
        assert [(failure.path, failure.reason) for failure in plan.failed] == [
            ("p1-masklabel.png", "for p1.png: another shape than its picture: 64x96, its picture 96x64")
        ]
        assert plan.samples.count == 1


def test_a_mask_is_bounded_like_a_picture(data: Path) -> None:
    """A mask of too many pixels is refused before anything decodes it, and its sample with it."""
    picture(data / "big.png", 30, (130, 130))
    _bomb(data / "big-masklabel.png")
    concepts = [{"name": "things", "path": "data", "masks": "{stem}-masklabel.png"}]
    with project(data.parent, concepts=concepts, encoders={"mask": {"uses": "mask"}}) as opened:
        plan = opened.plan()
        assert [failure.path for failure in plan.failed] == ["big-masklabel.png"]
        assert "pixels" in plan.failed[0].reason
        assert plan.samples.count == 2


def test_a_missing_mask_is_white_or_an_error(data: Path) -> None:
    """`missing_mask: error` leaves pictures without a mask out, by name."""
    picture(data / "p0-masklabel.png", 50)
    encoders = {"mask": {"uses": "mask"}}
    for setting, count in (("white", 2), ("error", 1)):
        concept = {"name": "things", "path": "data", "masks": "{stem}-masklabel.png", "missing_mask": setting}
        with project(data.parent, concepts=[concept], encoders=encoders) as opened:
            plan = opened.plan()
            assert plan.samples.count == count
            assert [failure.path for failure in plan.failed] == ([] if count == 2 else ["p1.png"])


def test_a_mask_that_is_a_dangling_link_is_no_missing_mask(data: Path) -> None:
    """Somebody meant it to be there: its sample is left out by name, and nobody trains on a white mask instead."""
    (data / "p0-masklabel.png").symlink_to("nowhere.png")
    concept = {"name": "things", "path": "data", "masks": "{stem}-masklabel.png"}
    with project(data.parent, concepts=[concept], encoders={"mask": {"uses": "mask"}}) as opened:
        plan = opened.plan()
        assert [failure.path for failure in plan.failed] == ["p0-masklabel.png"]
        assert plan.samples.count == 1


def test_a_mask_that_a_table_names_must_be_there(data: Path) -> None:
    """A row without a mask may be white; a row whose mask is not there is left out by name."""
    (data / "table.jsonl").write_text('{"image": "p0.png", "mask": "gone.png"}\n{"image": "p1.png"}\n')
    concept = {"name": "rows", "path": "data/table.jsonl", "masks": {"column": "mask"}}
    with project(data.parent, concepts=[concept], encoders={"mask": {"uses": "mask"}}) as opened:
        plan = opened.plan()
        assert [failure.path for failure in plan.failed] == ["gone.png"]
        assert plan.samples.count == 1


@pytest.mark.parametrize("pattern", ["masks/{stem}.png", "../masks/{name}", "{stem}-masklabel.png"])
def test_masks_may_lie_elsewhere(data: Path, pattern: str) -> None:
    """A pattern may lead into another folder; masks are no samples of their own."""
    for number in range(2):
        name = pattern.replace("{stem}", f"p{number}").replace("{name}", f"p{number}.png")
        picture(data / name, 50 + number)
    concept = {"name": "things", "path": "data", "masks": pattern, "missing_mask": "error"}
    with project(data.parent, concepts=[concept], encoders={"mask": {"uses": "mask"}}) as opened:
        plan = opened.plan()
        assert (plan.samples.count, plan.failed) == (2, ())
        assert len(plan.missing) == 2


def test_a_mask_whose_name_would_be_too_long_is_not_there(data: Path) -> None:
    """A picture with the longest name there can be has no mask beside it, and is a sample all the same."""
    (data / "p0.png").rename(data / f"{'x' * 251}.png")
    concept = {"name": "things", "path": "data", "masks": "{stem}-masklabel.png"}
    with project(data.parent, concepts=[concept], encoders={"mask": {"uses": "mask"}}) as opened:
        plan = opened.plan()
        assert (plan.samples.count, plan.failed) == (2, ())


def test_tables_of_samples(tmp_path: Path) -> None:
    """A table names pictures, captions and masks; a bad row or an absent file is named, and the others go on."""
    for number in range(3):
        picture(tmp_path / f"pictures/p{number}.png", number)
    picture(tmp_path / "m.png", 50)
    rows = [
        '{"image": "pictures/p0.png", "caption": "one", "mask": "m.png"}',
        f'{{"image": "{tmp_path}/pictures/p1.png", "caption": ["two", "three"]}}',
        '{"image": "pictures/p2.png"}',
        '{"image": "pictures/absent.png", "caption": "nobody"}',
        "{broken",
    ]
    (tmp_path / "table.jsonl").write_text("\n".join(rows))
    concept = {"name": "rows", "path": "table.jsonl", "captions": {"column": "caption"}, "masks": {"column": "mask"}}
    encoders = {"pixels": {"uses": "image"}, "mask": {"uses": "mask"}}
    with project(tmp_path, concepts=[concept], encoders=encoders) as opened:
        plan = opened.plan()
        assert plan.samples.count == 3
        assert plan.samples.line_counts.tolist() == [1, 2, 1]
        assert plan.samples.uncaptioned == 1
        assert {str(failure.path) for failure in plan.failed} == {"pictures/absent.png", "table.jsonl, row 5"}
        assert len(plan.missing.of("mask")) == 2  # its own, and a white one for the others


def test_a_table_with_sidecars(tmp_path: Path) -> None:
    """Captions may lie beside the pictures that a table names."""
    dataset(tmp_path / "data", count=2)
    (tmp_path / "table.csv").write_text("image\ndata/p0.png\ndata/p1.png\n")
    with project(tmp_path, concepts=[{"name": "rows", "path": "table.csv"}]) as opened:
        plan = opened.plan()
        assert (plan.samples.count, plan.samples.uncaptioned) == (2, 0)
        assert len(plan.missing.of("words")) == 3
