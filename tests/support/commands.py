"""Running commands in a test: in this process, in another, on a terminal; and what tests of several commands need."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

import precook
from precook import Recipe, digest
from precook.cli.main import app
from tests.support.pages import Example
from tests.support.projects import build

VAE = Recipe("vae", {"weights": digest("weights"), "dtype": "float16", "config": {"scaling": 0.5, "layers": (1, 2)}})
TEXT = Recipe("text encoder", {"max_length": 77})


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its JSON document."""
        return json.loads(self.out)


def run(*args: object) -> Ended:
    """Run a command in this process, off a terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app([str(arg) for arg in args], prog_name="precook")
        except SystemExit as ending:
            code = ending.code or 0
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Ended(code, *texts)


def shown(*args: str) -> tuple[str, int]:
    """What a reader sees of a command, stdout and stderr in the order of time, and its exit code."""
    screen = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    code = 0
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        try:
            app(list(args), prog_name="precook")
        except SystemExit as ending:
            code = int(ending.code or 0)
    return screen.buffer.getvalue().decode(), code  # type: ignore[attr-defined]


def check_examples(examples: list[Example]) -> None:
    """That commands on a page print what it shows, and fail only where an `echo $?` after them says so."""
    codes = []
    for example, following in zip(examples, [*examples[1:], None], strict=True):
        if example.command == "echo $?":
            assert example.expected == [str(codes[-1])]
            continue
        program, *args = shlex.split(example.command)
        assert program == "precook"
        written, code = shown(*args)
        assert re.fullmatch(example.pattern, written), written
        codes.append(code)
        if following is None or following.command != "echo $?":
            assert code == 0, written


def spawn(*args: object, **options: Any) -> subprocess.Popen[bytes]:
    """Run a command in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "precook", *map(str, args)], env=environment(), **options)


def environment() -> dict[str, str]:
    """This environment, with the package under test on the path, buffered output and a terminal that knows colours."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**plain, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color", "COLUMNS": "80"}


def on_terminal(*args: object, columns: int = 80, stdout: int | None = None, stderr: int | None = None) -> str:
    """What a command writes to a terminal of its own; a stream that is given goes elsewhere."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    plain = {name: value for name, value in environment().items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "precook", *map(str, args)]
    streams = {"stdin": slave, "stdout": stdout or slave, "stderr": stderr or slave}
    with subprocess.Popen(command, env=plain, **streams):  # type: ignore[call-overload]
        os.close(slave)
        return read_terminal(master)


def read_terminal(master: int) -> str:
    """Everything that is written to a terminal until nobody has it open any more; closes our end."""
    written = b""
    while True:
        try:
            chunk = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(master)
    return written.decode()


def plain(written: str) -> str:
    """What a person sees in the end, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r\n", "\n")


def events(ended: Ended) -> list[dict[str, Any]]:
    """The JSON documents that a command printed, one per line."""
    return [json.loads(line) for line in ended.out.splitlines()]


def report(*args: object) -> dict[str, Any]:
    """The report of a build for programs."""
    *_, last = events(run("build", "--json", *args))
    assert last["event"] == "report"
    return last


def words() -> list[dict[str, Any]]:
    """What the text encoder has stored."""
    with precook.load("precook.yaml") as project:
        return project.store.get_many(project.plan(encoders=["words"]).ready.keys())


def encoders(document: Any, *fields: str) -> dict[str, Any]:
    """Fields of each encoder in a document."""
    return {one["name"]: [one[field] for field in fields] for one in document["encoders"]}


def steady(text: str) -> str:
    """A plan without the space that is left, which others change meanwhile."""
    return re.sub(r"; [\d.]+ \w+ free", "", text)


def change_config(old: str, new: str, path: str = "precook.yaml") -> None:
    """Edit the config file."""
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def cook() -> None:
    """Put something small in the place of every missing entry, and freeze the dataset."""
    with precook.load("precook.yaml") as project:
        build(project)


def everything(path: Path) -> dict[str, Any]:
    """Every file below a directory with its content and its times."""
    return {
        str(place): (place.stat().st_mtime_ns, place.read_bytes() if place.is_file() else None)
        for place in sorted([path, *path.rglob("*")])
    }


def flip(path: Path, offset: int) -> None:
    """Change one byte of a file; negative offsets count from its end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


class read_only:  # noqa: N801 - reads as a statement
    """A directory that cannot be written to for a while: by its mode, or for root by a mount."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mounted = False

    def __enter__(self) -> None:
        if os.geteuid() != 0:
            self._path.chmod(0o555)
            return
        for options in (["--bind", str(self._path), str(self._path)], ["-o", "remount,ro,bind", str(self._path)]):
            if subprocess.run(["mount", *options], capture_output=True, check=False).returncode != 0:
                self.__exit__()
                pytest.skip("this root may not mount")
            self._mounted = True

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            gc.collect()  # a command that ran in this process may have left a mapped file in a cycle: the mount is busy
            subprocess.run(["umount", str(self._path)], check=True)
        elif os.geteuid() != 0:
            self._path.chmod(0o755)
