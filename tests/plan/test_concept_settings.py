"""Settings of one concept: how its pictures are cut, which of its texts are kept, and whether it is there at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from tests.support.projects import Watched, dataset, missing, picture, project

PAGES = {"name": "pages", "path": "pages", "image": {"flip": "none", "resolutions": [128], "variations": 1}}
PHOTOS = {"name": "photos", "path": "photos"}
IMAGE = {"resolutions": [64], "step": 16, "flip": "random", "crop": "random", "variations": 4}


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two folders of three pictures each, with two captions for each of them."""
    for number, name in enumerate(("pages", "photos")):
        for picture_number in range(3):
            picture(tmp_path / name / f"{name}{picture_number}.png", 10 * number + picture_number, (200, 150))
            (tmp_path / name / f"{name}{picture_number}.txt").write_text(f"{name} {picture_number}\nanother one\n")
    return tmp_path


def opened(base: Path, *concepts: dict[str, Any], **sections: Any) -> precook.Project:
    return project(base, concepts=list(concepts), **{"image": IMAGE, **sections})


def cuts(plan: precook.Plan, concept: str) -> list[tuple[tuple[int, int], bool]]:
    """Size and flip of every cut of a concept's pictures."""
    return [
        (entry.geometry.target, entry.geometry.flip)
        for state in (plan.ready, plan.missing)
        for entry in state.of("pixels")
        if entry.concept == concept and entry.geometry is not None
    ]


class TestImage:
    """`image` inside a concept takes the place of the file's, field by field."""

    def test_a_concept_is_cut_its_own_way(self, folders: Path) -> None:
        """Pages are larger and never mirrored, photos are as the file says, and what a concept leaves out is, too."""
        with opened(folders, PAGES, PHOTOS) as made:
            plan = made.plan()
            pages, photos = cuts(plan, "pages"), cuts(plan, "photos")
        assert len(pages) == 3
        assert {flip for _, flip in pages} == {False}
        assert all(width * height > 100 * 100 and width % 16 == 0 for (width, height), _ in pages)
        assert 3 < len(photos) <= 12  # two of its draws may be alike
        assert {flip for _, flip in photos} == {True, False}
        assert all(width * height <= 64 * 64 for (width, height), _ in photos)

    def test_it_is_what_a_file_of_that_concept_alone_would_say(self, folders: Path) -> None:
        """The same keys: entries made one way are found the other way."""
        with opened(folders, PAGES, PHOTOS) as made:
            made.build()
        alone = {**IMAGE, "flip": "none", "resolutions": [128], "variations": 1}
        with opened(folders, {**PAGES, "image": None}, image=alone) as made:
            assert missing(made.plan()) == {}
        with opened(folders, PHOTOS) as made:
            assert missing(made.plan()) == {}

    def test_changing_one_concept_encodes_that_one_only(self, folders: Path) -> None:
        """The pictures of others stay as they are."""
        with opened(folders, PAGES, PHOTOS) as made:
            made.build()
        with opened(folders, {**PAGES, "image": {"resolutions": [96], "variations": 1}}, PHOTOS) as made:
            assert {entry.concept for entry in made.plan().missing} == {"pages"}

    def test_a_feed_shows_each_concept_as_it_is_cut(self, folders: Path) -> None:
        """Batches have one size each, from the project and from its snapshot alike, and what was encoded is in them."""
        encoder = Watched("image")
        with opened(folders, PAGES, PHOTOS, encoders={"pixels": encoder}) as made:
            made.build()
            feeds = [made.feed(batch_size=2, seed=0), made.store.snapshot("test").feed(batch_size=2, seed=0)]
            for feed in feeds:
                sizes: dict[str, set[tuple[int, int]]] = {"pages": set(), "photos": set()}
                for batch in feed.epoch(0):
                    assert tuple(batch["pixels"].shape[1:3]) == batch["size"]
                    for concept in batch["concept"]:
                        sizes[concept].add(batch["size"])
                assert {name: len(found) for name, found in sizes.items()} == {"pages": 1, "photos": 1}
                assert sizes["pages"] != sizes["photos"]

    def test_a_concept_may_have_other_resolutions_beside_those_of_the_file(self, folders: Path) -> None:
        """Each has its own; explain and the snapshot name them as the config does."""
        pages = {**PAGES, "image": {"resolutions": [96, 64], "variations": 1}}
        with opened(folders, pages, PHOTOS, image={**IMAGE, "resolutions": [64, 128], "variations": 1}) as made:
            made.build()
            snapshot = made.store.snapshot("test").content
            explained = {name: made.plan().explain(folders / f"{name}/{name}0.png") for name in ("pages", "photos")}
        assert snapshot.image.resolutions == [64, 128, 96]
        forms = {
            name: {entry.what.split()[0] for entry in found.samples[0].entries if entry.encoder == "pixels"}
            for name, found in explained.items()
        }
        assert forms == {"pages": {"64", "96"}, "photos": {"64", "128"}}

    def test_what_one_concept_has_changes_no_draw_of_another(self, folders: Path) -> None:
        """The photos that an epoch shows, and how, stay when the pages get other resolutions."""
        shown = []
        image = {**IMAGE, "resolutions": [128, 64]}
        for resolutions in ([32, 256], [256]):
            pages = {**PAGES, "image": {"resolutions": resolutions}}
            with opened(folders, pages, PHOTOS, image=image) as made:
                made.build()
                feed = made.feed(batch_size=1, seed=3)
                batches = [batch for epoch in range(4) for batch in feed.epoch(epoch)]
            photos = [batch for batch in batches if batch["concept"] == ["photos"]]
            shown.append(
                [(batch["sample"], batch["size"], batch["crop"].tolist(), batch["caption"]) for batch in photos]
            )
        assert shown[0] == shown[1]
        assert len({size for _, size, *_ in shown[0]}) == 2

    def test_transparent_pictures_have_the_background_of_their_concept(self, tmp_path: Path) -> None:
        """It shows in the pixels that are encoded, and is in the key."""
        for folder in ("dark", "light"):
            (tmp_path / folder).mkdir()
            Image.new("RGBA", (64, 64), (0, 0, 0, 0)).save(tmp_path / folder / "clear.png")
        encoder = Watched("image")
        dark = {"name": "dark", "path": "dark", "image": {"background": "black"}}
        with opened(tmp_path, dark, {"name": "light", "path": "light"}, encoders={"pixels": encoder}) as made:
            made.build()
            batches = list(made.feed(batch_size=1, seed=0).epoch(0))
        colours = {batch["concept"][0]: set(np.unique(batch["pixels"]).tolist()) for batch in batches}
        assert colours == {"dark": {0}, "light": {255}}

    def test_what_is_left_out_follows_the_concept(self, folders: Path) -> None:
        """`upscale: refuse` and `max_pixels` of a concept leave out its pictures and no others, with the reason."""
        pages = {**PAGES, "image": {"resolutions": [512], "upscale": "refuse"}}
        with opened(folders, pages, PHOTOS) as made:
            plan = made.plan()
            assert {failure.concept for failure in plan.failed} == {"pages"}
            assert len(plan.failed) == 3
            assert {entry.concept for entry in plan.missing} == {"photos", None}
        with opened(folders, PAGES, {**PHOTOS, "image": {"max_pixels": 100}}) as made:
            assert {failure.concept for failure in made.plan().failed} == {"photos"}


