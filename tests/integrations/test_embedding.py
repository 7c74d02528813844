"""EmbeddingCacheManager: the cache as an image-edit trainer uses it."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.integrations.embedding import CACHE_TYPES, EmbeddingCacheManager, cache_dataset, check_cache_exists
from precook.integrations.tokenized import CachedTokens, CacheKey, TokenizedCache
from precook.maintain.evict import plan_evict
from tests.support.projects import keep_times, picture
from tests.support.trees import same

PROMPTS = ("prompt_embed", "prompt_embeds_mask")
EMPTY = ("empty_prompt_embed", "empty_prompt_embeds_mask")


class Encoders:
    """A trainer's encoders, which count what they are asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.batches: list[int] = []

    def latents(self, name: str) -> Any:
        def encode(samples: list[Any]) -> list[Any]:
            self.asked[name] += len(samples)
            self.batches.append(len(samples))
            return [
                np.frombuffer(precook.digest(Path(one[name])).bytes, np.uint8).astype(np.float32) for one in samples
            ]

        return encode

    def prompts(self, *, empty: bool) -> Any:
        def encode(samples: list[Any]) -> list[Any]:
            self.asked["empty" if empty else "prompt"] += len(samples)
            texts = ["" if empty else one["prompt"] for one in samples]
            return [(np.full((len(text), 4), 0.5, np.float32), np.ones(len(text), bool)) for text in texts]

        return encode

    @property
    def all(self) -> dict[Any, Any]:
        return {
            "pixel_latent": self.latents("image"),
            "control_latent": self.latents("control"),
            PROMPTS: self.prompts(empty=False),
            EMPTY: self.prompts(empty=True),
        }


@pytest.fixture
def samples(tmp_path: Path) -> list[dict[str, Any]]:
    """Four pairs of pictures with prompts."""
    return [
        {
            "image": picture(tmp_path / "data" / f"p{number}.png", number),
            "control": picture(tmp_path / "data" / f"c{number}.png", 100 + number),
            "prompt": f"make it {number}",
        }
        for number in range(4)
    ]


def test_the_documented_calls(path: Path, tmp_path: Path) -> None:
    """Save, load, look, count: by type and hash."""
    image = picture(tmp_path / "a.png", 1)
    with EmbeddingCacheManager(path, dtype=None) as manager:
        file_hash = manager.get_file_hash_for_image(image)
        prompt_hash = manager.get_file_hash_for_prompt(image, "make it blue")
        assert manager.load_cache("pixel_latent", file_hash) is None
        assert not manager.cache_exists("pixel_latent", file_hash)
        manager.save_cache("pixel_latent", file_hash, np.arange(4.0))
        manager.save_cache("prompt_embed", prompt_hash, {"embeds": np.ones(3), "length": 3})
        assert manager.cache_exists("pixel_latent", file_hash)
        assert not manager.cache_exists("control_latent", file_hash)
        assert same(manager.load_cache("pixel_latent", file_hash), np.arange(4.0))
        assert same(manager.load_cache("prompt_embed", prompt_hash), {"embeds": np.ones(3), "length": 3})
        assert manager.get_cache_stats() == {**dict.fromkeys(CACHE_TYPES, 0), "pixel_latent": 1, "prompt_embed": 1}


def test_a_cache_exists_when_it_has_every_type(path: Path, tmp_path: Path) -> None:
    """One type alone is no cache to train from; whoever needs others than the usual ones names them."""
    assert not check_cache_exists(tmp_path / "nowhere")
    with EmbeddingCacheManager(path) as manager:
        for name in CACHE_TYPES:
            assert not check_cache_exists(path)
            manager.save_cache(name, "h", np.zeros(1))
            manager.flush()
    assert check_cache_exists(path)
    assert check_cache_exists(path, ["pixel_latent"])
    assert not check_cache_exists(path, ["pixel_latent", "image_latents"])
    assert not EmbeddingCacheManager.exist(path)


def test_any_name_is_a_type(path: Path) -> None:
    """A trainer has types of its own, which are counted and cleared like the others."""
    with EmbeddingCacheManager(path, encoders={"pooled_prompt_embeds": 1}) as manager:
        manager.save_cache("pooled_prompt_embeds", "hash", np.zeros(1))
        assert manager.get_cache_stats() == {**dict.fromkeys(CACHE_TYPES, 0), "pooled_prompt_embeds": 1}
        assert manager.clear_cache("pooled_prompt_embeds") == 1
        with pytest.raises(precook.PrecookError, match="a name"):
            manager.save_cache("", "hash", np.zeros(1))


