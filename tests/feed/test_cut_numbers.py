"""The numbers of each cut in a batch: those that SDXL is trained with, in every kind of feed and for own encoders.

The reference is written as training scripts have it: scale the short side, mirror, then cut at the offset.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import precook
from tests.support.feeds import LATENT, frozen
from tests.support.pictures import exif
from tests.support.projects import Watched, project

torch = pytest.importorskip("torch", reason="batches are torch tensors")

SIDE = 48
NAMES = ("original_size", "crop", "target_size")
SIZES = [(96, 64), (64, 96), (151, 100), (100, 151), (97, 301), (48, 48), (77, 50)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of many shapes, one of them lying on its side in the file, in a project that is built."""
    folder = tmp_path_factory.mktemp("cuts")
    for number, size in enumerate(SIZES):
        width, height = size
        y, x = np.mgrid[:height, :width]
        pixels = np.stack([x * 255 // width, y * 255 // height, (7 * x + 13 * y + number) % 256], 2).astype(np.uint8)
        path = folder / "data" / f"p{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, exif=b"Exif\0\0" + exif(6) if number == 2 else b"")
        path.with_suffix(".txt").write_text(str(number))
    owner(folder).build()
    return folder


def owner(folder: Path, **changes: Any) -> precook.Project:
    image = {
        "resolutions": [f"{SIDE}x{SIDE}"],
        "step": 16,
        "crop": "random",
        "flip": "random",
        "variations": 4,
        "rounding": "down",
    }
    fields = {"image": image, "encoders": {"pixels": {"uses": "image"}}, "keep": ["captions"], **changes}
    return project(folder, **fields)


def feeds(base: Path, folder: Path) -> Iterator[tuple[str, Any]]:
    """The batches of one epoch, from each kind of feed."""
    with owner(base) as built, built.feed(batch_size=3) as feed:
        yield "project", list(feed.epoch(0))
        loader = torch.utils.data.DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(0))
        yield "DataLoader", list(loader)
    with owner(base, store=str(folder / "fresh")) as fresh, fresh.feed(batch_size=3, on_missing="encode") as feed:
        yield "live", list(feed.epoch(0))
    shutil.copytree(base / "cache", folder / "elsewhere")
    with precook.open(folder / "elsewhere") as store, store.snapshot("test").feed(batch_size=3) as feed:
        yield "snapshot", list(feed.epoch(0))


def scaled(number: int, base: Path) -> Image.Image:
    """A picture upright, its short side scaled as torchvision's Resize does."""
    upright = ImageOps.exif_transpose(Image.open(base / "data" / f"p{number}.png"))
    assert upright is not None
    short = min(upright.size)
    size = (SIDE * upright.width // short, SIDE * upright.height // short)
    return upright.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def test_every_feed_tells_how_each_picture_was_cut(base: Path, tmp_path: Path) -> None:
    """A batch has three int64 tensors, B x 2, with which the pixels are found again in the file."""
    turned = [0, 0]
    for kind, batches in feeds(base, tmp_path):
        seen = set()
        for batch in batches:
            count = len(batch["sample"])
            assert [(batch[name].dtype, tuple(batch[name].shape)) for name in NAMES] == [(torch.int64, (count, 2))] * 3
            ids = torch.cat([batch[name] for name in NAMES], dim=1).tolist()
            for number, pixels, numbers in zip(map(int, batch["caption"]), batch["pixels"], ids, strict=True):
                height, width, top, left, target_height, target_width = numbers
                assert (target_height, target_width) == batch["size"] == (SIDE, SIDE), kind
                assert (width, height) == (SIZES[number] if number != 2 else SIZES[number][::-1]), kind
                whole = np.asarray(scaled(number, base))
                cuts = [shown[top : top + SIDE, left : left + SIDE] for shown in (whole, whole[:, ::-1])]
                mirrored = [np.array_equal(cut, pixels.numpy()) for cut in cuts]
                assert sum(mirrored) == 1, (kind, number)
                turned[mirrored[1]] += 1
                seen.add(number)
        assert seen == set(range(len(SIZES))), kind
    assert min(turned) > 3, "some are mirrored and some are not"


def test_together_they_are_the_time_ids_of_sdxl(base: Path, pipeline_of: Callable[[str], Path]) -> None:
    """Side by side, the three are what SDXL's own pipeline makes of the sizes and the offset of each picture."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    pipeline = diffusers.DiffusionPipeline.from_pretrained(pipeline_of("sdxl"), local_files_only=True)
    width = pipeline.text_encoder_2.config.projection_dim
    with owner(base) as built, built.feed(batch_size=3) as feed:
        for batch in feed.epoch(0):
            ids = torch.cat([batch[name] for name in NAMES], dim=1)
            for row, *pairs in zip(ids, *(batch[name].tolist() for name in NAMES), strict=True):
                original, crop, target = (tuple(pair) for pair in pairs)
                expected = pipeline._get_add_time_ids(original, crop, target, torch.float32, width)
                assert torch.equal(row[None].to(torch.float32), expected)


def test_an_item_of_a_dataset_alone_has_its_own_numbers(base: Path) -> None:
    """What a plain DataLoader asks for one by one is a row of the batch."""
    with owner(base) as built, built.feed(batch_size=1) as feed:
        item = feed.dataset()[0]
        assert [tuple(item[name].shape) for name in NAMES] == [(2,)] * 3


def test_an_encoder_gets_the_numbers_that_the_batch_has(base: Path, tmp_path: Path) -> None:
    """An encoder of pictures or masks may use them: each of its entries was made with the numbers of its batch."""

    def numbers(item: precook.Item) -> Any:
        assert item.original_size is not None
        assert item.crop is not None
        assert item.target_size is not None
        return np.array([*item.original_size, *item.crop, *item.target_size])

    words = Watched("text")
    encoders = {"ids": Watched("image", numbers), "mask_ids": Watched("mask", numbers), "words": words}
    concepts = [{"name": "things", "path": "data", "masks": "{stem}-mask.png"}]
    shutil.copytree(base / "data", tmp_path / "data")
    Image.new("L", (30, 20), 99).save(tmp_path / "data" / "p1-mask.png")  # all others are white
    with owner(tmp_path, encoders=encoders, concepts=concepts) as own:
        own.build()
        for batch in own.feed(batch_size=4).epoch(0):
            expected = torch.cat([batch[name] for name in NAMES], dim=1)
            assert torch.equal(batch["ids"], expected)
            assert torch.equal(batch["mask_ids"], expected)
    assert {(item.original_size, item.crop, item.target_size) for item in words.items} == {(None, None, None)}


def test_a_snapshot_without_the_numbers_is_fed_without_them(tmp_path: Path) -> None:
    """Snapshots of an older precook and of other tools open and train as before."""
    with precook.open(tmp_path / "cache") as store:
        snapshot = frozen(store, LATENT, [np.zeros(3), np.ones(3)])
        (batch,) = snapshot.feed(batch_size=2).epoch(0)
    assert batch["size"] == (64, 64)
    assert not set(NAMES) & set(batch)


def test_the_next_build_adds_them_to_an_older_snapshot(base: Path, tmp_path: Path) -> None:
    """Nothing is encoded for it, and no entry is made anew."""
    shutil.copytree(base, tmp_path / "old")
    with owner(tmp_path / "old") as built:
        content = built.store.snapshot("test").content
        bare = dataclasses.replace(content.pictures, original=None, crop=None)
        built.store.freeze("test", dataclasses.replace(content, pictures=bare))
        assert built.store.snapshot("test").content.pictures.crop is None
        assert not len(built.plan().missing)
        built.build()
        again = built.store.snapshot("test").content
    assert np.array_equal(again.pictures.original, content.pictures.original)
    assert np.array_equal(again.pictures.crop, content.pictures.crop)
