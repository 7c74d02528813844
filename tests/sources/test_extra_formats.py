"""HEIC and JPEG XL: pictures like any other where the extra is installed, and told by name where it is not."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from precook.sources import pictures
from precook.sources.pictures import RefusedError, decode, read_facts
from tests.support.projects import missing, picture, project

FORMATS = {"heic": "HEIF", "jxl": "JXL"}


def saved(name: str, *, size: tuple[int, int] = (64, 48), alpha: bool = False, **options: Any) -> tuple[bytes, Any]:
    """A picture in one of the formats, and its pixels before."""
    width, height = size
    rows, columns = np.mgrid[0:height, 0:width]
    pixels = np.stack([rows * 4 % 256, columns * 3 % 256, (rows + columns) % 256], axis=2).astype(np.uint8)
    image = Image.fromarray(pixels)
    if alpha:
        image.putalpha(Image.fromarray(np.where(columns < width // 2, 0, 255).astype(np.uint8)))
    file = io.BytesIO()
    if name == "heic":
        heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
        heif.from_pillow(image).save(file, quality=-1, **options)
    else:
        pytest.importorskip("pillow_jxl", reason="pillow-jxl-plugin is not installed")
        image.save(file, "JXL", lossless=True, **options)
    return file.getvalue(), pixels


@pytest.mark.parametrize("name", FORMATS)
def test_a_picture_has_its_pixels(name: str) -> None:
    """Size and pixels are those that were saved, up to the rounding of HEIC's colours."""
    content, pixels = saved(name)
    facts = read_facts(content)
    assert (facts.width, facts.height, facts.orientation, facts.alpha) == (64, 48, 1, False)
    apart = np.abs(decode(content).astype(int) - pixels.astype(int))
    assert apart.max() <= (0 if name == "jxl" else 60)
    assert apart.mean() < 4


@pytest.mark.parametrize("name", FORMATS)
def test_transparency_shows_the_background(name: str) -> None:
    """As with any other picture."""
    content, _ = saved(name, alpha=True)
    assert read_facts(content).alpha
    shown = decode(content, background=(250, 10, 20))
    assert np.abs(shown[:, :16].astype(int) - [250, 10, 20]).max() <= 2


def test_a_turned_heic_is_upright_once() -> None:
    """Its decoder turns it, and what EXIF says beside that is not applied again."""
    exif = Image.Exif()
    exif[0x0112] = 6
    content, _ = saved("heic", exif=exif.tobytes())
    facts = read_facts(content)
    assert (facts.width, facts.height, facts.orientation) == (48, 64, 1)
    assert decode(content).shape == (64, 48, 3)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_what_was_cut_off_is_refused(name: str, part: float) -> None:
    """Whatever its decoder would make of the rest."""
    content, _ = saved(name)
    with pytest.raises(RefusedError):
        decode(content[: int(len(content) * part)])


@pytest.mark.parametrize("name", FORMATS)
def test_folders_and_builds_take_them(name: str, tmp_path: Path) -> None:
    """A file with the usual ending is a sample, built like any other."""
    content, _ = saved(name)
    (tmp_path / "data").mkdir()
    (tmp_path / f"data/a.{name.upper()}").write_bytes(content)
    with project(tmp_path, encoders={"pixels": {"uses": "image"}}) as owner:
        assert owner.build().encoded == {"pixels": 1}


@pytest.mark.parametrize("name", FORMATS)
def test_without_the_extra_they_are_told(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder's are counted as ignored, with what to install; one that has a picture's ending is refused with it."""
    content, _ = saved(name)
    find = importlib.util.find_spec
    absent = {"pillow_heif", "pillow_jxl"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda one, *rest: None if one in absent else find(one, *rest))
    monkeypatch.setattr(pictures, "_READERS", {k: v for k, v in pictures._READERS.items() if k not in FORMATS.values()})
    extra = "heif" if name == "heic" else "jxl"
    with pytest.raises(RefusedError, match=rf"not installed: pip install 'precook\[{extra}\]'"):
        read_facts(content)
    picture(tmp_path / "data/good.png", 1)
    (tmp_path / f"data/a.{name}").write_bytes(content)
    (tmp_path / "data/b.jpg").write_bytes(content)
    with project(tmp_path, encoders={"pixels": {"uses": "image"}}) as owner:
        plan = owner.plan()
        assert missing(plan) == {"pixels": 1}
        assert [failure.path for failure in plan.failed] == ["b.jpg"]
        assert f"1 file ignored: 1 .{name}; pip install 'precook[{extra}]' to read some of them" in str(plan)