def test_only_what_is_missing_is_encoded(path: Path, samples: list[dict[str, Any]]) -> None:
    """The first step encodes everything in batches, the second nothing, and one new sample costs one of each."""
    first = Encoders()
    with EmbeddingCacheManager(path) as manager:
        made = cache_dataset(manager, samples[:3], first.all, batch_size=2)
    assert made == dict.fromkeys(CACHE_TYPES, 3)
    assert first.asked == {"image": 3, "control": 3, "prompt": 3, "empty": 3}
    assert first.batches[:2] == [2, 1]
    second = Encoders()
    with EmbeddingCacheManager(path) as manager:
        assert cache_dataset(manager, samples[:3], second.all) == dict.fromkeys(CACHE_TYPES, 0)
        assert not second.asked
        assert cache_dataset(manager, samples, second.all) == dict.fromkeys(CACHE_TYPES, 1)
        assert manager.get_cache_stats() == dict.fromkeys(CACHE_TYPES, 4)


def test_equal_samples_are_encoded_once(path: Path, samples: list[dict[str, Any]]) -> None:
    """A picture that is there twice, under any name, is one picture."""
    copy = samples[0]["image"].with_name("copy.png")
    copy.write_bytes(samples[0]["image"].read_bytes())
    encoders = Encoders()
    with EmbeddingCacheManager(path) as manager:
        cache_dataset(manager, [samples[0], {**samples[0], "image": copy}], encoders.all)
    assert encoders.asked == {"image": 1, "control": 1, "prompt": 1, "empty": 1}


def test_moved_and_touched_pictures_are_found(path: Path, samples: list[dict[str, Any]], tmp_path: Path) -> None:
    """Path and time are no part of a hash: another folder and new times cost nothing to encode."""
    with EmbeddingCacheManager(path) as manager:
        cache_dataset(manager, samples, Encoders().all)
    (tmp_path / "data").rename(tmp_path / "moved")
    moved = [
        {**one, "image": tmp_path / "moved" / one["image"].name, "control": tmp_path / "moved" / one["control"].name}
        for one in samples
    ]
    for one in moved:
        os.utime(one["image"], (1, 1))
    encoders = Encoders()
    with EmbeddingCacheManager(path) as manager:
        cache_dataset(manager, moved, encoders.all)
    assert not encoders.asked


def test_an_edit_that_keeps_path_and_time_is_seen(path: Path, samples: list[dict[str, Any]]) -> None:
    """New bytes under the old name and time are a new picture: its latent is made anew, and nothing else."""
    with EmbeddingCacheManager(path) as manager:
        cache_dataset(manager, samples, Encoders().all)
    image = samples[0]["image"]
    keep_times(image, picture(image.with_name("other.png"), 77).read_bytes())
    encoders = Encoders()
    with EmbeddingCacheManager(path) as manager:
        cache_dataset(manager, samples, encoders.all)
        found = manager.load_cache("pixel_latent", manager.get_file_hash_for_image(image))
    assert encoders.asked == {"image": 1}
    assert same(found, np.frombuffer(precook.digest(image).bytes, np.uint8).astype(np.float16))


def test_a_picture_edited_while_it_is_encoded_is_not_kept(path: Path, samples: list[dict[str, Any]]) -> None:
    """What was encoded of the new bytes does not land under the old hash."""
    image = samples[0]["image"]
    before = precook.digest(image).hex

    def editing(batch: list[Any]) -> list[Any]:
        picture(image, 55)
        return [np.zeros(1) for _ in batch]

    with EmbeddingCacheManager(path) as manager:
        with pytest.raises(precook.SourceChangedError, match=image.name):
            cache_dataset(manager, samples[:1], {"pixel_latent": editing})
        assert not manager.cache_exists("pixel_latent", before)


def test_pictures_by_their_paths_are_encoded_again_for_another_size(path: Path, samples: list[dict[str, Any]]) -> None:
    """Nothing in a path says how large a picture is cut, so the manager's settings count; prompts alone do not care."""
    asked = []
    for size in (32, 64, 64):
        encoders = Encoders()
        with EmbeddingCacheManager(path, settings={"size": size}) as manager:
            cache_dataset(manager, samples, encoders.all, prompts_alone=True)
        asked.append(dict(encoders.asked))
    assert asked == [{"image": 4, "control": 4, "prompt": 4, "empty": 1}, {"image": 4, "control": 4}, {}]


def test_making_room_takes_the_older_result_first(path: Path) -> None:
    """A result that was replaced is never found again because the one in its place is gone, though it was read last."""
    for value in (1.0, 2.0):
        with EmbeddingCacheManager(path, dtype=None) as manager:
            manager.load_cache("pixel_latent", "hash")
            manager.save_cache("pixel_latent", "hash", np.full(1 << 17, value))
    with precook.open(path) as store:
        assert plan_evict(store, 3 << 19).execute().entries == 1
    with EmbeddingCacheManager(path, dtype=None) as manager:
        assert manager.load_cache("pixel_latent", "hash")[0] == 2.0


