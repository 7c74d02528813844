"""`precook leases`: who uses a store."""

from __future__ import annotations

from pathlib import Path

import pytest

import precook
from tests.support.commands import run
from tests.support.snapshots import columns


def test_leases_are_listed_and_broken_only_when_asked(cache: Path, recipe: precook.Recipe) -> None:
    """Who holds them, since when and for how much; a preview of a break breaks nothing."""
    assert run("leases", "--store", cache).out == "no leases\n"
    with precook.open(cache) as store, store.lease("training of cats") as lease:
        lease.protect(columns([recipe.key(1), recipe.key(2)]))
        (found,) = run("leases", "--store", cache, "--json").document["leases"]
        assert (found["purpose"], found["entries"]) == ("training of cats", 2)
        assert "training of cats" in run("leases", "--store", cache).out
        assert "--yes" in run("leases", "--store", cache, "--break", lease.id[:8]).err
        lease.check()
        assert run("leases", "--store", cache, "--break", "zzzz", "--yes").code == 1
        assert "broken" in run("leases", "--store", cache, "--break", lease.id[:8], "--yes").out
        with pytest.raises(precook.LostLeaseError):
            lease.check()
