"""Pages of the docs as tests read them: the files they show, and the commands with what the page says they print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
