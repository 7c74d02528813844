"""Owners: who needs an entry is named."""

from __future__ import annotations

import os

import precook
from precook.maintain.owners import find_owners
from tests.support.stores import flip, keys_of


def test_damage_is_named_with_dataset_and_sample(made: precook.Project) -> None:
    """Who needs a damaged entry: dataset, encoder, concept, sample, and its picture where paths are kept."""
    key = keys_of(made.store)[2]
    flip(made.store, key)
    (damage,) = made.store.verify().damage
    assert damage.key == key
    (owner,) = find_owners(made.store, [key.bytes])[key.bytes]
    ids = made.store.snapshot("test").content.samples.id
    assert (owner.dataset, owner.encoder, owner.concept) == ("test", "pixels", "things")
    assert owner.sample == ids[2].tobytes().hex()
    assert owner.path is not None
    assert os.path.basename(owner.path).startswith("p")
    empty = made.store.snapshot("test").content.empty_keys["words"].tobytes()
    assert [one.sample for one in find_owners(made.store, [empty])[empty]] == [None]
