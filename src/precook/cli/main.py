"""The commands and their options; what they do is imported when it is asked for, so that `--help` stays quick."""

# ruff: noqa: PLC0415 - each command imports its own module, and nothing of the others

from __future__ import annotations

import functools
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

import precook
from precook.cli import output
from precook.cli.choice import Choice, Sort
from precook.cli.projects import place_of_store
from precook.errors import ConfigError, DamagedPackError, PrecookError
from precook.units import parse_duration, parse_size

_INTERRUPTED = 130
_BROKEN_PIPE = 141

_EPILOG = """\b
Exit codes:
    0  done
    1  failed, or `doctor` found a problem
    2  wrong usage or config
    3  done, but some samples failed
    4  damage found
   10  no store there
   11  somebody else holds the lock
   12  made by a newer precook
   13  read-only
   14  no space left
  130  interrupted

Sizes need a unit: 64MiB or 64MB. Durations are written 90s, 15m, 36h, 14d or 2w.
Data goes to stdout, remarks to stderr.
"""

app = typer.Typer(
    name="precook",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The console script."""
    app(prog_name="precook")


def _command(name: str, *told: type[Exception]) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Make a function a command: its result is the exit code, and errors of ours end it without a traceback.

    Errors that the command itself reports, `told`, are not shown as warnings too.
    """

    def register(function: Callable[..., int | None]) -> Callable[..., None]:
        @functools.wraps(function)
        def guarded(*args: Any, **options: Any) -> None:
            code = _run(functools.partial(function, *args, **options), output.Warnings(*told))
            if code:
                raise typer.Exit(code)

        app.command(name)(guarded)
        return guarded

    return register


def _run(function: Callable[[], int | None], warnings: logging.Handler) -> int:
    log = logging.getLogger("precook")
    log.addHandler(warnings)
    output.prepare()
    try:
        code = function()
        sys.stdout.flush()
    except ConfigError as error:
        output.problems(error)
        return error.exit_code
    except PrecookError as error:
        output.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        output.tell("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        _drop_output()
        output.error(PrecookError(f"{error.filename}: {error.strerror}" if error.filename else str(error)))
        return 1
    finally:
        log.removeHandler(warnings)
    return code or 0


def _drop_output() -> None:
    """Send what is still buffered nowhere: whoever read our output has had enough, or the disk under it is full."""
    try:
        sys.stdout.flush()
    except OSError:
        # Else Python tries once more when it ends, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_Value = TypeVar("_Value")


def _option(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """A parser whose complaints are usage errors."""

    def parsed(text: str) -> _Value:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


_size = _option(parse_size)
_duration = _option(parse_duration)


def _subset(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        message = f"{text[:40]!a} is not a part of the whole: write k/n with k from 1 to n, such as 1/7"
        raise typer.BadParameter(message)
    return int(match[1]), int(match[2])


def _key(text: str) -> str:
    if re.fullmatch(r"[0-9a-f]{4,64}", text.lower()) is None:
        message = f"{text[:80]!a} is not a key: write its 64 hexadecimal digits, or at least the first 4"
        raise typer.BadParameter(message)
    return text.lower()


def _version(wanted: bool) -> None:  # noqa: FBT001 - called by typer
    if wanted:
        output.line(f"precook {precook.__version__}")
        raise typer.Exit


StoreOption = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="The store; without it, the config's, or the one here or in ./cache."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The config file; without it, precook.yaml here.")
]
NoWriteOption = Annotated[
    bool, typer.Option("--no-write", help="Write nothing at all, not even what was learnt about the sources.")
]
EncoderOption = Annotated[
    list[str] | None, typer.Option("--encoder", metavar="NAME", help="Only this encoder; may be given again.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
VersionOption = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def precook_command(*, version: VersionOption = False) -> None:
    """Encode once, train from the cache: plan and build what is to be encoded, look into a store and after it."""


@_command("init")
def init_command(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Where the pictures lie.", show_default=False)
    ] = None,
    *,
    target: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the config.")] = Path(
        "precook.yaml"
    ),
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="The dataset's name; without it, the folder's.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the store shall be; without it, cache beside the config.")
    ] = None,
    vae: Annotated[Path | None, typer.Option(metavar="DIR", help="Model folder of a VAE of diffusers.")] = None,
    text: Annotated[Path | None, typer.Option(metavar="DIR", help="Model folder of a text encoder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a config that is there.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the config, for editors.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at a folder of pictures and write a commented config for it."""
    from precook.cli import init

    if schema:
        init.print_schema()
    elif folder is None:
        raise typer.BadParameter("name the folder of pictures", param_hint="FOLDER")
    else:
        init.run(folder, target, dataset=dataset, store=store, vae=vae, text=text, force=force, as_json=as_json)


@_command("plan")
def plan_command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    encoder: EncoderOption = None,
    no_write: NoWriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a build would do, and why; nothing is encoded."""
    from precook.cli import plan

    plan.run(config, store, encoders=encoder or [], write=not no_write, as_json=as_json)


@_command("build")
def build_command(
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
        int | None,
        typer.Option(
            parser=_size, metavar="SIZE", help="What pictures may take until they are encoded; without it, 1GiB."
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="Threads that read and decode.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")] = False,
    crowded: Annotated[
        bool, typer.Option("--crowded", help="Start although the disk cannot hold the forecast.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document per line: what happens.")] = False,
) -> int:
    """Encode what is missing.

    Ctrl-C or SIGTERM finishes the batch in flight and keeps all that is encoded; a second one stops at once. The next
    build goes on where the last one stopped.
    """
    from precook.cli import build

    asked = build.Asked(
        config=config,
        store=store,
        encoders=tuple(encoder or ()),
        devices=tuple(device or ()),
        memory=memory,
        threads=threads,
        retry_failed=retry_failed,
        fail_fast=fail_fast,
        crowded=crowded,
    )
    return build.run(asked, as_json=as_json)


@_command("explain")
def explain_command(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A picture, caption or mask.")],
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    no_write: NoWriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explain why the entries of a file are there or missing.

    A missing one is compared with the stored entry that differs least.
    """
    from precook.cli import explain

    explain.run(config, store, path, write=not no_write, as_json=as_json)


@_command("status", DamagedPackError)
def status_command(*, config: ConfigOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show what a store holds and how the dataset stands.

    With a config the dataset is planned, too, and nothing is written; with --store alone only the store is shown.
    """
    from precook.cli import status

    status.run(config, store, as_json=as_json)


@_command("ls")
def ls_command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RECIPE", help="Only what this recipe made: its kind, or the first digits of its digest."),
    ] = None,
    min_size: Annotated[
        int | None, typer.Option(parser=_size, metavar="SIZE", help="Only entries of this size or more, such as 1MiB.")
    ] = None,
    max_size: Annotated[
        int | None, typer.Option(parser=_size, metavar="SIZE", help="Only entries of this size or less.")
    ] = None,
    older_than: Annotated[
        float | None, typer.Option(parser=_duration, metavar="TIME", help="Only entries written before, such as 7d.")
    ] = None,
    newer_than: Annotated[
        float | None, typer.Option(parser=_duration, metavar="TIME", help="Only entries written since, such as 1h.")
    ] = None,
    sort: Annotated[Sort, typer.Option(help="By key, by size (largest first) or by age (newest first).")] = Sort.KEY,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="At most so many, the first ones.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only keys, whole and one per line.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the entries of a store."""
    from precook.cli import ls

    choice = Choice(recipe, min_size, max_size, older_than, newer_than, sort, limit)
    ls.run(place_of_store(config, store), choice, quiet=quiet, as_json=as_json)


@_command("show")
def show_command(
    key: Annotated[
        str, typer.Argument(parser=_key, metavar="KEY", help="The entry's key, or at least its first 4 digits.")
    ],
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show one entry: its tree and numbers, its recipe, its place."""
    from precook.cli import show

    return show.run(place_of_store(config, store), key, as_json=as_json)


@_command("verify", DamagedPackError)
def verify_command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    subset: Annotated[
        Any, typer.Option(parser=_subset, metavar="K/N", help="Check only the K-th of N parts, such as 1/7.")
    ] = "1/1",
    max_time: Annotated[
        float | None,
        typer.Option(parser=_duration, metavar="TIME", help="Stop after so long, such as 10m."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check every byte of every pack; changes nothing."""
    from precook.cli import verify

    return verify.run(place_of_store(config, store), subset=subset, max_seconds=max_time, as_json=as_json)


@_command("doctor")
def doctor_command(*, config: ConfigOption = None, store: StoreOption = None, as_json: JsonOption = False) -> int:
    """Examine the disk, the libraries and the store's directory."""
    from precook.cli import doctor

    return doctor.run(place_of_store(config, store), as_json=as_json)


@_command("reindex")
def reindex_command(*, config: ConfigOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Make the index anew from the packs."""
    from precook.cli import reindex

    reindex.run(place_of_store(config, store), as_json=as_json)


@_command("demo")
def demo_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.", show_default="precook-demo")
    ] = Path("precook-demo"),
    *,
    as_json: JsonOption = False,
) -> None:
    """Show the main job on pictures and small models made on the spot.

    Every step shows the commands and what they print. Needs diffusers and transformers.
    """
    from precook.cli import demo

    demo.run(folder, as_json=as_json)
