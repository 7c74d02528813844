"""The guide of training loops: its scripts, before and after, on as many ranks as they are written for."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import precook
from tests.loops.ranks import EPOCHS, Job, Kill, train
from tests.support.pages import ROOT
from tests.support.projects import picture

torch = pytest.importorskip("torch", reason="torch is not installed")
for library in ("accelerate", "pytorch_lightning", "torchdata"):
    pytest.importorskip(library, reason=f"{library} is not installed")

PAGE = ROOT / "docs" / "guides" / "loops.md"
COUNT = 11
PICTURES = """
import torch

dataset = [{"sample": str(number), "pixels": torch.full((8, 8, 3), number)} for number in range(11)]
"""
LOOPS = [
    pytest.param("A loop of your own", 1, id="own"),
    pytest.param("torchrun", 2, id="torchrun"),
    pytest.param("accelerate", 1, id="accelerate-1"),
    pytest.param("accelerate", 2, id="accelerate-2"),
    pytest.param("Lightning", 2, id="lightning"),
    pytest.param("StatefulDataLoader", 1, id="stateful"),
]


def blocks(title: str) -> list[str]:
    """The changes that a section shows."""
    section = PAGE.read_text("utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^```diff\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def side(block: str, sign: str) -> str:
    """A block before (`-`) or after (`+`) the change."""
    return "".join(f"{line[1:]}\n" for line in block.splitlines() if line[:1] in ("", " ", sign))


def script(job: Job) -> None:
    """Run `train.py` in a folder; what it prints is what it has seen."""

    def note(epoch: int, *samples: str) -> None:
        job.saw(epoch, {"sample": samples})

    os.chdir(job.folder)
    sys.path.insert(0, str(job.folder))
    sys.argv = [str(job.folder / "train.py")]
    module = ModuleType("__main__")
    # It stays until the process ends, as the module of a script does: torch may hang where a model goes that was
    # wrapped for several ranks after its process group.
    sys.modules["__main__"] = module
    vars(module).update({"__file__": sys.argv[0], "print": note})
    exec(compile(Path(sys.argv[0]).read_text(), sys.argv[0], "exec"), vars(module))


def shown(lines: list[dict[str, Any]]) -> list[Any]:
    return [(line["seen"][0], tuple(line["seen"][1])) for line in lines]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of the page, built for pictures of ours."""
    folder = tmp_path_factory.mktemp("guide")
    for number in range(COUNT):
        picture(folder / "data" / f"{number}.png", number, (96, 64)).with_suffix(".txt").write_text(f"pet {number}")
    (config,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (folder / "precook.yaml").write_text(config)
    with precook.load(folder / "precook.yaml") as project:
        project.build()
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """Where a script finds the config and its store."""
    place = tmp_path / "train"
    shutil.copytree(built, place)
    (place / "pictures.py").write_text(PICTURES)
    return place


def expected(folder: Path, ranks: int) -> list[list[Any]]:
    """What each rank has to see."""
    each = []
    with precook.load(folder / "precook.yaml") as project:
        for rank in range(ranks):
            with project.feed(batch_size=2, seed=0, rank=rank, world_size=ranks) as feed:
                each.append([(epoch, tuple(one["sample"])) for epoch in range(EPOCHS) for one in feed.epoch(epoch)])
    return each


@pytest.mark.parametrize(("title", "ranks"), LOOPS)
def test_a_script_sees_every_epoch_and_goes_on_where_it_was_killed(folder: Path, title: str, ranks: int) -> None:
    """With the lines of the page, killed in the second epoch and resumed, it sees what `feed.epoch` says."""
    (folder / "train.py").write_text(side(blocks(title)[0], "+"))
    check(folder, ranks)


def check(folder: Path, ranks: int) -> None:
    whole = expected(folder, ranks)
    place = len(whole[0]) // EPOCHS + 2
    ended = train(script, Job(folder, folder, ranks=ranks, kill=Kill(ranks - 1, place)))
    for rank, lines in enumerate(ended.lines):
        assert shown(lines) == whole[rank][: len(lines)]
    ended = train(script, Job(folder, folder, ranks=ranks))
    for rank, lines in enumerate(ended.lines):
        assert shown(lines) == whole[rank][place - 1 :]


def test_accelerate_need_not_prepare_it(folder: Path) -> None:
    """With the lines of the second block in place of those it names."""
    after, change = side(blocks("accelerate")[0], "+"), blocks("accelerate")[1]
    old, new = side(change, "-"), side(change, "+")
    assert all(line in after for line in old.splitlines())
    first, *others = old.splitlines(keepends=True)
    for line in others:
        after = after.replace(line, "")
    (folder / "train.py").write_text(after.replace(first, new))
    check(folder, 2)


@pytest.mark.parametrize(("title", "ranks"), LOOPS)
def test_the_lines_that_go_are_those_of_a_script_that_runs(folder: Path, title: str, ranks: int) -> None:
    """Before, too: every sample in each of three epochs."""
    (folder / "train.py").write_text(side(blocks(title)[0], "-"))
    ended = train(script, Job(folder, folder, ranks=ranks))
    for epoch in range(EPOCHS):
        names = {name for lines in ended.lines for number, names in shown(lines) if number == epoch for name in names}
        assert names == {str(number) for number in range(COUNT)}
