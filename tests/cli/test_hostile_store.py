"""Files of a store that are something else than they should be: an error that names them, soon and in little memory."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import environment

GIB = 1 << 30


def bound() -> None:
    """Let this process have little."""
    resource.setrlimit(resource.RLIMIT_AS, (4 * GIB, 4 * GIB))
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))


def limited(*args: object) -> subprocess.CompletedProcess[str]:
    """A command that may take neither long, by the processor's clock, nor much memory."""
    return subprocess.run(
        [sys.executable, "-m", "precook", *map(str, args)],
        env=environment(),
        preexec_fn=bound,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def replace(marker: Path, what: str) -> None:
    """Put something else in the place of a file."""
    marker.unlink()
    if what == "a FIFO":
        os.mkfifo(marker)
    elif what == "a device":
        try:
            os.mknod(marker, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("only root may make a device")
    elif what == "a link to a device":
        marker.symlink_to("/dev/zero")
    elif what == "huge":
        with marker.open("wb") as file:
            file.truncate(64 * GIB)
    elif what == "many digits":
        marker.write_text(f"format = {'1' * 5000}\n")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("a FIFO", "a FIFO, not a file"),
        ("a device", "a device, not a file"),
        ("a link to a device", "a device, not a file"),
        ("huge", "larger than 65,536 bytes"),
        ("many digits", "has a line"),
    ],
)
def test_a_store_toml_that_is_no_small_file_is_refused(store: Path, what: str, reason: str) -> None:
    """Whatever lies there, the command neither waits for it nor reads it all, and says what it is."""
    replace(store / "store.toml", what)
    ended = limited("ls", "--store", store)
    assert ended.returncode == 10
    assert reason in ended.stderr
    assert "store.toml" in ended.stderr
    assert "Traceback" not in ended.stderr
