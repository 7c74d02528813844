"""Usage: what takes space in a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import precook
from precook.maintain.usage import measure_usage


def test_usage_counts_an_entry_in_two_packs_once(tmp_path: Path) -> None:
    """What two builders wrote is one entry."""
    key = precook.Recipe("test", {}).key(1)
    for name in ("cache", "twin"):
        with precook.open(tmp_path / name) as store:
            store.put(key, np.arange(100))
    (pack,) = (tmp_path / "twin").glob("packs/*/*.safetensors")
    target = tmp_path / "cache" / "packs" / pack.parent.name
    target.mkdir(exist_ok=True)
    pack.rename(target / pack.name)
    with precook.open(tmp_path / "cache") as store:
        assert store.stats().packs == 2
        usage = measure_usage(store)
        assert (usage.unnamed.entries, usage.unnamed.nbytes) == (1, 800)
