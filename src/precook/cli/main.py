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
from precook.cli.choice import Choice, Form, SnapshotAction, Sort
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


def _share(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text)
    if match is None or not 0 < float(match[1]) <= 100:  # noqa: PLR2004 - all of it
        raise typer.BadParameter(f"{text[:40]!a} is not a share: write 1% or 0.5%, up to 100%")
    return float(match[1]) / 100


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
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without it, only show what would be done.")]
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
    """Look at a folder of pictures and write a config for it."""
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
    beside: Annotated[bool, typer.Option("--beside", hidden=True)] = False,
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
        processes=processes,
    )
    return build.run_beside(asked) if beside else build.run(asked, as_json=as_json)


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
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only what the snapshots of this dataset name.")
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

    choice = Choice(recipe, dataset, min_size, max_size, older_than, newer_than, sort, limit)
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
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", parser=_key, metavar="KEY", help="Only this entry, by its first digits; may be repeated."
        ),
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", metavar="RECIPE", help="Only what this recipe made: its kind or first digits."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="NAME", help="Only what this dataset's snapshots name.")
    ] = None,
    max_time: Annotated[
        float | None,
        typer.Option(parser=_duration, metavar="TIME", help="Stop after so long, such as 10m; the next run goes on."),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop what is damaged, so that the next build makes it again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair; without it, only show what would be dropped.")] = False,
    sources: Annotated[
        bool, typer.Option("--sources", help="Instead, read every source of the config again and compare.")
    ] = False,
    recompute: Annotated[
        float | None,
        typer.Option(parser=_share, metavar="SHARE", help="Instead, encode so much again and compare, such as 1%."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Which entries --recompute takes.")] = 0,
    as_json: JsonOption = False,
) -> int:
    """Check every byte of every pack and snapshot.

    Nothing is changed without --repair and --yes. The exit code tells that damage was found, repaired or not.
    """
    from precook.cli import recheck, verify

    if sources and recompute is not None:
        raise typer.BadParameter("takes a run of its own", param_hint="--recompute")
    if sources:
        return recheck.run_sources(config, store, as_json=as_json)
    if recompute is not None:
        recheck.run_recompute(config, store, recompute, seed=seed, as_json=as_json)
        return 0
    place = place_of_store(config, store)
    asked = verify.Asked(
        subset=subset,
        keys=tuple(key or ()),
        recipes=tuple(recipe or ()),
        dataset=dataset,
        max_seconds=max_time,
        repair=repair,
        yes=yes,
    )
    return verify.run(place, asked, as_json=as_json)


@_command("snapshots")
def snapshots_command(
    action: Annotated[
        SnapshotAction, typer.Argument(metavar="ACTION", help="list, pin, unpin or rm.", show_default="list")
    ] = SnapshotAction.LIST,
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="The dataset's name.", show_default=False)
    ] = None,
    snapshot: Annotated[
        str | None, typer.Argument(metavar="ID", help="Its number, or the first digits of its id.", show_default=False)
    ] = None,
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only show what would be removed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List snapshots, pin or unpin one, or remove one.

    `precook gc` keeps what the latest snapshot of each dataset names, and what pinned ones name.
    """
    from precook.cli import snapshots

    place = place_of_store(config, store)
    if action is SnapshotAction.LIST:
        snapshots.run_list(place, dataset, as_json=as_json)
    elif dataset is None or snapshot is None:
        raise typer.BadParameter("name the dataset and the snapshot", param_hint="DATASET ID")
    else:
        snapshots.run(place, action, dataset, snapshot, yes=yes, as_json=as_json)


@_command("export")
def export_command(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset's name.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The archive; with --as safetensors, a folder.")],
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="ID", help="An older snapshot: its number, or the first digits of its id."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="WHAT", help="Also captions or paths, if the snapshot has them; repeatable."),
    ] = None,
    form: Annotated[
        Form, typer.Option("--as", help="An archive for `precook import`, or plain safetensors files for anyone.")
    ] = Form.BUNDLE,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a dataset to an archive, with all that it needs.

    Neither paths nor captions leave unless you ask for them. An export that was interrupted goes on where it stopped.
    """
    from precook.cli import export

    place = place_of_store(config, store)
    if form is Form.SAFETENSORS:
        if keep:
            raise typer.BadParameter("safetensors files hold neither captions nor paths", param_hint="--with")
        export.run_shards(place, dataset, target, snapshot=snapshot, force=force, as_json=as_json)
    else:
        export.run(place, dataset, target, snapshot=snapshot, keep=keep or [], force=force, as_json=as_json)


@_command("import")
def import_command(
    archive: Annotated[str, typer.Argument(metavar="FILE", help="The archive; - reads it from stdin.")],
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    dataset: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Another name for the dataset.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a dataset from an archive into the store.

    Every byte is checked before anything of it is used, and entries that the store has are not written again. An import
    that was interrupted goes on where it stopped.
    """
    from precook.cli import import_

    import_.run(place_of_store(config, store), archive, dataset=dataset, as_json=as_json)


@_command("adopt")
def adopt_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of pictures with their old caches.")],
    *,
    dataset: Annotated[str, typer.Option(metavar="NAME", help="The dataset they become.")] = "adopted",
    caches: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the caches lie, if not beside the pictures.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="TOOL", help="Only this tool's, or TOOL/ARCHITECTURE, where there are several."),
    ] = None,
    ignore_times: Annotated[
        bool, typer.Option("--ignore-times", help="Also caches that look older than their picture or caption.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Store them; without it, only show what would be adopted.")
    ] = False,
    config: ConfigOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Take over what another tool has cached of your pictures.

    The tools are sd-scripts, musubi-tuner and ai-toolkit.

    The entries are marked: adopted, encoder not verified. No file of the folder is changed.
    """
    from precook.cli import adopt

    asked = adopt.Asked(
        folder=folder,
        config=config,
        store=store,
        dataset=dataset,
        caches=caches,
        only=only,
        ignore_times=ignore_times,
        yes=yes,
    )
    return adopt.run(asked, as_json=as_json)


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


@_command("gc", DamagedPackError)
def gc_command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    grace: Annotated[
        Any, typer.Option(parser=_duration, metavar="TIME", help="Keep what was written or used since, such as 24h.")
    ] = "24h",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove entries that no snapshot and no lease needs.

    It is a preview until --yes.
    """
    from precook.cli import removal

    absent = removal.absent_sources(config) if store is None or config is not None else []
    removal.run_gc(place_of_store(config, store), absent, grace=grace, yes=yes, as_json=as_json)


@_command("evict", DamagedPackError)
def evict_command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    max_size: Annotated[
        Any, typer.Option(parser=_size, metavar="SIZE", help="What all packs may take, such as 200GB.")
    ],
    grace: Annotated[
        Any, typer.Option(parser=_duration, metavar="TIME", help="Keep what was written or used since, such as 1h.")
    ] = "0s",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Remove the least recently used entries down to a size.

    It is a preview until --yes.
    """
    from precook.cli import removal

    return removal.run_evict(place_of_store(config, store), max_size=max_size, grace=grace, yes=yes, as_json=as_json)


@_command("prune", DamagedPackError)
def prune_command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    older_than: Annotated[
        Any, typer.Option(parser=_duration, metavar="TIME", help="Remove what was not used for so long, such as 30d.")
    ],
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what nobody has used for a while; a preview until --yes."""
    from precook.cli import removal

    removal.run_prune(place_of_store(config, store), older_than=older_than, yes=yes, as_json=as_json)


@_command("clear", DamagedPackError)
def clear_command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RECIPE", help="What this recipe made: its kind, or the first digits of its digest."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="A dataset's snapshots, and what no other dataset needs.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what a recipe made, a dataset, or everything.

    However young it is. It is a preview until --yes.
    """
    if [recipe is not None, dataset is not None, everything].count(True) != 1:
        raise typer.BadParameter("say one of --recipe, --dataset and --all")
    from precook.cli import removal

    place = place_of_store(config, store)
    removal.run_clear(place, recipe=recipe, dataset=dataset, everything=everything, yes=yes, as_json=as_json)


@_command("compact", DamagedPackError)
def compact_command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rewrite packs with much dead space and merge small ones.

    No entry is lost. It is a preview until --yes.
    """
    from precook.cli import compact

    compact.run(place_of_store(config, store), yes=yes, as_json=as_json)


@_command("leases")
def leases_command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    breaking: Annotated[
        str | None,
        typer.Option("--break", metavar="ID", help="Take this lease from its holder, by its first digits."),
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show who uses the store right now, and what it keeps for them."""
    from precook.cli import leases

    leases.run(place_of_store(config, store), breaking=breaking, yes=yes, as_json=as_json)


@_command("demo")
def demo_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.", show_default="precook-demo")
    ] = Path("precook-demo"),
    *,
    as_json: JsonOption = False,
) -> None:
    """Show the main job on pictures and models made on the spot.

    Every step shows the commands and what they print. Needs diffusers and transformers.
    """
    from precook.cli import demo

    demo.run(folder, as_json=as_json)
