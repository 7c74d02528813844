"""A model of removal in a bucket: builders and collectors as they list and put objects, in any order, with any pauses.

Nothing in a bucket is locked. A builder announces what it needs (a session) before it looks; a collector marks packs
before it looks a second time. Whoever sleeps for long finds its session lapsed, by the bucket's clock alone. The model
plays both as sequences of single requests, lets chance choose who makes the next one, who sleeps, for how long, and who
dies, and looks whether a snapshot that counts ever lacks an entry.

Sets of entries and of packs are bits of an integer: a million schedules have to fit into minutes.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

LAPSE = 60
"""Minutes after its last beat at which a session has lapsed, and at which a snapshot is late."""
BEAT = 5
"""Minutes after which a process that is awake puts a beat."""
ENTRIES = 4
# Chances: that a process comes, dies or falls asleep at a step, that one is a collector, that all stand still for long.
_ARRIVES, _DIES, _SLEEPS, _COLLECTORS, _ALL_WAIT = 0.1, 0.015, 0.075, 0.5, 0.95


@dataclass(frozen=True)
class Rules:
    """The rules that make removal exact; each can be left out, to see that the model finds what it is there for."""

    session_first: bool = True
    """A builder puts its session before it looks for entries."""
    condemned_is_missing: bool = True
    """An entry whose only copies lie in condemned packs counts as missing."""
    second_look: bool = True
    """A collector looks for sessions and snapshots again once its mark is there."""
    sessions_before_snapshots: bool = True
    """It lists sessions first: a session ends after its snapshot is there, so the other order can miss both."""
    marks_stay: bool = True
    """What is needed of a condemned pack is copied; the mark is never taken back."""
    lapse_is_noticed: bool = True
    """A builder whose session has lapsed begins anew, and a snapshot that came too late does not count."""


@dataclass(frozen=True)
class Snapshot:
    """What a build has frozen."""

    needs: int
    refreshed: int
    """When the last beat of its session was put."""
    put: int

    @property
    def is_late(self) -> bool:
        """Whether its session may have lapsed before it was there."""
        return self.put - self.refreshed >= LAPSE


@dataclass
class Bucket:
    """All objects, as everybody sees them at one moment."""

    clock: int = 0
    packs: dict[int, int] = field(default_factory=dict)
    """Entries of each pack that is there."""
    leaves: dict[int, int] = field(default_factory=dict)
    """Entries of each pack that was announced."""
    condemned: int = 0
    dead: int = 0
    sessions: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each session what it needs, and when its last beat was put."""
    snapshots: list[Snapshot] = field(default_factory=list)
    names: int = 0

    def new_name(self) -> int:
        """A name that nobody else has."""
        self.names += 1
        return self.names

    def counting(self, rules: Rules) -> list[Snapshot]:
        """The snapshots that count."""
        return [one for one in self.snapshots if not (rules.lapse_is_noticed and one.is_late)]

    def living(self) -> int:
        """What sessions that have not lapsed need."""
        needed = 0
        for needs, beat in self.sessions.values():
            if self.clock - beat < LAPSE:
                needed |= needs
        return needed

    def frozen(self, rules: Rules) -> int:
        """What snapshots that count need."""
        needed = 0
        for snapshot in self.counting(rules):
            needed |= snapshot.needs
        return needed

    def lacking(self, rules: Rules) -> int:
        """Entries that a snapshot names and no pack that was announced holds."""
        there = 0
        for pack, entries in self.packs.items():
            if pack in self.leaves:
                there |= entries
        return self.frozen(rules) & ~there


class Session:
    """What a build needs, for as long as it beats."""

    def __init__(self, bucket: Bucket, needs: int) -> None:
        self._bucket = bucket
        self._name = bucket.new_name()
        self._needs = needs
        self.refreshed = bucket.clock
        self.lapsed = False
        """Whether two of its beats were too far apart: somebody may have taken it for dead in between."""
        bucket.sessions[self._name] = needs, self.refreshed

    def beat(self) -> None:
        """Put a beat, and tell by the one before how long the session went without."""
        self.lapsed = self.lapsed or self._bucket.clock - self.refreshed >= LAPSE
        self.refreshed = self._bucket.clock
        self._bucket.sessions[self._name] = self._needs, self.refreshed

    def beat_if_due(self) -> None:
        """What happens beside the work, in a process that is awake."""
        if self._bucket.clock - self.refreshed >= BEAT:
            self.beat()

    def end(self) -> None:
        """Delete it."""
        del self._bucket.sessions[self._name]


