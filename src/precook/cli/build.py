"""`precook build`: what a build can be asked."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from precook.cli.options import ConfigOption, EncoderOption, StoreOption, size_option

BESIDE = "--beside"
"""The option that makes a process one of several; not for people."""


@dataclass(frozen=True, slots=True)
class BuildArguments:
    """What was asked for on the command line."""

    config: Path | None
    store: Path | None
    encoders: tuple[str, ...]
    devices: tuple[str, ...]
    memory: int | None
    threads: int | None
    retry_failed: bool
    fail_fast: bool
    crowded: bool
    processes: int = 1

    @property
    def command(self) -> str:
        """The command that asks for the same."""
        return shlex.join(["precook", *self.arguments])

    @property
    def arguments(self) -> list[str]:
        """What the command line takes to ask for the same."""
        named: list[tuple[str, object]] = [("config", self.config), ("store", self.store)]
        named += [("encoder", name) for name in self.encoders] + [("device", name) for name in self.devices]
        named += [("memory", None if self.memory is None else f"{self.memory}B"), ("threads", self.threads)]
        named += [("processes", None if self.processes == 1 else self.processes)]
        words = ["build"]
        for option, value in named:
            words += [] if value is None else [f"--{option}", str(value)]
        for option in ("retry_failed", "fail_fast", "crowded"):
            words += [f"--{option.replace('_', '-')}"] if getattr(self, option) else []
        return words

    @property
    def options(self) -> dict[str, Any]:
        """For the build."""
        options: dict[str, Any] = {} if self.memory is None else {"memory": self.memory}
        names = ("devices", "threads", "retry_failed", "fail_fast", "crowded", "processes")
        return {**options, **{name: getattr(self, name) for name in names}}

    def shared(self, processes: int) -> BuildArguments:
        """What each of so many processes is asked, so that together they take no more than one would."""
        if processes == 1:
            return dataclasses.replace(self, processes=1)
        from precook.encode.build import default_threads
        from precook.project import MEMORY

        memory = max(1, (self.memory or MEMORY) // processes)
        threads = max(1, (self.threads or default_threads()) // processes)
        return dataclasses.replace(self, memory=memory, threads=threads, processes=processes)


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    encoder: EncoderOption = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", metavar="DEV", help="Where encoders run whose device is auto, such as cuda:0; may be repeated."
        ),
    ] = None,
    memory: Annotated[
        int | None, size_option("What pictures may take until they are encoded; without it, 1GiB.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads that read and decode.")] = None,
    processes: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Processes that share the work, and the cores; for encoders on the CPU."),
    ] = 1,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")] = False,
    crowded: Annotated[
        bool, typer.Option("--crowded", help="Start although the disk cannot hold the forecast.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document per line: what happens.")] = False,
    beside: Annotated[bool, typer.Option(BESIDE, hidden=True)] = False,
) -> int:
    """Encode what is missing.

    Ctrl-C or SIGTERM finishes the batch in flight and keeps all that is encoded; a second one stops at once. The next
    build goes on where the last one stopped.
    """
    from precook.cli.building import run, run_beside

    asked = BuildArguments(
        config=config,
        store=store,
        encoders=tuple(encoder or ()),
        devices=tuple(device or ()),
        memory=memory,
        threads=threads,
        retry_failed=retry_failed,
        fail_fast=fail_fast,
        crowded=crowded,
        processes=processes,
    )
    return run_beside(asked) if beside else run(asked, as_json=as_json)
