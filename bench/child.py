"""A fresh process that reads one layout with a cold page cache, and says how fast and with how much memory."""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import cast

import torch

from bench import measure, peers
from bench.layout import Peer
from bench.samples import Kind, Tree, touch
from bench.work import random_order

MB = 1e6


def main(folder: str, kind: str, count: str, *names: str) -> None:
    """Measure layouts one after the other; for each a line of JSON on stdout."""
    torch.set_num_threads(1)
    gc.freeze()
    for name in names:
        made = next(peer for peer in peers.PEERS if peer.__name__ == name)
        made.load()
        print(json.dumps(_measured(made(Path(folder, name), cast("Kind", kind), int(count)))))


def _measured(peer: Peer) -> dict[str, object]:
    # Once through everything that is imported or compiled on first use.
    peer.open()
    _touch_some(peer)
    peer.close()
    answer: dict[str, object] = {}
    before = measure.resident()
    if peer.random:
        answer["how"] = measure.drop_cache(peer.folder)
        start = time.perf_counter()
        peer.open()
        opened = time.perf_counter()
        for number in random_order(peer.count):
            touch(peer.get(number))
        answer["open_ms"] = (opened - start) * 1e3
        answer["random"] = peer.count / (time.perf_counter() - opened)
        for number in random_order(peer.count):
            touch(peer.get(number))
        gc.collect()
        _note_memory(answer, before)
        peer.close()
    answer["how"] = measure.drop_cache(peer.folder)
    peer.open()
    start = time.perf_counter()
    for tree in peer.scan():
        touch(tree)
    answer["sequential"] = peer.count / (time.perf_counter() - start)
    if not peer.random:
        _note_memory(answer, before)
    peer.close()
    return answer


def _touch_some(peer: Peer) -> None:
    first: Tree = next(iter(peer.scan()))
    touch(first)
    if peer.random:
        touch(peer.get(0))


def _note_memory(answer: dict[str, object], before: measure.Resident) -> None:
    after = measure.resident()
    answer["own_mb"] = max(0, after.own - before.own) / MB
    answer["mapped_mb"] = max(0, after.mapped - before.mapped) / MB


if __name__ == "__main__":
    main(*sys.argv[1:])
