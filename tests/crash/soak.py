"""The soak: everything at once over one store, killed and stopped at random, for as long as asked.

python -m tests.crash.soak [--seconds N] [--seed N] [--alone] [--without ROLE] [--store DIR]

Entries are known by number, so that every byte that is read can be compared. A builder leases the entries of a dataset,
puts what is missing and freezes a snapshot; from then on until the next one, each of them must be readable by anybody.
Feeds train on a snapshot for some epochs; readers without a lease may miss, and must never read anything wrong. Beside
them run the commands that look after a store, each of which may end with an exit code that is foreseen for it, and with
no other. Any process may be killed at any moment, or be stopped and go on seconds later. Where we are root they belong
to two users of one group. Exit 1 on any violation.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

import precook
from precook.cli.main import app
from precook.errors import FAILED, LOCKED, NO_SPACE
from precook.maintain.compact import plan_compact
from precook.maintain.evict import plan_evict
from precook.maintain.gc import plan_gc
from tests.crash.library import UnavailableError
from tests.crash.users import USERS, become, check_two_users, share
from tests.support.snapshots import columns, freeze

RECIPE = precook.Recipe("soak", {})
DATASETS = ("cats", "dogs", "birds")
NUMBERS = 3000
SAMPLES = 150
GRACE = 2.0
"""Seconds: so short that a collection beside everybody else has something to take."""
_PERIOD = 5.0
"""Seconds after which each process has been replaced, or killed, at the latest."""
_STOPPED = 3.0
"""Seconds for which a process is stopped at the most: shorter than anybody waits for a lock."""
_PATIENCE = 180.0
"""Seconds after which a process hangs. Generous: it is there to end the run, not to measure anything."""
_TELL = 10.0
"""Seconds between two lines about how far it is."""


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


def run_command(*arguments: object) -> tuple[int, str]:
    """Run a command in this process; its exit code, and what it said."""
    with tempfile.TemporaryFile() as said:
        kept = os.dup(1), os.dup(2)
        try:
            for number in (1, 2):
                os.dup2(said.fileno(), number)
            app([str(argument) for argument in arguments], prog_name="precook")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
        said.seek(0)
        return code, said.read().decode(errors="replace")


def command(store: precook.Store, name: str, *arguments: object, may: dict[int, str]) -> Counter[str]:
    """Run a command on the store; apart from success and a lock, it `may` end with these codes, and then says so."""
    code, said = run_command(name, "--store", store.path, *arguments)
    if code == 0:
        return Counter({f"{name} done": 1})
    if code == LOCKED or (code in may and may[code] in said):
        return Counter({f"{name} exit {code}": 1})
    raise ViolationError(f"precook {name} ended with {code}: {' '.join(said.split())}")


def gc_command(store: precook.Store, rng: random.Random) -> Counter[str]:
    """`precook gc`."""
    return command(store, "gc", "--yes", "--grace", rng.choice(("0s", "2s")), may={})


def evict_command(store: precook.Store, rng: random.Random) -> Counter[str]:
    """`precook evict`, perhaps to a size that what is protected does not allow."""
    size = f"{int(store.stats().pack_bytes * rng.uniform(0.5, 1.2)) + 1}B"
    return command(store, "evict", "--yes", "--max-size", size, may={NO_SPACE: ""})


def compact_command(store: precook.Store, _: random.Random) -> Counter[str]:
    """`precook compact`."""
    return command(store, "compact", "--yes", may={})


def verify_command(store: precook.Store, rng: random.Random) -> Counter[str]:
    """`precook verify`: nothing is damaged here, ever."""
    return command(store, "verify", *rng.choice(((), ("--subset", "1/3"), ("--repair", "--yes"))), may={})


def status_command(store: precook.Store, rng: random.Random) -> Counter[str]:
    """Commands that only look."""
    return command(store, *rng.choice((("status",), ("ls", "--limit", "50"), ("snapshots",), ("leases",))), may={})


def export_command(store: precook.Store, rng: random.Random) -> Counter[str]:
    """`precook export` to one of a few archives, over the one that is there."""
    archive = store.path.parent / "archives" / f"{rng.randrange(3)}.tar"
    may = {FAILED: "no snapshot of"}  # of a dataset that nobody has built yet
    return command(store, "export", rng.choice(DATASETS), archive, "--force", may=may)


def import_command(store: precook.Store, rng: random.Random) -> Counter[str]:
    """`precook import` of an archive that is there."""
    archives = sorted((store.path.parent / "archives").glob("*.tar"))
    if not archives:
        return Counter()
    return command(store, "import", rng.choice(archives), "--as", "imported", may={})


Role = Callable[[precook.Store, random.Random], "Counter[str]"]

ROLES: dict[str, Role] = {
    "builder": build,
    "builder 2": build,
    "feed": feed,
    "reader": browse,
    "gc": collect,
    "evict": evict,
    "compact": compact,
    "gc command": gc_command,
    "evict command": evict_command,
    "compact command": compact_command,
    "verify command": verify_command,
    "status command": status_command,
    "export command": export_command,
    "import command": import_command,
}


def work(path: Path, role: str, seed: int, writing: int) -> None:
    """One process: do what the role says until killed or until its time is over; tell the parent what was done."""
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
                os.write(writing, f"violation\t{role}: {violation}\n".encode())
                os._exit(1)
            line = "\t".join(f"{name}={count}" for name, count in counts.items() if count)
            os.write(writing, f"done\t{line}\n".encode())


class Child:
    """One process of one role, and its end."""

    def __init__(self, path: Path, role: str, rng: random.Random, user: int | None) -> None:
        self.role = role
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._said = b""
        self.killed = rng.random() < 0.4
        now = time.monotonic()
        self._until = now + rng.uniform(0.0, _PERIOD)
        self._hung = now + _PATIENCE
        self.hangs = False
        stop = now + rng.uniform(0.0, _PERIOD)
        self._signals = [(stop, signal.SIGSTOP), (stop + rng.uniform(0.1, _STOPPED), signal.SIGCONT)]
        if rng.random() > 0.3:
            self._signals = []
        self.stopped = 0
        seed = rng.randrange(1 << 30)
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._reading)
                if user is not None:
                    become(user)
                work(path, role, seed, writing)
                status = 0
            except BaseException as error:  # noqa: BLE001 - whatever it was, the parent has to hear of it
                where = " < ".join(
                    f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
                    for frame in reversed(traceback.extract_tb(error.__traceback__))
                )
                text = " ".join(f"{type(error).__name__}: {error}".split())
                os.write(writing, f"violation\t{role}: {text} ({where})\n".encode())
            finally:
                os._exit(status)
        os.close(writing)

    def ended(self) -> bool:
        """Whether it is over; one whose moment has come is stopped, goes on, or is killed."""
        now = time.monotonic()
        self._listen()
        if os.waitpid(self.pid, os.WNOHANG)[0]:
            self.killed = False
            return True
        if now > self._hung:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.killed, self.hangs = False, True
            return True
        if self._signals and now > self._signals[0][0]:
            _, number = self._signals.pop(0)
            self.stopped += number == signal.SIGSTOP
            os.kill(self.pid, number)
        # Also while it is stopped: then it has been gone for long, as far as the others can tell.
        if self.killed and now > self._until:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return True
        return False

    def _listen(self) -> None:
        """Take what it has said: a pipe that is full would hold it up."""
        with contextlib.suppress(BlockingIOError):
            while said := os.read(self._reading, 1 << 16):
                self._said += said

    def count(self, counts: Counter[str], violations: list[str]) -> None:
        """Add up what it said; a line that it was killed in the middle of does not count."""
        counts.update(processes=1, killed=self.killed, stopped=self.stopped)
        violations += [f"{self.role}: it hangs"] * self.hangs
        self._listen()
        os.close(self._reading)
        for line in self._said.decode(errors="replace").split("\n")[:-1]:
            word, _, rest = line.partition("\t")
            if word == "violation":
                violations.append(rest)
                continue
            for item in rest.split("\t") if rest else ():
                name, _, number = item.partition("=")
                counts[name] += int(number)


def prepare(path: Path, *, alone: bool) -> list[int | None]:
    """Make the store and import all that a command needs; who is to work there."""
    archives = path.parent / "archives"
    archives.mkdir(parents=True)
    # The users may not get to where Python and its libraries are: what is imported late, is imported here. Nothing is
    # done here, though: a process that has used threads cannot be forked safely.
    for name in _in_child(_rehearse):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    users: list[int | None] = [None]
    try:
        if not alone:
            check_two_users()
            for place in (path.parent, archives):
                share(place)
            users = list(USERS)
    except UnavailableError as error:
        print(f"soak: one user only: {error}", file=sys.stderr)

    def make() -> list[str]:
        if users[0] is not None:
            become(users[0])
        with precook.open(path) as store:
            begin(store)
        return []

    _in_child(make)
    return users


def _rehearse() -> list[str]:
    """Do everything once, in a store of its own; what was imported for it."""
    with tempfile.TemporaryDirectory() as folder, precook.open(Path(folder) / "cache") as store:
        begin(store)
        freeze(store, DATASETS[0], [RECIPE.key(0)])
        archive = Path(folder) / "archives" / "0.tar"
        archive.parent.mkdir()
        run_command("export", "--store", store.path, DATASETS[0], archive)
        for seed in range(3):
            for role in ROLES.values():
                role(store, random.Random(seed))
    return [name for name, module in list(sys.modules.items()) if getattr(module, "__spec__", None) is not None]


def _in_child(work: Callable[[], list[str]]) -> list[str]:
    """What `work` returns when done in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            with open(writing, "w") as file:
                file.write(" ".join(work()))
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    os.close(writing)
    with open(reading) as file:
        said = file.read().split()
    _, status = os.waitpid(pid, 0)
    if status:
        message = "the soak cannot begin: see above"
        raise RuntimeError(message)
    return said


