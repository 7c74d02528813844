"""The loader: a feed where training loops take a torch DataLoader.

Loops and the libraries around them ask a DataLoader for more than batches. Whatever of that decides which batches a
process gets is answered here: epochs, resuming, and who shares batches out among ranks (we do, so nobody else shall).
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler, get_worker_info

from precook.errors import FeedError
from precook.feed.device import on_device
from precook.feed.epoch import check_lost
from precook.feed.feed import Feed
from precook.feed.fields import Fields
from precook.feed.position import Position, Reached
from precook.feed.sampler import check_epoch
from precook.feed.torch_data import FeedDataset, LoadedBatch, batch_indices, batch_size_of_one

if TYPE_CHECKING:
    from precook.feed.progress import LoaderProgress

_log = logging.getLogger("precook")

Batch = dict[str, Any]


class FeedLoader(DataLoader[Batch]):
    """Batches of a feed for one rank: each iteration is the next epoch, unless `set_epoch` says otherwise.

    The state is that of the feed: plain data, the same on every rank. What `accelerator.prepare` returns is the loader
    itself, with its batches on the accelerator's device.
    """

    use_stateful_dataloader = True
    """How accelerate is told that `save_state` and `load_state` shall keep the state."""

    def __init__(self, feed: Feed, *, device: str | torch.device | None, fields: Fields, num_workers: int) -> None:
        self._feed = feed
        self._fields = fields
        self._device = None if device is None else str(device)
        feed.check(self._device)
        if num_workers < 0:
            raise FeedError(f"num_workers is a number of processes, not {num_workers}", hint="0 reads in threads")
        self._workers = num_workers
        self.position = Position()
        """Of this loader: the feed's own is that of whoever has taken a batch last."""
        self._set: int | None = None
        """The epoch that was set last; None once a state was loaded."""
        self.loaded = False
        """Whether a state was loaded, and no batch was handed out since."""
        self.resumed_at_end = False
        """Whether the state that was loaded is that of the last batch of an epoch."""
        self.ended_elsewhere = False
        """Whether the state that was loaded is that of the last batch of another feed's epoch."""
        self._running: tuple[int, object] | None = None
        """The epoch of the iteration that the position follows: of the last one, until another epoch is set."""
        self._length: int | None = None
        """What was said of the length last, until an epoch of another one was told of."""
        self._accelerated = False
        """Whether accelerate has taken the loader, and is to be told of the loop."""
        if feed.position.resumed is not None:
            self.resume(*feed.position.resumed)
        if fields != Fields() and not feed.batches.missing:
            # At once, not with the first batch: a name that is not there ends no training that has begun.
            some = feed.batches.make(feed.schedule(0).items, np.zeros(1, np.int64))
            if some is not None:
                fields.choose(some)
        self._apart = LoaderDataset(self)
        # Without workers: whoever takes the loader apart reads through it, and it has the workers.
        super().__init__(self._apart, batch_sampler=LoaderSampler(self, self._apart))
        # The constructor takes no batch sampler beside these, and lets nobody set them later.
        self.__dict__["batch_size"] = feed.options.batch_size
        self.__dict__["sampler"] = RankSampler(self)

    @property
    def feed(self) -> Feed:
        """Where the batches come from."""
        return self._feed

    def __len__(self) -> int:
        """Batches of the epoch that is under way, or that comes next; of the whole of it, also after a resume."""
        epoch = self.coming()[0] if self._running is None else self._running[0]
        self._length = self._feed.schedule(epoch).steps
        return self._length

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of an epoch; the rest of it, where a state inside of it was loaded."""
        epoch = check_epoch(epoch)
        resumed = self.position.resumed
        if resumed is not None and epoch not in (resumed[0], self.coming()[0]):
            hint = (
                'let the loop begin at state["epoch"]; Lightning Fabric counts from 0 always: keep the loader out of '
                "setup_dataloaders, it needs none"
            )
            raise FeedError(
                f"set_epoch({epoch}), and the state that was loaded is one of epoch {resumed[0]}", hint=hint
            )
        self._set = epoch
        self.ended_elsewhere = False
        if self._running is not None and self._running[0] != epoch:
            self._running = None
        if resumed is None or resumed[0] != epoch:
            self._stand(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: after the last batch that it has handed out. Plain data, for a checkpoint."""
        return self._feed.state_at(*self.position.reached)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: the next iteration begins with the very next batch."""
        position = self._feed.read_state(state)
        self._feed.position.load(*position)
        self.resume(*position)
        self.resumed_at_end = bool(state.get("ended"))
        self.ended_elsewhere = self.resumed_at_end and state["ended"] != self.state_dict()["ended"]

    def resume(self, epoch: int, batch: int) -> None:
        """Go on after so many batches of an epoch."""
        self.position.load(epoch, batch)
        self._set = self._running = None
        self.loaded = True
        self.resumed_at_end = self.ended_elsewhere = False

    def coming(self) -> Reached:
        """The epoch of the next iteration, and how many of its batches are left out because they were taken before."""
        resumed = self.position.resumed
        if resumed is not None:
            epoch, batch = resumed
            # Nothing is left after its last batch, and nothing is what a loop gets that counts the epochs itself.
            over = batch >= self._feed.schedule(epoch).steps and self._set != epoch
            return (epoch + 1, 0) if over else (epoch, batch)
        epoch, batch = self.position.last
        return (epoch + 1, 0) if batch else (epoch, 0)

    @property
    def placed(self) -> bool:
        """Whether somebody has said which epoch it is, or has seen one."""
        return self._set is not None or self.position.resumed is not None or self.position.last != (0, 0)

    def offer(self, epoch: int, batch: int, indices: Sequence[int]) -> None:
        """A sampler of the loader names a batch, for somebody who takes the loader apart."""
        self.position.offer(epoch, batch, indices)
        self._feed.position.offer(epoch, batch, indices)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # Not before the first batch is asked for: Lightning sets the epoch after it has asked for the iterator.
        self._apart.close()
        if self._feed.loops and not self.placed:
            _log.warning(
                "a new loader of %s begins with epoch 0, which another one has shown: keep one loader for all epochs, "
                "or call set_epoch",
                self._feed.content.dataset,
            )
        yield from self.run(*self.coming())

    def run(self, epoch: int, start: int) -> Generator[Batch, None, None]:
        """The batches of an epoch from the `start`-th on."""
        steps = self._feed.schedule(epoch).steps
        if self._length not in (None, steps):
            _log.warning(
                "epoch %d of %s has %d batches, and the loop was told of %d: a trainer that asks only once (the HF "
                "Trainer, Lightning without reload_dataloaders_every_n_epochs=1) cuts off what is longer and resumes "
                "elsewhere; with `pick: each` and whole `repeats` all epochs are alike",
                epoch,
                self._feed.content.dataset,
                steps,
                self._length,
            )
            self._length = None
        made = self._by_workers(epoch, start) if self._workers else self._by_threads(epoch, start)
        # accelerate wants to be told of the last batch while it is trained on: only the one after it shows that.
        ahead: deque[tuple[Reached, Batch]] = deque()
        progress = self._progress()
        running = self._running = epoch, object()
        try:
            while (coming := next(made, None)) is not None:
                ahead.append(coming)
                del coming  # only the trainer decides how long a batch lives
                if progress is None or len(ahead) > 1:
                    yield self._hand_out(ahead, running)
            if progress is not None and ahead:
                progress.end_of_dataloader = True
                yield self._hand_out(ahead, running)
            if self._running is running:
                self.resumed_at_end = self.ended_elsewhere = False
                self._stand(epoch + 1, 0)
        finally:
            if self._running is running:
                self._running = None
            made.close()
            if progress is not None:
                progress.end()

    def _progress(self) -> LoaderProgress | None:
        if not self._accelerated:
            return None
        from precook.feed.progress import LoaderProgress  # noqa: PLC0415 - it imports accelerate

        progress = LoaderProgress()
        progress.begin()
        return progress

    def _hand_out(self, ahead: deque[tuple[Reached, Batch]], running: tuple[int, object]) -> Batch:
        position, batch = ahead.popleft()
        if self._running is running:
            self.loaded = False
            self._feed.loops.add(id(self))
            self._stand(*position)
        return self._fields.choose(batch)

    def _stand(self, epoch: int, batch: int) -> None:
        self.position.reach(epoch, batch)
        self._feed.position.reach(epoch, batch)

    def _by_threads(self, epoch: int, start: int) -> Generator[tuple[Reached, Batch], None, None]:
        made: Reached = (epoch, start)

        def note(number: int, batch: int) -> None:
            nonlocal made
            made = (number, batch)

        batches = iter(self._feed.begin(epoch, start=start, device=self._device, on_batch=note))
        while handed := [*islice(batches, 1)]:
            yield made, handed.pop()

    def _by_workers(self, epoch: int, start: int) -> Generator[tuple[Reached, Batch], None, None]:
        self._feed.check(self._device)
        indices = batch_indices(self._feed, epoch, start)
        loader = DataLoader(WorkerDataset(self._feed), batch_sampler=indices, num_workers=self._workers)
        read = (((epoch, batch), [dict(one)]) for batch, one in enumerate(loader, start + 1) if one)
        for position, handed in read if self._device is None else on_device(read, self._device):
            yield position, handed.pop()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True, so that `accelerator.prepare` hands the loader back as it is.

        Only accelerate asks, and it asks when it takes the loader: so this is where we learn of it.
        """
        self._learn_of_accelerate(inspect.currentframe())
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """Nothing to do: accelerate marks what it has prepared, as we say of ourselves."""

    def _learn_of_accelerate(self, frame: FrameType | None) -> None:
        """Do as the accelerator is configured whose `prepare_data_loader` asks; nobody hands it to us."""
        asking = None if frame is None or frame.f_back is None else frame.f_back.f_locals
        accelerate = sys.modules.get("accelerate")
        if asking is None or accelerate is None or not isinstance(asking.get("self"), accelerate.Accelerator):
            return
        accelerator = asking["self"]
        if accelerator.split_batches and max(accelerator.num_processes, self._feed.ranks.count) > 1:
            hint = "leave split_batches out, and feed with the batch_size of one process"
            raise FeedError("with split_batches accelerate would count the items of all ranks in a batch", hint=hint)
        parallelism = getattr(accelerator, "parallelism_config", None)
        if parallelism is not None and parallelism.non_data_parallel_size > 1 and not self._feed.ranks.given:
            hint = "give the feed rank= and world_size= of the processes that get batches of their own"
            raise FeedError("some processes share a model and need the same batches", hint=hint)
        self._accelerated = True
        placed = asking.get("device_placement")
        if placed is None:
            placed = accelerator.device_placement
        if placed and self._device is None and self._feed.options.tensors == "torch":
            self._device = str(accelerator.device)


