"""Plans over real pictures with odd corners: camera files that were cut off, 16 bits, ICC profiles, rotated ones.

`make images` fetches them from Debian packages into .images; PRECOOK_TEST_IMAGES may name another folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import precook

ROOT = Path(__file__).parents[2]
NAMES = (
    "golang-github-disintegration-imaging-dev",
    "golang-github-rwcarlsen-goexif-dev",
    "libjxl-testdata",
    "tuxpaint-stamps-default",
)


@pytest.mark.parametrize("package", NAMES)
def test_real_pictures_are_planned_or_refused_with_a_reason(package: str, tmp_path: Path) -> None:
    """Every picture of a package becomes a sample or is left out with a reason; nothing crashes, nothing is lost."""
    folder = Path(os.environ.get("PRECOOK_TEST_IMAGES", ROOT / ".images")) / package
    if not folder.is_dir():
        pytest.skip(f"{package} is not there: run `make images`")
    sections = {
        "dataset": "real",
        "concepts": [{"name": "real", "path": str(folder)}],
        "image": {"resolutions": [256]},
        "encoders": {"pixels": {"uses": "image"}},
    }
    suffixes = (".jpg", ".jpeg", ".png", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".gif")
    files = [path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file()]
    with precook.Project(base=tmp_path, **sections) as opened:
        plan = opened.plan()
        assert plan.samples.count + len(plan.failed) == len(files) > 0
        assert all(failure.reason for failure in plan.failed)
        if "goexif" in package:
            assert {failure.reason.partition(":")[0] for failure in plan.failed} == {"cut off"}
            assert len(plan.failed) == 49
