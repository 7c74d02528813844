"""The schedule of a build: which encoders run together, which at the same time, and which one after the other.

Encoders that take the same part of a sample and where decoding it is most of the reading, pictures and masks, are a
group: they run together. Groups that share a device are a lane: they run in turn. Lanes run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from precook.config.encoders import NetworkEncoder, UserSection
from precook.encode.pool import available_device
from precook.encode.registry import AUTO, EncoderSpec
from precook.plan.plan import Plan
from precook.threads import ThreadPool

Group = Sequence[EncoderSpec]
Lane = Sequence[Group]

_CPU = "cpu"
_LOOK = 0.1
"""Seconds between two looks at whether a lane has ended."""


def group_encoders(plan: Plan, specs: Sequence[EncoderSpec]) -> list[Group]:
    """The encoders that run together, in the order of the first of each group."""
    groups: dict[str, list[EncoderSpec]] = {}
    for spec in specs:
        takes = plan.encoders[spec.name].wants.encoding.input
        groups.setdefault(spec.name if takes == "text" else f"all of {takes}", []).append(spec)
    return list(groups.values())


def share_devices(groups: Sequence[Group]) -> list[Lane]:
    """Groups that share a device, directly or by way of others, in one lane each."""
    named = [{device for spec in group for device in _named_devices(spec)} for group in groups]
    if len(set().union(*named)) > 1:
        # Only now: to ask which device is there, torch is imported.
        named = [{_resolved(device) for device in devices} for devices in named]
    lanes: list[tuple[set[str], list[Group]]] = []
    for group, devices in zip(groups, named, strict=True):
        shared = [lane for lane in lanes if lane[0] & devices]
        lanes = [lane for lane in lanes if lane not in shared]
        lanes.append(
            (devices.union(*(used for used, _ in shared)), [*(one for _, many in shared for one in many), group])
        )
    return [lane for _, lane in lanes]


def run_lanes(lanes: Sequence[Lane], run: Callable[[Lane, threading.Event], None], stop: threading.Event) -> None:
    """Run lanes at the same time; what ends one of them, or whoever waits here, ends the others after what they are at.

    A single one runs in the calling thread.
    """
    if len(lanes) <= 1:
        for lane in lanes:
            run(lane, stop)
        return
    over = _EitherEvent(stop)
    with ThreadPool(len(lanes), thread_name_prefix="precook-lane") as pool:
        try:
            running: set[Future[None]] = {pool.submit(run, lane, over) for lane in lanes}
            while running:
                done, running = wait(running, timeout=_LOOK, return_when=FIRST_COMPLETED)
                for one in done:
                    one.result()
        finally:
            over.set()


class _EitherEvent(threading.Event):
    """An event that is also set when another one is."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        """Whether one of the two is."""
        return self._other.is_set() or super().is_set()


def _named_devices(spec: EncoderSpec) -> Sequence[str]:
    """Where an encoder runs, as the config says; what runs no network of its own runs on the CPU."""
    section = spec.definition
    on_device = isinstance(section, NetworkEncoder | UserSection) or not spec.built_in
    return spec.devices if on_device else (_CPU,)


def _resolved(device: str) -> str:
    device = available_device() if device == AUTO else device
    return "cuda:0" if device == "cuda" else device
