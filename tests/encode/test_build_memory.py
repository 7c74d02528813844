"""Memory of a build over many samples; tests/encode/test_build.py follows it over many pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.projects import picture

SAMPLES = 20_000

CHILD = """
import sys
from pathlib import Path
import numpy as np
from tests.support.projects import Watched, project

pages = []

class Free(Watched):
    def load(self, device):
        self.weights = np.ones(64 << 20, np.uint8)  # an encoder has weights; beside none any cache is much

    def encode(self, batch):
        pages.extend([int(Path("/proc/self/statm").read_text().split()[1])] * len(batch))
        return [np.full(4, len(item.text), np.float32) for item in batch]  # what waits to be written is another matter

concepts = [{"name": "rows", "path": "rows.jsonl", "captions": {"column": "caption"}}]
with project(Path(sys.argv[1]), concepts=concepts, encoders={"free": Free()}) as one:
    report = one.build(memory=8 << 20, devices=["cpu"])  # no torch: it would hide a lot
assert report.encoded["free"] == len(pages) == int(sys.argv[2]) + 1
warm = max(pages[:2000])
print(f"{warm} pages after 2,000 samples, {max(pages)} at most")
assert max(pages) <= 1.1 * warm
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_stays_flat_over_many_samples(tmp_path: Path) -> None:
    """Over 20,000 samples of a table the process takes at most a tenth more memory than over the first 2,000."""
    names = [picture(tmp_path / f"p{number}.png", number).name for number in range(20)]
    rows = (
        {"image": names[number % len(names)], "caption": f"row {number} " + "and so on " * (number % 40)}
        for number in range(SAMPLES)
    )
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), str(SAMPLES)], check=True)
