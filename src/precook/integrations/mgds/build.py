"""A cache with its sources: it learns what they hold, and builds what is missing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from precook.encode.results import described
from precook.errors import EncodeError, IdentityError, SourceChangedError, StoppedError, StoreError, printable
from precook.integrations.mgds.cache import Cache, CacheOptions, GroupVariation, MgdsPipeline
from precook.integrations.mgds.entries import Values, aggregates_key, entry_parts
from precook.integrations.mgds.groups import CacheGroup, IndexMap, SharedSettings, gather_groups
from precook.integrations.mgds.keys import KeyMaker, KeyRules, key_rules
from precook.integrations.mgds.latents import FirstDraws, LatentReuse, latent_rules
from precook.integrations.mgds.sourceless import PROMPTS, GroupSnapshot, OtherPath, snapshot_name, write_group
from precook.integrations.mgds.sources import Sources, learn_sources, list_paths
from precook.integrations.mgds.upstream import collected_path, only_traced, same_for_all
from precook.memo.memo import Memory
from precook.report import Reporter
from precook.values import Bytes, Digest, Key

_log = logging.getLogger("precook")
_ENCODERS = "mgds encoders/1"
"""By the half of a VAE that encodes, the digest of all its weights when it was met first."""
_MAX_LOOPS = 64
"""Most threads of the pool that work on one build; loops beyond the pool's size find nothing left to do."""
_STOP_SECONDS = 0.1
"""After so long the stop callback is asked again."""
_HOPELESS = 20
"""So many failures, and more than successes: the encoder is at fault, not the samples."""
_SHOWN = 5
"""So many failures are named in the error."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What entries are made of and by, as it was when this process last looked."""

    rules: KeyRules
    sources: Sources
    keys: KeyMaker