class WorkerDataset(FeedDataset):
    """The items of a feed, for worker processes of a loader: nothing comes of a batch that cannot be had."""

    def __getitems__(self, indices: Sequence[int]) -> LoadedBatch:
        batch = self.make(indices)
        if batch is None:
            check_lost(self._feed.ranks.count)
        return LoadedBatch(batch or {})


class LoaderSampler(Sampler[list[int]]):
    """The batches of a loader's epoch, for those who take the loader apart, as accelerate's `skip_first_batches` does.

    From the first on, also where a state inside of the epoch was loaded: whoever skips batches counts them from there.
    """

    drop_last = False
    even_batches = True
    """What accelerate's `join_uneven_inputs` asks for and sets; our ranks are even whatever it says."""

    def __init__(self, loader: FeedLoader, dataset: LoaderDataset) -> None:
        self._loader = loader
        self._dataset = dataset

    @property
    def batch_size(self) -> int:
        """Items of a full batch; refused where others ask who would share batches out among ranks once more."""
        return batch_size_of_one(self._loader.feed)

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        self._loader.feed.check()
        epoch, start = self._loader.coming()
        self._dataset.placed = self._loader.placed
        self._dataset.due = start if self._loader.loaded else None
        for batch, indices in enumerate(batch_indices(self._loader.feed, epoch, 0), 1):
            self._loader.offer(epoch, batch, indices)
            yield indices
        self._dataset.end()


