"""SCENARIOS A12: which fields of the config change keys, and which do not; every field is here."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from precook.config.concept import Concept, TagSettings
from precook.config.encoders import ENCODERS, DiffusersPrompt, UserSection
from precook.config.field_types import decides
from precook.config.schema import Settings
from precook.config.sections import ImageSettings, TextSettings, VideoSettings
from precook.config.texts import PassageSettings
from tests.support.clips import animation
from tests.support.projects import picture, project, text_folder, vae_folder

ALL = {"latent", "clip", "prompt", "tokens", "inputs", "mask", "pixels", "hint", "vision", "mine", "own"}
PICTURES = {"latent", "clip", "inputs", "mask", "pixels", "hint", "vision", "own"}
TEXTS = {"prompt", "tokens", "mine"}
BASE: dict[str, Any] = {
    "store": "cache",
    "dataset": "test",
    "concepts": [
        {
            "name": "things",
            "path": "data",
            "masks": "{stem}-masklabel.png",
            "images": {"control": "{stem}-condlabel.png"},
        }
    ],
    "image": {"resolutions": [64], "step": 16, "crop": "random", "flip": "random", "variations": 2},
    "text": {"variations": "all", "empty_prompt": True},
    "video": {"frames": [1, 4], "fps": 10, "start": "first"},
    "encoders": {
        "latent": {"uses": "diffusers-vae", "model": "models/vae"},
        "clip": {"uses": "diffusers-video-vae", "model": "models/vae"},
        "prompt": {"uses": "transformers-text", "model": "models/text"},
        "tokens": {"uses": "transformers-tokens", "model": "models/text"},
        "inputs": {"uses": "transformers-processor", "model": "models/vl"},
        "mask": {"uses": "mask", "factor": 8},
        "pixels": {"uses": "image"},
        "hint": {"uses": "image", "of": "control"},
        "vision": {"uses": "transformers-vision", "model": "models/vision"},
        "mine": {"uses": "tests.support.projects:Words", "version": 1},
        "own": {"uses": "tests.support.projects:Pixels"},
    },
}
CHANGES: dict[str, tuple[Any, set[str]]] = {
    # the whole file
    "store": ("elsewhere", set()),
    "cache": ({"path": "near"}, set()),
    "remote": ({"endpoint": "https://host", "patience": "1m"}, set()),
    "dataset": ("renamed", set()),
    "keep": (["paths", "captions"], set()),
    "stamps": ("trust", set()),
    # concepts: what is not a source's content is in no key
    "concepts.0.name": ("renamed", set()),
    "concepts.0.path": ("copy", set()),
    "concepts.0.recursive": (False, set()),
    "concepts.0.outside": ("allow", set()),
    "concepts.0.captions": ({"text": "a thing"}, TEXTS),
    "concepts.0.caption_extension": (".caption", TEXTS),
    "concepts.0.caption_encoding": ("latin-1", TEXTS),
    "concepts.0.prefix": ("a photo of ", TEXTS),
    "concepts.0.suffix": (".", TEXTS),
    "concepts.0.trigger": ("sks", TEXTS),
    "concepts.0.tags": ({}, TEXTS),
    "concepts.0.masks": ("{stem}-other-masklabel.png", {"mask"}),
    "concepts.0.missing_mask": ("error", set()),
    "concepts.0.images": ({"control": "{stem}-condlabel.webp"}, {"hint"}),
    "concepts.0.image_column": ("file", set()),
    "concepts.0.repeats": (2.0, set()),
    "concepts.0.samples": (1, set()),
    "concepts.0.loss_weight": (0.5, set()),
    "concepts.0.image": ({"flip": "none"}, PICTURES),
    "concepts.0.text": ({"variations": 1}, TEXTS),
    "concepts.0.video": ({"frames": [1, 5]}, {"clip"}),
    "concepts.0.enabled": (True, set()),
    "concepts.0.validation": (True, set()),
    # how pictures are cut
    "image.resolutions": ([96], PICTURES),
    "image.step": (32, PICTURES),
    "image.multiple_of": (32, set()),
    "image.crop": ("center", PICTURES),
    "image.flip": ("none", PICTURES),
    "image.variations": (1, PICTURES),
    "image.resampling": ("bicubic", PICTURES),
    "image.rounding": ("down", PICTURES),
    "image.upscale": ("refuse", set()),
    "image.max_aspect": (1.0, PICTURES),
    "image.extreme_aspect": ("refuse", set()),
    "image.background": ("black", PICTURES - {"mask"}),
    "image.max_pixels": (10**6, set()),
    "image.pick": ("each", set()),
    "image.seed": (7, PICTURES),
    # which texts
    "text.variations": (1, TEXTS),
    "text.empty_prompt": (False, TEXTS),
    # which frames: encoders of pictures take the first of those that are chosen
    "video.frames": ([1, 5], {"clip"}),
    "video.fps": (5, {"clip"}),
    "video.start": ("middle", PICTURES - {"mask", "hint"}),
    # encoders: the files by content, and what decides the bytes
    "encoders.latent.model": ("models/other-vae", {"latent"}),
    "encoders.latent.revision": ("main", set()),
    "encoders.latent.subfolder": ("part", {"latent"}),
    "encoders.latent.dtype": ("float16", {"latent"}),
    "encoders.latent.compile": ("on", set()),
    "encoders.latent.device_memory": ("8GiB", set()),
    "encoders.latent.posterior": ("moments", {"latent"}),
    "encoders.latent.scaled": (True, {"latent"}),
    "encoders.latent.tiling": (True, {"latent"}),
    "encoders.latent.slicing": (True, set()),
    "encoders.latent.device": ("cuda:1", set()),
    "encoders.latent.batch_size": (4, set()),
    "encoders.latent.version": (2, {"latent"}),
    "encoders.clip.model": ("models/other-vae", {"clip"}),
    "encoders.clip.revision": ("main", set()),
    "encoders.clip.subfolder": ("part", {"clip"}),
    "encoders.clip.dtype": ("float16", {"clip"}),
    "encoders.clip.compile": ("on", set()),
    "encoders.clip.device_memory": ("8GiB", set()),
    "encoders.clip.posterior": ("moments", {"clip"}),
    "encoders.clip.scaled": (True, {"clip"}),
    "encoders.clip.tiling": (True, {"clip"}),
    "encoders.clip.slicing": (True, set()),
    "encoders.clip.device": ("cuda:1", set()),
    "encoders.clip.batch_size": (4, set()),
    "encoders.clip.version": (2, {"clip"}),
    "encoders.prompt.model": ("models/other-text", {"prompt"}),
    "encoders.prompt.revision": ("main", set()),
    "encoders.prompt.subfolder": ("part", {"prompt"}),
    "encoders.prompt.tokenizer": ("models/other-text", {"prompt"}),
    "encoders.prompt.dtype": ("bfloat16", {"prompt"}),
    "encoders.prompt.compile": ("on", set()),
    "encoders.prompt.device_memory": ("8GiB", set()),
    "encoders.prompt.layers": ([-2], {"prompt"}),
    "encoders.prompt.pooled": (False, {"prompt"}),
    "encoders.prompt.max_length": (77, {"prompt"}),
    "encoders.prompt.prefix": ("a photo of ", {"prompt"}),
    "encoders.prompt.suffix": (".", {"prompt"}),
    "encoders.prompt.chat_template": (True, {"prompt"}),
    "encoders.prompt.crop_start": (1, {"prompt"}),
    "encoders.prompt.keep_padding": (True, {"prompt"}),
    "encoders.prompt.attention_mask": (False, {"prompt"}),
    "encoders.prompt.attention": ("eager", set()),
    "encoders.prompt.device": ("cpu", set()),
    "encoders.prompt.batch_size": (4, set()),
    "encoders.prompt.version": (2, {"prompt"}),
    "encoders.tokens.model": ("models/other-text", {"tokens"}),
    "encoders.tokens.revision": ("main", set()),
    "encoders.tokens.subfolder": ("part", {"tokens"}),
    "encoders.tokens.max_length": (77, {"tokens"}),
    "encoders.tokens.truncation": (False, {"tokens"}),
    "encoders.tokens.special_tokens": (False, {"tokens"}),
    "encoders.tokens.eos": ("on", {"tokens"}),
    "encoders.tokens.labels": ("all", {"tokens"}),
    "encoders.tokens.device": ("cpu", set()),
    "encoders.tokens.batch_size": (4, set()),
    "encoders.tokens.version": (2, {"tokens"}),
    "encoders.inputs.model": ("models/other-vl", {"inputs"}),
    "encoders.inputs.revision": ("main", set()),
    "encoders.inputs.subfolder": ("part", {"inputs"}),
    "encoders.inputs.options": ({"do_resize": False}, {"inputs"}),
    "encoders.inputs.dtype": ("bfloat16", {"inputs"}),
    "encoders.inputs.device": ("cpu", set()),
    "encoders.inputs.batch_size": (4, set()),
    "encoders.inputs.version": (2, {"inputs"}),
    "encoders.mask.factor": (4, {"mask"}),
    "encoders.mask.device": ("cpu", set()),
    "encoders.mask.batch_size": (4, set()),
    "encoders.mask.version": (2, {"mask"}),
    "encoders.pixels.device": ("cpu", set()),
    "encoders.pixels.batch_size": (4, set()),
    "encoders.pixels.version": (2, {"pixels"}),
    # which picture is taken: by content, whatever it is called
    "encoders.latent.of": ("control", {"latent"}),
    "encoders.inputs.of": ("control", {"inputs"}),
    "encoders.pixels.of": ("control", {"pixels"}),
    "encoders.hint.of": ("image", {"hint"}),
    "encoders.hint.device": ("cpu", set()),
    "encoders.hint.batch_size": (4, set()),
    "encoders.hint.version": (2, {"hint"}),
    "encoders.vision.model": ("models/other-vision", {"vision"}),
    "encoders.vision.revision": ("main", set()),
    "encoders.vision.subfolder": ("part", {"vision"}),
    "encoders.vision.dtype": ("float16", {"vision"}),
    "encoders.vision.compile": ("on", set()),
    "encoders.vision.device_memory": ("8GiB", set()),
    "encoders.vision.layers": ([-2], {"vision"}),
    "encoders.vision.pooled": (False, {"vision"}),
    "encoders.vision.of": ("control", {"vision"}),
    "encoders.vision.device": ("cpu", set()),
    "encoders.vision.batch_size": (4, set()),
    "encoders.vision.version": (2, {"vision"}),
    "encoders.mine.version": (2, {"mine"}),
    "encoders.mine.device": ("cpu", set()),
    "encoders.mine.batch_size": (4, set()),
    "encoders.own.of": ("control", {"own"}),
    "encoders.own.version": (2, {"own"}),
    "encoders.own.device": ("cpu", set()),
    "encoders.own.batch_size": (4, set()),
}
"""A field, another value for it, and the encoders whose keys change with it."""
PROMPTS: dict[str, tuple[Any, bool]] = {
    "model": ("models/other-pipeline", True),
    "revision": ("main", False),
    "subfolder": ("part", True),
    "dtype": ("bfloat16", True),
    "compile": ("on", False),
    "device_memory": ("8GiB", False),
    "max_length": (77, True),
    "options": ({"clean_caption": False}, True),
    "of": ("image", True),
    "device": ("cpu", False),
    "batch_size": (4, False),
    "version": (2, True),
}
"""A field of a pipeline's prompts, another value, and whether their keys change with it."""
OF_TEXTS: dict[str, Any] = {
    "texts": {"column": "body"},
    "passages": None,
    "passages.by": "characters",
    "passages.size": 40,
    "passages.overlap": 5,
}
"""Fields of a concept that has texts alone, and another value; the keys of text encoders change with each."""