class BuildingCache(Cache):
    """A cache that makes what it does not have; paths are listed once per process, as mgds lists files."""

    def __init__(self, options: CacheOptions, pipeline: MgdsPipeline) -> None:
        super().__init__(options, pipeline)
        self._rules: KeyRules | None = None
        """As they were when the groups were found; `_inputs` has those that count."""
        self._inputs: _Inputs | None = None
        self._source = collected_path(pipeline.modules)
        """The name of the path of the file that a sample is made of."""
        self._paths: dict[str, list[str]] = {}
        self._shared: dict[str, dict[int, Any]] = {}
        self._shared_settings: list[SharedSettings] = []
        self._same_for_all = same_for_all(pipeline.modules)
        self._recorded = frozenset[GroupVariation]()
        """What the snapshots on disk cover."""
        self._read_now = frozenset[GroupVariation]()
        """What the epoch reads, all of which is in the store."""
        self._built_before: dict[GroupVariation, Bytes | None] = {}
        """Keys of variations that no epoch of this run has read yet; None for those that are not in the store whole."""

    def __len__(self) -> int:
        # Before the first start, when files may not be listed yet, as many as there are upstream.
        name = next(iter(self._options.names), self._options.groups.variations)
        return len(self._map) if self._map is not None else self._pipeline.length(name or "") or 0

    def path(self, group: int, member: int, name: str) -> str:
        return self._paths[name][int(self.index_map().groups[group].members[member])]

    def index_map(self) -> IndexMap:
        if self._map is None:
            options, pipeline = self._options, self._pipeline
            if not self._counted_name:
                raise IdentityError("", "a cache without names", hint="give split_names or aggregate_names")
            length = pipeline.length(self._counted_name) or 0
            index_map = IndexMap(gather_groups(self._share(options.groups.all), options.groups, length))
            self._rules = self._key_rules()
            if self._rules is None:
                self._map = index_map
                return index_map
            for module in self._rules.upstream.caches_between:
                if not module.cache.index_map().keeps_order:
                    message = "a module behind it asks for samples to cache, and it shows them in an order of its own"
                    raise IdentityError(type(module).__name__, message, hint="put that module before the first cache")
            paths = set(self._rules.draw.paths)
            self._path_names = frozenset((self._rules.upstream.path_outputs | paths) & set(options.names))
            listed = sorted(paths | self._path_names | {name for name in [self._source] if name is not None})
            self._paths = list_paths(pipeline.get_previous, listed, length)
            self._map = index_map
        return self._map

    @property
    def _counted_name(self) -> str:
        """The name whose length is the number of samples."""
        return self._options.groups.variations or next(iter(self._options.names), "")

    def _key_rules(self) -> KeyRules | None:
        """What the keys are made of now; None where nobody makes anything that is to be cached."""
        options, modules = self._options, self._pipeline.modules
        made = {output for module in modules for output in module.outputs}
        self._unmade = frozenset(name for name in options.names if name.partition(".")[0] not in made)
        if self._unmade.issuperset(options.names):
            return None
        split, aggregate = (
            [name for name in names if name not in self._unmade] for names in (options.split, options.aggregate)
        )
        return key_rules(
            modules,
            replace(options, split=tuple(split), aggregate=tuple(aggregate)),
            self._pipeline.seed,
            self._first_weights,
        )

    def _first_weights(self, half: Digest, weights: Digest) -> Digest:
        memory = self.store.memory()
        note = memory.note(_ENCODERS, half.bytes)
        if note is not None:
            return Digest.from_hex(note)
        memory.write_note(_ENCODERS, half.bytes, weights.hex)
        self.store.remember(memory)
        return weights

    def prepare(self, epoch: int, memory: Memory) -> None:
        wanted = self._read_by(epoch)
        looked_before = self._inputs is not None
        if not looked_before:
            assert self._rules is not None
            self._look_at_inputs(self._rules, memory)
        missing = self._missing(wanted, memory)
        if missing and looked_before:
            # Something is to be made: what the files hold and what the encoders are now counts, not what they were when
            # this process began.
            rules = self._key_rules()
            assert rules is not None
            self._look_at_inputs(rules, memory)
            missing = self._missing(wanted, memory)
        try:
            made = self._build(missing, memory) if missing else {}
        except FailedSamplesError as error:
            # Later, modules that are started once have counted the samples already.
            if (
                looked_before
                or not self._options.skip_failed
                or error.hopeless
                or not self._leave_out(error, missing, epoch)
            ):
                raise
            self.prepare(epoch, memory)
            return
        self._load_aggregates(wanted, made, memory)
        self._read_now = frozenset(wanted)
        if missing or self._recorded != frozenset(self._keys):
            self._record(memory)
            self._recorded = frozenset(self._keys)

    def forget(self) -> None:
        super().forget()
        self._inputs = None
        self._paths, self._shared, self._shared_settings = {}, {}, []
        self._recorded, self._read_now = frozenset(), frozenset()
        self._built_before = {}

    def _leave_out(self, error: FailedSamplesError, missing: list[tuple[GroupVariation, int]], epoch: int) -> bool:
        """Go on without samples that failed, and without those of the same content; whether that can be done."""
        indices = set()
        for (group, variation), member in missing:
            if self._keys[group, variation][member].tobytes() in error.keys:
                indices.add(int(self.index_map().groups[group].members[member]))
        if not self._pipeline.leave_out(sorted(indices), epoch):
            return False
        _log.warning("left out of the training: %s", error.message)
        self.index_map()
        return True

    @property
    def inputs(self) -> _Inputs:
        """What entries are made of, once `prepare` has looked at it."""
        assert self._inputs is not None
        return self._inputs

    def _share(self, names: Sequence[str]) -> SharedSettings:
        """What knows the values of names that samples of a concept share; made once."""
        for known in self._shared_settings:
            if known.has(names):
                return known
        self._shared_settings.append(SharedSettings(self._get_shared, names))
        return self._shared_settings[-1]

    def _get_shared(self, _: int, name: str, index: int) -> Any:
        """The concept of a sample and the like, asked for once: the walk through a pipeline is slow."""
        known = self._shared.setdefault(name, {})
        index = 0 if name in self._same_for_all else index
        if index not in known:
            known[index] = self._pipeline.get_previous(0, name, index)
        return known[index]

    def _look_at_inputs(self, rules: KeyRules, memory: Memory) -> None:
        """Learn what the files hold, and make the keys of everything that this run has read again."""

        def save() -> None:
            self.store.remember(memory)

        sources = learn_sources(self._paths, rules.draw.paths, memory, save=save, report=self._options.report)
        keys = KeyMaker(
            rules,
            sources,
            self._pipeline.get_previous,
            share=self._share,
        )
        self._inputs = _Inputs(rules, sources, keys)
        self._built_before.clear()
        with self._only_traced():
            for pair in self._keys:
                self._keys[pair] = self._make_keys(pair, memory)

    def _only_traced(self) -> AbstractContextManager[None]:
        return only_traced(self._pipeline.modules, self.inputs.rules.upstream)

    def _missing(self, wanted: list[GroupVariation], memory: Memory) -> list[tuple[GroupVariation, int]]:
        """The members that have no sound entry."""
        with self._only_traced():
            for pair in wanted:
                if pair not in self._keys:
                    self._keys[pair] = self._make_keys(pair, memory)
        missing = self._absent(wanted, memory)
        if missing and self._take_earlier(missing):
            missing = self._absent(wanted, memory)
        if missing and self.inputs.rules.texts_count:
            # The text that was drawn first cannot be made any more, if its sample stands elsewhere now.
            with self._only_traced():
                for pair, members in _by_pair(missing).items():
                    self._keys[pair][members] = self._make_keys(pair, memory, redraw=members)
            missing = self._absent(wanted, memory)
        return missing

    def _take_earlier(self, missing: list[tuple[GroupVariation, int]]) -> bool:
        """Go by the keys of earlier versions where entries lie under these; whether there are any."""
        found = False
        for pair, rows in _by_pair(missing).items():
            members = self.index_map().groups[pair[0]].members[rows].tolist()
            keys = self.inputs.keys.earlier_keys(members, pair[1])
            if keys is not None and (there := self.store.present(keys)).any():
                self._keys[pair][np.array(rows)[there]] = keys[there]
                found = True
        return found

    def _make_keys(self, wanted: GroupVariation, memory: Memory, *, redraw: list[int] | None = None) -> Bytes:
        """The keys of all members, or of some whose texts are drawn anew."""
        group, variation = wanted
        members = self.index_map().groups[group].members
        indices = (members if redraw is None else members[redraw]).tolist()
        return self.inputs.keys.keys(indices, variation, memory, redraw=redraw is not None)

    def _build(self, missing: list[tuple[GroupVariation, int]], memory: Memory) -> dict[bytes, Values]:
        """Encode what is missing; the aggregates of what was made, by key."""
        tasks = self._tasks(missing)
        if self._options.before_cache is not None:
            self._options.before_cache()
        in_thread = self._pipeline.prepare_threads()
        inputs = self.inputs
        prompts = [name for name in PROMPTS if name in inputs.rules.upstream.asked and name not in self._options.names]
        aggregates: dict[bytes, Values] = {}
        latents = latent_rules(self._pipeline.modules, self._options.split, inputs.rules.recipe)
        reuse = LatentReuse(latents, self.store, memory)
        draws = FirstDraws(self._pipeline.modules if latents else (), self._pipeline.seed, memory)
        with self.store.writer() as writer:

            def make(task: BuildTask) -> None:
                pixels = reuse.pixels(task.variation, task.index)
                split = self._ask(self._options.split, task, reuse.find(pixels, task.key))
                aggregate = self._ask(self._options.aggregate, task)
                parts = entry_parts(split, aggregate, self._ask(prompts, task), pixels)
                # Checked after they were read: a file or a text that changed before or meanwhile has another key.
                inputs.sources.check_unchanged(task.index)
                if inputs.rules.texts_count and inputs.keys.current_key(task.index, task.variation) != task.key:
                    raise SourceChangedError(Path(task.name))
                writer.put_parts(task.key, parts, recipe=inputs.rules.recipe)
                aggregates[task.key.bytes] = aggregate

            def make_in_place(task: BuildTask) -> None:
                # Texts in keys were drawn here and now; a picture is drawn where it was drawn first.
                content = None if inputs.rules.texts_count else inputs.sources.content(self._source, task.index)
                with draws.at(content, task.index, task.variation):
                    make(task)

            try:
                with self._only_traced(), draws.drawing(), self._builders() as executor:
                    build_tasks(
                        tasks,
                        lambda task: in_thread(lambda: make_in_place(task)),
                        executor,
                        stop=self._options.stop,
                        report=self._options.report,
                    )
            finally:
                # Also where one sample failed, or at a stop: the others were drawn here, and are kept.
                draws.remember(memory)
                reuse.remember(memory)
        built = np.frombuffer(b"".join(task.key.bytes for task in tasks), np.uint8).reshape(-1, 32)
        self._checks.check_written(self.store, built, memory, self._pipeline.executor)
        return aggregates

    def _builders(self) -> AbstractContextManager[Executor]:
        """Where entries are made: in the pool that all modules share, or in one of as many threads as are asked for."""
        if self._options.workers is None:
            return nullcontext(self._pipeline.executor)
        return ThreadPoolExecutor(self._options.workers, thread_name_prefix="precook-mgds")

    def _tasks(self, missing: list[tuple[GroupVariation, int]]) -> list[BuildTask]:
        """What to make: an entry that several samples share is made once."""
        shown = self._paths[next(iter(self._paths))] if self._paths else []
        tasks: dict[Key, BuildTask] = {}
        for (group, variation), member in missing:
            index = int(self.index_map().groups[group].members[member])
            key = Key(self._keys[group, variation][member].tobytes())
            name = shown[index] if shown else f"sample {index}"
            tasks.setdefault(key, BuildTask(index, variation, key, name))
        return list(tasks.values())

    def _ask(self, names: Sequence[str], task: BuildTask, known: Mapping[str, Any] = MappingProxyType({})) -> Values:
        """What the modules before the cache make of a sample, but for what is known; paths are not stored."""
        stored = [name for name in names if name not in self._path_names | self._unmade]
        return {
            name: known[name] if name in known else self._pipeline.get_previous(task.variation, name, task.index)
            for name in stored
        }

    def _record(self, memory: Memory) -> None:
        """Keep what each group is made of, so that it can be trained on without its sources."""
        if self.store.read_only:
            return
        shared = self._share(self._options.groups.all)
        for number, group in enumerate(self.index_map().groups):
            snapshot = self._group_snapshot(number, group, shared, memory)
            if snapshot is not None:
                name = snapshot_name(self._options, group.key)
                write_group(self.store, name, snapshot, group, self.inputs.rules.recipe)

    def _group_snapshot(
        self, group_number: int, group: CacheGroup, shared: SharedSettings, memory: Memory
    ) -> GroupSnapshot | None:
        """What a group is made of; None where no variation of it is in the store as a whole."""
        whole = {
            variation: self._built_keys((group_number, variation), memory) for variation in range(group.variations)
        }
        keys = {variation: rows for variation, rows in whole.items() if rows is not None}
        members = group.members.tolist()
        if not keys or not members:
            return None
        numbers = [shared.number(index) for index in members]
        # In the order in which they first appear: the concepts that a run without sources gives have no other name.
        concepts = {number: concept for concept, number in enumerate(dict.fromkeys(numbers))}
        aggregates = {variation: aggregates_key(rows) for variation, rows in keys.items()}
        recorded = sorted(self._path_names | {name for name in [self._source] if name is not None})
        return GroupSnapshot(
            other_path=OtherPath.of(self._options, shared, numbers[0]),
            keys=keys,
            source=self._source,
            paths={name: [self._paths[name][index] for index in members] for name in recorded},
            concepts=np.array([concepts[number] for number in numbers], np.int32),
            aggregates={
                variation: np.frombuffer(key.bytes, np.uint8)
                for variation, key in aggregates.items()
                if key in self.store
            },
        )

    def _built_keys(self, wanted: GroupVariation, memory: Memory) -> Bytes | None:
        """The keys of a variation that is in the store as a whole, also where this run has not come to it yet."""
        if wanted in self._read_now:
            return self._keys[wanted]
        if wanted in self._keys:
            # Made in an earlier epoch, perhaps, of files or by weights that are others now.
            return self._keys[wanted] if bool(self.store.present(self._keys[wanted]).all()) else None
        if wanted not in self._built_before:
            members = self.index_map().groups[wanted[0]].members.tolist()
            keys = self.inputs.keys.known_keys(members, wanted[1], memory)
            whole = keys is not None and bool(self.store.present(keys).all())
            self._built_before[wanted] = keys if whole else None
        return self._built_before[wanted]


