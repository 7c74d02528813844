"""The command line itself: its commands, what all of them share, and how an error becomes an exit code.

A command is the function `command` of the module of its name. That module is imported when the command is asked for,
and imports numpy, SQLite and the rest inside functions, when the work needs them: `--help` stays quick.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import keyword
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import precook
from precook.cli import output
from precook.errors import BROKEN_PIPE, FAILED, INTERRUPTED, ConfigError, DamagedPackError, PrecookError
from precook.interrupt import interruption

COMMANDS = (
    "init",
    "plan",
    "build",
    "explain",
    "status",
    "ls",
    "show",
    "verify",
    "snapshots",
    "export",
    "import",
    "push",
    "pull",
    "adopt",
    "doctor",
    "reindex",
    "gc",
    "evict",
    "prune",
    "clear",
    "compact",
    "leases",
    "demo",
)
"""Every command, in the order in which `--help` shows them."""
_REPORT_DAMAGE = frozenset({"status", "verify", "gc", "evict", "prune", "clear", "compact"})
"""Commands that report damaged packs themselves: warnings that the library logs about them are not shown as well."""

_VERBOSE = ("--verbose", "-v")

_EPILOG = """\b
Exit codes:
    0  done
    1  failed, or `doctor` found a problem
    2  wrong usage or config
    3  done, but some of it failed
    4  damage found
   10  no store there
   11  somebody else holds the lock, or there are none here
   12  made by a newer precook
   13  read-only, or a bucket refused
   14  no space left, or a bucket did not answer
  130  interrupted

Sizes need a unit: 64MiB or 64MB. Durations are written 90s, 15m, 36h, 14d or 2w.
Data goes to stdout, remarks to stderr.
"""


@dataclass(slots=True)
class _Shared:
    """What was said before the name of the command and holds for all of them."""

    verbose: bool = False


_shared = _Shared()


class _Commands(Mapping[str, Any]):
    """The commands by name, each made when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name)(_guarded(name))
        return typer.main.get_command(single)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _LazyCommands(TyperGroup):
    """A group that makes no command but the one that is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": _Commands()})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # People write it after the command as well, where its own options are.
        end = args.index("--") if "--" in args else len(args)
        verbose = [word for word in args[:end] if word in _VERBOSE]
        rest = [word for word in args[:end] if word not in _VERBOSE]
        parsed: list[str] = super().parse_args(ctx, [*verbose[:1], *rest, *args[end:]])
        return parsed

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # The list shows the first sentence of each. Making their options, too, would take longer than all else.
        commands = [TyperCommand(name, help=inspect.getdoc(_function(name))) for name in COMMANDS]
        TyperGroup(commands=commands).format_commands(ctx, formatter)


app = typer.Typer(
    name="precook",
    cls=_LazyCommands,
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


def _version(wanted: bool) -> None:  # noqa: FBT001 - called by typer
    if wanted:
        output.line(f"precook {precook.__version__}")
        raise typer.Exit


@app.callback()
def _precook(
    *,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option(*_VERBOSE, help="Show tracebacks: of an error, and of each sample that fails.")
    ] = False,
) -> None:
    """Encode once, train from the cache: plan and build what is to be encoded, look into a store and after it."""
    _shared.verbose = verbose


def _function(name: str) -> Callable[..., int | None]:
    """What a command does."""
    module = importlib.import_module(f"precook.cli.{name}{'_' * keyword.iskeyword(name)}")
    function: Callable[..., int | None] = module.command
    return function


def _guarded(name: str) -> Callable[..., None]:
    """What a command does, with its result as the exit code; errors of ours end it without a traceback."""
    function = _function(name)
    reported = (DamagedPackError,) if name in _REPORT_DAMAGE else ()

    @functools.wraps(function)
    def guarded(*args: Any, **options: Any) -> None:
        verbose = _shared.verbose
        warnings = output.Warnings(*reported, verbose=verbose)
        code = _run(functools.partial(function, *args, **options), warnings, verbose=verbose)
        if code:
            raise typer.Exit(code)

    return guarded


def _run(function: Callable[[], int | None], warnings: logging.Handler, *, verbose: bool) -> int:
    log = logging.getLogger("precook")
    level = log.level
    log.addHandler(warnings)
    if verbose:
        log.setLevel(warnings.level)
    output.prepare()
    try:
        with interruption():
            code = function()
        # Here, and not when Python ends: a pipe that is broken or a disk that is full has its own exit code.
        sys.stdout.flush()
    except PrecookError as error:
        if verbose:
            output.trace(error)
        if isinstance(error, ConfigError):
            output.problems(error)
        else:
            output.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        output.tell("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        _drop_output()
        output.error(PrecookError(f"{error.filename}: {error.strerror}" if error.filename else str(error)))
        return FAILED
    finally:
        # One process may run several commands, as tests do.
        log.removeHandler(warnings)
        log.setLevel(level)
    return code or 0


def _drop_output() -> None:
    """Discard what is still buffered: whoever read our output has stopped reading, or the disk under it is full."""
    try:
        sys.stdout.flush()
    except OSError:
        # Else Python flushes once more when it ends, and prints the error that it then gets.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
