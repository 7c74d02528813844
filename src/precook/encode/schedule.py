"""The schedule of a build: which encoders run together, which at the same time, and which one after the other.

Encoders that take the same part of a sample and where decoding it is most of the reading, pictures and masks, are a
group: they run together. Groups that share a device are a lane: they run in turn. Lanes run at the same time.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from precook import threads
from precook.config.encoders import NetworkEncoder, UserSection
from precook.encode.pool import available_device
from precook.encode.registry import AUTO, EncoderSpec
from precook.interrupt import Condition
from precook.plan.plan import Plan

_log = logging.getLogger("precook")

Group = Sequence[EncoderSpec]
Lane = Sequence[Group]

_CPU = "cpu"
_LOOK = 0.1
"""Seconds between two looks at whether it is time to stop."""


def group_encoders(plan: Plan, specs: Sequence[EncoderSpec]) -> list[Group]:
    """The encoders that run together, in the order of the first of each group."""
    groups: dict[object, list[EncoderSpec]] = {}
    alike: Counter[bytes] = Counter()
    for spec in specs:
        encoding = plan.encoders[spec.name].wants.encoding
        recipe = encoding.recipe.digest.bytes
        # Two with one recipe make the same entries: the second is in another group, and finds them there.
        shared = (encoding.inputs, encoding.of, alike[recipe])
        groups.setdefault(spec.name if encoding.per == "line" else shared, []).append(spec)
        alike[recipe] += 1
    return list(groups.values())


def share_devices(groups: Sequence[Group]) -> list[Lane]:
    """Groups that share a device, directly or by way of others, in one lane each, in their order."""
    named = [{device for spec in group for device in _named_devices(spec)} for group in groups]
    if len(set().union(*named)) > 1:
        # Only now: to ask which device is there, torch is imported.
        named = [{_resolved(device) for device in devices} for devices in named]
    lanes: list[tuple[set[str], list[int]]] = []
    """What each uses, and the numbers of its groups."""
    for number, devices in enumerate(named):
        shared = [lane for lane in lanes if lane[0] & devices]
        lanes = [lane for lane in lanes if lane not in shared]
        numbers = sorted([number, *(one for _, many in shared for one in many)])
        lanes.append((devices.union(*(used for used, _ in shared)), numbers))
    return [[groups[number] for number in numbers] for _, numbers in lanes]


def run_lanes(lanes: Sequence[Lane], run: Callable[[Lane, threading.Event], None], stop: threading.Event) -> None:
    """Run lanes at the same time; what ends one of them, or whoever waits here, ends the others after what they are at.

    A single one runs in the calling thread.
    """
    if len(lanes) <= 1:
        for lane in lanes:
            run(lane, stop)
        return
    over = _EitherEvent(stop)
    lock = threading.RLock()
    changed = Condition(lock)
    left, running = set(range(len(lanes))), set[int]()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with lock:
                running.add(number)
            run(lanes[number], over)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            errors.append(error)
        finally:
            with lock:
                running.discard(number)
                left.discard(number)
                changed.notify_all()

    try:
        for number in range(len(lanes)):
            # As daemons: who interrupts twice does not wait for a batch that takes minutes.
            threads.start(threading.Thread(target=work, args=(number,), name=f"precook-lane-{number}", daemon=True))
        with lock:
            while left and not errors:
                changed.wait(_LOOK)
    finally:
        over.set()
        # Not by joining them: after an interrupted join Python 3.11 takes a thread for dead that is not.
        with lock:
            while running:
                changed.wait(_LOOK)
    if errors:
        for error in errors[1:]:
            _log.error("another encoder ended early, too: %s", error)
        raise errors[0]


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
