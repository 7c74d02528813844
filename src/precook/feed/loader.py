"""The loader: a feed where training loops take a torch DataLoader.

Loops and the libraries around them ask a DataLoader for more than batches. Whatever of that decides which batches a
process gets is answered here: epochs, resuming, and who shares batches out among ranks (we do, so nobody else shall).
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler, get_worker_info

from precook.errors import FeedError
from precook.feed.device import on_device
from precook.feed.feed import Feed, check_epoch
from precook.feed.fields import Fields
from precook.feed.torch_data import FeedDataset, LoadedBatch, batch_indices

if TYPE_CHECKING:
    from precook.feed.progress import LoaderProgress

Batch = dict[str, Any]
Position = tuple[int, int]
"""An epoch, and how many batches of it were handed out."""


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
        self._position: Position = (0, 0)
        self._accelerated = False
        """Whether accelerate has taken the loader, and is to be told of the loop."""
        if fields != Fields() and not feed.batches.missing:
            # At once, not with the first batch: a name that is not there ends no training that has begun.
            some = feed.batches.make(feed.schedule(0).items, np.zeros(1, np.int64))
            if some is not None:
                fields.choose(some)
        self._apart = LoaderDataset(self)
        super().__init__(self._apart, batch_sampler=LoaderSampler(self, self._apart), num_workers=num_workers)
        # The constructor takes no batch sampler beside these, and lets nobody set them later.
        self.__dict__["batch_size"] = feed.options.batch_size
        self.__dict__["sampler"] = RankSampler(self)

    @property
    def feed(self) -> Feed:
        """Where the batches come from."""
        return self._feed

    def __len__(self) -> int:
        """Batches of the epoch that is under way, or that comes next; of the whole of it, also after a resume."""
        epoch = self.coming()[0] if self._feed.resumed is not None else self._position[0]
        return self._feed.schedule(epoch).steps

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of an epoch; the rest of it, where a state inside of it was loaded."""
        epoch = check_epoch(epoch)
        if self._feed.resumed is None or self._feed.resumed[0] != epoch:
            self._stand(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: after the last batch that it has handed out. Plain data, for a checkpoint."""
        return self._feed.state_at(*(self._feed.resumed or self._position))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: the next iteration begins with the very next batch."""
        self._feed.load_state_dict(state)

    def coming(self) -> Position:
        """The epoch of the next iteration, and how many of its batches are left out because they were taken before."""
        if self._feed.resumed is not None:
            epoch, batch = self._feed.resumed
            return (epoch, batch) if batch < self._feed.schedule(epoch).steps else (epoch + 1, 0)
        epoch, batch = self._position
        return (epoch + 1, 0) if batch else (epoch, 0)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        # Not before the first batch is asked for: Lightning sets the epoch after it has asked for the iterator.
        self._apart.close()
        yield from self.run(*self.coming())

    def run(self, epoch: int, start: int) -> Generator[Batch, None, None]:
        """The batches of an epoch from the `start`-th on."""
        made = self._by_workers(epoch, start) if self.num_workers else self._by_threads(epoch, start)
        # accelerate wants to be told of the last batch while it is trained on: only the one after it shows that.
        ahead: deque[tuple[Position, Batch]] = deque()
        progress = self._progress()
        try:
            while (coming := next(made, None)) is not None:
                ahead.append(coming)
                del coming  # only the trainer decides how long a batch lives
                if progress is None or len(ahead) > 1:
                    yield self._hand_out(ahead)
            if progress is not None and ahead:
                progress.end_of_dataloader = True
                yield self._hand_out(ahead)
            self._stand(epoch + 1, 0)
        finally:
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

    def _hand_out(self, ahead: deque[tuple[Position, Batch]]) -> Batch:
        position, batch = ahead.popleft()
        self._stand(*position)
        return self._fields.choose(batch)

    def _stand(self, epoch: int, batch: int) -> None:
        self._position = (epoch, batch)
        self._feed.handed_out(epoch, batch)

    def _by_threads(self, epoch: int, start: int) -> Generator[tuple[Position, Batch], None, None]:
        made: Position = (epoch, start)

        def note(number: int, batch: int) -> None:
            nonlocal made
            made = (number, batch)

        for batch in self._feed.begin(epoch, start=start, device=self._device, on_batch=note):
            yield made, batch

    def _by_workers(self, epoch: int, start: int) -> Generator[tuple[Position, Batch], None, None]:
        self._feed.check(self._device)
        indices = batch_indices(self._feed, epoch, start)
        loader = DataLoader(self._feed.dataset(), batch_sampler=indices, num_workers=self.num_workers)
        batches: Iterator[Batch] = (dict(batch) for batch in loader)
        if self._device is not None:
            batches = on_device(batches, self._device)
        for step, batch in enumerate(batches, start):
            yield (epoch, step + 1), batch

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
        if accelerator.split_batches:
            hint = "leave split_batches out, and feed with the batch_size of one process"
            raise FeedError("with split_batches accelerate would count the items of all ranks in a batch", hint=hint)
        self._accelerated = True
        placed = asking.get("device_placement")
        if self._device is None and (accelerator.device_placement if placed is None else placed):
            self._device = str(accelerator.device)


class LoaderSampler(Sampler[list[int]]):
    """The batches of a loader's epoch, for those who take the loader apart, as accelerate's `skip_first_batches` does.

    From the first on, also where a state inside of the epoch was loaded: whoever skips batches counts them from there.
    """

    drop_last = False
    even_batches = False
    """accelerate's `join_uneven_inputs` sets it; our ranks are even whatever it says."""

    def __init__(self, loader: FeedLoader, dataset: LoaderDataset) -> None:
        self._loader = loader
        self._dataset = dataset

    @property
    def batch_size(self) -> int:
        """Items of a batch of this rank."""
        return self._loader.feed.options.batch_size

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, _ = self._loader.coming()
        for step, indices in enumerate(batch_indices(self._loader.feed, epoch, 0)):
            self._dataset.expect((epoch, step), indices)
            yield indices
        self._dataset.end(epoch)


class LoaderDataset(FeedDataset):
    """The items of a loader's feed; whoever asks for the batches of its sampler gets what the loader would give."""

    def __init__(self, loader: FeedLoader) -> None:
        super().__init__(loader.feed)
        self._loader: FeedLoader | None = loader
        self._expected: tuple[Position, Sequence[int]] | None = None
        """What the sampler gave last: the epoch and the number of the batch, and its indices."""
        self._running: tuple[Position, Generator[Batch, None, None]] | None = None
        """The next batch that can be had without beginning anew, and where it comes from."""

    def expect(self, position: Position, indices: Sequence[int]) -> None:
        """Know which batch some indices are."""
        self._expected = position, indices

    def __getitems__(self, indices: Sequence[int]) -> LoadedBatch:
        if self._loader is None or get_worker_info() is not None or self._expected is None:
            return super().__getitems__(indices)
        (epoch, step), expected = self._expected
        if expected != indices:
            return super().__getitems__(indices)
        if self._running is None or self._running[0] != (epoch, step):
            self.close()
            self._running = (epoch, step), self._loader.run(epoch, step)
        _, batches = self._running
        self._running = (epoch, step + 1), batches
        return LoadedBatch(next(batches))

    def end(self, epoch: int) -> None:
        """The last batch of an epoch was taken, or skipped."""
        if self._running is not None:
            for _ in self._running[1]:
                pass
            self._running = None
        elif self._loader is not None:
            self._loader.set_epoch(epoch + 1)

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
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        for indices in batch_indices(self._loader.feed, self._loader.coming()[0], 0):
            yield from indices

    def __len__(self) -> int:
        return sum(map(len, batch_indices(self._loader.feed, self._loader.coming()[0], 0)))
