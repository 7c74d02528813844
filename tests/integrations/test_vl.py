"""Tensors of vision-language processors: the cache as its trainer uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.integrations.vl import VlCache, VlCacheKey, processor_identity

KEY = VlCacheKey("blob", "processor", 224, 336)


def pixels(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(3, 14, 21)).astype(np.float32)


def test_pictures_are_processed_once(path: Path) -> None:
    """What was put is there, also for the next run; nothing is created before the first put."""
    with VlCache(path) as cache:
        assert cache.get(KEY) is None
        assert not cache.exists(KEY)
        assert not path.exists()
        cache.put(KEY, pixels())
        assert cache.exists(KEY)
    with VlCache(path) as cache:
        found = cache.get(KEY)
        assert found.dtype == np.float32
        assert np.array_equal(found, pixels())


@pytest.mark.parametrize(
    "other",
    [
        VlCacheKey("another", "processor", 224, 336),
        VlCacheKey("blob", "processor" + "2", 224, 336),
        VlCacheKey("blob", "processor", 336, 224),
    ],
)
def test_each_part_of_the_key_counts(path: Path, other: VlCacheKey) -> None:
    """Another picture, processor or size finds nothing of the first, however long the part is that they share."""
    with VlCache(path) as cache:
        cache.put(KEY, pixels())
        assert not cache.exists(other)
        assert cache.get(other) is None


def make_processor(**settings: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    kind = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    small = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    return kind(**{**small, **settings})


def test_a_processor_that_changes_is_another(path: Path) -> None:
    """A setting that is changed on the living object is seen: the old tensors are not served for it."""
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    processor = make_processor()
    with VlCache(path) as cache:
        for _ in range(2):
            key = VlCacheKey(precook.digest(image.tobytes()).hex, processor_identity(processor), 16, 16)
            made = np.asarray(processor(images=image, return_tensors="np")["pixel_values"])
            assert cache.get(key) is None
            cache.put(key, made)
            assert np.array_equal(cache.get(key), made)
            processor.image_mean = [0.1, 0.2, 0.3]


def test_settings_that_no_list_names_count() -> None:
    """Every setting is a part of the identity: the crop too, and a copy that was saved and loaded is the same."""
    identity = processor_identity(make_processor())
    assert processor_identity(make_processor()) == identity
    others = [{"do_center_crop": False}, {"crop_size": {"height": 8, "width": 16}}, {"do_convert_rgb": False}]
    assert len({identity, *(processor_identity(make_processor(**other)) for other in others)}) == 4


def test_the_class_that_runs_counts(tmp_path: Path) -> None:
    """Two classes that save the same config give different pixels: they are two processors."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    one = make_processor()
    siglip = getattr(transformers, "SiglipImageProcessorPil", None) or transformers.SiglipImageProcessor
    other = siglip(**{name: value for name, value in one.to_dict().items() if name != "image_processor_type"})
    assert processor_identity(one) != processor_identity(other)


def test_what_cannot_be_identified_is_refused() -> None:
    """An object of unknown behaviour has no identity, rather than one by its name."""

    class Strange:
        image_mean = 0.5

    with pytest.raises(precook.IdentityError, match="Strange"):
        processor_identity(Strange())