def test_a_swapped_encoder_finds_nothing_of_the_old_one(path: Path) -> None:
    """With its encoder named, a cache type knows another one's results from its own; swapping back finds all."""
    for encoder, value in (("first", 1.0), ("second", 2.0)):
        with EmbeddingCacheManager(path, encoders={"pixel_latent": {"weights": encoder}}) as manager:
            assert manager.load_cache("pixel_latent", "hash") is None
            manager.save_cache("pixel_latent", "hash", np.array([value]))
    with EmbeddingCacheManager(path, encoders={"pixel_latent": {"weights": "first"}}) as manager:
        assert manager.load_cache("pixel_latent", "hash").tolist() == [1.0]
        assert manager.get_cache_stats()["pixel_latent"] == 2


def test_training_falls_back_to_live_encoding_and_keeps_it(path: Path) -> None:
    """A sample that is not cached is encoded now, and never again."""
    calls = []

    def live() -> Any:
        calls.append(1)
        return {"latent": np.arange(3.0)}

    kept = {"latent": np.arange(3, dtype=np.float16)}
    with EmbeddingCacheManager(path) as manager:
        assert all(same(manager.load_or_encode("pixel_latent", "h", live), kept) for _ in range(3))
    with EmbeddingCacheManager(path) as manager:
        manager.load_or_encode("pixel_latent", "h", live)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("config", "folder"),
    [
        ({"cache": {"use_cache": True, "cache_dir": "{path}"}}, "{path}"),
        ({"cache": {"use_cache": False, "cache_dir": "{path}"}}, None),
        ({"cache": {"cache_dir": "{path}//"}}, "{path}"),
        ({"cache": {"use_cache": True}}, "cache"),
        ({"data": {"init_args": {"use_cache": True, "cache_dir": "{path}"}}}, "{path}"),
        ({"data": {"init_args": {"cache_dir": "elsewhere"}}, "cache": {"cache_dir": "{path}"}}, "{path}"),
        ({"data": {"init_args": {"use_cache": "${cache.use_cache}"}}, "cache": {"use_cache": False}}, None),
        ({"logging": {"output_dir": "{path}"}, "cache": {"cache_dir": "${logging.output_dir}/of"}}, "{path}/of"),
        ({"cache": {"cache_dir": "${oc.env:PLACE}"}}, "{path}"),
        ({"cache": {"cache_dir": "$PLACE/sub"}}, "{path}/sub"),
        ({"model": {}}, None),
        ({}, None),
    ],
)
def test_use_cache_in_a_config(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any, folder: str | None
) -> None:
    """A trainer's config decides, read from its file as it is: references, defaults and all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", str(path))
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(config).replace("{path}", str(path)))
    manager = EmbeddingCacheManager.from_config(file)
    if folder is None:
        assert manager is None
        return
    assert manager is not None
    assert manager.store.path.resolve() == Path(folder.format(path=path)).resolve()
    manager.close()


def test_a_config_says_where_encoders_run(path: Path) -> None:
    """By the trainer's names of today, and by older ones."""
    today = {"cache": {"cache_dir": str(path), "devices": {"vae": "cuda:1", "text_encoder": None}}}
    older = {"cache": {"cache_dir": str(path), "vae_encoder_device": "cuda:1", "text_encoder_device": "cpu"}}
    expected = ({"vae": "cuda:1"}, {"vae": "cuda:1", "text_encoder": "cpu"})
    for config, devices in zip((today, older), expected, strict=True):
        manager = EmbeddingCacheManager.from_config(config)
        assert manager is not None
        assert manager.devices == devices
        manager.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cache: {cache_dir: '${nowhere.at_all}'}", "refers to nothing"),
        ("cache: {cache_dir: '${cache.cache_dir}'}", "refers to itself"),
        ("cache: 7", "not a section"),
        ("[1, 2]", "not a list"),
        ("cache: [", "not YAML"),
    ],
)
def test_a_config_that_cannot_be_read_is_told(tmp_path: Path, text: str, told: str) -> None:
    """No folder is guessed."""
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(precook.PrecookError, match=told):
        EmbeddingCacheManager.from_config(file)
    with pytest.raises(precook.PrecookError, match="nowhere"):
        EmbeddingCacheManager.from_config(tmp_path / "nowhere.yaml")


def test_half_precision_is_a_choice(path: Path) -> None:
    """Floats are halved as the trainer does, ints and masks are not touched; without it tensors stay as they are."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tree = {"hidden": torch.linspace(0, 1, 5), "mask": torch.ones(5, dtype=torch.bool), "ids": (torch.arange(5), [1.5])}
    with EmbeddingCacheManager(path, dtype=None) as manager:
        manager.save_cache("prompt_embed", "h", tree)
        assert same(manager.load_cache("prompt_embed", "h"), tree)
    with EmbeddingCacheManager(path) as manager:
        assert manager.load_cache("prompt_embed", "h") is None
        manager.save_cache("prompt_embed", "h", tree)
        assert same(manager.load_cache("prompt_embed", "h"), {**tree, "hidden": tree["hidden"].half()})


def test_numbers_that_cannot_be_kept_are_refused(path: Path) -> None:
    """A NaN is never saved, and neither is what float16 would turn into infinity."""
    with EmbeddingCacheManager(path, dtype="float16") as manager:
        with pytest.raises(precook.EncodeError, match="NaN"):
            manager.save_cache("pixel_latent", "h", np.array([np.nan]))
        with pytest.raises(precook.EncodeError, match="beyond float16"):
            manager.save_cache("pixel_latent", "h", np.array([1e6]))
        assert not manager.cache_exists("pixel_latent", "h")
        manager.save_cache("prompt_embeds_mask", "h", np.array([0.0, -np.inf]))  # an additive mask


@pytest.mark.parametrize("results", [lambda n: [np.zeros(1)] * (n + 1), np.zeros, lambda n: [1] * n])
def test_an_encoder_that_breaks_its_promise_is_told(path: Path, samples: list[dict[str, Any]], results: Any) -> None:
    """Too many results, no list, or no tuple for two types: an error, and nothing is kept."""
    with EmbeddingCacheManager(path) as manager:
        with pytest.raises(precook.EncodeError, match="prompt_embed, prompt_embeds_mask"):
            cache_dataset(manager, samples, {PROMPTS: lambda batch: results(len(batch))})
        assert not any(manager.get_cache_stats().values())


@pytest.mark.parametrize(("prompt", "told"), [(None, "no prompt"), (7, "a int as its prompt")])
def test_a_prompt_that_is_no_text_is_refused(
    path: Path, samples: list[dict[str, Any]], prompt: object, told: str
) -> None:
    """A sample without a prompt does not share the results of a prompt that spells "None"."""
    with EmbeddingCacheManager(path) as manager:
        with pytest.raises(precook.PrecookError, match=told):
            cache_dataset(manager, [*samples, {**samples[0], "prompt": prompt}], {"prompt_embed": lambda batch: batch})
        assert not any(manager.get_cache_stats().values())


def test_a_torch_module_can_say_what_it_is(path: Path) -> None:
    """The module itself may be given for an encoder: its weights are in the key."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = torch.nn.Linear(2, 2)
    with EmbeddingCacheManager(path, encoders={"pixel_latent": module}) as manager:
        manager.save_cache("pixel_latent", "h", torch.zeros(1))
    with torch.no_grad():
        module.weight += 1
    with EmbeddingCacheManager(path, encoders={"pixel_latent": module}) as manager:
        assert not manager.cache_exists("pixel_latent", "h")


def test_two_fronts_share_one_store(path: Path) -> None:
    """Embeddings and tokens in one store, without seeing each other's."""
    with precook.open(path) as store:
        with EmbeddingCacheManager(store) as manager, TokenizedCache.open(store) as sections:
            manager.save_cache("pixel_latent", "same", np.zeros(1))
            sections.put(CacheKey("same", "t", 1), CachedTokens(np.zeros(1), np.zeros(1)))
            assert sum(manager.get_cache_stats().values()) == sections.entry_count == 1
        assert len(store) == 2
        assert store.verify().clean


def test_clearing_one_type_leaves_the_others(path: Path) -> None:
    """A type goes with all its encoders' results; without a type, everything of this cache goes."""
    for encoder in ("first", "second"):
        with EmbeddingCacheManager(path, encoders={"pixel_latent": encoder}) as manager:
            manager.save_cache("pixel_latent", "h", np.zeros(1))
            manager.save_cache("prompt_embed", "h", np.zeros(1))
    with EmbeddingCacheManager(path) as manager:
        assert manager.clear_cache("pixel_latent") == 2
        assert manager.get_cache_stats() == {**dict.fromkeys(CACHE_TYPES, 0), "prompt_embed": 1}
        assert manager.clear_cache() == 1
        assert not any(manager.get_cache_stats().values())
        with pytest.raises(precook.PrecookError, match="no cache type"):
            manager.clear_cache("prompts")
