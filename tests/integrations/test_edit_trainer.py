"""EmbeddingCacheManager under an image-edit trainer: its dataset, its cache step and what training reads."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from PIL import Image
from typer.testing import CliRunner

import precook
from precook.cli.main import app
from precook.integrations.adopt.embeddings import plan_adopt_embeddings
from precook.integrations.embedding import EmbeddingCacheManager, Uncached, cache_dataset, check_cache_exists
from tests.support.edit_trainer import EditDataset, EditEncoders, cache, expected, write_old_cache
from tests.support.projects import picture


@pytest.fixture
def samples(tmp_path: Path) -> list[dict[str, Any]]:
    """Four samples of one target and one prompt, each with a control picture of its own."""
    image = picture(tmp_path / "image.png", 1)
    return [
        {"image": image, "control": picture(tmp_path / f"c{number}.png", 10 + number), "prompt": "make it blue"}
        for number in range(4)
    ]


def read(path: Path, samples: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """What training is given of each sample, from a manager of its own."""
    with EmbeddingCacheManager(path) as manager:
        dataset = EditDataset(manager, samples, **options)
        return [dataset[row] for row in range(len(dataset))]


def run(path: Path, samples: list[dict[str, Any]], *, vae: float = 1.0, **options: Any) -> None:
    """The cache step, with a manager of its own."""
    with EmbeddingCacheManager(path) as manager:
        cache(EditDataset(manager, samples, **options), EditEncoders(vae))


def differing(encoders: EditEncoders, given: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """The embeddings of samples that are not what the encoders make of this very sample."""
    return [
        (row, name)
        for row, sample in enumerate(given)
        for name, tensor in expected(encoders, sample).items()
        if not torch.equal(sample[name].half(), tensor)
    ]


def test_training_reads_what_was_cached_of_each_sample(path: Path, samples: list[dict[str, Any]]) -> None:
    """Also a prompt that is encoded with a control picture: equal targets and prompts do not share it."""
    run(path, samples)
    given = read(path, samples)
    assert all(sample["cached"] for sample in given)
    assert not differing(EditEncoders(), given)
    assert not any(name.startswith("empty_") for name in given[0])
    # Masks too: that is what the trainer's own files hold.
    assert {given[0][name].dtype for name in expected(EditEncoders(), given[0])} == {torch.float16}
    prompts = {sample["prompt_embeds"].numpy().tobytes() for sample in given}
    assert len(prompts) == len(samples)


def test_a_sample_with_other_further_controls_is_another(
    path: Path, samples: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The trainer's main hash leaves out every control but the first; what is found does not."""
    further = [{**samples[0], "controls": [picture(tmp_path / f"more{number}.png", number)]} for number in (1, 2)]
    run(path, [samples[0], *further])
    assert not differing(EditEncoders(), read(path, [samples[0], *further]))


def test_caching_again_at_another_size_replaces_what_was_there(path: Path, samples: list[dict[str, Any]]) -> None:
    """Training gets the latents of the size that was cached last, and of the VAE."""
    for size, vae in ((32, 1.0), (64, 1.0), (64, 2.0), (32, 1.0)):
        run(path, samples, size=size, vae=vae)
        assert not differing(EditEncoders(vae), read(path, samples, size=size))


def test_caching_again_what_is_cached_stores_nothing(path: Path, samples: list[dict[str, Any]]) -> None:
    """Equal embeddings are stored once, and once again changes nothing."""
    run(path, samples)
    with precook.open(path) as store:
        entries = len(store)
    with EmbeddingCacheManager(path) as manager:
        assert manager.get_cache_stats()["image_latents"] == 1
        assert manager.get_cache_stats()["control_latents"] == len(samples)
    run(path, samples)
    with precook.open(path) as store:
        assert len(store) == entries


def test_a_sample_cached_by_another_model_has_nothing_of_the_first(path: Path, samples: list[dict[str, Any]]) -> None:
    """What is cached of a sample is what was cached last, as a whole."""
    run(path, samples[:1])
    with EmbeddingCacheManager(path) as manager:
        hashes = EditDataset(manager, samples)[0]["file_hashes"]
        manager.save_cache_embedding(
            {"latents_of_another": torch.ones(2)}, {"latents_of_another": "image_hash"}, hashes
        )
        assert manager.load_cache({"file_hashes": hashes}).keys() == {"file_hashes", "latents_of_another"}


