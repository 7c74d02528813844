"""Printing: the only module that prints, but for the progress bars on stderr.

stdout is data, stderr is for people. Every text passes through `printable` here, whoever made it, and rich is never
asked to read markup: a name in a store can neither steer the terminal nor forge a line. Off a terminal there are no
colours, no bars and no line breaks of ours. rich is imported only where something is drawn with it.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import textwrap
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from precook.errors import ConfigError, PrecookError, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

VERSION = 1
"""Version of every JSON document; fields may be added to it, never changed."""

_NO_LIMIT = 100_000
"""Columns to lay text out in where no terminal sets a limit."""
_BAR_WIDTH = 12
_INDENT = "  "
_LEAST_WIDTH = 20
"""Columns that text takes even where the terminal has less."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line in one style."""

    text: str
    style: str = ""


Line = str | Span | Sequence[str | Span]
"""What stands in a line or a cell."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """How a column of a table is laid out; one that may wrap gives way to those that may not."""

    heading: str = ""
    right: bool = False
    wrap: bool = False


def prepare() -> None:
    """Make stdout and stderr take any text: what their encoding lacks is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def on_terminal() -> bool:
    """Whether a person is looking at stdout."""
    return sys.stdout.isatty()


def width() -> int:
    """Columns a line on stdout may take."""
    return console(sys.stdout).width if on_terminal() else _NO_LIMIT


def line(content: Line = "", *, whole: bool = False) -> None:
    """One line of data; on a terminal it is broken between words, or left `whole` so that it can be copied."""
    _emit(sys.stdout, content, whole=whole)


def lines(contents: Iterable[str]) -> None:
    """Many lines of data in one style: as fast as they can be made."""
    for content in contents:
        # Asking is much cheaper than escaping character by character, and `ls` may print very many lines.
        sys.stdout.write(f"{content if content.isprintable() else printable(content)}\n")


def text(content: str) -> None:
    """Lines of data that are laid out already; on a terminal, long ones are broken between words and go on indented."""
    for row in content.splitlines():
        for part in _wrap(row) if on_terminal() else [row]:
            line(part, whole=True)


def table(columns: Sequence[TableColumn], rows: Iterable[Sequence[Line]]) -> None:
    """A table of data, with headings if the columns have any."""
    from rich.table import Table

    headed = any(column.heading for column in columns)
    layout = Table(box=None, show_header=headed, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        layout.add_column(
            _text(column.heading),
            justify="right" if column.right else "left",
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
        )
    for row in rows:
        layout.add_row(*(_text(cell) for cell in row))
    _draw(sys.stdout, layout)


def facts(pairs: Iterable[tuple[str, Line]]) -> None:
    """Names and what there is to say about them."""
    table([TableColumn(), TableColumn(wrap=True)], [(Span(name, "bold"), content) for name, content in pairs])


def share(part: int, whole: int) -> str:
    """A bar as long as `part` is of `whole`: nothing off a terminal, where a number says it better."""
    if not on_terminal() or whole <= 0:
        return ""
    eighths = max(round(8 * _BAR_WIDTH * part / whole), 1 if part else 0)
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8]).strip()