AT_THEIR_OWN_SIZE: dict[str, tuple[Any, set[str]]] = {
    "image.multiple_of": (32, PICTURES),
    "image.max_pixels": (10_000, PICTURES),
    "image.resampling": ("bicubic", set()),
    "image.step": (32, set()),
    "image.crop": ("center", set()),
    "image.max_aspect": (1.0, set()),
    "image.extreme_aspect": ("refuse", set()),
    "image.upscale": ("refuse", set()),
    "image.flip": ("none", PICTURES),
}
"""The same for pictures that keep their size; here nothing is scaled unless a field says so."""
TAGS: dict[str, Any] = {"keep_first": 1, "dropout": 0.2, "variations": 4}
TAG_CHANGES: dict[str, tuple[Any, set[str]]] = {
    "concepts.0.tags.separator": (";", TEXTS),
    "concepts.0.tags.shuffle": (False, TEXTS),
    "concepts.0.tags.keep_first": (2, TEXTS),
    "concepts.0.tags.dropout": (0.5, TEXTS),
    "concepts.0.tags.variations": (5, TEXTS),
    "concepts.0.tags.seed": (7, TEXTS),
}
"""The same for captions that are tags."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset and models on which every field has something to change."""
    base = tmp_path_factory.mktemp("fields")
    for folder in ("data", "copy"):
        data = base / folder
        picture(data / "a.png", 1, (202, 100))
        Image.open(picture(data / "b.png", 2, (100, 200))).convert("RGBA").save(data / "b.png")
        clear = Image.open(data / "b.png")
        clear.putalpha(128)
        clear.save(data / "b.png")
        picture(data / "inner/c.png", 1, (202, 100))
        (data / "d.gif").write_bytes(animation(8, size=(202, 100)))
        for stem in ("a", "b", "d", "inner/c"):
            (data / f"{stem}.txt").write_text(
                "a thing, with an ä, red; blue, green, yellow, white\nseen, twice\n", "utf-8"
            )
            (data / f"{stem}.caption").write_text("another caption\n")
            size = Image.open(next(data.glob(f"{stem}.[gp][in][fg]"))).size
            picture(data / f"{stem}-masklabel.png", 30, size)
            picture(data / f"{stem}-other-masklabel.png", 31, size)
            for number, ending in enumerate(("png", "webp")):
                file = picture(data / f"{stem}-condlabel.{ending}", 40 + number, size)
                clear = Image.open(file).convert("RGBA")
                clear.putalpha(128)
                clear.save(file)
    for seed, name in enumerate(("vae", "other-vae", "vae/part")):
        vae_folder(base / "models" / name, seed)
    for seed, name in enumerate(("text", "other-text", "text/part")):
        text_folder(base / "models" / name, {"a": seed, "thing": seed + 1, "[UNK]": seed + 2}, seed)
        (base / "models" / name / "chat_template.jinja").write_text("{{ messages }}")
    for seed, name in enumerate(("vision", "other-vision", "vision/part")):
        (text_folder(base / "models" / name, seed=seed) / "preprocessor_config.json").write_text("{}")
    for number, name in enumerate(("vl", "other-vl", "vl/part")):
        (base / "models" / name).mkdir(parents=True, exist_ok=True)
        (base / "models" / name / "preprocessor_config.json").write_text(f'{{"size": {number}}}')
    return base


