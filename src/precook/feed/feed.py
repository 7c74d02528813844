"""The feed: batches for training, a function of the samples, the seed and the epoch."""

from __future__ import annotations

import dataclasses
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from precook.encode.registry import EncoderSpec
from precook.errors import FeedError, printable
from precook.feed.batch import HINT, BatchMaker, EntryMaker
from precook.feed.content import FeedContent, choose_samples
from precook.feed.device import check_device
from precook.feed.epoch import Epoch
from precook.feed.fields import Fields
from precook.feed.live import Live
from precook.feed.options import FeedOptions
from precook.feed.packing import choose_column
from precook.feed.position import Position, Reached
from precook.feed.ranks import Ranks, find_ranks
from precook.feed.sampler import Schedule, check_epoch, schedule
from precook.fs.system import system
from precook.identity.digest import derived_digest
from precook.plan.freeze import snapshot_content
from precook.plan.plan import Plan
from precook.plan.wanted import first_of_each
from precook.store.snapshot import Snapshot
from precook.store.store import Store
from precook.units import format_count
from precook.values import Numbers

if TYPE_CHECKING:
    import torch

    from precook.feed.loader import FeedLoader
    from precook.feed.torch_data import BatchSampler, FeedDataset

_log = logging.getLogger("precook")
_CONTEXT = "precook feed 1"
_MANY = 100_000
"""Samples from which on it matters what each of them takes."""
_STATE = 1
"""The version of a feed's state."""