@dataclass
class Actor:
    """A process, and until when it sleeps."""

    steps: Iterator[None]
    sleeps_until: int = 0


def build(bucket: Bucket, needs: int, rules: Rules) -> Iterator[None]:
    """A build of entries `needs`; a request to the bucket at each step."""
    while True:
        session = Session(bucket, needs) if rules.session_first else None
        yield
        removed = bucket.dead | (bucket.condemned if rules.condemned_is_missing else 0)
        yield
        found = relied_on = 0
        for pack, entries in bucket.leaves.items():
            if not removed >> pack & 1 and entries & needs & ~found:
                found |= entries
                relied_on |= 1 << pack
        yield
        if session is None:
            session = Session(bucket, needs)
            yield
        if needs & ~found:
            pack = bucket.new_name()
            bucket.packs[pack] = needs & ~found
            session.beat_if_due()
            yield
            bucket.leaves[pack] = bucket.packs[pack]
            relied_on |= 1 << pack
            session.beat_if_due()
            yield
        session.beat()
        yield
        if rules.lapse_is_noticed and (session.lapsed or relied_on & bucket.dead):
            session.end()
            yield
            continue
        yield
        bucket.snapshots.append(Snapshot(needs, session.refreshed, bucket.clock))
        yield
        session.end()
        return


def look(bucket: Bucket, rules: Rules) -> Generator[None, None, int]:
    """What sessions and snapshots need, listed one after the other."""
    lists: list[Callable[[], int]] = [bucket.living, functools.partial(bucket.frozen, rules)]
    needed = 0
    for ask in lists if rules.sessions_before_snapshots else reversed(lists):
        needed |= ask()
        yield
    return needed


def collect(bucket: Bucket, rules: Rules, few: int) -> Iterator[None]:
    """A removal of packs of which at most `few` entries are needed; a request to the bucket at each step."""
    needed = yield from look(bucket, rules)
    chosen = [
        pack
        for pack, entries in bucket.leaves.items()
        if not bucket.dead >> pack & 1
        and (bucket.condemned >> pack & 1 or (entries & needed).bit_count() <= min(few, entries.bit_count() - 1))
    ]
    for pack in chosen:
        bucket.condemned |= 1 << pack
    yield
    if rules.second_look:
        needed = yield from look(bucket, rules)
    if not rules.marks_stay:
        for pack in [pack for pack in chosen if bucket.leaves[pack] & needed]:
            chosen.remove(pack)
            bucket.condemned &= ~(1 << pack)
        yield
    rescued = 0
    for pack in chosen:
        # One that another collector has removed in the meantime was looked at by that one, after the mark.
        rescued |= bucket.packs.get(pack, 0) & needed
    yield
    if rescued:
        copy = bucket.new_name()
        bucket.packs[copy] = rescued
        yield
        bucket.leaves[copy] = rescued
        yield
    for pack in chosen:
        bucket.dead |= 1 << pack
    yield
    for pack in chosen:
        bucket.packs.pop(pack, None)
        yield


def play(seed: int, rules: Rules, *, every_step: bool = False) -> tuple[int, Bucket]:
    """One schedule: the entries that a snapshot that counts lacks at its end, or at any step of it; and the bucket."""
    draw = random.Random(seed).random
    bucket = Bucket()
    everything = (1 << ENTRIES) - 1
    # What earlier builds have left, and nobody may need.
    for _ in range(1 + int(draw() * 2)):
        pack = bucket.new_name()
        bucket.packs[pack] = bucket.leaves[pack] = 1 + int(draw() * everything)
    coming = [draw() < _COLLECTORS for _ in range(2 + int(draw() * 5))]
    actors: list[Actor] = []
    while actors or coming:
        if coming and (not actors or draw() < _ARRIVES):
            collects = coming.pop()
            steps = (
                collect(bucket, rules, int(draw() * 3))
                if collects
                else build(bucket, 1 + int(draw() * everything), rules)
            )
            actors.append(Actor(steps))
        number = int(draw() * len(actors))
        actor = actors[number]
        if actor.sleeps_until > bucket.clock:
            bucket.clock += 1
            continue
        fate = draw()
        if next(actor.steps, actor) is actor or fate < _DIES:
            actors.pop(number)  # at its end, or killed: its objects stay as they are
        elif fate < _SLEEPS:
            actor.sleeps_until = bucket.clock + int(draw() * 3 * LAPSE)
        bucket.clock += int(draw() * 2 * LAPSE) if fate > _ALL_WAIT else 1
        if every_step and (lacking := bucket.lacking(rules)):
            return lacking, bucket
    return bucket.lacking(rules), bucket