def pipeline_folder(folder: Path, kind: str, seed: int) -> None:
    """The parts of a pipeline that make prompts."""
    parts = {name: ["transformers", "Some"] for name in ("text_encoder", "tokenizer", "processor")}
    for name in parts:
        text_folder(folder / name, {"a": seed, "[UNK]": seed + 1}, seed)
    (folder / "processor/preprocessor_config.json").write_text("{}")
    (folder / "model_index.json").write_text(json.dumps({"_class_name": kind, **parts}))


@pytest.mark.parametrize("field", PROMPTS)
def test_what_decides_prompts_of_a_pipeline_changes_their_keys(base: Path, field: str) -> None:
    """A12: also which picture they see, by its content; where the model lies and how it runs is in no key."""
    kind = "QwenImageEditPipeline" if field == "of" else "SanaPipeline"
    for seed, name in enumerate(("pipeline", "other-pipeline", "pipeline/part")):
        pipeline_folder(base / "models" / f"{kind}" / name, kind, seed)
    value, changes = PROMPTS[field]
    section = {"uses": "diffusers-prompt", "model": f"models/{kind}/pipeline"}
    section |= {"of": "control"} if field == "of" else {}
    value = f"models/{kind}/other-pipeline" if field == "model" else value
    before, after = (
        keys_of(base, {**BASE, "encoders": {"prompt": {**section, **more}}}) for more in ({}, {field: value})
    )
    assert (before != after) == changes


