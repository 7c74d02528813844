"""docs/concepts/safety.md: its numbers are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from precook.config import yaml
from precook.config.sections import ImageSettings
from precook.feed import sampler
from precook.identity import models
from precook.integrations import torch_file
from precook.maintain import archive
from precook.sources import captions, facts, parquet, parquet_values, tables
from precook.store import layout, leaves, pack_cache, packfile
from precook.store.format import header, pack
from tests.support.commands import everything, run
from tests.support.pages import ROOT, console_blocks
from tests.support.projects import picture

PAGE = ROOT / "docs" / "concepts" / "safety.md"
UNITS = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50}
LIMITS = {
    "config": (yaml.LIMIT, yaml.MAX_VALUES),
    "`store.toml`": (layout.MAX_MARKER,),
    "header of a pack": (header.MAX_HEADER, header.MAX_COLUMNS),
    "head of a pack": (pack.MAX_HEAD, pack.MAX_RECIPES),
    "a tensor": (leaves.MAX_RANK, leaves.MAX_BYTES),
    "an archive": (archive.MAX_MEMBERS, archive.MAX_BYTES),
    "a source": (facts.LARGEST,),
    "a caption file": (captions.MAX_BYTES, captions.MAX_LINES),
    "a table": (tables.MAX_BYTES, parquet.SMALL, parquet.UNFOLDING),
    "a page of pictures": (parquet_values.MAX_PAGE, parquet.SMALL, parquet.UNFOLDING),
    "the footer of a Parquet file": (parquet.MAX_FOOTER,),
    "a picture": (ImageSettings.model_fields["max_pixels"].default,),
    "a model's folder": (models.MAX_ENTRIES,),
    "a pickled shard": (torch_file.MAX_PICKLE, torch_file.MAX_VALUES),
    "an epoch": (sampler._ITEMS, sampler._TURNS),
}


def section(title: str) -> str:
    return PAGE.read_text("utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_limit_is_on_the_page() -> None:
    """No row more and no row less."""
    rows = re.findall(r"^\| (.*?) \| .* \|$", section("Limits"), re.MULTILINE)
    assert rows[1:] == list(LIMITS)


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_is_what_the_code_has(what: str) -> None:
    """Each number of its row, in its order and with its unit."""
    (row,) = re.findall(rf"^\| {re.escape(what)} \| (.*) \|$", section("Limits"), re.MULTILINE)
    told = [
        int(number.replace(",", "")) << UNITS.get(unit, 0) for number, unit in re.findall(r"([\d,]+\d|\d) ?(\w*)", row)
    ]
    assert tuple(told) == LIMITS[what]


def test_the_size_of_a_tensor_that_is_mapped_is_what_the_code_has() -> None:
    """In KiB."""
    assert f"Tensors of {packfile.LARGE >> 10} KiB and more from `get`" in PAGE.read_text("utf-8")


def test_the_example_looks_at_a_config_and_runs_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of the page, in a folder with a config that would leave a trace and a store that is not there yet."""
    picture(tmp_path / "data" / "cat.png", 1)
    (tmp_path / "own.py").write_text("open('trace', 'w').close()")
    encoders = {"pixels": {"uses": "image"}, "own": {"uses": "own:Own"}}
    config = {"dataset": "cats", "concepts": [{"name": "cats", "path": "data"}], "encoders": encoders}
    (tmp_path / "precook.yaml").write_text(json.dumps(config | {"image": {"resolutions": [64]}}))
    monkeypatch.chdir(tmp_path)
    before = everything(tmp_path)
    ((example,),) = console_blocks(PAGE)
    ended = run(*example.command.split()[1:])
    assert ended.code == 0
    assert "own class, not loaded: own:Own" in ended.out
    assert everything(tmp_path) == before


def test_how_often_a_mapped_pack_is_looked_at_is_what_the_code_has() -> None:
    """For one pack and for a thousand."""
    (each, many, all_of_them) = re.search(
        r"after ([\d.]+) ms for each pack that is open \(with ([\d,]+) of them, after ([\d.]+) s\)", PAGE.read_text()
    ).groups()  # type: ignore[union-attr]
    assert float(each) / 1000 == pytest.approx(pack_cache.LOOK_EVERY)
    assert float(all_of_them) == pytest.approx(int(many.replace(",", "")) * pack_cache.LOOK_EVERY)