class Feed:
    """Batches of one dataset; a context manager, though nothing is lost without.

    Batches are dicts: a stacked tensor or a tree of them for each encoder, and `sample`, `concept`, `caption`,
    `loss_weight`; where pictures are encoded also `size`, `original_size`, `crop` and `target_size`. The same samples,
    options and epoch give the same batches.
    """

    def __init__(
        self,
        store: Store,
        content: FeedContent,
        options: FeedOptions,
        *,
        maker: EntryMaker | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        unknown = set(options.pad or {}) - {column.name for column in content.columns}
        if unknown:
            raise FeedError(f"pad: no encoder {min(unknown)!r} in {content.dataset}")
        if not content.count:
            hint = "`precook plan` says what is left out, and why; is the drive mounted?"
            purpose = "validate with" if options.validation else "feed"
            raise FeedError(f"{content.dataset} has no samples to {purpose}", hint=hint)
        bare = [column.name for column in content.columns if column.per != "cut" and column.empty < 0]
        if options.caption_dropout and content.texts_alone:
            message = f"{content.dataset} has texts alone, and no captions that the empty prompt could stand in for"
            raise FeedError(message, hint="feed without caption_dropout")
        if bare and options.caption_dropout:
            hint = "set text.empty_prompt in the config and build (`precook plan` tells if it failed), or feed without "
            raise FeedError(f"{bare[0]}: the empty prompt is not among the entries", hint=hint + "caption_dropout")
        _check_lengths(content, options)
        self.ranks = ranks or find_ranks(options.rank, options.world_size)
        self.store = store
        self.content = content
        self.options = options
        self._maker = maker
        self._lock = threading.Lock()
        self._schedules: dict[int, Schedule] = {}
        self.position = Position()
        self._loaders: weakref.WeakSet[FeedLoader] = weakref.WeakSet()
        self.loops: set[int] = set()
        """The loaders that have handed out a batch."""
        self._fingerprints: dict[int, str] = {}
        self._closed = False
        keys = np.concatenate([np.zeros((0, 32), np.uint8), *(column.keys for column in content.columns)])
        keys = keys[keys.any(axis=1) & first_of_each(keys)]
        # Before anything is looked up: what is found then stays until the feed ends.
        self._lease = store.lease(f"feed of {content.dataset}", optional=True)
        try:
            self._lease.protect(keys)
            self.batches = BatchMaker(store, content, options, maker=maker)
            self.batches.check()
            self._release_memory()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Batches of the first epoch; later ones may differ where sizes are drawn."""
        return self.schedule(0).steps

    def epoch(self, number: int, *, device: str | None = None) -> Epoch:
        """The batches of an epoch, made ahead by threads; after `load_state_dict`, the rest of the one it stopped in.

        With a `device` the tensors lie there; on a GPU they are copied while the step before is under way.
        """
        number = check_epoch(number)
        # Until a batch is handed out, however often it is asked: somebody may only want to know how many are left.
        epoch, batch = self.position.resumed or (number, 0)
        start = batch if epoch == number else 0
        return self.begin(number, start=start, device=device, on_batch=self.position.reach)

    def begin(self, number: int, *, start: int, device: str | None, on_batch: Callable[[int, int], None]) -> Epoch:
        """The batches of an epoch from the `start`-th on, for somebody who keeps count of what is handed out."""
        self.check(device)
        return Epoch(
            self.batches,
            self.schedule(number),
            number,
            self.options,
            rank=self.ranks.rank,
            start=start,
            device=device,
            on_batch=on_batch,
        )

    def check(self, device: str | None = None) -> None:
        """Refuse what no batch can be made for: without the lease, as another rank, on a device that is not there."""
        if self._closed:
            raise FeedError(f"this feed of {self.content.dataset} is closed", hint="make another one")
        if self._lease.protects:
            self._lease.check()
        self.ranks.check()
        if device is not None:
            if self.options.tensors != "torch":
                raise FeedError(f"numpy arrays cannot lie on {device}", hint='feed with tensors="torch"')
            check_device(device)

    def state_dict(self) -> dict[str, Any]:
        """Where the feed stands: after the last batch that was handed out. Plain data, for a checkpoint."""
        if len(self.loops) > 1:
            hint = "keep the state of the loader that you train with: loader.state_dict()"
            raise FeedError(f"{len(self.loops)} loaders of this feed stand each somewhere else", hint=hint)
        return self.state_at(*self.position.reached)

    def state_at(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state of this feed after so many batches of an epoch.

        With its last batch that is the start of the next epoch, and `ended` tells whose epoch it was: the loop may
        stand inside still, and count its batches itself.
        """
        ended = ""
        if batch and batch == self.schedule(epoch).steps:
            epoch, batch, ended = epoch + 1, 0, self._fingerprint(epoch)
        return {
            "version": _STATE,
            "epoch": epoch,
            "batch": batch,
            "ended": ended,
            "batch_size": self.options.batch_size,
            "ranks": self.ranks.count,
            "seed": self.options.seed,
            "fingerprint": self._fingerprint(epoch) if batch else "",
            "entries": dict(self._entries) if batch else {},
            "captions": self._captions if batch else "",
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: `epoch(state["epoch"])` then begins with the very next batch.

        Inside an epoch everything must be as it was, down to the keys of all entries and the captions, where both
        feeds know them; at the start of one and after its last batch, samples and ranks may be others. A state that an
        older precook took does not name the entries: a warning says that they are not compared.
        """
        position = self.read_state(state)
        self.position.load(*position)
        for loader in self._loaders:
            loader.resume(*position)

    def read_state(self, state: Mapping[str, Any]) -> Reached:
        """The position that a state says; `FeedError` where it is not one of this feed."""
        if not isinstance(state, Mapping):
            raise FeedError(f"not the state of a feed: {state!r}", hint="load what `state_dict()` of a feed gave")
        try:
            version, epoch, batch, seed = (state[name] for name in ("version", "epoch", "batch", "seed"))
            fingerprint = state["fingerprint"]
        except KeyError as error:
            raise FeedError(f"not the state of a feed: it has no {error}") from error
        if version != _STATE:
            raise FeedError(f"a state of version {version}, and this precook knows {_STATE}", hint="update precook")
        if seed != self.options.seed:
            raise FeedError(f"the state has seed {seed}, this feed {self.options.seed}", hint=f"feed with seed={seed}")
        for name, number in (("epoch", epoch), ("batch", batch)):
            if type(number) is not int or number < 0:
                raise FeedError(f"not the state of a feed: its {name} is {number!r}")
        if not batch and epoch and state.get("ended"):
            epoch, batch = epoch - 1, self.schedule(epoch - 1).steps  # all of them, however many they are here
        elif batch:
            if fingerprint != self._fingerprint(epoch):
                hint = "resume with the dataset, batch size and ranks it was taken with, or begin at an epoch's start"
                now = {"batch_size": self.options.batch_size, "ranks": self.ranks.count}
                others = [
                    f"{name} {state[name]}, not {now[name]}" for name in now if state.get(name, now[name]) != now[name]
                ]
                named = f": with {' and '.join(others)}" if others else ""
                raise FeedError(f"the state was taken inside epoch {epoch} of another feed{named}", hint=hint)
            self._compare(state, epoch, batch)
        return epoch, batch

    def schedule(self, epoch: int) -> Schedule:
        """What an epoch shows, in which order; the last two are remembered."""
        with self._lock:
            if epoch not in self._schedules:
                while len(self._schedules) > 1:
                    del self._schedules[next(iter(self._schedules))]
                options = self.options
                made = schedule(
                    self.content,
                    seed=options.seed,
                    epoch=epoch,
                    batch_size=options.batch_size,
                    ranks=self.ranks.count,
                    last=options.last,
                    dropout=options.caption_dropout,
                    pad=options.pad,
                    lengths=self._lengths,
                    pack=options.pack,
                )
                if not made.steps:
                    hint = (
                        'feed with a smaller batch_size or last="keep", or raise `repeats` or `samples` in the config'
                    )
                    raise FeedError(f"epoch {epoch} of {self.content.dataset} has no batches", hint=hint)
                self._schedules[epoch] = made
                self._release_memory()
            return self._schedules[epoch]

    @cached_property
    def _lengths(self) -> Numbers | None:
        """How long the texts are, where batches depend on it."""
        if self.options.pack is None and not self.options.by_length:
            return None
        lengths = self.batches.lengths(self.content.columns[0].name)
        if self.options.pack is not None and (cut := int((lengths > self.options.pack).sum())):
            dataset, texts = self.content.dataset, format_count(cut, "text")
            _log.warning("%s: %s cut to %s tokens, which is all that a row has", dataset, texts, self.options.pack)
        return lengths

    def _release_memory(self) -> None:
        """What was needed for a moment for each of very many samples goes: 50 bytes an entry would stay."""
        if self.content.count > _MANY:
            system.release_memory()

    def loader(
        self,
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        rename: Mapping[str, str] | None = None,
        fields: Sequence[str] | None = None,
        num_workers: int = 0,
    ) -> FeedLoader:
        """What a training loop takes for a torch DataLoader: this rank's batches, epoch after epoch.

        Each iteration is the next epoch. With a `device` the tensors lie there; `fields` keeps only some of a batch,
        and `rename` gives them the names that the loop asks for. A `batch_size` replaces the feed's own.
        """
        from precook.feed.loader import FeedLoader  # noqa: PLC0415 - it imports torch

        before = self.options
        if batch_size is not None and batch_size != before.batch_size:
            resized = dataclasses.replace(self.options, batch_size=batch_size)
            if self._loaders or self.position.last != (0, 0) or self.position.resumed is not None:
                hint = f"make a feed of its own for these: batch_size={batch_size}"
                raise FeedError(f"this feed is in use with a batch_size of {before.batch_size}", hint=hint)
            self._choose(resized)
        try:
            loader = FeedLoader(self, device=device, fields=Fields.of(fields, rename), num_workers=num_workers)
        except BaseException:
            self._choose(before)
            raise
        self._loaders.add(loader)
        return loader

    def _choose(self, options: FeedOptions) -> None:
        with self._lock:
            self.options = options
            self._schedules.clear()
            self._fingerprints.clear()

    def dataset(self) -> FeedDataset:
        """The samples as a map-style torch Dataset, for a plain DataLoader with `batch_sampler(epoch)`."""
        from precook.feed.torch_data import FeedDataset  # noqa: PLC0415 - it imports torch

        return FeedDataset(self)

    def batch_sampler(self, epoch: int, *, start: int = 0) -> BatchSampler:
        """The batches of an epoch, from the `start`-th on, as lists of what `dataset()` is indexed with."""
        from precook.feed.torch_data import BatchSampler  # noqa: PLC0415 - it imports torch

        return BatchSampler(self, epoch, start)

    def as_hf_dataset(self, encoder: str | None = None, *, eos: bool = True) -> Any:
        """The entries of a token encoder as a `datasets.Dataset`, as TRL would have made it of the captions or texts.

        A row for each of them, in the order of the sources, ended as `SFTTrainer` ends a text: with the tokenizer's
        end-of-sequence token. Without `eos` each row is as it is kept. What is kept with `labels` is ended already.
        """
        from precook.feed.hf import hf_dataset  # noqa: PLC0415 - it imports datasets

        return hf_dataset(self, encoder, eos=eos)

    def close(self) -> None:
        """Let go of what protects the entries, and of encoders that were loaded on the way."""
        self._closed = True
        self._lease.close()
        if self._maker is not None:
            self._maker.close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Feed of {self.content.dataset}: {self.content.count:,} samples>"

    def _fingerprint(self, epoch: int) -> str:
        """Tells feeds apart whose batches in an epoch differ; kept, because a loop may ask in every step."""
        known = self._fingerprints.get(epoch)
        if known is not None:
            return known
        made = self.schedule(epoch)
        parts = [made.members, made.ends, made.order, made.items.samples, made.items.cuts]
        if any(column.per != "cut" for column in self.content.columns):
            parts.append(made.items.lines)  # else they are known only where somebody has kept the captions
        if made.items.rows is not None:
            parts.append(made.items.rows)
        content = b"".join(np.ascontiguousarray(part, "<i8").tobytes() for part in parts) + self.content.ids.tobytes()
        known = self._fingerprints[epoch] = derived_digest(_CONTEXT, content).hex()
        return known

    @cached_property
    def _entries(self) -> dict[str, str]:
        """A digest of the keys of each encoder's entries, in the order of the samples."""
        return {column.name: derived_digest(_CONTEXT, column.keys.tobytes()).hex() for column in self.content.columns}

    @cached_property
    def _captions(self) -> str:
        """A digest of all captions and of how many each sample has; empty where they are not known."""
        if self.content.captions is None:
            return ""
        text, edges = self.content.captions
        return derived_digest(_CONTEXT, text + edges.tobytes() + self.content.lines.counts.tobytes()).hex()

    def _compare(self, state: Mapping[str, Any], epoch: int, batch: int) -> None:
        """Refuse a state that was taken inside an epoch with other entries or captions than are here now."""
        if batch > self.schedule(epoch).steps:
            raise FeedError(f"not the state of a feed: {batch} of {self.schedule(epoch).steps} batches")
        if "entries" not in state:
            _log.warning(
                "the state was taken by an older precook: whether captions, encoders or settings of %s were changed "
                "since cannot be seen",
                self.content.dataset,
            )
            return
        then, now = state["entries"], self._entries
        if not isinstance(then, Mapping):
            raise FeedError(f"not the state of a feed: its entries are {then!r}")
        others = [f"entries of {name}" for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
        captions = state.get("captions", "")
        # Only where both know them: a snapshot need not keep captions.
        if captions and self._captions and captions != self._captions:
            others.append("captions")
        if others:
            hint = 'undo the change, or begin the epoch again: load_state_dict({**state, "batch": 0})'
            what = f"of {self.content.dataset} with other {' and other '.join(others)}"
            raise FeedError(f"the state was taken inside epoch {epoch} {what}", hint=hint)

    def __reduce__(self) -> tuple[Any, ...]:
        # For a DataLoader's workers: a process of its own reads, and encodes nothing.
        options = self.options
        if options.on_missing == "encode":
            options = dataclasses.replace(options, on_missing="error")
        # Who has said the ranks goes along: a process that was started to be another one must not believe them.
        return partial(Feed, ranks=self.ranks), (self.store, self.content, options)


def _check_lengths(content: FeedContent, options: FeedOptions) -> None:
    """Refuse to pack, or to order by length, what has none."""
    if options.pack is None and not options.by_length:
        return
    if options.pack is not None:
        choose_column(content.columns, content.dataset)
    if content.has_pictures:
        message = f"{content.dataset}: pictures stand together by size, and only texts by length"
        raise FeedError(message, hint="leave out by_length")
    if options.on_missing == "encode":
        message = "how long texts are is known only when they are encoded"
        raise FeedError(message, hint="run `precook build` first, and feed without encoding")


def feed_snapshot(snapshot: Snapshot, **options: Any) -> Feed:
    """Batches of the samples of a snapshot."""
    chosen = FeedOptions(**options)
    if chosen.on_missing == "encode":
        hint = "feed the project instead: precook.load(...).feed(...)"
        raise FeedError("a snapshot has no sources to encode from", hint=hint)
    if snapshot.store is None:
        raise FeedError("this snapshot was read without its store", hint="use store.snapshot(...)")
    return Feed(snapshot.store, FeedContent(choose_samples(snapshot.content, validation=chosen.validation)), chosen)


def _has_samples(plan: Plan, *, validation: bool) -> bool:
    """Whether there would be samples to train on, or to validate with, if nothing were missing."""
    flags = np.array([concept.concept.validation for concept in plan.samples.by_concept], bool)
    return bool((flags[plan.samples.concepts[plan.complete_samples(missing=True)]] == validation).any())


def feed_plan(plan: Plan, options: FeedOptions, *, specs: Mapping[str, EncoderSpec], captions: bool) -> Feed:
    """Batches of the samples of a plan; what failed before is left out."""
    lacking = ""
    if len(plan.missing):
        counts = {name: len(one.missing) for name, one in plan.encoders.items() if len(one.missing)}
        parts = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
        lacking = f"{format_count(sum(counts.values()), 'entry')} missing: {parts}"
        if options.on_missing == "error":
            raise FeedError(f"{plan.settings.dataset}: {lacking}", hint=HINT)
        if options.on_missing == "skip":
            _log.warning("%s: %s; their samples are left out", plan.settings.dataset, lacking)
    for difference in plan.version_differences:
        _log.warning("%s: %s", plan.settings.dataset, printable(difference))
    encode = options.on_missing == "encode"
    # Of texts alone, a batch would hold all that is in the sources once more.
    captions = captions and bool(plan.samples.pictured.any())
    _, content = snapshot_content(plan, plan.special_tokens(), missing=encode, captions=captions)
    chosen = FeedContent(choose_samples(content, validation=options.validation))
    if lacking and not chosen.count and _has_samples(plan, validation=options.validation):
        hint = 'run `precook build`, or feed with on_missing="encode"'
        raise FeedError(f"{plan.settings.dataset}: {lacking}, and no sample is left without them", hint=hint)
    return Feed(plan.store, chosen, options, maker=Live(plan, specs) if encode else None)
