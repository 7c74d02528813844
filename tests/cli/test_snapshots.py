"""`precook snapshots`: listed, pinned, removed."""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import run
from tests.support.projects import picture


def test_snapshots_are_listed_pinned_and_removed(twins: Path) -> None:
    """Removing is a preview until --yes, and a pinned one stays."""
    picture(twins / "data" / "new.png", 50)
    assert run("build", "--config", "pets.yaml").code == 0
    found = run("snapshots", "--json").document["snapshots"]
    assert [(one["dataset"], one["number"], one["latest"]) for one in found] == [
        ("pets", 1, False),
        ("pets", 2, True),
        ("twins", 1, True),
    ]
    assert [one["samples"] for one in found] == [3, 4, 3]
    assert run("snapshots", "list", "twins").out.count("twins") == 1
    assert run("snapshots", "pin", "pets", "1").code == 0
    assert "pinned" in run("snapshots").out
    assert run("snapshots", "rm", "pets", found[0]["id"][:8], "--yes").code == 1
    assert run("snapshots", "unpin", "pets", "1").code == 0
    ended = run("snapshots", "rm", "pets", "1", "--json")
    assert (ended.code, ended.document["done"]) == (0, False)
    assert len(run("snapshots", "--json").document["snapshots"]) == 3
    assert run("snapshots", "rm", "pets", "1", "--yes").code == 0
    assert [one["number"] for one in run("snapshots", "list", "pets", "--json").document["snapshots"]] == [2]
    assert run("snapshots", "rm", "pets", "9").code == 1
    assert run("snapshots", "rm", "nothing", "1").code == 1
    assert run("snapshots", "rm").code == 2