def test_a_lost_embedding_is_not_cached(path: Path, samples: list[dict[str, Any]]) -> None:
    """A sample of which one tensor was removed is cached again, not trained on in part."""
    run(path, samples[:1])
    with EmbeddingCacheManager(path) as manager:
        manager.clear_cache("control_latents")
    assert read(path, samples[:1])[0]["cached"] is False
    run(path, samples[:1])
    assert not differing(EditEncoders(), read(path, samples[:1]))


def test_many_results_of_one_hash_give_the_newest(path: Path) -> None:
    """However often something is cached anew."""
    with EmbeddingCacheManager(path, dtype=None) as manager:
        for number in range(20):
            manager.save_cache("pixel_latent", "h", torch.tensor([number % 7]))
            assert manager.load_cache("pixel_latent", "h").tolist() == [number % 7]
        assert manager.missing("pixel_latent", ["h", "other"]) == ["other"]


def test_a_changed_prompt_is_not_cached_and_caching_adds_it(
    path: Path, samples: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """A sample that is new since stays marked as uncached, says so, and can be cached beside the others."""
    run(path, samples)
    changed = [*samples[:3], {**samples[3], "prompt": "make it red"}]
    given = read(path, changed)
    assert [sample["cached"] for sample in given] == [True, True, True, False]
    assert isinstance(given[3], Uncached)
    with pytest.raises(precook.PrecookError, match="not in the cache") as raised:
        given[3]["image_latents"]
    assert "--cache" in str(raised.value.hint)
    assert "not cached" in caplog.text
    run(path, changed)
    assert not differing(EditEncoders(), read(path, changed))
    assert not differing(EditEncoders(), read(path, samples))


def test_caption_dropout_gives_the_empty_prompt_of_the_same_picture(path: Path, samples: list[dict[str, Any]]) -> None:
    """Named with or without `empty_`, as configs of the trainer have it."""
    run(path, samples)
    for sample in read(path, samples, dropout=1.0):
        embeds, mask = EditEncoders().prompt("", sample["control"])
        assert torch.equal(sample["prompt_embeds"], embeds.half())
        assert torch.equal(sample["prompt_embeds_mask"], mask.half())
    with EmbeddingCacheManager(path) as manager:
        hashes = EditDataset(manager, samples)[0]["file_hashes"]
        with pytest.raises(precook.PrecookError, match="prompt_embed'"):
            manager.load_cache({"file_hashes": hashes}, True, ["prompt_embed"])


def test_other_settings_of_the_pictures_find_nothing(path: Path, samples: list[dict[str, Any]]) -> None:
    """A manager that is told how pictures are prepared does not serve what was made otherwise."""
    for size in (32, 64):
        with EmbeddingCacheManager(path, settings={"size": size}) as manager:
            dataset = EditDataset(manager, samples[:1], size=size)
            assert dataset[0]["cached"] is False
            cache(dataset, EditEncoders())
    with EmbeddingCacheManager(path, settings={"size": 32}) as manager:
        assert not differing(EditEncoders(), [EditDataset(manager, samples[:1], size=32)[0]])


def test_a_swapped_encoder_is_not_served_what_the_other_made(path: Path, samples: list[dict[str, Any]]) -> None:
    """A manager that names its VAE finds no sample of another one's, and one that names nothing takes what there is."""
    for vae in (1, 2):
        with EmbeddingCacheManager(path, encoders={"image_latents": {"vae": vae}}) as manager:
            dataset = EditDataset(manager, samples[:1])
            assert dataset[0]["cached"] is False
            cache(dataset, EditEncoders(vae))
            manager.flush()
            again = EditDataset(manager, samples[:1])
            assert not differing(EditEncoders(vae), [pickle.loads(pickle.dumps(again))[0]])
    assert not differing(EditEncoders(2), read(path, samples[:1]))


def test_whoever_wants_tensors_as_they_are_is_not_served_halves(path: Path, samples: list[dict[str, Any]]) -> None:
    run(path, samples[:1])
    with EmbeddingCacheManager(path, dtype=None) as manager:
        assert EditDataset(manager, samples[:1])[0]["cached"] is False


def _read_in_worker(dataset: EditDataset) -> list[bool]:
    return [bool(torch.equal(dataset[row]["image_latents"], dataset[0]["image_latents"])) for row in range(4)]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_data_loaders_workers_read(path: Path, samples: list[dict[str, Any]], start: str) -> None:
    """The dataset goes to another process with its manager, as a copy or as a pickle, and reads there."""
    run(path, samples)
    with EmbeddingCacheManager(path) as manager:
        dataset = EditDataset(manager, samples)
        if start == "spawn":
            assert _read_in_worker(pickle.loads(pickle.dumps(dataset))) == [True] * 4
        else:
            with multiprocessing.get_context(start).Pool(1) as pool:
                assert pool.apply(_read_in_worker, [dataset]) == [True] * 4


def test_a_cache_step_that_just_ends_has_cached(path: Path, samples: list[dict[str, Any]]) -> None:
    """The trainer closes nothing: another process finds every sample all the same."""
    listed = json.dumps([{name: str(value) for name, value in sample.items()} for sample in samples])
    code = (
        "import json, sys\n"
        "from precook.integrations.embedding import EmbeddingCacheManager\n"
        "from tests.support.edit_trainer import EditDataset, EditEncoders, cache\n"
        "cache(EditDataset(EmbeddingCacheManager(sys.argv[1]), json.loads(sys.argv[2])), EditEncoders())\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path), listed], check=True)
    assert EmbeddingCacheManager.exist(str(path))
    assert not differing(EditEncoders(), read(path, samples))


def test_an_open_picture_is_known_by_its_pixels(path: Path) -> None:
    """Pictures that look alike have different hashes, and equal ones the same."""
    grey, other = Image.new("RGB", (16, 16), (99, 99, 99)), Image.new("RGB", (16, 16), (99, 99, 99))
    with EmbeddingCacheManager(path) as manager:
        assert manager.get_hash(grey) == manager.get_hash(other)
        other.putpixel((3, 3), (99, 99, 98))
        assert manager.get_hash(grey) != manager.get_hash(other)
        assert manager.get_hash(grey, "a prompt").startswith(manager.get_hash(grey))
        with pytest.raises(precook.SourceError, match="nowhere"):
            manager.get_hash("nowhere.png")


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ({"size": 64}, {"image": 1, "control": 4, "prompt": 4, "empty": 4}),
        ({"vae": 2.0}, {"image": 1, "control": 4}),
        ({"prompt": "make it red"}, {"prompt": 1}),
        ({"control": 77}, {"control": 1, "prompt": 1, "empty": 1}),
        ({"image": 78}, {"image": 1}),
        ({}, {}),
    ],
)
def test_a_change_encodes_what_depends_on_it(
    path: Path, samples: list[dict[str, Any]], tmp_path: Path, change: dict[str, Any], asked: dict[str, int]
) -> None:
    """Encoding only what is missing: a change of the last sample, of the size or of the VAE costs just that much."""

    def step(samples: list[dict[str, Any]], *, size: int = 32, vae: float = 1.0) -> EditEncoders:
        encoders = EditEncoders(vae)
        latents = dict.fromkeys(("image_latents", "control_latents"), vae)
        with EmbeddingCacheManager(path, encoders=latents) as manager:
            cache_dataset(manager, EditDataset(manager, samples, size=size), encoders.functions())
        return encoders

    step(samples)
    last = dict(samples[-1])
    for name in change.keys() & {"image", "control"}:
        last[name] = picture(tmp_path / "changed.png", change[name])
    last["prompt"] = change.get("prompt", last["prompt"])
    settings = {name: change[name] for name in change.keys() & {"size", "vae"}}
    encoders = step([*samples[:-1], last], **settings)
    assert encoders.asked == asked
    given = read(path, [*samples[:-1], last], size=settings.get("size", 32))
    assert all(sample["cached"] for sample in given)
    assert not differing(EditEncoders(settings.get("vae", 1.0)), given)