class TestText:
    """`text` inside a concept takes the place of the file's."""

    def test_a_concept_keeps_its_own_number_of_captions(self, folders: Path) -> None:
        """One of two for the pages, and all for the photos; the other way round, too."""
        for variations, kept in (("all", {"pages": 1, "photos": 2}), (1, {"pages": 1, "photos": 1})):
            with opened(folders, {**PAGES, "text": {"variations": 1}}, PHOTOS, text={"variations": variations}) as made:
                wants = made.plan().encoders["words"].wants
                counts = np.bincount(wants.samples[wants.samples >= 0])
            assert counts.tolist() == [kept["pages"]] * 3 + [kept["photos"]] * 3
        with opened(folders, {**PAGES, "text": {"variations": "all"}}, PHOTOS, text={"variations": 1}) as made:
            wants = made.plan().encoders["words"].wants
            assert np.bincount(wants.samples[wants.samples >= 0]).tolist() == [2, 2, 2, 1, 1, 1]


class TestEnabled:
    """`enabled: false` leaves a concept out."""

    def test_it_is_as_if_the_concept_were_not_there(self, folders: Path) -> None:
        """Its entries are not wanted, its samples not shown, and the plan says so."""
        off = {**PAGES, "enabled": False}
        with opened(folders, off, PHOTOS) as made:
            plan = made.plan()
            assert plan.samples.count == 3
            assert "pages: not enabled" in str(plan)
            made.build()
            names = {name for batch in made.feed(batch_size=2, seed=0).epoch(0) for name in batch["concept"]}
            kept = made.store.snapshot("test").file.id
        assert names == {"photos"}
        with opened(folders, PHOTOS) as made:
            assert not any(made.build().encoded.values())
            assert made.store.snapshot("test").file.id == kept

    def test_its_folder_need_not_exist(self, folders: Path) -> None:
        """Nothing of it is looked at."""
        with opened(folders, {"name": "gone", "path": "nowhere", "enabled": False}, PHOTOS) as made:
            assert not made.plan().failed

    def test_switching_it_on_again_costs_nothing(self, folders: Path) -> None:
        """Its entries were kept."""
        with opened(folders, PAGES, PHOTOS) as made:
            made.build()
        with opened(folders, {**PAGES, "enabled": False}, PHOTOS) as made:
            made.build()
        with opened(folders, PAGES, PHOTOS) as made:
            assert missing(made.plan()) == {}


def test_concepts_without_settings_of_their_own_are_as_ever(tmp_path: Path) -> None:
    """An empty `image` or `text` says nothing."""
    dataset(tmp_path / "data")
    keys = []
    for settings in ({}, {"image": {}, "text": {}}):
        with opened(tmp_path, {"name": "things", "path": "data", **settings}) as made:
            keys.append(made.plan().missing.keys())
    assert keys[0] == keys[1]