def test_a_picture_that_prompts_see_counts_by_its_content(base: Path) -> None:
    """Another name for the same pictures, or several of them, and their order."""
    pipeline_folder(base / "models/plus", "QwenImageEditPlusPipeline", 0)
    further = {"control": "{stem}-condlabel.png", "same": "{stem}-condlabel.png", "other": "{stem}-condlabel.webp"}
    concept = {**BASE["concepts"][0], "images": further}

    def seen(*of: str) -> dict[str, frozenset[str]]:
        encoder = {"uses": "diffusers-prompt", "model": "models/plus", "of": list(of)}
        return keys_of(base, {**BASE, "concepts": [concept], "encoders": {"prompt": encoder}})

    assert seen("control") == seen("same")
    assert seen("control") != seen("other")
    assert (
        len({str(sorted(seen(*of)["prompt"])) for of in (("control",), ("control", "other"), ("other", "control"))})
        == 3
    )


@pytest.fixture(scope="module")
def before(base: Path) -> dict[str, frozenset[str]]:
    """The keys before any change."""
    return keys_of(base, BASE)


def keys_of(base: Path, sections: dict[str, Any]) -> dict[str, frozenset[str]]:
    """The keys that each encoder wants."""
    with project(base, **sections) as opened:
        plan = opened.plan()
        assert not plan.failed
        return {name: frozenset(bytes(key).hex() for key in one.wants.keys) for name, one in plan.encoders.items()}


