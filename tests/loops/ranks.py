"""Training loops in real processes, one for each rank: what each of them saw, also of loops that are killed.

A loop is a function that gets a `Job` and trains; it tells the job every batch that it trains on, and saves and loads
its checkpoints below `job.folder`. `train` runs it in as many processes as there are ranks, with the environment that
`torchrun` gives them, and `expected` says what it has to see.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import precook

EPOCHS = 3
LIBRARIES = [
    "precook.feed.loader",
    "precook.project",
    "torch.distributed",
    "accelerate",
    "bench.loops",
    "pytorch_lightning",
    "torchdata.stateful_dataloader",
    "transformers.trainer",
    "trl.trainer.sft_trainer",
]
"""What processes find imported when they begin: each would take seconds for it."""
SECONDS = 180
"""After which a loop hangs: each rank then says where, and ends."""

Seen = list[Any]
"""One batch as a rank saw it: the epoch of its loop, the samples' ids and a digest of everything in the batch."""


@dataclass(frozen=True)
class Kill:
    """A rank ends itself with SIGKILL when it has seen so many batches, before it trains on the last of them."""

    rank: int
    batches: int


@dataclass(frozen=True)
class Job:
    """What one rank is to do; all that a loop knows of its test."""

    store: Path
    folder: Path
    """For checkpoints, and for what was seen."""
    rank: int = 0
    ranks: int = 1
    epochs: int = EPOCHS
    batch_size: int = 2
    kill: Kill | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Of the loop: how its library is set up."""

    def feed(self, **options: Any) -> precook.Feed:
        """The feed of this rank, which is not told which one it is."""
        return precook.open(self.store).snapshot("test").feed(**{"batch_size": self.batch_size, "seed": 3, **options})

    def saw(self, epoch: int, batch: Any, **more: Any) -> None:
        """Note a batch that the loop is about to train on; the rank that is to be killed ends here."""
        line = {"epoch": epoch, "seen": seen(epoch, batch), **more}
        self._note(line)
        if self.kill and (self.rank, len(self.lines())) == (self.kill.rank, self.kill.batches):
            os.kill(os.getpid(), signal.SIGKILL)

    def resumed(self, batches: int) -> None:
        """Note that the loop goes on after so many batches."""
        self._note({"resumed": batches})

    def lines(self) -> list[dict[str, Any]]:
        """What this rank has noted about batches."""
        return [line for line in read_lines(self._path) if "seen" in line]

    @property
    def _path(self) -> Path:
        return self.folder / f"seen-{self.rank}.jsonl"

    def _note(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class Ended:
    """What the ranks of a loop left behind."""

    lines: list[list[dict[str, Any]]]
    """What each rank noted about its batches."""
    resumed: int
    """After how many batches the loop went on."""
    output: str
    """What all ranks printed."""

    @property
    def seen(self) -> list[list[Seen]]:
        """The batches of each rank."""
        return [[line["seen"] for line in lines] for lines in self.lines]


def train(loop: Callable[[Job], None], job: Job, *, fails: bool = False) -> Ended:
    """Run a loop in one process for each rank, to its end or until one of them is killed."""
    from torch.distributed import TCPStore  # noqa: PLC0415 - tests of other things do without torch

    job.folder.mkdir(parents=True, exist_ok=True)
    for path in job.folder.glob("seen-*"):
        path.unlink()
    # The ranks meet at a store of ours, as those of `torchrun` do at its agent's: no port is chosen before it is taken.
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    processes = []
    for rank in range(job.ranks):
        one = replace(job, rank=rank)
        processes.append(context.Process(target=_run, args=(loop, one, _environment(rank, job.ranks, meeting.port))))
        processes[-1].start()
    try:
        _wait_for(processes)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    output = "".join(f"--- rank {rank}\n{_output(job.folder, rank).read_text()}" for rank in range(job.ranks))
    codes = [process.exitcode for process in processes]
    if job.kill:
        assert codes[job.kill.rank] == -signal.SIGKILL, output
    else:
        assert any(codes) == fails, output
    noted = [read_lines(job.folder / f"seen-{rank}.jsonl") for rank in range(job.ranks)]
    (resumed,) = {line["resumed"] for lines in noted for line in lines if "resumed" in line} or {0}
    return Ended([[line for line in lines if "seen" in line] for lines in noted], resumed, output)


def expected(job: Job) -> list[list[Seen]]:
    """What each rank has to see in all epochs, as `feed.epoch` says."""
    each = []
    for rank in range(job.ranks):
        with job.feed(rank=rank, world_size=job.ranks) as feed:
            each.append([seen(epoch, batch) for epoch in range(job.epochs) for batch in feed.epoch(epoch)])
        feed.store.close()
    return each


def seen(epoch: int, batch: Any) -> Seen:
    """A batch, as short as it can be compared."""
    digest = hashlib.sha256()
    _digest(batch, digest.update)
    return [epoch, list(batch["sample"]), digest.hexdigest()]


def _digest(part: Any, update: Callable[[bytes], object]) -> None:
    """Everything in a part of a batch: names, types, shapes and bytes."""
    if isinstance(part, dict):
        for name, inner in part.items():
            update(f"{name}: ".encode())
            _digest(inner, update)
    elif isinstance(part, (list, tuple)):
        for inner in part:
            _digest(inner, update)
            update(b", ")
    elif hasattr(part, "dtype"):
        array = part.cpu().numpy()
        update(f"{part.dtype} {tuple(part.shape)} ".encode() + array.tobytes())
    else:
        update(repr(part).encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, if there is one; a last one that is not whole was being written when its rank was killed."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """As `torchrun` sets it, and what `accelerate launch --cpu` sets beside."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }


def _output(folder: Path, rank: int) -> Path:
    return folder / f"output-{rank}.txt"


def _run(loop: Callable[[Job], None], job: Job, environment: dict[str, str]) -> None:
    """One rank, in its own process."""
    import torch  # noqa: PLC0415 - tests of other things do without torch

    with _output(job.folder, job.rank).open("w", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    os.environ.update(environment if job.ranks > 1 else {"OMP_NUM_THREADS": "1"})
    # What a script of one's own begins with, on Linux; a process of a fork server would pass that on to its workers.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    torch.manual_seed(job.rank)
    loop(job)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _wait_for(processes: list[Any]) -> None:
    """Until all have ended, or one of them badly: the others would wait for it for ever."""
    running = list(processes)
    while running:
        ready = wait([process.sentinel for process in running])
        for process in [one for one in running if one.sentinel in ready]:
            process.join()
            running.remove(process)
            if process.exitcode:
                return
