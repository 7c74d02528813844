"""A DiskCache that OneTrainer and mgds have filled themselves, adopted as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import precook
from precook.integrations.adopt import plan_adopt
from precook.integrations.adopt.formats import load
from tests.clients.onetrainer import DiskCache, Loader, Theirs, concept, pictures, plain


def test_what_a_real_disk_cache_holds_of_pictures_is_adopted(tmp_path: Path) -> None:
    """Latents of every variation, bit for bit what the loader gives; its texts, of which nobody knows any, are not."""
    folder = pictures(tmp_path / "cats", 3)
    with Loader("sdxl", tmp_path / "cache", [concept(folder, image_variations=2)], cache=Theirs) as loader:
        given = [item for _ in range(2) for item in loader.epoch()]
    plan = plan_adopt(folder, caches=tmp_path / "cache")
    assert plan.family == "mgds/unknown"
    assert len(plan.samples) == 3
    assert [len(sample.latents) for sample in plan.samples] == [2, 2, 2]
    assert {"does not say which pictures or texts" in left.reason for left in plan.left_out} == {True}
    adopted = {
        (sample.picture.name, cache.part.cut["variation"]): load(cache.path, cache.part)
        for sample in plan.samples
        for cache in sample.latents
    }
    found = 0
    for item in given:
        trees = [tree for (name, _), tree in adopted.items() if name == Path(item["image_path"][0]).name]
        found += any(plain(tree["latent_image"]) == plain(item["latent_image"][0]) for tree in trees)
    assert found == len(given) > 0
    with precook.open(tmp_path / "store") as store:
        adoption = plan.execute(store, "old")
        assert (adoption.samples, adoption.failed) == (3, ())


def test_our_front_says_what_its_folder_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever swaps the import and keeps the folder is told, once; both caches stay usable."""
    made = [concept(pictures(tmp_path / "cats", 2))]
    with Loader("sdxl", tmp_path / "cache", made, cache=Theirs) as loader:
        loader.epoch()
    for told in (2, 0):  # the pictures' cache and the texts'
        caplog.clear()
        with Loader("sdxl", tmp_path / "cache", made, cache=DiskCache) as loader:
            loader.epoch()
        messages = [record.message for record in caplog.records if "a DiskCache of mgds" in record.message]
        assert len(messages) == told
        assert all("precook adopt" in message for message in messages)
    assert len(plan_adopt(tmp_path / "cats", caches=tmp_path / "cache").samples) == 2
