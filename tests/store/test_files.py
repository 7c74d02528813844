"""Writes that the disk begins with early, and groups that nobody waits for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from precook.store import files


@pytest.mark.parametrize("sizes", [[100] * 1000, [5 << 20] * 5, [20 << 20, 1, 0, 9 << 20, 7]])
def test_a_file_written_in_parts_has_every_byte(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However a large file is shared out to writes, its content is that of the buffers, end to end."""
    monkeypatch.setattr(files, "_BYTES_AT_ONCE", 8 << 20)
    rng = np.random.default_rng(0)
    buffers = [rng.bytes(size) for size in sizes]
    files.publish(tmp_path / "file", buffers)
    assert (tmp_path / "file").read_bytes() == b"".join(buffers)