def test_the_empty_prompts_encoder_is_given_an_empty_prompt(path: Path, samples: list[dict[str, Any]]) -> None:
    """And the other one the sample's own; what both make comes back by caption dropout."""
    given: dict[str, list[str]] = {}

    def remember(name: str) -> Any:
        def encode(batch: list[Any]) -> list[Any]:
            given[name] = [sample["prompt"] for sample in batch]
            return [torch.zeros(1) for _ in batch]

        return encode

    with EmbeddingCacheManager(path) as manager:
        cache_dataset(manager, samples, {name: remember(name) for name in ("prompt_embeds", "empty_prompt_embeds")})
    assert given == {"prompt_embeds": ["make it blue"] * 4, "empty_prompt_embeds": [""] * 4}


def test_prompts_that_are_encoded_alone_are_encoded_once(path: Path, samples: list[dict[str, Any]]) -> None:
    """Where the model encodes prompts without pictures, four samples of one prompt are one prompt."""
    counts = {}
    for alone in (True, False):
        encode = {"prompt_embeds": lambda batch: [torch.zeros(1) for _ in batch]}
        with EmbeddingCacheManager(path / str(alone)) as manager:
            counts[alone] = cache_dataset(manager, samples, encode, prompts_alone=alone)
    assert counts == {True: {"prompt_embeds": 1}, False: {"prompt_embeds": 4}}


