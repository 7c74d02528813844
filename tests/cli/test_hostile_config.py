"""A config that is something else than a page of YAML: an error that says so, soon and in little memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_hostile_store import limited, replace

DEEP = "a: " + "[" * 100_000
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("a FIFO", "is a FIFO, not a file"),
        ("a device", "is a device, not a file"),
        ("a link to a device", "is a device, not a file"),
        ("huge", "is larger than 1 MiB"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "status"])
def test_a_config_that_is_no_small_file_is_refused(tmp_path: Path, command: str, what: str, reason: str) -> None:
    """Whatever lies there, the command neither waits for it nor reads it all, and says what it is."""
    config = tmp_path / "precook.yaml"
    config.touch()
    replace(config, what)
    ended = limited(command, "--config", config)
    assert ended.returncode == 2, ended.stderr
    assert reason in ended.stderr
    assert "precook.yaml" in ended.stderr
    assert "hint:" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (DEEP, "nested more than 40 levels deep"),
        (LAUGHS, "the anchor '&a0' is not allowed"),
        (f"dataset: {'9' * 500_000}", "a number of 500000 digits"),
        ("dataset: 1e999999999", "dataset: must be text"),
        ("- \n" * 300_000, "has more than 50,000 values"),
        ("concepts:\n" + "- {}\n" * 200_000, "has more than 50,000 values"),
        (f"concepts: [{{name: a, path: a, samples: {10**90}}}]", "samples: must be 4611686018427387904 or less"),
    ],
    ids=["deep", "laughs", "digits", "exponent", "list", "concepts", "samples"],
)
def test_a_small_file_that_means_too_much_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    """Nesting, aliases of aliases, endless numbers and endless lists end in an error with the line."""
    config = tmp_path / "precook.yaml"
    config.write_text(content)
    ended = limited("plan", "--config", config)
    assert ended.returncode == 2, ended.stderr
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr
