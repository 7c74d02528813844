"""Tensors of vision-language processors: the cache as its trainer uses it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import precook
from precook.identity.canonical import canonical
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


class Grey:
    """A processor of somebody's own."""

    weights = (0.3, 0.6, 0.1)

    def __init__(self, size: int, *, scale: float = 1.0, inner: object = None) -> None:
        self.size = size
        self.scale = scale
        self.inner = inner

    def __call__(self, image: Any) -> Any:
        return (image[: self.size, : self.size] @ np.array(self.weights)) * self.scale


def test_a_processor_of_ones_own_is_known_by_code_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal settings are the same processor, also in another process; other settings, parts or code are another."""
    identity = processor_identity(Grey(8))
    assert processor_identity(Grey(8)) == identity
    changed = Grey(8)
    changed.scale = 2.0
    others = [Grey(9), Grey(8, scale=0.5), changed, Grey(8, inner=Grey(2)), SimpleNamespace(size=8, scale=1.0)]
    assert len({identity, *map(processor_identity, others)}) == 6
    source = "class Own:\n    def __call__(self, image):\n        return image * {}\n"
    identities = []
    monkeypatch.syspath_prepend(tmp_path)
    for number in (1, 2):
        (tmp_path / f"own_{number}").mkdir()
        (tmp_path / f"own_{number}" / "processing.py").write_text(source.format(number))
        with monkeypatch.context() as path:
            path.syspath_prepend(tmp_path / f"own_{number}")
            path.delitem(sys.modules, "processing", raising=False)
            identities.append(processor_identity(importlib.import_module("processing").Own()))
    monkeypatch.delitem(sys.modules, "processing")
    assert identities[0] != identities[1]


def test_namespaces_of_settings_are_known_by_them() -> None:
    """Settings in a namespace, nested as they may be, are told apart by every one of them."""
    made = [SimpleNamespace(image_processor=SimpleNamespace(size={"edge": 224}, mean=mean)) for mean in (0.5, 0.5, 0.4)]
    identities = list(map(processor_identity, made))
    assert identities[0] == identities[1] != identities[2]


def grey(image: Any) -> Any:
    return image.mean(axis=-1)


def test_transforms_are_known_by_all_they_hold() -> None:
    """A pipeline of torch modules, functions and own classes: what no module shows of itself counts, too."""
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Resize(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size

    def compose(size: int, *steps: object) -> Any:
        return SimpleNamespace(transforms=[Resize(size), *steps])

    made = [compose(8), compose(8), compose(9), compose(8, grey), compose(8, Grey(8))]
    identities = list(map(processor_identity, made))
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4
    assert processor_identity(torch.nn.Sequential(Resize(8))) != processor_identity(torch.nn.Sequential(Resize(9)))


def test_the_vocabulary_of_a_processor_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer asks for every picture: the tokenizer beside is looked through once, and any change is seen."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    words = tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "picture": 2}, unk_token="[UNK]")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), unk_token="[UNK]")
    processor = transformers.CLIPProcessor(make_processor(), tokenizer)
    looked: list[object] = []

    def watched(part: object) -> object:
        looked.append(part)
        return precook.identify(part)

    monkeypatch.setattr("precook.integrations.processor.identify", watched)
    identity = processor_identity(processor)
    assert processor_identity(processor) == identity
    assert sum(part is tokenizer for part in looked) == 1
    assert identity == precook.digest(canonical(precook.identify(processor))).hex
    seen = {identity}
    for change in (
        lambda: setattr(processor.image_processor, "image_mean", [0.1, 0.2, 0.3]),
        lambda: setattr(tokenizer, "padding_side", "left"),
        lambda: setattr(tokenizer, "chat_template", "{{ messages }}"),
        lambda: tokenizer.add_tokens(["new"]),
        lambda: setattr(tokenizer.backend_tokenizer, "normalizer", tokenizers.normalizers.Lowercase()),
    ):
        change()
        seen.add(processor_identity(processor))
    assert len(seen) == 6


def make_closed_over(scale: float) -> Any:
    class Scaled:
        def __call__(self, image: Any) -> Any:
            return image * scale

    return Scaled()


class Slots:
    """Its state is not in a dict."""

    __slots__ = ("size",)


@pytest.mark.parametrize(
    "strange",
    [object(), make_closed_over(2.0), Slots(), Grey(8, inner=object()), Grey(8, inner=lambda image: image), iter([])],
    ids=["object", "closure", "slots", "part", "function", "builtin"],
)
def test_what_cannot_be_identified_is_refused(strange: object) -> None:
    """An object whose code or state nobody can read has no identity, rather than one by its name."""
    with pytest.raises(precook.IdentityError) as refused:
        processor_identity(strange)
    assert refused.value.hint


def test_paths_say_where_a_picture_lies(path: Path) -> None:
    """`put` gives the folder, `path_for` the file that holds the picture; without one, there is no file."""
    cache = VlCache(path, flush_seconds=3600)
    assert not cache.path_for(KEY).exists()
    folder = cache.put(KEY, pixels())
    assert folder == path == cache.root
    assert folder.is_dir()
    file = cache.path_for(KEY)
    assert file.is_file()
    assert file.is_relative_to(folder)
    file.write_bytes(b"not a pack")
    assert cache.get(KEY) is None
    assert not cache.exists(KEY)
    cache.close()


def test_old_names_are_those_of_its_files() -> None:
    """A key says the name and the folder that dlm's own cache would use."""
    key = VlCacheKey("ab" * 32, "c" * 64, 224, 336)
    assert (key.shard(), key.as_filename()) == ("ab", f"{'ab' * 32}.cccccccccccc.224x336.npz")


def test_hits_are_counted(path: Path) -> None:
    """As for sections: what `get` found, and what it did not."""
    with VlCache(path) as cache:
        cache.get(KEY)
        cache.put(KEY, pixels())
        cache.get(KEY)
        assert (cache.hits, cache.misses, cache.hit_rate) == (1, 1, 0.5)