def begin(store: precook.Store) -> None:
    """A first entry, which makes the store."""
    store.put(RECIPE.key(0), tree_of(0), recipe=RECIPE)


def soak(path: Path, seconds: float, seed: int, *, roles: Collection[str], alone: bool) -> int:
    """Run all roles at once, each replaced when it ends; then check the store. The exit code.

    Two users take turns, where there can be two, unless we are to be `alone`.
    """
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    violations: list[str] = []
    users = prepare(path, alone=alone)
    started = told = time.monotonic()
    children = {role: Child(path, role, rng, rng.choice(users)) for role in roles}
    while children:
        for role, child in list(children.items()):
            if not child.ended():
                continue
            child.count(counts, violations)
            del children[role]
            # Also beyond its time, on a machine so slow that nothing could be read yet.
            early = time.monotonic() - started < seconds or not counts["built"]
            if early and not violations:
                children[role] = Child(path, role, rng, rng.choice(users))
        if time.monotonic() - told >= _TELL:
            told = time.monotonic()
            done = f"{told - started:.0f} of {seconds:.0f} s, {counts['processes']} processes"
            print(f"soak: {done}, {len(violations)} violations", file=sys.stderr, flush=True)
        time.sleep(0.01)
    violations += check(path)
    print(f"soak of {time.monotonic() - started:.0f} s, seed {seed}")
    for name, number in sorted(counts.items()):
        print(f"{name:<20} {number:>10,}")
    print(f"{'violations':<20} {len(violations):>10,}")
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
        # What an import was cut off from waits for the next one of that archive.
        left = [path for path in path.rglob("*.partial*") if "imports" not in path.parts]
        problems += [f"{path.name} was left behind" for path in left]
        if store.leases():
            problems.append("a lease outlived its process")
    return problems


def main() -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="as one user, also where there can be two")
    parser.add_argument("--without", action="append", default=[], choices=ROLES, help="leave out a role; repeatable")
    parser.add_argument("--store", type=Path, help="where; a temporary directory without it")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="precook-soak-")) if options.store is None else options.store
    try:
        roles = [role for role in ROLES if role not in options.without]
        return soak(folder / "cache", options.seconds, options.seed, roles=roles, alone=options.alone)
    finally:
        if options.store is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
