"""Reading what only the disk holds, in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from bench import measure
from bench.layout import Peer
from bench.samples import Kind
from bench.script import ROOT
from bench.table import Column, Goal, Section
from bench.work import Run, child_environment, nearest_peer, stored

_CHILD_SECONDS = 1800


def cold(run: Run, kind: Kind) -> Section:
    """Page cache dropped: open, random and sequential order, and the memory held at the end."""
    for peer in stored(run):
        run.written(peer, kind)
    found: dict[str, list[dict[str, Any]]] = {peer.name: [] for peer in stored(run)}
    groups = [stored(run)] if run.quick else [[peer] for peer in stored(run)]
    how = ""
    for _ in range(run.repeats):
        for group in groups:
            for peer, answer in zip(group, _child(run, kind, group), strict=True):
                how = answer.pop("how")
                found[peer.name].append(answer)
    columns = [
        Column("layout"),
        Column("open, ms", ",.1f"),
        Column("random/s"),
        Column("sequential/s"),
        Column("own memory, MB", ",.1f"),
        Column("mapped, MB", ",.1f"),
    ]
    section = Section("cold", f"Cold read, {kind}: every byte touched, samples per second", columns, kind)
    for name, answers in found.items():
        fields = ("open_ms", "random", "sequential", "own_mb", "mapped_mb")
        medians = [measure.median(a[field] for a in answers) if field in answers[0] else None for field in fields]
        section.rows.append([name, *medians])
    rates = {name: [a["random"] for a in answers] for name, answers in found.items() if "random" in answers[0]}
    name, ratio = nearest_peer(rates)
    section.goals.append(Goal(f"cold random, {kind}, precook against the best peer ({name})", ratio, 1.1))
    section.notes += [
        f"page cache dropped with {how}, in a fresh process that has imported everything; precook checks every entry.",
        (
            "memory: what the process holds more than before it opened the layout, after two passes in random order; "
            "mapped memory is page cache, which the system takes back when it needs it."
        ),
    ]
    return section


def _child(run: Run, kind: Kind, group: list[type[Peer]]) -> list[dict[str, Any]]:
    """What a fresh process finds out about some layouts."""
    names = [peer.__name__ for peer in group]
    command = [sys.executable, "-m", "bench.child", str(run.folder / kind), kind, str(run.counts[kind]), *names]
    environment = child_environment()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=_CHILD_SECONDS
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
