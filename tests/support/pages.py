"""Pages of the docs as tests read them: files they show, changes to files, and commands with what they print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ANY_LINES = "(?:.*\n)*?"


@dataclass(frozen=True)
class Example:
    """A command on a page and what the page says it prints."""

    command: str
    expected: list[str]

    @property
    def pattern(self) -> str:
        """The output as a pattern: `…` stands for anything, on a line of its own for any lines."""
        lines = [
            "(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in self.expected
        ]
        return "".join(lines)


def console_blocks(page: Path) -> list[list[Example]]:
    """The examples of each `console` block."""
    blocks = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        examples: list[Example] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                examples.append(Example(line.removeprefix("$ "), []))
            else:
                examples[-1].expected.append(line)
        blocks.append(examples)
    return blocks


def titled_files(page: Path) -> dict[str, str]:
    """The files that a page tells its reader to write, by name."""
    blocks = re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return dict(blocks)


def section_blocks(page: Path, title: str, kind: str) -> list[str]:
    """The blocks of one kind in a section."""
    section = page.read_text("utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def changed(source: str, block: str) -> str:
    """A file's text after the change that a `diff` block shows; an error where the block fits nowhere, or twice.

    A line of nothing but `…` stands for any lines down to the next one that is shown. A block may be indented
    otherwise than the file, all its lines alike; no line is indented less than the first.
    """
    lines = [(line[:1], line[1:]) for line in block.splitlines()]
    margin = len(lines[0][1]) - len(lines[0][1].lstrip())
    pattern = r"^(?=(?P<indent> *)\S)"
    for number, (sign, line) in enumerate(lines):
        if sign != "+":
            here = f"(?P=indent){re.escape(line[margin:])}\n" if line.strip() else "\n"
            pattern += f"(?P<line{number}>{_ANY_LINES if line.strip() == '…' else here})"
    found = list(re.finditer(pattern, source, re.MULTILINE))
    assert len(found) == 1, f"this change fits in {len(found)} places:\n{block}"
    (place,) = found
    parts = {" ": lambda number, _: place[f"line{number}"], "+": lambda _, line: f"{place['indent']}{line[margin:]}\n"}
    kept = [parts[sign](number, line) for number, (sign, line) in enumerate(lines) if sign != "-"]
    return source[: place.start()] + "".join(kept) + source[place.end() :]


def check_session(page: Path, printed: list[tuple[str, str]]) -> None:
    """That the first session on a page is a part of what was printed: its commands in this order, with this output."""
    remaining = iter(printed)
    for example in console_blocks(page)[0]:
        for command, output in remaining:
            if command == example.command and re.fullmatch(example.pattern, output):
                break
        else:
            message = f"{page.name}: no `{example.command}` prints what the page shows"
            raise AssertionError(message)