def document(content: dict[str, Any]) -> None:
    """One JSON document."""
    # Not even NaN: JSON has no word for it, and other parsers refuse the one that Python writes.
    json.dump({"version": VERSION, **content}, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def event(name: str, content: dict[str, Any]) -> None:
    """One JSON document in a line, at once: for a command that tells what it does while it does it."""
    sys.stdout.write(json.dumps({"version": VERSION, "event": name, **content}, allow_nan=False) + "\n")
    # In a pipe it would wait until a block is full.
    sys.stdout.flush()


def document_of(name: str, items: Iterable[Any]) -> None:
    """One JSON document with a list that may be too long to hold in memory, an item per line."""
    sys.stdout.write(f'{{"version": {VERSION}, {json.dumps(name)}: [')
    between = "\n"
    for item in items:
        sys.stdout.write(between + json.dumps(item, allow_nan=False))
        between = ",\n"
    sys.stdout.write("\n]}\n")


def tell(content: str) -> None:
    """A remark for people."""
    _emit(sys.stderr, content)


def hint(content: str) -> None:
    """What to do next, for people."""
    _tell_labelled("hint", "cyan", content)


def error(problem: PrecookError) -> None:
    """An error and the way out of it, for people."""
    _tell_labelled("error", "bold red", problem.message)
    if problem.hint:
        hint(problem.hint)


def problems(error: ConfigError) -> None:
    """Everything that is wrong with a config, each with the way out of it, for people."""
    for problem in error.problems:
        _tell_labelled("error", "bold red", problem.told(error.file))
        if problem.hint:
            hint(problem.hint)


def trace(problem: BaseException) -> None:
    """Where an error came from, and what caused it, for people who look into it."""
    for part in traceback.format_exception(problem):
        for row in part.splitlines():
            _emit(sys.stderr, row, whole=True)


class Warnings(logging.Handler):
    """Shows what the library logs as warnings to people, and if `verbose` the errors that it went on after.

    Errors of the types in `reported` are passed over: the command itself reports them.
    """

    def __init__(self, *reported: type[Exception], verbose: bool = False) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._reported = reported

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        if record.exc_info and record.exc_info[1] is not None and self.level == logging.DEBUG:
            trace(record.exc_info[1])
            tell(record.getMessage())
            return
        if record.levelno < logging.WARNING:
            return
        subject = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if not isinstance(subject, self._reported):
            _tell_labelled("warning", "yellow", record.getMessage())


def _emit(stream: TextIO, content: Line, *, whole: bool = False) -> None:
    if stream.isatty():
        console(stream).print(_text(content), soft_wrap=whole)
    else:
        stream.write("".join(printable(span.text) for span in _spans(content)) + "\n")


def _tell_labelled(label: str, style: str, content: str) -> None:
    """A remark after its label; on a terminal its further lines are indented to its first word."""
    if not sys.stderr.isatty():
        _emit(sys.stderr, f"{label}: {content}")
        return
    from rich.table import Table

    layout = Table.grid(padding=(0, 1, 0, 0))
    layout.add_row(_text(Span(f"{label}:", style)), _text(content))
    _draw(sys.stderr, layout)


def _draw(stream: TextIO, layout: Table) -> None:
    if stream.isatty():
        console(stream).print(layout)
        return
    # Not drawn into the stream: rich ends the process with an exit code of its own where a pipe is broken.
    buffer = io.StringIO()
    console(buffer).print(layout)
    stream.writelines(f"{row.rstrip()}\n" for row in buffer.getvalue().splitlines())


def console(stream: TextIO) -> Console:
    """What draws on a stream: no markup is read, and off a terminal there are no colours and no narrow lines."""
    from rich.console import Console

    # Not even FORCE_COLOR puts colours into data.
    width, terminal = (None, None) if stream.isatty() else (_NO_LIMIT, False)
    return Console(file=stream, width=width, force_terminal=terminal, markup=False, highlight=False, emoji=False)


def _text(content: Line) -> Text:
    from rich.text import Text

    return Text.assemble(*((printable(span.text), span.style) for span in _spans(content)))


def _wrap(row: str) -> list[str]:
    """A line as lines that fit the terminal, broken between words: a path or a key can still be copied."""
    margin = " " * (len(row) - len(row.lstrip()))
    parts = textwrap.wrap(
        row,
        max(width(), _LEAST_WIDTH),
        subsequent_indent=f"{margin}{_INDENT}",
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return parts or [""]


def _spans(content: Line) -> list[Span]:
    parts = [content] if isinstance(content, str | Span) else content
    return [Span(part) if isinstance(part, str) else part for part in parts]
