"""Ctrl-C in the middle of library calls: a process that presses it itself, at moments that are counted, not timed.

Run as a script with the name of an operation and a folder: it does the operation again and again, each time with Ctrl-C
one moment later, until there is no such moment any more. After each it looks whether the store can go on. A line of
JSON tells what came of each.
"""

from __future__ import annotations

import faulthandler
import json
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import precook
from tests.support.projects import Watched, dataset, project

RECIPE = precook.Recipe("interrupted", {})
SECONDS = 60
"""After which an operation hangs."""


class Puts:
    """Single entries, each durable when it is put."""

    count = 3

    def __init__(self, base: Path) -> None:
        self.store = precook.open(base / "cache")
        self.store.put(RECIPE.key(0), tree(0), recipe=RECIPE)

    def act(self) -> None:
        """What Ctrl-C falls into."""
        for number in range(1, self.count):
            self.store.put(RECIPE.key(number), tree(number), recipe=RECIPE)

    def go_on(self) -> None:
        """The same once more, with the same objects; everything is there then."""
        self.act()
        for number in range(self.count):
            assert same(self.store.get(RECIPE.key(number)), tree(number))

    def close(self) -> None:
        """Let go of everything."""
        self.store.close()


class Writes(Puts):
    """Entries through a writer that fills several groups."""

    count = 6

    def act(self) -> None:
        with self.store.writer(flush_bytes=600) as writer:
            for number in range(1, self.count):
                writer.put(RECIPE.key(number), tree(number), recipe=RECIPE)
            writer.flush()
            writer.put(RECIPE.key(self.count), tree(self.count), recipe=RECIPE)


class Cached(Puts):
    """A function whose results are kept."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.cached = self.store.cached(lambda items: [tree(len(item)) for item in items], RECIPE, batch_size=2)

    def act(self) -> None:
        for found, length in zip(self.cached(["a", "bb", "ccc", "a"]), (1, 2, 3, 1), strict=True):
            assert same(found, tree(length))

    def go_on(self) -> None:
        self.act()


class Plans:
    """Plans of a dataset that nobody has read before."""

    def __init__(self, base: Path) -> None:
        dataset(base / "data", 3)
        self.project = project(base, encoders={"words": Watched("text"), "pixels": {"uses": "image"}})

    def act(self) -> None:
        self.project.plan()

    def go_on(self) -> None:
        plan = self.project.plan()
        assert (len(plan.missing), len(plan.failed)) == (7, 0)

    def close(self) -> None:
        self.project.close()


class Builds(Plans):
    """Builds."""

    def act(self) -> None:
        self.project.build()

    def go_on(self) -> None:
        assert self.project.build().snapshot is not None


class BuildsAtOnce(Builds):
    """Builds of encoders on two devices, at the same time."""

    def __init__(self, base: Path) -> None:
        dataset(base / "data", 3)
        words = {"uses": "tests.support.projects:Words", "device": "cpu:0"}
        self.project = project(base, encoders={"words": words, "pixels": {"uses": "image"}})


class Feeds(Plans):
    """An epoch that encodes what is missing, in the thread that asks for batches."""

    threads = 0

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        options = {"on_missing": "encode", "threads": self.threads, "tensors": "numpy"}
        self.feed = self.project.feed(batch_size=2, **options)

    def act(self) -> None:
        for _ in self.feed.epoch(0):
            pass

    def go_on(self) -> None:
        batches = list(self.feed.epoch(0))
        assert sum(len(batch["sample"]) for batch in batches) == 3
        for batch in batches:
            texts = [bytes(row[: int(mask.sum())]).decode() for row, mask in texts_of(batch)]
            assert texts == batch["caption"]

    def close(self) -> None:
        self.feed.close()
        super().close()


class FeedsAhead(Feeds):
    """The same with a thread that makes batches ahead."""

    threads = 1


OPERATIONS: dict[str, Callable[[Path], Any]] = {
    "put": Puts,
    "writer": Writes,
    "cached": Cached,
    "plan": Plans,
    "build": Builds,
    "build at once": BuildsAtOnce,
    "feed": Feeds,
    "feed ahead": FeedsAhead,
}


def tree(number: int) -> dict[str, Any]:
    """What is stored under a number."""
    return {"x": np.full(50, number), "number": number}


def same(one: Any, other: Any) -> bool:
    return bool(one["number"] == other["number"] and (one["x"] == other["x"]).all())


def texts_of(batch: Any) -> Any:
    """The rows of the text encoder's entries, and which of their places are real."""
    words, masks = batch["words"], batch.get("words_mask")
    return zip(words, masks if masks is not None else np.ones(words.shape, bool), strict=True)


class EveryWait:
    """Presses Ctrl-C in the n-th wait of the main thread, when its lock is let go and not yet taken again."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.pressed = False

    def __enter__(self) -> EveryWait:
        self._before = threading.Condition.wait
        threading.Condition.wait = self._wait(self._before)  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        threading.Condition.wait = self._before  # type: ignore[method-assign]

    def _wait(self, wait: Callable[..., bool]) -> Callable[..., bool]:
        def pressing(condition: Any, timeout: float | None = None) -> bool:
            if threading.current_thread() is threading.main_thread() and not self.pressed:
                self.left -= 1
                if self.left < 0:
                    self.pressed = True
                    # As `wait` itself does in its first step.
                    condition._release_save()
                    signal.raise_signal(signal.SIGINT)
            return wait(condition, timeout)

        return pressing


def press(operation: Callable[[Path], Any], base: Path, number: int) -> dict[str, Any] | None:
    """Do an operation with Ctrl-C in its n-th wait, and see what comes of it; None where there are not so many."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    one = operation(base)
    raised = "nothing"
    try:
        with EveryWait(number) as moment:
            one.act()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
        raised = type(error).__name__ if type(error) is KeyboardInterrupt else repr(error)
    if not moment.pressed:
        one.close()
        return None
    clean = is_clean(base / "cache")
    one.go_on()
    clean = clean and is_clean(base / "cache")
    one.close()
    faulthandler.cancel_dump_traceback_later()
    return {"number": number, "raised": raised, "clean": clean}


def is_clean(path: Path) -> bool:
    """Whether a store, where there is one already, holds nothing that is damaged or half-written."""
    if not (path / "store.toml").exists():
        return True
    with precook.open(path, read_only=True) as store:
        return store.verify().clean


def main() -> None:
    """Press Ctrl-C in every wait of an operation, one after the other."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    name, folder = sys.argv[1:]
    number = 0
    while True:
        base = Path(folder) / str(number)
        told = press(OPERATIONS[name], base, number)
        if told is None:
            return
        print(json.dumps(told), flush=True)
        shutil.rmtree(base)
        number += 1


if __name__ == "__main__":
    main()
