"""The soak: builders, readers, gc, evict, compact and random kill -9 over one store, for as long as asked.

python -m tests.crash.soak [--seconds N] [--seed N] [--store DIR]

Entries are known by number, so that every byte that is read can be compared. A builder leases the entries of a dataset,
puts what is missing and freezes a snapshot; from then on until the next one, each of them must be readable by anybody.
Feeds train on a snapshot for some epochs; readers without a lease may miss, and must never read anything wrong. Exit 1
on any violation.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import precook
from precook.maintain.compact import plan_compact
from precook.maintain.evict import plan_evict
from precook.maintain.gc import plan_gc
from tests.support.snapshots import columns, freeze

RECIPE = precook.Recipe("soak", {})
DATASETS = ("cats", "dogs", "birds")
NUMBERS = 3000
SAMPLES = 150
GRACE = 2.0
"""Seconds: so short that a collection beside everybody else has something to take."""
_PERIOD = 5.0
"""Seconds after which each process has been replaced, or killed, at the latest."""


def tree_of(number: int) -> dict[str, object]:
    """What entry `number` holds: sizes and skeletons vary."""
    values = np.random.default_rng(number).integers(0, 256, 200 + number % 4000, dtype=np.uint8)
    return {"x": values, "number": number} if number % 3 else {"x": values, "more": [None, {"y": values[:7].copy()}]}


def is_right(tree: object, number: int) -> bool:
    """Whether a tree is what was put."""
    return isinstance(tree, dict) and np.array_equal(tree["x"], tree_of(number)["x"])  # type: ignore[arg-type]


class ViolationError(Exception):
    """A promise was broken."""


def build(store: precook.Store, rng: random.Random) -> Counter[str]:
    """Lease, look up, put what is missing, freeze; then read all of it, as a training run would."""
    dataset = rng.choice(DATASETS)
    chosen = rng.sample(range(NUMBERS), SAMPLES)
    keys = [RECIPE.key(number) for number in chosen]
    with store.lease(f"build of {dataset}") as lease:
        lease.protect(columns(keys))
        missing = set(store.missing(keys))
        with store.writer(flush_bytes=rng.choice((20_000, 200_000))) as writer:
            for number, key in zip(chosen, keys, strict=True):
                if key in missing:
                    writer.put(key, tree_of(number), recipe=RECIPE)
        freeze(store, dataset, keys)
        read(store, zip(chosen, keys, strict=True), protected=True)
    return Counter(built=1, encoded=len(missing), reused=len(keys) - len(missing))


def feed(store: precook.Store, rng: random.Random) -> Counter[str]:
    """Train on the latest snapshot of a dataset: every sample of some epochs, compared with what was put."""
    dataset = rng.choice(DATASETS)
    try:
        snapshot = store.snapshot(dataset)
    except precook.NoSnapshotError:
        return Counter()
    try:
        fed = snapshot.feed(batch_size=1, tensors="numpy", seed=rng.randrange(1000))
    except precook.FeedError as error:
        # Before the feed had its lease, a newer snapshot may have taken this one's place, and gc come between.
        if snapshot.file.id not in {file.id for file in latest(store)}:
            return Counter(feeds_late=1)
        raise ViolationError(f"a snapshot that counts has lost entries: {error}") from error
    numbers = {RECIPE.key(number).bytes: number for number in range(NUMBERS)}
    counts: Counter[str] = Counter(fed=1)
    with fed:
        (column,) = fed.content.columns
        for epoch in range(3):
            plan = fed.schedule(epoch)
            for step, batch in enumerate(fed.epoch(epoch)):
                (cut,) = plan.items.cuts[plan.batch(step, 0)]
                number = numbers[column.keys[cut].tobytes()]
                if not is_right({"x": batch["latent"]["x"][0]}, number):
                    raise ViolationError(f"entry {number} has wrong bytes in a batch")
                counts["read"] += 1
    return counts


def latest(store: precook.Store) -> list[object]:
    """The latest snapshot of each dataset."""
    return list({file.dataset: file for file in store.snapshots()}.values())


def browse(store: precook.Store, rng: random.Random) -> Counter[str]:
    """Read at random, without a lease: right bytes, or a miss."""
    chosen = rng.sample(range(NUMBERS), 300)
    return read(store, [(number, RECIPE.key(number)) for number in chosen], protected=False)


def read(store: precook.Store, wanted: object, *, protected: bool) -> Counter[str]:
    """Read entries and compare every byte."""
    counts: Counter[str] = Counter()
    for number, key in wanted:  # type: ignore[attr-defined]
        try:
            tree = store.get(key)
        except precook.MissingEntryError as error:
            if protected or isinstance(error, precook.DamagedEntryError):
                raise ViolationError(f"entry {number} is protected and lost: {error}") from error
            counts["missed"] += 1
            continue
        if not is_right(tree, number):
            raise ViolationError(f"entry {number} has wrong bytes")
        counts["read"] += 1
    return counts


def collect(store: precook.Store, rng: random.Random) -> Counter[str]:
    """A collection with a short grace."""
    done = plan_gc(store, grace=rng.choice((0.0, GRACE))).execute()
    return Counter(collected=done.entries, spared=done.spared, rewritten=done.packs_rewritten)


def evict(store: precook.Store, rng: random.Random) -> Counter[str]:
    """An eviction down to some part of what is there."""
    plan = plan_evict(store, int(store.stats().pack_bytes * rng.uniform(0.5, 1.0)))
    return Counter(evicted=plan.execute().entries)


def compact(store: precook.Store, rng: random.Random) -> Counter[str]:
    """A compaction to packs of some size."""
    done = plan_compact(store, target=rng.choice((100_000, 1_000_000))).execute()
    return Counter(compacted=done.packs_rewritten, copies=done.copies)


ROLES: dict[str, Callable[[precook.Store, random.Random], Counter[str]]] = {
    "builder": build,
    "builder 2": build,
    "feed": feed,
    "reader": browse,
    "gc": collect,
    "evict": evict,
    "compact": compact,
}


def work(path: Path, role: str, seed: int, reading: int, writing: int) -> None:
    """One process: do what the role says until killed or until its time is over; tell the parent what was done."""
    os.close(reading)
    rng = random.Random(seed)
    until = time.monotonic() + rng.uniform(0.2, _PERIOD)
    with precook.open(path) as store:
        while time.monotonic() < until:
            try:
                counts = ROLES[role](store, rng)
            except precook.LockedError:
                counts = Counter(locked=1)  # two who remove exclude each other
            except precook.IncompleteError:
                counts = Counter(incomplete=1)
            except ViolationError as violation:
                os.write(writing, f"violation {role}: {violation}\n".encode())
                os._exit(1)
            line = " ".join(f"{name}={count}" for name, count in counts.items() if count)
            os.write(writing, f"done {line}\n".encode())


class Child:
    """One process of one role, and its end."""

    def __init__(self, path: Path, role: str, rng: random.Random) -> None:
        self.role = role
        self._reading, writing = os.pipe()
        self.killed = rng.random() < 0.4
        self.until = time.monotonic() + rng.uniform(0.0, _PERIOD)
        seed = rng.randrange(1 << 30)
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                work(path, role, seed, self._reading, writing)
                status = 0
            except BaseException as error:  # noqa: BLE001 - whatever it was, the parent has to hear of it
                os.write(writing, f"violation {role}: {type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(status)
        os.close(writing)

    def ended(self) -> bool:
        """Whether it is over; one whose moment has come is killed."""
        if self.killed and time.monotonic() > self.until:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return True
        return os.waitpid(self.pid, os.WNOHANG)[0] != 0

    def lines(self) -> list[str]:
        """What it said; a line that it was killed in the middle of does not count."""
        with open(self._reading, "rb") as file:
            return file.read().decode(errors="replace").split("\n")[:-1]


def soak(path: Path, seconds: float, seed: int) -> int:
    """Run all roles at once, each replaced when it ends; then check the store. The exit code."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    violations: list[str] = []
    with precook.open(path) as store:
        store.put(RECIPE.key(0), tree_of(0), recipe=RECIPE)
    started = time.monotonic()
    children = {role: Child(path, role, rng) for role in ROLES}
    while children:
        for role, child in list(children.items()):
            if not child.ended():
                continue
            counts["processes"] += 1
            counts["killed"] += child.killed
            for line in child.lines():
                word, _, rest = line.partition(" ")
                if word == "violation":
                    violations.append(rest)
                    continue
                for item in rest.split():
                    name, _, number = item.partition("=")
                    counts[name] += int(number)
            del children[role]
            # Also beyond its time, on a machine so slow that nothing could be read yet.
            early = time.monotonic() - started < seconds or not counts["built"]
            if early and not violations:
                children[role] = Child(path, role, rng)
        time.sleep(0.01)
    violations += check(path)
    print(f"soak of {time.monotonic() - started:.0f} s, seed {seed}")
    for name, number in sorted(counts.items()):
        print(f"{name:<12} {number:>10,}")
    print(f"{'violations':<12} {len(violations):>10,}")
    for violation in violations[:20]:
        print(violation)
    return 1 if violations else 0


def check(path: Path) -> list[str]:
    """What is wrong with the store after it all: verify, what snapshots name, and the index made anew."""
    problems = []
    with precook.open(path) as store:
        verification = store.verify()
        problems += [f"{damage.pack.name}: {damage.reason}" for damage in verification.damage]
        for file in latest(store):
            keys = store.snapshot(file.dataset).entry_keys()  # type: ignore[attr-defined]
            lost = int((~store.present(keys)).sum())
            problems += [f"{lost} entries of {file.dataset} are lost"] * bool(lost)  # type: ignore[attr-defined]
        before = len(store)
        after = store.reindex()
        if before != after:
            problems.append(f"{before} entries, and {after} once the index was made anew")
        problems += [f"{path.name} was left behind" for path in path.rglob("*.partial*")]
        if store.leases():
            problems.append("a lease outlived its process")
    return problems


def main() -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, help="where; a temporary directory without it")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="precook-soak-")) if options.store is None else options.store
    try:
        return soak(folder / "cache", options.seconds, options.seed)
    finally:
        if options.store is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