def test_a_folder_of_the_trainers_own_is_named_and_adopted(
    path: Path, samples: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Opened as a store it says what it is; adopted, training reads what the trainer's files held."""
    encoders = EditEncoders()
    with EmbeddingCacheManager(tmp_path / "unused") as manager:
        old = write_old_cache(tmp_path / "old", EditDataset(manager, samples[:1]), encoders)
    with pytest.raises(precook.PrecookError, match="embeddings of qwen-image-finetune") as raised:
        EmbeddingCacheManager(old)
    assert "precook adopt" in str(raised.value.hint)
    command = ["adopt", str(old), "--store", str(path)]
    assert "1 sample" in CliRunner().invoke(app, command).output
    assert not path.exists()
    assert CliRunner().invoke(app, [*command, "--yes"]).exit_code == 0
    assert not differing(encoders, read(path, samples[:1]))


def test_an_old_prompt_that_may_be_another_samples_is_not_adopted(
    path: Path, samples: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The old names do not tell prompts with different controls apart: those samples are left out with the reason."""
    samples = [*samples, {**samples[0], "prompt": "make it red"}]
    with EmbeddingCacheManager(tmp_path / "unused") as manager:
        old = write_old_cache(tmp_path / "old", EditDataset(manager, samples), EditEncoders())
    plan = plan_adopt_embeddings(old)
    assert len(plan.entries) == 1
    assert len(plan.left_out) == 4
    assert "several control pictures" in plan.left_out[0].reason
    with precook.open(path) as store:
        assert plan.execute(store).entries == 1
    given = read(path, samples)
    assert [sample["cached"] for sample in given] == [False] * 4 + [True]
    assert not differing(EditEncoders(), given[4:])


def test_what_was_cached_since_is_not_overwritten_by_adopting(
    path: Path, samples: list[dict[str, Any]], tmp_path: Path
) -> None:
    """A sample that the store has stays as it is there."""
    with EmbeddingCacheManager(tmp_path / "unused") as manager:
        old = write_old_cache(tmp_path / "old", EditDataset(manager, samples[:1]), EditEncoders(vae=3.0))
    run(path, samples[:1])
    with precook.open(path) as store:
        plan_adopt_embeddings(old).execute(store)
    assert not differing(EditEncoders(), read(path, samples[:1]))


@pytest.mark.parametrize("damage", ["pickle", "missing", "list", "name"])
def test_an_old_file_that_is_no_tensor_is_left_out(
    path: Path, samples: list[dict[str, Any]], tmp_path: Path, damage: str
) -> None:
    """Whatever an old folder holds, nothing in it is run and no file outside of it is read."""
    with EmbeddingCacheManager(tmp_path / "unused") as manager:
        old = write_old_cache(tmp_path / "old", EditDataset(manager, samples[:1]), EditEncoders())
    tensor = next((old / "image_latents").iterdir())
    listed = next((old / "metadata").iterdir())
    if damage == "pickle":
        torch.save(Path("a class, not a tensor"), tensor)
    elif damage == "missing":
        tensor.unlink()
    elif damage == "list":
        listed.write_text("[1, 2]")
    else:
        listed.write_text(json.dumps({"../image_latents": tensor.stem}))
    plan = plan_adopt_embeddings(old)
    with precook.open(path) as store:
        adoption = plan.execute(store)
    assert adoption.entries == 0
    assert len([*plan.left_out, *adoption.failed]) == 1
    assert not check_cache_exists(path)
