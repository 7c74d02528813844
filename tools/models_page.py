"""Writes the table of prompts in docs/reference/models.md: `python tools/models_page.py`, which takes some minutes.

Every family's tiny pipeline is made, and its prompts are encoded together and one by one; tests compare the latter
with those of the pipeline itself.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support import prompts
from tests.support.pipelines import tiny_pipeline

from precook.encode.pipeline_folder import read_pipeline


def measured(family: str, folder: Path) -> list[str]:
    """The row of a family."""
    tiny_pipeline(family, folder)
    return prompts.prompt_row(family, read_pipeline(folder).kind, prompts.difference_together(folder))


def page() -> str:
    """The page as it should be."""
    before, _, rest = prompts.PAGE.read_text("utf-8").partition(prompts.BEGIN)
    after = rest.partition(prompts.END)[2]
    with tempfile.TemporaryDirectory() as folder:
        rows = [measured(family, Path(folder) / family) for family in prompts.PROMPTS]
    lines = [prompts.HEAD, ["---"] * len(prompts.HEAD), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines).replace(
        "| --- | --- | --- | --- | --- |", "|---|---|---|---|---|"
    )
    return f"{before}{prompts.BEGIN}\n{table}\n{prompts.END}{after}"


if __name__ == "__main__":
    prompts.PAGE.write_text(page(), encoding="utf-8")
