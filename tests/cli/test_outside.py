"""A dataset of a stranger reads nothing but its own folder, unless the config allows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.projects import picture

SECRET = "the secret of this machine"
CONFIG = """\
store: cache
dataset: given
concepts:
  - {{name: given, path: {path}, {fields}}}
image: {{resolutions: [64], step: 16}}
encoders:
  pixels: {{uses: image}}
  mask: {{uses: mask, factor: 1}}
keep: [captions]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `given` with a good sample, and beside it files that belong to the machine."""
    picture(tmp_path / "given/good.png", 1)
    (tmp_path / "given/good.txt").write_text("a good caption")
    picture(tmp_path / "private/photo.png", 2)
    (tmp_path / "private/photo.txt").write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(fields: str = "", *, path: str = "given") -> tuple[int, dict[str, str]]:
    """How many samples a plan finds, and what it leaves out for which reason."""
    Path("precook.yaml").write_text(CONFIG.format(path=path, fields=fields))
    done = run("plan", "--json")
    assert done.code == 0, done.err
    failed = {failure["path"].removeprefix("given/"): failure["reason"] for failure in done.document["failed"]}
    assert done.document["left_out"] == len(failed)
    return done.document["samples"], failed


def is_stored(text: str) -> bool:
    """Whether a text stands in any file of the store."""
    return any(text.encode() in file.read_bytes() for file in Path("cache").rglob("*") if file.is_file())


def is_told(reason: str, target: Path) -> bool:
    """Whether a reason says where a file leads, and the line that would allow it."""
    return f"leads out of the concept's folder, to {target}" in reason and "`outside: allow`" in reason


def test_a_linked_caption_is_not_read(here: Path) -> None:
    """A caption that is a link to a file of the machine leaves its sample out: its text is neither encoded nor kept."""
    picture(here / "given/spy.png", 3)
    (here / "given/spy.txt").symlink_to(here / "private/photo.txt")
    samples, failed = planned()
    assert samples == 1
    assert list(failed) == ["spy.txt"]
    assert is_told(failed["spy.txt"], here / "private/photo.txt")
    assert run("build").code == 3
    assert not is_stored(SECRET)
    assert is_stored("a good caption")
    assert "1 file left out" in run("plan").out
    assert planned("outside: allow") == (2, {})
    assert run("build").code == 0
    assert is_stored(SECRET)


@pytest.mark.parametrize("target", ["private/photo.png", "private"])
def test_linked_pictures_and_folders_are_not_read(here: Path, target: str) -> None:
    """Relative or absolute: what a link leads to has to lie in the concept's folder."""
    name = "spy.png" if target.endswith("png") else "spy"
    for number, to in enumerate([Path("..") / target, here / target]):
        (here / f"given/{number}{name}").symlink_to(to)
    samples, failed = planned()
    assert samples == 1
    assert sorted(failed) == [f"0{name}", f"1{name}"]
    assert all(is_told(reason, here / target) for reason in failed.values())
    samples, failed = planned("outside: allow")
    assert samples == (3 if name == "spy.png" else 2)
    assert failed == {}


def test_links_that_stay_inside_are_followed(here: Path) -> None:
    """A picture that lies in another folder of the concept, or a concept that is itself a link, needs no permission."""
    (here / "given/again").mkdir()
    (here / "given/again/good.png").symlink_to("../good.png")
    (here / "given/again/good.txt").symlink_to(here / "given/good.txt")
    assert planned() == (2, {})
    (here / "elsewhere").symlink_to("given")
    assert planned(path="elsewhere") == (2, {})


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_table_names_no_file_outside_its_folder(here: Path, kind: str) -> None:
    """Absolute, with dots, through a linked folder or as a link: the row is told and left out, the others are used."""
    (here / "given/linked").symlink_to("../private")
    (here / "given/link.png").symlink_to(here / "private/photo.png")
    names = ["good.png", str(here / "private/photo.png"), "../private/photo.png", "linked/photo.png", "link.png"]
    names += [str(here / "given/good.png"), "../given/good.png", "/etc/nothing-of-this-name.png"]
    rows = ["image", *names] if kind == "csv" else [json.dumps({"image": name}) for name in names]
    text = "\n".join(rows)
    (here / f"given/rows.{kind}").write_text(text)
    samples, failed = planned(path=f"given/rows.{kind}")
    assert samples == 3
    assert sorted(failed) == sorted([*names[1:5], names[-1]])
    assert all(is_told(failed[name], here / "private/photo.png") for name in names[1:5])
    assert failed[names[-1]] == "no such file or directory"
    samples, failed = planned("outside: allow", path=f"given/rows.{kind}")
    assert samples == 7
    assert list(failed) == names[-1:]


def test_captions_and_masks_of_a_table_stay_inside(here: Path) -> None:
    """A sidecar that is a link, and a mask that a column names elsewhere."""
    for name in ("spy", "masked"):
        picture(here / f"given/{name}.png", 4)
    (here / "given/spy.txt").symlink_to("../private/photo.txt")
    rows = [{"image": "good.png"}, {"image": "spy.png"}, {"image": "masked.png", "mask": "../private/photo.png"}]
    (here / "given/rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    samples, failed = planned("masks: {column: mask}", path="given/rows.jsonl")
    assert samples == 1
    assert sorted(failed) == ["../private/photo.png", "spy.txt"]
    assert planned("masks: {column: mask}, outside: allow", path="given/rows.jsonl") == (3, {})


@pytest.mark.parametrize("path", ["given", "given/rows.jsonl"])
def test_a_folder_of_masks_may_lie_where_the_config_says(here: Path, path: str) -> None:
    """A pattern with dots is the config's own word; but a mask there that is a link has to stay in that folder."""
    (here / "given/rows.jsonl").write_text('{"image": "good.png"}\n{"image": "other.png"}')
    picture(here / "given/other.png", 5)
    picture(here / "masks/good.png", 6)
    (here / "masks/other.png").symlink_to("good.png")
    assert planned('masks: "../masks/{stem}.png"', path=path) == (2, {})
    (here / "masks/other.png").unlink()
    (here / "masks/other.png").symlink_to(here / "private/photo.png")
    samples, failed = planned('masks: "../masks/{stem}.png"', path=path)
    assert samples == 1
    assert list(failed) == ["../masks/other.png"]
    assert is_told(failed["../masks/other.png"], here / "private/photo.png")
    (here / "given/masks").symlink_to("../masks")
    samples, failed = planned('masks: "masks/{stem}.png"', path=path)
    assert samples == 0
    assert planned('masks: "masks/{stem}.png", outside: allow', path=path) == (2, {})
