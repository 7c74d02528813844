"""OneTrainer's own data loaders on our cache: what they give is what mgds' own gives, and right where that is wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from precook.integrations.mgds import gc_clean, gc_preview
from tests.clients.checkouts import checkout
from tests.clients.onetrainer import FAMILIES, DiskCache, Loader, Theirs, concept, embedding, pictures, plain, tiny
from tests.support.pages import ROOT

EPOCHS = 5


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two concepts' folders."""
    return pictures(tmp_path / "cats", 4), pictures(tmp_path / "dogs", 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_loader_gives_what_it_gives_on_mgds_own_cache(
    tmp_path: Path, folders: tuple[Path, Path], name: str
) -> None:
    """Five epochs, two concepts, flips, variations and balancing above and below 1: equal bits, no more encodings."""
    cats, dogs = folders
    made = [
        concept(cats, balancing=1.5, image_variations=2, text_variations=2, image__enable_random_flip=True),
        concept(dogs, balancing=0.5, source="filename"),
    ]
    model = tiny(name)
    given, counts = [], []
    for cache in (Theirs, DiskCache):
        with Loader(name, tmp_path / cache.__module__, made, cache=cache, model=model) as loader:
            with loader.counting() as count:
                given.append(plain([loader.epoch() for _ in range(EPOCHS)]))
            counts.append(count)
    assert given[1] == given[0]
    assert all(counts[1][kind] <= counts[0][kind] for kind in counts[0])


MIXED = [
    ({"balancing": 2.0}, {}),
    ({"balancing": 0.5}, {"balancing": 0.5}),
    ({"balancing": 2, "balancing_strategy": "SAMPLES"}, {"balancing": 1.0}),
    ({"balancing": 9, "balancing_strategy": "SAMPLES"}, {"balancing": 0.4, "text_variations": 2}),
]


@pytest.mark.parametrize("balancing", MIXED)
def test_prompts_by_file_name_belong_to_their_pictures(tmp_path: Path, balancing: Any) -> None:
    """Whatever the balancing, every picture has the prompt of its own file's name, as on mgds' own cache."""
    folders = [pictures(tmp_path / name, count, captions=False) for name, count in (("cats", 4), ("dogs", 6))]
    made = [concept(folder, source="filename", **changes) for folder, changes in zip(folders, balancing, strict=True)]
    model = tiny("sdxl")
    given = []
    for cache in (Theirs, DiskCache):
        with Loader("sdxl", tmp_path / cache.__module__, made, cache=cache, model=model) as loader:
            given.append([loader.epoch() for _ in range(EPOCHS)])
    assert plain(given[1]) == plain(given[0])
    for item in (item for epoch in given[1] for item in epoch):
        tokens = [token for token in item["tokens_1"][0].tolist() if token > 2]
        assert model.tokenizer_1.decode(tokens) == Path(item["image_path"][0]).stem


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_run_that_resumes_at_a_later_epoch_gives_what_mgds_own_cache_gives(
    tmp_path: Path, folders: tuple[Path, Path], epoch: int
) -> None:
    """A new process at epoch 1 or 3 starts, and shows the variations of that epoch."""
    cats, dogs = folders
    made = [concept(cats, text_variations=2, image_variations=2), concept(dogs, balancing=0.5, source="filename")]
    model = tiny("sdxl")
    given = []
    for cache in (Theirs, DiskCache):
        with Loader("sdxl", tmp_path / cache.__module__, made, cache=cache, model=model, epoch=epoch) as loader:
            given.append(plain([loader.epoch() for _ in range(2)]))
    assert given[1] == given[0]


def test_one_added_picture_costs_one_encoding_of_each_kind(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    """A picture that sorts before all others moves their numbers; two text encoders run once, and the VAE once."""
    cats, dogs = folders
    made = [concept(cats, balancing=2.0), concept(dogs, source="filename")]
    with Loader("sdxl", tmp_path / "cache", made) as loader:
        loader.epoch()
    pictures(cats, 1, first=99)
    (cats / "cats 99.png").rename(cats / "a first.png")
    with Loader("sdxl", tmp_path / "cache", made) as loader, loader.counting() as count:
        loader.epoch()
        assert count == {"image": 1, "text": 2}


@pytest.mark.parametrize(
    ("name", "parts", "config"),
    [
        ("sdxl", {}, {"text_encoder__train": True, "text_encoder_2__train": True}),
        ("sdxl", {}, {"text_encoder__train": True}),
        ("sdxl", {}, {"masked_training": True}),
        ("sdxl", {}, {"validation": True}),
        ("sdxl", {}, {"aspect_ratio_bucketing": True, "resolution": "128,192"}),
        ("flux", {"text_encoder_2": None}, {}),
        ("sd3", {"text_encoder_1": None, "text_encoder_3": None}, {}),
    ],
    ids=["both trained", "one trained", "masks", "validation", "buckets", "left out", "two left out"],
)
def test_settings_that_change_what_is_cached_change_it_as_for_mgds_own_cache(
    tmp_path: Path, folders: tuple[Path, Path], name: str, parts: dict[str, Any], config: dict[str, Any]
) -> None:
    """Trained and missing text encoders, masks, buckets: the chain is another, and the items are equal."""
    made = [concept(folders[0], balancing=1.5), concept(folders[1], balancing=0.7)]
    model = tiny(name, **parts)
    given = []
    for cache in (Theirs, DiskCache):
        with Loader(name, tmp_path / cache.__module__, made, cache=cache, model=model, **config) as loader:
            given.append(plain([loader.epoch() for _ in range(2)]))
    assert given[1] == given[0]


def test_an_embedding_is_written_into_prompts_and_counts_by_what_becomes_of_them(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    """Without an identity given, a method of the model is known: only prompts with its placeholder are made anew."""
    made = [concept(folder, source="filename") for folder in folders]
    model = tiny("sdxl")
    with Loader("sdxl", tmp_path / "cache", made, model=model) as loader:
        loader.epoch()
    model.additional_embeddings = [embedding("dogs 01")]
    with Loader("sdxl", tmp_path / "cache", made, model=model) as loader, loader.counting() as count:
        prompts = {item["prompt_1"][0] for item in loader.epoch()}
        assert count == {"image": 0, "text": 2}
    assert "dogs 01" not in prompts
    assert len(prompts) == 7


def test_fine_tuning_a_vae_encodes_each_variation_once(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    """The decoder changes between epochs; as on mgds' own cache two variations are encoded once each, and equal."""
    made = [concept(folder, image_variations=2, image__enable_random_flip=True) for folder in folders]
    given, counts = [], []
    for cache in (Theirs, DiskCache):
        model = tiny("vae")
        with Loader("vae", tmp_path / cache.__module__, made, cache=cache, model=model) as loader:
            with loader.counting() as count:
                for _ in range(6):
                    given.append(plain([item["latent_image"] for item in loader.epoch()]))
                    for weight in model.vae.decoder.parameters():
                        weight.data.add_(0.01)
            counts.append(count)
    assert counts[0] == {"image": 14, "text": 0}
    assert counts[1]["image"] <= 14
    assert given[:2] == given[6:8]


@pytest.mark.parametrize("first", [0, 2])
def test_training_without_sources_shows_what_was_built(tmp_path: Path, first: int) -> None:
    """Without a file, in another folder, from any epoch on: pictures, texts, prompts and concepts belong together."""
    cats, dogs = pictures(tmp_path / "cats", 4), pictures(tmp_path / "dogs", 3)

    def made(folder: Path) -> list[Any]:
        return [
            concept(folder / cats.name, balancing=2.0, text_variations=2, seed=1),
            concept(folder / dogs.name, balancing=0.5, name="first", loss_weight=0.5, seed=2),
            concept(folder / dogs.name, balancing=0.5, name="second", loss_weight=2.0, seed=2),
        ]

    model = tiny("sdxl")
    with Loader("sdxl", tmp_path / "cache", made(tmp_path), model=model, validation=True) as loader:
        expected = [loader.epoch() for _ in range(4)]
    for folder in (cats, dogs):
        folder.rename(folder.with_name(f"{folder.name} gone"))
    settings = {"model": model, "validation": True, "sourceless": True, "epoch": first}
    with Loader("sdxl", tmp_path / "cache", made(tmp_path / "other"), **settings) as loader:
        for before in expected[first:]:
            # Batches are shuffled by the number of the module that does it, and this pipeline has fewer of them.
            given, wanted = (_sorted(items) for items in (loader.epoch(), before))
            different = {"prompt_1", "prompt_2", "concept_path"}
            assert [_without(item, different) for item in given] == [_without(item, different) for item in wanted]
            for item in given:
                tokens = [token for token in item["tokens_1"][0].tolist() if token > 2]
                assert item["prompt_1"] == item["prompt_2"] == [model.tokenizer_1.decode(tokens)]
                assert item["concept_path"][0].startswith(str(tmp_path / "other"))


def _sorted(items: list[Any]) -> list[Any]:
    return sorted(items, key=lambda item: (item["concept_name"], item["image_path"], plain(item["tokens_1"])))


def _without(item: dict[str, Any], names: set[str]) -> Any:
    return plain({name: value for name, value in item.items() if name not in names})


def test_a_few_samples_of_each_epoch_are_drawn_from_the_whole_pool(tmp_path: Path) -> None:
    """Two of five: each epoch goes on where the last ended, as on mgds' own cache, and all five are shown in turn."""
    made = [concept(pictures(tmp_path / "cats", 5), balancing=2, balancing_strategy="SAMPLES", text_variations=2)]
    model = tiny("sdxl")
    given = []
    for cache in (Theirs, DiskCache):
        with Loader("sdxl", tmp_path / cache.__module__, made, cache=cache, model=model) as loader:
            given.append([loader.epoch() for _ in range(EPOCHS)])
    assert plain(given[1]) == plain(given[0])
    assert len({item["image_path"][0] for epoch in given[1] for item in epoch}) == 5


def test_a_bad_picture_is_left_out_of_every_epoch(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    """With the option, the training goes on with the others, and their prompts stay theirs."""
    cats, dogs = folders
    (cats / "cats 01.png").write_bytes(b"no picture")
    made = [concept(cats, balancing=2.0, source="filename"), concept(dogs, source="filename", balancing=0.7)]
    model = tiny("sdxl")
    with Loader("sdxl", tmp_path / "cache", made, model=model, options={"skip_failed": True}) as loader:
        for _ in range(3):
            items = loader.epoch()
            assert len(items) == 6 + 2
            for item in items:
                tokens = [token for token in item["tokens_1"][0].tolist() if token > 2]
                assert model.tokenizer_1.decode(tokens) == Path(item["image_path"][0]).stem != "cats 01"


def test_a_removed_picture_is_cleaned_up_without_a_training(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    """The two calls of the button, and the next start encodes nothing."""
    made = [concept(folder) for folder in folders]
    with Loader("sdxl", tmp_path / "cache", made) as loader:
        loader.epoch()
    (folders[0] / "cats 02.png").unlink()
    for part in ("image", "text"):
        assert gc_preview(tmp_path / "cache" / part, grace=0).entries >= 1
        assert gc_clean(tmp_path / "cache" / part, grace=0).entries >= 1
    with Loader("sdxl", tmp_path / "cache", made) as loader, loader.counting() as count:
        assert len(loader.epoch()) == 6
        assert count == {"image": 0, "text": 0}


def test_the_change_that_the_guide_shows_can_be_applied(tmp_path: Path) -> None:
    """The diff fits the files of the checkout, and what it imports is there."""
    page = (ROOT / "docs" / "guides" / "patch_onetrainer.md").read_text("utf-8")
    (diff,) = re.findall("^```diff\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for name in re.findall(r"^--- a/(.*)$", diff, re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout("OneTrainer", "Nerogar/OneTrainer") / name, tmp_path / name)
    done = subprocess.run(["patch", "-p1"], cwd=tmp_path, input=diff, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    changed = [file for file in tmp_path.rglob("*.py") if "precook.integrations.mgds" in file.read_text("utf-8")]
    assert len(changed) == 2


def test_masks_switched_on_and_off_encode_no_picture_again(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    """Crops and flips of the latents stay what they were, and the masks are cut and flipped as these are."""
    cats, dogs = folders
    for path in sorted(cats.glob("*.png")):
        shutil.copy(path, path.with_name(f"{path.stem}-masklabel.png"))  # as good as the picture shows the same cut
    options = {"image__enable_random_flip": True, "image_variations": 2}
    made = [concept(cats, **options), concept(dogs, **options)]
    model = tiny("sdxl")
    settings = {"model": model, "resolution": "32"}

    def epochs(*, masks: bool) -> tuple[list[Any], dict[str, int]]:
        loader = Loader("sdxl", tmp_path / "cache", made, masked_training=masks, **settings)
        with loader, loader.counting() as count:
            return [sorted(loader.epoch(), key=lambda item: item["image_path"]) for _ in range(2)], count

    before, count = epochs(masks=False)
    assert count["image"] > 7
    masked, count = epochs(masks=True)
    assert count == {"image": 0, "text": 0}
    names = {"latent_image", "crop_offset", "crop_resolution", "original_resolution", "image_path"}
    assert [[plain({name: item[name] for name in names}) for item in epoch] for epoch in masked] == [
        [plain({name: item[name] for name in names}) for item in epoch] for epoch in before
    ]
    assert epochs(masks=False)[1] == {"image": 0, "text": 0}
    # Where a mask is the picture itself, both show the same part of it: a VAE that is fed with masks would agree.
    for item in (item for epoch in masked for item in epoch if item["image_path"][0].startswith(str(cats))):
        left = item["latent_mask"][0, 0].flip(-1), item["latent_mask"][0, 0]
        pixels = torch.from_numpy(np.array(Image.open(item["image_path"][0]).convert("L"))) / 255
        y, x = (int(offset) for offset in item["crop_offset"])
        height, width = round(40 * 32 / 40), round(56 * 32 / 40)
        scaled = torch.nn.functional.interpolate(pixels[None, None], (height, width), mode="bilinear", antialias=True)
        cut = torch.nn.functional.interpolate(scaled[..., y : y + 32, x : x + 32], (4, 4), mode="area")[0, 0]
        assert min(float((cut - mask).abs().mean()) for mask in left) < 0.05