def _by_pair(missing: list[tuple[GroupVariation, int]]) -> dict[GroupVariation, list[int]]:
    rows: dict[GroupVariation, list[int]] = {}
    for pair, member in missing:
        rows.setdefault(pair, []).append(member)
    return rows


@dataclass(frozen=True, slots=True)
class BuildTask:
    """One sample in one variation, whose entry is to be made."""

    index: int
    variation: int
    key: Key
    name: str
    """For messages: the path of its source."""


class FailedSamplesError(EncodeError):
    """Samples that could not be encoded; the others were."""

    hint = "mend or remove these samples and start again, or go on without them: skip_failed=True"

    def __init__(self, message: str, keys: set[bytes], *, hopeless: bool) -> None:
        super().__init__(message)
        self.keys = keys
        self.hopeless = hopeless


@dataclass(slots=True)
class _BuildState:
    """What the threads of one build share."""

    tasks: Iterator[BuildTask]
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: bool = False
    done: int = 0
    failed: list[tuple[BuildTask, Exception]] = field(default_factory=list)

    @property
    def hopeless(self) -> bool:
        """Whether it is rather the encoder that fails."""
        return len(self.failed) >= _HOPELESS and 2 * len(self.failed) > self.done

    def next_task(self) -> BuildTask | None:
        """What a thread is to do next; None when it is to end."""
        with self.lock:
            return None if self.over or self.hopeless else next(self.tasks, None)

    def failure(self, total: int) -> FailedSamplesError:
        """One error for all tasks that failed."""
        reasons = [f"{printable(task.name)}: {described(error)}" for task, error in self.failed[:_SHOWN]]
        more = len(self.failed) - len(reasons)
        rest = f"; and {more} more" if more else ""
        kept = f"{self.done - len(self.failed)} of {total} are made and kept"
        message = f"samples could not be cached: {'; '.join(reasons)}{rest} ({kept})"
        error = FailedSamplesError(message, {task.key.bytes for task, _ in self.failed}, hopeless=self.hopeless)
        error.__cause__ = self.failed[0][1]
        return error


