"""A fresh process that opens a store, asks it for many keys, and says how long that took and in how much memory."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import precook
from bench import measure


def main(folder: str, wanted: str) -> None:
    """Open and resolve; one line of JSON on stdout."""
    open_store = precook.open  # what it imports is not the store's to open
    before = measure.resident().own
    with Path(wanted).open("rb") as file:
        keys = [precook.Key(data) for data in iter(lambda: file.read(32), b"")]
    held = measure.resident().own - before
    start = time.perf_counter()
    with open_store(folder) as store:
        opened = time.perf_counter()
        missing = store.missing(keys)
        resolved = time.perf_counter()
        now = measure.resident()
    assert len(missing) == len(keys) - len(keys) // 2, len(missing)
    answer = {
        "open": opened - start,
        "resolve": resolved - opened,
        "resident": now.own + now.mapped,
        "peak": measure.peak_resident(),
        "keys": held,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