def changed(field: str, value: Any, base: dict[str, Any] | None = None) -> dict[str, Any]:
    sections = copy.deepcopy(base or BASE)
    *outer, last = field.split(".")
    place: Any = sections
    for part in outer:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[last] = value
    return sections


@pytest.mark.parametrize("field", CHANGES)
def test_only_what_decides_the_bytes_changes_keys(base: Path, before: dict[str, frozenset[str]], field: str) -> None:
    """A12: changing a field changes the keys of the encoders it concerns, and of no others."""
    value, expected = CHANGES[field]
    after = keys_of(base, changed(field, value))
    assert {name for name in ALL if before[name] != after[name]} == expected


@pytest.mark.parametrize("field", AT_THEIR_OWN_SIZE)
def test_what_decides_the_bytes_of_pictures_at_their_own_size_changes_their_keys(base: Path, field: str) -> None:
    """Where nothing is cut or scaled, what says how plays no part; what scales pictures does."""
    native = changed("image.resolutions", "native")
    value, expected = AT_THEIR_OWN_SIZE[field]
    before, after = keys_of(base, native), keys_of(base, changed(field, value, native))
    assert {name for name in ALL if before[name] != after[name]} == expected


@pytest.mark.parametrize("field", TAG_CHANGES)
def test_what_decides_the_texts_of_tags_changes_their_keys(base: Path, field: str) -> None:
    """Each field of `tags` changes the texts, and no picture."""
    tagged = changed("concepts.0.tags", TAGS)
    value, expected = TAG_CHANGES[field]
    before, after = keys_of(base, tagged), keys_of(base, changed(field, value, tagged))
    assert {name for name in ALL if before[name] != after[name]} == expected