def build_tasks(
    tasks: Sequence[BuildTask],
    make: Callable[[BuildTask], None],
    executor: Executor,
    *,
    stop: Callable[[], bool] | None,
    report: Reporter,
) -> None:
    """Make every task in the pool that all modules share, until all are done or a stop is asked for.

    A task that fails does not keep the others from being made, and is named at the end. The pool stays usable whatever
    happens: only our own loops are ended, each after the item in its hands.
    """
    state = _BuildState(iter(tasks))
    with report.task("caching", total=len(tasks), unit="samples") as progress:

        def loop() -> None:
            while (task := state.next_task()) is not None:
                failure = None
                try:
                    make(task)
                except StoreError:
                    state.over = True  # a full disk is no fault of a sample's
                    raise
                except Exception as error:  # noqa: BLE001 - reported with the sample's name at the end
                    failure = error
                with state.lock:
                    if failure is not None:
                        state.failed.append((task, failure))
                    state.done += 1
                    progress.advance()

        futures = [executor.submit(loop) for _ in range(min(_MAX_LOOPS, len(tasks)))]
        try:
            _wait(futures, state, stop)
        finally:
            state.over = True
            for future in futures:
                future.cancel()
            wait(futures)
    for future in futures:
        if not future.cancelled():
            future.result()
    if state.failed:
        raise state.failure(len(tasks))


def _wait(futures: Sequence[Future[None]], state: _BuildState, stop: Callable[[], bool] | None) -> None:
    pending: set[Future[None]] = set(futures)
    while pending:
        _, pending = wait(pending, timeout=_STOP_SECONDS)
        if pending and stop is not None and stop():
            raise StoppedError(f"stopped after {state.done} samples; what was made is kept")