class LoaderDataset(FeedDataset):
    """The items of a loader's feed; whoever asks for the batches of its sampler gets what the loader would give."""

    def __init__(self, loader: FeedLoader) -> None:
        super().__init__(loader.feed)
        self._loader: FeedLoader | None = loader
        self.placed = True
        """Whether the epoch that is taken apart is known, or only the first."""
        self.due: int | None = None
        """How many batches of it the state that was loaded leaves out, until one is asked for."""
        self._running: tuple[Reached, Generator[Batch, None, None]] | None = None
        """The position after which batches can be had without beginning anew, and where they come from."""

    def __getitems__(self, indices: Sequence[int]) -> LoadedBatch:
        offered = None if self._loader is None or get_worker_info() is not None else self._loader.position.offered
        if self._loader is None or offered is None or offered[2] != indices:
            return super().__getitems__(indices)
        epoch, batch, _ = offered
        if self._running is None or self._running[0] != (epoch, batch - 1):
            self.close()
            if self.due not in (None, batch - 1):
                hint = (
                    "resume with the ranks, batch size and samples of then: a loop that counts steps, as the HF "
                    "Trainer does, skips others now"
                )
                reason = f"{batch - 1} batches of epoch {epoch} were skipped, and by the state that was loaded"
                raise FeedError(f"{reason} {self.due}", hint=hint)
            self.due = None
            if batch > 1 and not self.placed:
                _log.warning(
                    "the first %d of the batches of epoch 0 of %s were skipped; if the loop was in a later epoch, let "
                    "the loader know: load its state, or call set_epoch",
                    batch - 1,
                    self._loader.feed.content.dataset,
                )
            self._running = (epoch, batch - 1), self._loader.run(epoch, batch - 1)
        _, batches = self._running
        self._running = (epoch, batch), batches
        return LoadedBatch(next(batches))

    def end(self) -> None:
        """The last batch of an epoch was taken: what runs comes to its end."""
        if self._running is not None:
            for _ in self._running[1]:
                pass
            self._running = None

    def close(self) -> None:
        """Let go of what runs."""
        if self._running is not None:
            self._running[1].close()
            self._running = None

    def __getstate__(self) -> dict[str, Any]:
        # For worker processes, which read and know nothing of the loop.
        return {**self.__dict__, "_loader": None, "_running": None}