@pytest.mark.parametrize("field", [*OF_TEXTS, "name", "path", "repeats", "loss_weight"])
def test_only_texts_themselves_change_keys_of_texts_alone(base: Path, field: str) -> None:
    """A12: what is taken from a table and where it is split decides keys; where it lies, how often it is shown, not."""
    rows = [{"text": f"One sentence, {row}.\n\nAnd some more of them.", "body": f"a thing {row}"} for row in range(3)]
    for name in ("texts.jsonl", "copy.jsonl"):
        (base / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    passages = {"by": "paragraphs", "size": 30, "overlap": 0}
    concept: dict[str, Any] = {"name": "t", "path": "texts.jsonl", "texts": {"column": "text"}, "passages": passages}
    sections = {**BASE, "concepts": [concept], "encoders": {name: BASE["encoders"][name] for name in TEXTS}}
    before = keys_of(base, sections)
    assert len(before["tokens"]) == 4
    others = {"name": "renamed", "path": "copy.jsonl", "repeats": 2.0, "loss_weight": 0.5, **OF_TEXTS}
    first, _, inner = field.partition(".")
    value = {**concept[first], inner: others[field]} if inner else others[field]
    after = keys_of(base, {**sections, "concepts": [{**concept, first: value}]})
    assert {name for name in TEXTS if before[name] != after[name]} == (TEXTS if field in OF_TEXTS else set())


def test_an_encoders_name_is_in_no_key(base: Path, before: dict[str, frozenset[str]]) -> None:
    """A12: renaming fields of `encoders` keeps every key."""
    sections = copy.deepcopy(BASE)
    sections["encoders"] = {f"my_{name}": one for name, one in sections["encoders"].items()}
    after = keys_of(base, sections)
    assert {f"my_{name}": keys for name, keys in before.items()} == after


@pytest.mark.parametrize(("field", "changes"), [("model_type", True), ("hidden_size", False)])
def test_a_models_config_counts_as_far_as_it_chooses_the_class(tmp_path: Path, field: str, changes: bool) -> None:
    """Tokenizers and processors are chosen by the model's type where their own files do not name a class."""
    picture(tmp_path / "data/a.png", 1)
    text_folder(tmp_path / "models/text")
    (tmp_path / "models/text/preprocessor_config.json").write_text("{}")
    encoders = {name: {**BASE["encoders"][name], "model": "models/text"} for name in ("tokens", "inputs")}
    before = keys_of(tmp_path, {"encoders": encoders})
    config = tmp_path / "models/text/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), field: "another"}))
    after = keys_of(tmp_path, {"encoders": encoders})
    assert {name for name in encoders if before[name] != after[name]} == (set(encoders) if changes else set())


def test_every_field_is_walked() -> None:
    """A field that is added to the config must be added here, and its mark must agree with what it does."""
    fields = {name: field for name, field in Settings.model_fields.items() if name not in _SECTIONS}
    fields |= {f"concepts.0.{name}": field for name, field in Concept.model_fields.items()}
    fields |= {f"image.{name}": field for name, field in ImageSettings.model_fields.items()}
    fields |= {f"text.{name}": field for name, field in TextSettings.model_fields.items()}
    fields |= {f"video.{name}": field for name, field in VideoSettings.model_fields.items()}
    for name, one in BASE["encoders"].items():
        section = ENCODERS.get(one["uses"], UserSection)
        fields |= {f"encoders.{name}.{field}": info for field, info in section.model_fields.items() if field != "uses"}
    prompts = {name: field for name, field in DiffusersPrompt.model_fields.items() if name != "uses"}
    assert set(prompts) == set(PROMPTS)
    assert {name: decides(field) for name, field in prompts.items() if name != "revision"} == {
        name: changes for name, (_, changes) in PROMPTS.items() if name != "revision"
    }
    for name, field in PassageSettings.model_fields.items():
        assert f"passages.{name}" in OF_TEXTS
        assert decides(field)
    for name in ("texts", "passages"):
        assert name in OF_TEXTS
        assert decides(fields.pop(f"concepts.0.{name}"))
    single = {"encoders.latent.config", "encoders.clip.config"}
    assert set(fields) == set(CHANGES) | single | {"encoders.mine.of", "concepts.0.clips"}
    assert decides(fields.pop("concepts.0.clips")), "of folders of frames: tests/plan/test_clips.py"
    assert decides(fields.pop("encoders.mine.of")), "of pictures: tests/plan/test_further_pictures.py"
    assert {f"concepts.0.tags.{name}" for name in TagSettings.model_fields} == set(TAG_CHANGES)
    assert all(decides(fields.pop(name)) for name in single), "of a model in one file: tests/encode/test_vae_files.py"
    for name, field in fields.items():
        if name.endswith(".revision"):
            continue  # decides which files are loaded, and those are in the key
        assert decides(field) == bool(CHANGES[name][1] | AT_THEIR_OWN_SIZE.get(name, ("", set()))[1]), name


_SECTIONS = ("concepts", "image", "text", "video", "encoders")


def test_weights_that_an_index_names_count_whatever_they_are_called(tmp_path: Path) -> None:
    """A shard with the name of a variant that is usually left alone is loaded where an index names it: so it counts."""
    picture(tmp_path / "data/a.png", 1)
    folder = vae_folder(tmp_path / "models/vae")
    weights, variant = (folder / f"diffusion_pytorch_model{kind}.safetensors" for kind in ("", ".fp16"))
    shutil.copy(weights, variant)
    encoders = {"latent": BASE["encoders"]["latent"]}
    keys = [keys_of(tmp_path, {"encoders": encoders})]
    variant.write_bytes(variant.read_bytes() + b" ")
    keys.append(keys_of(tmp_path, {"encoders": encoders}))
    assert keys[0] == keys[1], "nobody loads it"
    weights.unlink()
    index = {"metadata": {}, "weight_map": {"encoder.conv_in.weight": variant.name}}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    keys.append(keys_of(tmp_path, {"encoders": encoders}))
    variant.write_bytes(variant.read_bytes() + b" ")
    keys.append(keys_of(tmp_path, {"encoders": encoders}))
    assert keys[2] != keys[3]