class RankSampler(DistributedSampler[int]):
    """The items of one rank: how Lightning and Fabric see that the loader is shared out, and tell it its epoch."""

    def __init__(self, loader: FeedLoader) -> None:
        ranks = loader.feed.ranks
        super().__init__(loader.dataset, num_replicas=ranks.count, rank=ranks.rank, shuffle=False)
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        if self._loader.ended_elsewhere:
            # Lightning has counted the batches of the epoch that ended, and leaves out as many of the next one.
            hint = (
                "resume with the ranks, batch size and samples of then, or from a checkpoint that was saved after the "
                "epoch, as ModelCheckpoint(every_n_epochs=1) does; in a loop of your own, call loader.set_epoch"
            )
            message = f"the state was taken with the last batch of epoch {self._loader.coming()[0] - 1} of another feed"
            raise FeedError(message, hint=hint)
        before, batch = self._loader.position.reached
        if self._loader.resumed_at_end and epoch == before + 1 and 0 < batch < self._loader.feed.schedule(before).steps:
            # With `max_steps`, Lightning takes a checkpoint that was saved after an epoch for one inside of it.
            hint = "resume from a checkpoint that was saved after an epoch without max_steps"
            message = (
                f"epoch {before} was left after {batch} of {len(self._loader)} batches, the first since the resume"
            )
            raise FeedError(message, hint=hint)
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        for indices in batch_indices(self._loader.feed, self._loader.coming()[0], 0):
            yield from indices

    def __len__(self) -> int:
        return sum(map(len, batch_indices(self._loader.feed, self._loader.coming()[0], 0)))
