"""The config file: what it may say, what is wrong with it, and the file that `init` writes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

import precook
from precook.config.check import check, json_schema, read_config
from precook.config.concept import ColumnName, Concept, FileName, FixedText, Sidecar
from precook.config.encoders import ENCODERS, DiffusersVae, EncoderSection, TransformersText, UserSection
from precook.config.fields import Section
from precook.config.messages import nearest
from precook.config.schema import ImageSettings, Resolution, Settings, TextSettings
from precook.config.template import FoundConcept, TemplateFacts, write_config, yaml_text
from precook.config.yaml import LIMIT, Origin

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "config.md"

DESIGN = """\
store: cache                        # relative to this file
dataset: portraits                  # the snapshot's name
concepts:
  - name: cats
    path: data/cats                 # or a table: data/cats.jsonl / .csv / .parquet with columns image, caption, mask
    recursive: true
    captions: sidecar               # cat.txt beside cat.jpg, one caption per line | filename | {text: "a cat"} | {column: caption}
    masks: "{stem}-masklabel.png"   # optional; what a missing mask means: missing_mask: white | error
    repeats: 1.0                    # each epoch shows floor(n * repeats); or samples: 200, drawn anew each epoch from the whole concept
    loss_weight: 1.0
image:
  resolutions: [512, 768]           # sides of a square of equal area, or "768x512"; several: one is drawn per sample and epoch, or pick: each
  step: 64                          # sizes are multiples of this
  crop: center                      # or random
  flip: none                        # or random, always
  variations: 1                     # how many draws of crop and flip are kept per sample
text:
  variations: all                   # every line is kept; one is drawn per epoch
  empty_prompt: true                # also encode "", for caption dropout and classifier-free guidance
encoders:
  latent: {uses: diffusers-vae, model: models/vae, dtype: float16, posterior: mean, device: auto, batch_size: auto}
  prompt: {uses: transformers-text, model: models/text, layers: [-2], max_length: 512, keep_padding: false, device: auto}
  tokens: {uses: transformers-tokens, model: models/text, max_length: 512}
  pixels: {uses: transformers-processor, model: models/vl}
  mask:   {uses: mask, factor: 8}
"""  # noqa: E501 - as the design has it

SMALL = """\
dataset: pets
concepts:
  - name: cats
    path: data/cats
encoders:
  pixels: {uses: image}
"""


def small(**changes: Any) -> dict[str, Any]:
    """The least a config says, with some fields changed."""
    return {
        "dataset": "pets",
        "concepts": [{"name": "cats", "path": "data/cats"}],
        "encoders": {"pixels": {"uses": "image"}},
        **changes,
    }


def concept(**fields: Any) -> dict[str, Any]:
    return small(concepts=[{"name": "cats", "path": "data/cats", **fields}])


def table(**fields: Any) -> dict[str, Any]:
    return concept(path="data/cats.csv", **fields)


def image(**fields: Any) -> dict[str, Any]:
    return small(image=fields)


def text(**fields: Any) -> dict[str, Any]:
    return small(text=fields)


def encoder(uses: str, **fields: Any) -> dict[str, Any]:
    model = {"model": "m"} if uses.startswith(("diffusers", "transformers")) else {}
    return small(encoders={"x": {"uses": uses, **model, **fields}})


Reader = Callable[[str | bytes], tuple[Settings, Origin]]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Reads a config with this content."""
    path = tmp_path_factory.mktemp("config") / "precook.yaml"

    def read(content: str | bytes) -> tuple[Settings, Origin]:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_config(path)

    return read


def refused(data: object) -> precook.ConfigError:
    with pytest.raises(precook.ConfigError) as caught:
        check(data)  # type: ignore[arg-type]
    return caught.value


def told(read: Reader, content: str | bytes) -> list[tuple[int | None, str, str]]:
    """Line, place and message of all that is wrong with a file."""
    with pytest.raises(precook.ConfigError) as caught:
        read(content)
    error = caught.value
    assert error.exit_code == 2
    assert error.file is not None
    assert error.file.name == "precook.yaml"
    return [(problem.line, problem.where, problem.message) for problem in error.problems]


# --- what a file says


def test_the_design_s_example_is_accepted_as_it_stands(read: Reader) -> None:
    """It says what the design says it says, although none of its folders and models exists."""
    settings, _ = read(DESIGN)
    assert (settings.store, settings.dataset) == ("cache", "portraits")
    assert settings.concepts == (Concept(name="cats", path="data/cats", masks="{stem}-masklabel.png"),)
    assert settings.image == ImageSettings(resolutions=(512, 768))
    assert settings.text == TextSettings()
    assert list(settings.encoders) == ["latent", "prompt", "tokens", "pixels", "mask"]
    assert settings.encoders["latent"] == DiffusersVae(uses="diffusers-vae", model="models/vae", dtype="float16")
    prompt = settings.encoders["prompt"]
    assert isinstance(prompt, TransformersText)
    assert prompt.layers == (-2,)


def test_a_file_and_python_data_give_the_same_settings(read: Reader) -> None:
    """`check` takes what the file holds, and settings tell themselves as such data."""
    settings, _ = read(DESIGN)
    assert read(SMALL)[0] == check(small())
    for form in (settings.model_dump(), settings.model_dump(mode="json")):
        assert check(form) == settings


def test_settings_cannot_be_changed() -> None:
    """Nobody moves a setting under a plan that was made with it."""
    settings = check(small())
    with pytest.raises(ValidationError):
        settings.store = "elsewhere"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.image.step = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("sidecar", Sidecar()),
        ("filename", FileName()),
        ({"text": "a cat"}, FixedText(text="a cat")),
        ({"text": ""}, FixedText(text="")),
        ({"column": "caption"}, ColumnName(column="caption")),
    ],
)
def test_captions_are_spelled_in_one_way(written: object, value: Section) -> None:
    """Each source of captions has one spelling, which it also tells itself by."""
    data = table(captions=written)
    assert check(data).concepts[0].captions == value
    assert value.model_dump() == written


def test_paths_may_be_given_as_paths() -> None:
    """Python callers need not turn a `Path` into text."""
    settings = check(small(store=Path("some") / "cache"))
    assert settings.store == os.path.join("some", "cache")


def test_resolutions_are_numbers() -> None:
    """A whole number is any size of its area, a text of two numbers that very size."""
    sizes = check(image(resolutions=[512, "768x512"])).image.sizes
    assert sizes == (Resolution(512, 512, exact=False), Resolution(768, 512, exact=True))


@pytest.mark.parametrize(
    ("written", "rgb"),
    [
        ("white", (255, 255, 255)),
        ("black", (0, 0, 0)),
        ("grey", (128, 128, 128)),
        ("gray", (128, 128, 128)),
        ("#f80", (255, 136, 0)),
        ("#FF8001", (255, 128, 1)),
    ],
)
def test_the_background_is_three_numbers(written: str, rgb: tuple[int, int, int]) -> None:
    """Names and hexadecimal digits, short or long, give red, green and blue."""
    assert check(image(background=written)).image.rgb == rgb


def test_fields_of_a_class_of_yours_go_to_its_constructor() -> None:
    """Everything but what all encoders have, unchanged."""
    fields = {"strength": 0.5, "names": ["a", None, {"b": True}], "model": 3}
    settings = check(small(encoders={"x": {"uses": "a.b:C", "device": "cpu", **fields}}))
    mine = settings.encoders["x"]
    assert isinstance(mine, UserSection)
    assert (mine.device, mine.arguments) == ("cpu", fields)


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "y", "12:30", "0100", "0x40", "1_000", "2024-01-01", "="])
def test_words_that_look_like_something_else_are_text(read: Reader, word: str) -> None:
    """A folder called `no` needs no quotes, and `0100` is neither 100 nor 64."""
    settings, _ = read(SMALL.replace("data/cats", word))
    assert settings.concepts[0].path == word
    assert told(read, f"{SMALL}image: {{step: {word}}}") == [
        (7, "image.step", f"must be a whole number, not text '{word}'")
    ]


@pytest.mark.parametrize(("word", "value"), [("1e-3", 0.001), ("2", 2.0), ("+1.5E2", 150.0), (".5", 0.5), ("1.", 1.0)])
def test_numbers_are_read_as_people_write_them(read: Reader, word: str, value: float) -> None:
    """An exponent needs neither point nor sign."""
    settings, _ = read(SMALL.replace("data/cats\n", f"data/cats\n    loss_weight: {word}\n"))
    assert settings.concepts[0].loss_weight == value


def test_a_byte_order_mark_and_windows_line_ends_are_no_problem(read: Reader) -> None:
    """An editor's habits change nothing."""
    assert read(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())[0] == check(small())


# --- what is wrong with values

GOOD = [
    small(dataset="a"),
    small(dataset="A.b-c_" + "d" * 58),
    small(keep=["captions", "paths"], stamps="trust"),
    concept(name="ä cat, no: 5" + "é" * 188, recursive=False, caption_extension=".caption", caption_encoding="cp1252"),
    concept(masks="masks/{name}", missing_mask="error", repeats=0, loss_weight=-1),
    concept(samples=1),
    concept(samples=200, repeats=1.0),
    table(captions={"column": "c"}, masks={"column": "m"}, image_column="file"),
    concept(path="X.PARQUET", captions={"column": "c"}),
    table(captions="sidecar"),
    concept(captions="filename"),
    concept(captions={"text": ""}),
    image(resolutions=["64x128"], crop="random", flip="always", variations=1000, resampling="area", upscale="refuse"),
    image(resolutions=[8], step=8, max_aspect=1, extreme_aspect="refuse", max_pixels=178_956_970, pick="each"),
    image(seed=2**63 - 1),
    text(variations=1, empty_prompt=False),
    encoder("diffusers-vae", posterior="moments", scaled=True, tiling=True, slicing=True, revision="main"),
    encoder("transformers-text", layers="all", pooled=False, prefix=" ", crop_start=3, attention="sdpa"),
    encoder("transformers-text", layers=[0, -1, 5], tokenizer="t", batch_size=3, device="cuda:1"),
    encoder("transformers-tokens", truncation=False, special_tokens=False, subfolder="s"),
    encoder("transformers-processor", options={"do_resize": False, "size": {"height": 3}}),
    encoder("pkg:Name"),
    small(encoders={"latent_mask": {"uses": "mask"}, "_": {"uses": "image"}}),
]

BAD = [
    (small(dataset=""), "dataset", "must be 1 to 64 letters"),
    (small(dataset="-a"), "dataset", "the first a letter or digit, not text '-a'"),
    (small(dataset="a/b"), "dataset", "must be 1 to 64 letters"),
    (small(dataset="a" * 65), "dataset", "must be 1 to 64 letters"),
    (small(dataset="a\n"), "dataset", r"not text 'a\n'"),
    (small(dataset=3), "dataset", "must be text, not the number 3"),
    (small(store=""), "store", "must not be empty"),
    (small(store=None), "store", "must be text, not nothing"),
    (small(store="a\0b"), "store", "must not contain a null character"),
    (small(store="a\udc80"), "store", r"'a\udc80' is not valid Unicode"),
    (small(concepts=[]), "concepts", "must not be empty"),
    (small(concepts={"cats": {}}), "concepts", "must be a list, not a mapping"),
    (small(concepts=["data/cats"]), "concepts[0]", "must be a mapping of fields, not text 'data/cats'"),
    (small(keep="paths"), "keep", "must be a list, not text 'paths'"),
    (small(keep=["path"]), "keep[0]", "must be paths or captions, not text 'path'; did you mean 'paths'?"),
    (small(keep=["paths", "paths"]), "keep[1]", "'paths' stands here twice"),
    (small(stamps=True), "stamps", "must be auto or trust, not true"),
    (small(image=None), "image", "must be a mapping of fields, not nothing"),
    (small(image=[]), "image", "must be a mapping of fields, not a list"),
    (concept(name=""), "concepts[0].name", "must be 1 to 200 printable characters"),
    (concept(name="a" * 201), "concepts[0].name", "must be 1 to 200 printable characters"),
    (concept(name="a\nb"), "concepts[0].name", r"not text 'a\nb'"),
    (concept(path=""), "concepts[0].path", "must not be empty"),
    (concept(path=["a"]), "concepts[0].path", "must be text, not a list"),
    (concept(recursive=1), "concepts[0].recursive", "must be true or false, not the number 1"),
    (concept(captions="sidecars"), "concepts[0].captions", "did you mean 'sidecar'?"),
    (concept(captions={"text": "a", "column": "b"}), "concepts[0].captions", "must be sidecar, filename, {text"),
    (concept(captions={"txt": "a"}), "concepts[0].captions", "not a mapping"),
    (concept(captions={"text": 3}), "concepts[0].captions.text", "must be text, not the number 3"),
    (concept(captions={"column": "c"}), "concepts[0].captions", "a column needs a table, and path is a folder"),
    (table(captions={"column": ""}), "concepts[0].captions.column", "must not be empty"),
    (concept(caption_extension="txt"), "concepts[0].caption_extension", "must be a dot and an extension"),
    (concept(caption_extension="."), "concepts[0].caption_extension", "must be a dot and an extension"),
    (concept(caption_extension="./x"), "concepts[0].caption_extension", "must be a dot and an extension"),
    (concept(caption_encoding="utf-9"), "concepts[0].caption_encoding", "unknown text encoding 'utf-9'"),
    (concept(caption_encoding="hex"), "concepts[0].caption_encoding", "unknown text encoding 'hex'"),
    (concept(caption_encoding="a\0"), "concepts[0].caption_encoding", r"unknown text encoding 'a\x00'"),
    (concept(masks="mask.png"), "concepts[0].masks", "'mask.png' would be one file for every picture"),
    (concept(masks="{stm}.png"), "concepts[0].masks", "unknown placeholder '{stm}'"),
    (concept(masks="{stem}}.png"), "concepts[0].masks", "has a brace without its partner"),
    (concept(masks={"stem": None}), "concepts[0].masks", "must be a pattern or {column: …}, not a mapping"),
    (concept(masks={"column": "m"}), "concepts[0].masks", "a column needs a table"),
    (concept(missing_mask="black"), "concepts[0].missing_mask", "must be white or error, not text 'black'"),
    (concept(image_column=""), "concepts[0].image_column", "must not be empty"),
    (concept(repeats=-0.5), "concepts[0].repeats", "must be 0 or more, not the number -0.5"),
    (concept(repeats=float("inf")), "concepts[0].repeats", "must be a finite number, not inf"),
    (concept(repeats=True), "concepts[0].repeats", "must be a number, not true"),
    (concept(samples=0), "concepts[0].samples", "must be 1 or more, not the number 0"),
    (concept(samples=2, repeats=2), "concepts[0].samples", "cannot stand beside repeats"),
    (concept(loss_weight=float("nan")), "concepts[0].loss_weight", "must be a finite number, not nan"),
    (concept(loss_weight="1.0"), "concepts[0].loss_weight", "must be a number, not text '1.0'"),
    (image(resolutions=512), "image.resolutions", "must be a list, not the number 512"),
    (image(resolutions=[]), "image.resolutions", "must not be empty"),
    (image(resolutions=[512, 512]), "image.resolutions[1]", "'512' stands here twice"),
    (image(resolutions=["512"]), "image.resolutions[0]", "not text '512'"),
    (image(resolutions=["0x64"]), "image.resolutions[0]", "not text '0x64'"),
    (image(resolutions=["99999x64"]), "image.resolutions[0]", "not text '99999x64'"),
    (image(resolutions=[True]), "image.resolutions[0]", "not true"),
    (image(resolutions=[512.0]), "image.resolutions[0]", "not the number 512.0"),
    (image(resolutions=[32]), "image.resolutions[0]", "32 is less than step, 64"),
    (image(resolutions=["100x64"]), "image.resolutions[0]", "100x64 is not made of multiples of step, 64"),
    (image(step=0), "image.step", "must be 1 or more, not the number 0"),
    (image(step="64"), "image.step", "must be a whole number, not text '64'"),
    (image(step=64.0), "image.step", "must be a whole number, not the number 64.0"),
    (image(step=True), "image.step", "must be a whole number, not true"),
    (image(crop="centre"), "image.crop", "must be center or random, not text 'centre'; did you mean 'center'?"),
    (image(flip=None), "image.flip", "must be none, random or always, not nothing"),
    (image(variations=1001), "image.variations", "must be 1000 or less, not the number 1001"),
    (image(resampling="Lanczos"), "image.resampling", "did you mean 'lanczos'?"),
    (image(upscale=False), "image.upscale", "must be allow or refuse, not false"),
    (image(max_aspect=0.5), "image.max_aspect", "must be 1 or more, not the number 0.5"),
    (image(extreme_aspect="error"), "image.extreme_aspect", "must be crop or refuse, not text 'error'"),
    (image(background="mauve"), "image.background", "must be black, white, gray or grey, or such as"),
    (image(background="Gray"), "image.background", "did you mean 'gray'?"),
    (image(background="#ffff"), "image.background", "not text '#ffff'"),
    (image(max_pixels=178_956_971), "image.max_pixels", "must be 178956970 or less"),
    (image(pick="all"), "image.pick", "must be one or each, not text 'all'"),
    (image(seed=-1), "image.seed", "must be 0 or more, not the number -1"),
    (image(seed=10**5000), "image.seed", "not a very large number"),
    (text(variations=0), "text.variations", "must be a whole number of at least 1, or all, not the number 0"),
    (text(variations="every"), "text.variations", "or all, not text 'every'"),
    (text(empty_prompt="yes"), "text.empty_prompt", "must be true or false, not text 'yes'"),
    (small(encoders={}), "encoders", "must not be empty"),
    (small(encoders=[]), "encoders", "must not be empty"),
    (small(encoders=[1]), "encoders", "must be a mapping of fields, not a list"),
    (small(encoders={"x": "image"}), "encoders.x", "must be a mapping of fields, not text 'image'"),
    (small(encoders={"x": {}}), "encoders.x.uses", "the field 'uses' is missing"),
    (small(encoders={"x": {"uses": 3}}), "encoders.x.uses", "must be text, not the number 3"),
    (small(encoders={"2x": {"uses": "image"}}), "encoders['2x']", "an encoder's name must be 1 to 64 letters"),
    (small(encoders={"x" * 65: {"uses": "image"}}), None, "an encoder's name must be 1 to 64 letters"),
    (small(encoders={"a_mask": {"uses": "mask"}, "a": {"uses": "image"}}), "encoders.a_mask", "the mask of 'a'"),
    (encoder("difusers_vae"), "encoders.x.uses", "unknown encoder 'difusers_vae'; did you mean 'diffusers-vae'?"),
    (encoder("sonnet"), "encoders.x.uses", "unknown encoder 'sonnet'"),
    (encoder("a.b:C.d"), "encoders.x.uses", "'a.b:C.d' does not name a class"),
    (encoder("a:b:c"), "encoders.x.uses", "'a:b:c' does not name a class"),
    (encoder(":C"), "encoders.x.uses", "':C' does not name a class"),
    (encoder("a.:C"), "encoders.x.uses", "'a.:C' does not name a class"),
    (encoder("image", device=""), "encoders.x.device", "must not be empty"),
    (encoder("image", batch_size=0), "encoders.x.batch_size", "must be a whole number of at least 1, or auto"),
    (encoder("image", batch_size=True), "encoders.x.batch_size", "or auto, not true"),
    (encoder("image", model="m"), "encoders.x.model", "unknown field 'model'"),
    (encoder("mask", factor=0), "encoders.x.factor", "must be 1 or more, not the number 0"),
    (encoder("diffusers-vae", model=""), "encoders.x.model", "must not be empty"),
    (encoder("diffusers-vae", dtype="fp16"), "encoders.x.dtype", "must be float32, float16 or bfloat16"),
    (encoder("diffusers-vae", posterior="mode"), "encoders.x.posterior", "must be mean, sample or moments"),
    (encoder("diffusers-vae", revision=1234567), "encoders.x.revision", "must be text, not the number 1234567"),
    (encoder("transformers-text", layers=-2), "encoders.x.layers", "must be a list of whole numbers, or all"),
    (encoder("transformers-text", layers=[]), "encoders.x.layers", "must not be empty"),
    (encoder("transformers-text", layers=[-1, -1]), "encoders.x.layers[1]", "'-1' stands here twice"),
    (encoder("transformers-text", layers=[-1, True]), "encoders.x.layers[1]", "must be a whole number, not true"),
    (encoder("transformers-text", max_length=0), "encoders.x.max_length", "must be 1 or more"),
    (encoder("transformers-text", crop_start=-1), "encoders.x.crop_start", "must be 0 or more"),
    (encoder("transformers-text", prefix="\ud800"), "encoders.x.prefix", "is not valid Unicode"),
    (encoder("transformers-processor", options=[]), "encoders.x.options", "must be a mapping, not a list"),
    (encoder("transformers-processor", options={"a": [float("inf")]}), "encoders.x.options.a[0]", "must be a finite"),
    (encoder("transformers-processor", options={"a": {1: 2}}), "encoders.x.options.a", "a name must be text"),
    (encoder("a:B", thing=object()), "encoders.x.thing", "must be plain data, not a value of the Python type object"),
    (encoder("a:B", thing={"a": "\0"}), "encoders.x.thing.a", "must not contain a null character"),
    *[
        (small(encoders={name: {"uses": "image"}}), f"encoders.{name}", "a batch has something of that name")
        for name in ("sample", "concept", "caption", "loss_weight", "size")
    ],
]


@pytest.mark.parametrize("data", GOOD, ids=range(len(GOOD)))
def test_what_is_allowed_is_accepted(data: dict[str, Any]) -> None:
    """Values at the edge of what is allowed are allowed, and tell themselves as they were written."""
    settings = check(data)
    assert check(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(("data", "where", "message"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_refused_in_plain_words(data: dict[str, Any], where: str | None, message: str) -> None:
    """The one thing that is wrong is named, with its place."""
    error = refused(data)
    assert len(error.problems) == 1, error.problems
    assert message in error.message
    assert error.where == where or where is None
    assert (error.file, error.line) == (None, None)
    assert error.message.startswith(f"{error.where}: ")


def test_two_concepts_of_one_name_are_refused() -> None:
    """The second one is named."""
    cats = {"name": "cats", "path": "a"}
    error = refused(small(concepts=[cats, {"name": "dogs", "path": "b"}, cats]))
    assert str(error) == "concepts[2].name: another concept is called 'cats' (give each a name of its own)"


def test_data_without_end_is_refused() -> None:
    """A list that holds itself is told, not followed."""
    endless: list[Any] = []
    endless.append(endless)
    assert "nested more than 32 levels deep" in str(refused(encoder("a:B", thing=endless)))


@pytest.mark.parametrize("data", [None, [], "store: cache", 3])
def test_something_else_than_fields_is_refused(data: object) -> None:
    """`check` says what it wants."""
    assert refused(data).message.startswith("must be a mapping of fields, not ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, ["dataset: this field is missing (add `dataset: portraits`)", "concepts: ", "encoders: "]),
        (small(concepts=[{}]), ["concepts[0].name: this field is missing", "concepts[0].path: this field is missing"]),
        (small(encoders={"x": {"uses": "diffusers-vae"}}), ["encoders.x.model: this field is missing"]),
    ],
)
def test_what_is_missing_is_named(data: dict[str, Any], said: list[str]) -> None:
    """Each missing field is a problem of its own, with an example."""
    problems = refused(data).problems
    assert len(problems) == len(said)
    for problem, start in zip(problems, said, strict=True):
        assert f"{problem.told(None)} ({problem.hint})".startswith(start)
        assert problem.hint


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (small(stor="x"), "stor: unknown field 'stor'; did you mean 'store'?"),
        (concept(Loss_Weight=1), "concepts[0].Loss_Weight: unknown field 'Loss_Weight'; did you mean 'loss_weight'?"),
        (concept(missing_masks="white"), "did you mean 'missing_mask'?"),
        (image(resolution=[512]), "image.resolution: unknown field 'resolution'; did you mean 'resolutions'?"),
        (text(**{"empty-prompt": True}), "did you mean 'empty_prompt'?"),
        (encoder("diffusers-vae", dtyp="float16"), "encoders.x.dtyp: unknown field 'dtyp'; did you mean 'dtype'?"),
        (encoder("transformers-text", layer=[-1]), "did you mean 'layers'?"),
        (encoder("mask", faktor=8), "did you mean 'factor'?"),
        (small(resolutions=[512]), "unknown field 'resolutions' (it belongs under image)"),
        (image(captions="sidecar"), "unknown field 'captions' (it belongs under concepts)"),
        (image(store="x"), "unknown field 'store' (it belongs at the left margin)"),
        (text(qqq=1), "unknown field 'qqq' (fields here: variations, empty_prompt)"),
    ],
)
def test_unknown_fields_are_answered_with_the_nearest_name(data: dict[str, Any], said: str) -> None:
    """A misspelt field is an error that knows what was meant, or where it belongs."""
    assert said in str(refused(data))


SECTIONS: list[tuple[type[Section], Callable[..., dict[str, Any]]]] = [
    (Settings, small),
    (Concept, concept),
    (ImageSettings, image),
    (TextSettings, text),
    *[
        (section, lambda kind=kind, **fields: encoder("a:B" if kind == ":" else kind, **fields))
        for kind, section in ENCODERS.items()
    ],
]
FIELDS = [
    pytest.param(make, name, id=f"{section.__name__}.{name}")
    for section, make in SECTIONS
    for name in section.model_fields
    if name != "uses"
]
VALUES = [None, True, 0, -1, 10**40, 0.5, float("nan"), "", "word", "1", "\ud800", [], [[]], [None], {}, {"a": 1}, b"x"]


@pytest.mark.parametrize(("make", "name"), FIELDS)
def test_any_value_in_any_field_is_taken_or_refused_in_our_words(make: Callable[..., Any], name: str) -> None:
    """Whatever stands in a field, the problem lies there, and nobody has to know the library that found it."""
    for value in VALUES:
        try:
            check(make(**{name: value}))
        except precook.ConfigError as error:
            for problem in error.problems:
                assert re.search(rf"\b{name}\b", problem.where), problem
                assert not re.search(r"pydantic|valid_|[Ii]nput|should|does not belong here|http", str(problem))


# --- what is wrong with the file


def test_all_problems_are_told_at_once_with_their_lines(read: Reader) -> None:
    """One reading finds everything, in the order of the file, and the text of the error says how much more there is."""
    content = """\
dataset: pets
concepts:
  - name: cats
    path: 3
  - nam: dogs
    path: data/dogs
image:
  resolution: [512]
  crop: centre
encoders:
  latent:
    uses: diffusers-vae
    model: models/vae
    dtyp: float16
  prompt: {uses: transformers-text,
           model: m, layers: [-1,
             x]}
stamps: *all
text:
  - variations
"""
    assert [(line, where) for line, where, _ in told(read, content)] == [
        (4, "concepts[0].path"),
        (5, "concepts[1].name"),
        (5, "concepts[1].nam"),
        (8, "image.resolution"),
        (9, "image.crop"),
        (14, "encoders.latent.dtyp"),
        (17, "encoders.prompt.layers[1]"),
        (18, "stamps"),
        (19, "text"),
    ]
    with pytest.raises(precook.ConfigError) as caught:
        read(content)
    error = caught.value
    assert error.message == f"{error.file}:4: concepts[0].path: must be text, not the number 3"
    assert (error.line, error.where, error.hint) == (4, "concepts[0].path", "put it in quotes")
    assert str(error) == f"{error.message} (put it in quotes); and 8 more problems"


@pytest.mark.parametrize(
    ("content", "line", "where", "message"),
    [
        ("", None, "", "the file is empty"),
        ("# nothing\n---\n", 3, "", "the file is empty"),
        ("- a\n", 1, "", "must be a mapping of fields, not a list"),
        ("hello\n", 1, "", "must be a mapping of fields, not text 'hello'"),
        ("*all\n", 1, "", "the alias '*all' is not allowed"),
        ("a: b: c\n", 1, "", "not valid YAML: mapping values are not allowed here"),
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "", "while parsing a flow sequence that begins on line 2"),
        ("a:\n\tb: 1\n", 2, "", "not valid YAML: found character '\\t' that cannot start any token"),
        ("a: 'b\n", 2, "", "not valid YAML: found unexpected end of stream"),
        ("a: @b\n", 1, "", "not valid YAML: found character '@' that cannot start any token"),
        ("masks: {stem}-mask.png\n", 1, "", "not valid YAML: expected <block end>"),
        (f"{SMALL}---\nb: 2\n", 7, "", "a second document begins here"),
        ("? [a]\n: b\n", 1, "", "the name of a field must be text"),
        ("a: 1\nb: " + "[" * 100, 2, "", "nested more than 40 levels deep"),
        ("- " * 1000, 1, "", "nested more than 40 levels deep"),
        ('a: "\\U0fffffff"\n', 1, "", "not valid YAML: the number in an escape or directive is too large"),
        ("%YAML " + "1" * 5000 + ".1\n---\n", 1, "", "not valid YAML"),
        ("a: 1\nb: '\x07'\n", 2, "", "the character U+0007 is not allowed"),
        (b"a: 1\nb: caf\xe9\n", 2, "", "byte 0xe9 is not UTF-8"),
        (SMALL.encode("utf-16"), 1, "", "is not UTF-8"),
        (b"#" * (LIMIT + 1), None, "", "is larger than 1 MiB"),
        (f"{SMALL}dataset: cats\n", 7, "dataset", "the field 'dataset' is given twice, first on line 1"),
        (SMALL.replace("path:", "name: x\n    path:"), 4, "concepts[0].name", "given twice, first on line 3"),
        (f"{SMALL}store: &here cache\n", 7, "store", "the anchor '&here' is not allowed"),
        (f"{SMALL}store: *here\n", 7, "store", "the alias '*here' is not allowed"),
        (f"{SMALL}store: !!str cache\n", 7, "store", "the tag 'tag:yaml.org,2002:str' is not allowed"),
        (f"{SMALL}store: !!python/object/apply:os.system [exit]\n", 7, "store", "python/object/apply:os.system"),
        (f"{SMALL}1: x\n", 7, "['1']", "the name '1' must be text"),
        (f"{SMALL}image: {{seed: {'1' * 200}}}\n", 7, "image.seed", "a number of 200 digits"),
        (f"{SMALL}<<: {{store: x}}\n", 7, "['<<']", "unknown field '<<'"),
        (f"{SMALL}image: {{background: #fff\n  }}\n", 7, "image.background", "must be text, not nothing"),
    ],
    ids=range(31),
)
def test_a_file_that_is_no_config_is_refused_with_its_line(
    read: Reader, content: str | bytes, line: int | None, where: str, message: str
) -> None:
    """Each way to break the file is one problem, where it is, with a next step."""
    with pytest.raises(precook.ConfigError) as caught:
        read(content)
    error = caught.value
    assert (error.line, error.where) == (line, where)
    assert message in error.message
    assert error.hint
    assert len(error.problems) == 1
    begin = f"{error.file}:{line}: " if line else f"{error.file}: "
    assert error.message.startswith(begin)


def test_a_tag_constructs_nothing(read: Reader, tmp_path: Path) -> None:
    """What would run a command elsewhere is only named here."""
    canary = tmp_path / "canary"
    told(read, f"{SMALL}store: !!python/object/apply:os.mkdir ['{canary}']\n")
    assert not canary.exists()


def test_a_tab_is_recognised(read: Reader) -> None:
    """Whatever the parser says about it, the hint is to use spaces."""
    with pytest.raises(precook.ConfigError, match="indent with spaces, not with tabs"):
        read("image:\n  step: 64\n\tcrop: center\n")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Missing, a directory, a bad name: each has its own words and a next step."""
    for path, message in [
        (tmp_path / "precook.yaml", "there is no such file (`precook init` writes one"),
        (tmp_path, "is a directory (name the file in it"),
        (tmp_path / ("x" * 300), "cannot be read: "),
        (tmp_path / "a\0b", "cannot be read: embedded null byte"),
    ]:
        with pytest.raises(precook.ConfigError) as caught:
            read_config(path)
        assert message in str(caught.value)
        assert (caught.value.file, caught.value.line, caught.value.where) == (path, None, "")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A config that this process may not read."""
    path = tmp_path / "precook.yaml"
    path.write_text(SMALL)
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield path
    if user == 0:
        os.seteuid(0)


def test_a_file_without_permission_is_told(locked: Path) -> None:
    """Not the same as a missing one."""
    with pytest.raises(precook.ConfigError, match=r"may not be read \(change its permissions"):
        read_config(locked)


def test_messages_about_a_file_cannot_steer_a_terminal(read: Reader) -> None:
    """Escape sequences in names and values are shown, not sent."""
    content = SMALL + '"\\e[31m": "\\e[32m"\nstamps: "\\e[33m\\n"\n'
    with pytest.raises(precook.ConfigError) as caught:
        read(content)
    for problem in caught.value.problems:
        assert problem.told(Path("a\x1b")).isprintable()
        assert problem.hint.isprintable()


def test_what_is_found_later_is_told_with_its_line(read: Reader) -> None:
    """Other parts of precook point at the field, or at what is around it."""
    _, origin = read(DESIGN)
    error = origin.error(("encoders", "latent", "model"), "there is no such folder", "check the path")
    assert str(error) == (f"{origin.file}:21: encoders.latent.model: there is no such folder (check the path)")
    assert (error.file, error.line, error.where) == (origin.file, 21, "encoders.latent.model")
    assert origin.line(("concepts", 0, "path")) == 5
    assert origin.line(("concepts", 0, "samples")) == 4
    assert origin.line(("image", "resolutions", 1)) == 12
    assert origin.line(("keep",)) == 1
    assert Origin().line(("store",)) is None
    assert str(Origin().error(("concepts", 1, "path"), "is empty")) == "concepts[1].path: is empty"


def outcome(read: Reader, content: str | bytes) -> None:
    """Settings, or an error that can be printed."""
    try:
        settings, origin = read(content)
    except precook.ConfigError as error:
        str(error).encode()
        assert all(problem.message for problem in error.problems)
    else:
        assert check(settings.model_dump(mode="json")) == settings
        assert origin.lines[("dataset",)] >= 1


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(content=b"\xff\xfe")
@example(content=b'"\\ud800": 1')
@example(content=b"? ? ? ? ?")
@example(content=b"{a: {b: {c:")
def test_any_bytes_are_settings_or_a_clear_error(read: Reader, content: bytes) -> None:
    """Never a traceback, whatever the file holds."""
    outcome(read, content)


PIECES = st.sampled_from(
    [*"\n\t :-,[]{}#&*!|>'\"%@`?\\~=", "  ", ": ", "- ", "---\n", "null", "1e9", "\\ud800", "é", "\x85"]
)


@given(data=st.data())
def test_a_mistyped_file_is_settings_or_a_clear_error(read: Reader, data: st.DataObject) -> None:
    """A valid file with some slips of the hand: never a traceback."""
    content = data.draw(st.sampled_from([DESIGN, SMALL]))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 12))
        content = content[:start] + data.draw(PIECES | st.just("")) + content[start + length :]
    outcome(read, content)


# --- names


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("resolution", "resolutions"),
        ("RESOLUTIONS", "resolutions"),
        ("max-pixels", "max_pixels"),
        ("diffusers_vae", "diffusers-vae"),
        ("", None),
        ("zzzz", None),
    ],
)
def test_the_nearest_name_is_found_whatever_its_case_and_dashes(name: str, found: str | None) -> None:
    """A slip finds the valid name as it is spelled; something else finds none."""
    assert nearest(name, [*ImageSettings.model_fields, *ENCODERS]) == found


def test_dashes_and_underscores_are_the_same_to_the_nearest_name() -> None:
    """A name that differs in nothing else is nearer than one with another letter."""
    assert nearest("x-y-z", ["x-y-q", "x_y_z"]) == "x_y_z"
    assert nearest("x_y_z", ["x_y_q", "x-y-z"]) == "x-y-z"


# --- what enters a key

FREE = {
    "Settings": {"store", "dataset", "keep", "stamps"},
    "Concept": {
        *("name", "path", "recursive", "missing_mask", "image_column", "repeats", "samples", "loss_weight"),
    },
    "ImageSettings": {"upscale", "extreme_aspect", "max_pixels", "pick"},
    "DiffusersVae": {"slicing"},
    "TransformersText": {"attention"},
}


def decides(section: type[Section], name: str) -> bool:
    extra = section.model_fields[name].json_schema_extra
    return not (isinstance(extra, dict) and extra.get("decides") is False)


@pytest.mark.parametrize("section", [section for section, _ in SECTIONS], ids=lambda section: section.__name__)
def test_fields_that_never_make_an_entry_missing_are_marked(section: type[Section]) -> None:
    """Whoever makes keys, and whoever tests them, can ask each field; device and batch size are free everywhere."""
    free = FREE.get(section.__name__, set())
    if issubclass(section, EncoderSection):
        free = free | {"device", "batch_size"}
    assert {name for name in section.model_fields if not decides(section, name)} == free


# --- the schema


def fits(value: Any, rule: Any, root: dict[str, Any]) -> bool:
    """Whether a JSON value is valid under a schema that uses these keywords and no others."""
    known = {
        *("type", "enum", "const", "anyOf", "oneOf", "not", "$ref", "properties", "required", "additionalProperties"),
        *("propertyNames", "minProperties", "items", "minItems", "uniqueItems", "minLength", "maxLength", "pattern"),
        *("minimum", "maximum", "title", "description", "default", "examples", "decides", "$schema", "$defs"),
    }
    if isinstance(rule, bool):
        return rule
    assert set(rule) <= known, set(rule) - known
    types: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    if "type" in rule:
        if rule["type"] in {"integer", "number"}:
            wanted: Any = int if rule["type"] == "integer" else (int, float)
            if isinstance(value, bool) or not isinstance(value, wanted):
                return False
        elif not isinstance(value, types[rule["type"]]):
            return False
    checks = [
        "enum" not in rule or value in rule["enum"],
        "const" not in rule or value == rule["const"],
        "anyOf" not in rule or any(fits(value, part, root) for part in rule["anyOf"]),
        "oneOf" not in rule or sum(fits(value, part, root) for part in rule["oneOf"]) == 1,
        "not" not in rule or not fits(value, rule["not"], root),
        "$ref" not in rule or fits(value, root["$defs"][rule["$ref"].removeprefix("#/$defs/")], root),
    ]
    if isinstance(value, dict):
        fields = rule.get("properties", {})
        others = rule.get("additionalProperties", True)
        checks += [name in value for name in rule.get("required", [])]
        checks += [fits(item, fields.get(name, others), root) for name, item in value.items()]
        checks += [fits(name, rule.get("propertyNames", True), root) for name in value]
        checks += [len(value) >= rule.get("minProperties", 0)]
    if isinstance(value, list):
        checks += [fits(item, rule.get("items", True), root) for item in value]
        checks += [len(value) >= rule.get("minItems", 0)]
        checks += [not rule.get("uniqueItems") or all(item not in value[:at] for at, item in enumerate(value))]
    if isinstance(value, str):
        checks += [rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", len(value))]
        checks += [re.search(rule.get("pattern", ""), value) is not None]
    if isinstance(value, int | float):
        checks += [rule.get("minimum", value) <= value <= rule.get("maximum", value)]
    return all(checks)


def test_the_schema_accepts_what_the_reader_accepts(read: Reader) -> None:
    """The design's example, the page's, and every other valid config are valid in an editor, too."""
    rules = json.loads(json.dumps(json_schema()))
    assert rules["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    written = [read(content)[0].model_dump(mode="json") for content in (DESIGN, SMALL, page_example())]
    for data in (*GOOD, *written):
        assert fits(json.loads(json.dumps(data)), rules, rules), data


UNSEEN = (
    # What the schema cannot say: rules that join fields, codecs, the sense of a pattern, floats that JSON has not.
    *("a column needs", "cannot stand beside", "less than step", "multiples of step", "unknown text encoding"),
    *("unknown placeholder", "without its partner", "the mask of", "finite", "null character", "not valid Unicode"),
    *("not text '99999x64'", r"not text 'a\n", "does not name a class", "plain data", "not the number 512.0"),
    *("not the number 64.0", "a name must be text"),
)


@pytest.mark.parametrize(("data", "where", "message"), BAD, ids=range(len(BAD)))
def test_the_schema_refuses_what_the_reader_refuses(data: dict[str, Any], where: str | None, message: str) -> None:
    """An editor underlines the same mistakes, those aside that take more than a schema to see."""
    rules = json_schema()
    if not any(part in refused(data).message for part in UNSEEN):
        assert not fits(data, rules, rules)


def test_the_schema_explains_every_field() -> None:
    """An editor can show a title and a meaning for each of them."""
    rules = json_schema()
    for section, _ in SECTIONS:
        properties = rules["properties"] if section is Settings else rules["$defs"][section.__name__]["properties"]
        assert list(properties) == list(section.model_fields)
        for name, rule in properties.items():
            assert "$ref" in rule or (rule["title"] and rule["description"]), name


# --- the file that init writes

WORDS = st.sampled_from(
    ["null", "True", "no", "~", "3", "1e3", ".nan", "-", "- a", "#x", "a #b", "a: b", "{a}", "*a", "é"]
)
NAMES = WORDS | st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=30).filter(str.isprintable)
PATHS = WORDS | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
MASKS = st.none() | st.sampled_from(["{stem}-masklabel.png", "masks/{name}", 'a "b": # {stem}'])
CONCEPTS = st.builds(
    FoundConcept,
    name=NAMES,
    path=PATHS,
    images=st.integers(0, 10**6),
    captions=st.sampled_from(["sidecar", "filename", "none"]),
    masks=MASKS,
    min_side=st.integers(1, 100),
    max_side=st.integers(100, 10_000),
)
FOUND = st.builds(
    TemplateFacts,
    dataset=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True),
    concepts=st.lists(CONCEPTS, min_size=1, max_size=3, unique_by=lambda found: found.name).map(tuple),
    store=PATHS,
    vae=st.none() | PATHS,
    text=st.none() | PATHS,
    resolution=st.integers(64, 4096),
)
PETS = TemplateFacts(
    dataset="pets",
    concepts=(
        FoundConcept("cats", "data/cats", 1200, "sidecar", "{stem}-mask.png", 300, 4000),
        FoundConcept("dogs", "data/dogs", 1, "none", None, 64, 64),
    ),
    store="cache",
    vae=None,
    text=None,
    resolution=512,
)


def found_again(settings: Settings, like: TemplateFacts) -> TemplateFacts:
    """What was found, as the settings tell it; what stands in remarks only is taken over."""
    captions = {"sidecar": "sidecar", "filename": "filename", "": "none"}
    models = {
        name: encoder.model if isinstance(encoder := settings.encoders.get(name), kind) else None
        for name, kind in (("latent", DiffusersVae), ("prompt", TransformersText))
    }
    concepts = []
    for concept, seen in zip(settings.concepts, like.concepts, strict=True):
        spelled = concept.captions.model_dump()
        known: Any = captions[spelled["text"] if isinstance(spelled, dict) else spelled]
        assert not isinstance(concept.masks, ColumnName)
        concepts.append(
            FoundConcept(concept.name, concept.path, seen.images, known, concept.masks, seen.min_side, seen.max_side)
        )
    (size,) = settings.image.sizes
    return TemplateFacts(
        settings.dataset, tuple(concepts), settings.store, models["latent"], models["prompt"], size.width
    )


@given(found=FOUND)
def test_what_init_found_is_what_the_file_says(read: Reader, found: TemplateFacts) -> None:
    """Whatever quotes, colons, line breaks and scripts stand in names and paths, they are read back as they were."""
    settings, _ = read(write_config(found))
    assert found_again(settings, found) == found
    wanted = {"latent"} if found.vae else set()
    wanted |= {"prompt"} if found.text else set()
    wanted |= {"mask"} if any(concept.masks for concept in found.concepts) else set()
    assert set(settings.encoders) == (wanted if found.vae or found.text else wanted | {"pixels"})


def test_the_file_holds_every_setting_with_its_meaning() -> None:
    """Nobody has to look up what could be set: each field stands there, set or commented out, with a remark."""
    lines = write_config(PETS).splitlines()
    for section, _ in SECTIONS:
        for name, field in section.model_fields.items():
            stands = re.compile(rf"[ #-]*{name}:.*  # {re.escape(field.description or '-')}")
            assert any(stands.fullmatch(line) for line in lines), name


def test_defaults_in_the_file_are_the_defaults(read: Reader) -> None:
    """Setting all that is commented out changes nothing, examples aside."""
    content = write_config(PETS)
    settings, _ = read(content)
    lines = [
        line
        if re.match(r" *#(?:revision|subfolder|samples|masks):", line)
        else re.sub(r"^( *)#(?=\w+: \S)", r"\1", line)
        for line in content.splitlines()
    ]
    assert sum(a != b for a, b in zip(lines, content.splitlines(), strict=True)) > 20
    assert read("\n".join(lines))[0] == settings


def test_each_encoder_in_the_file_can_be_switched_on(read: Reader) -> None:
    """Removing the first # from its lines is all it takes, and its further settings stay at their defaults."""
    content = write_config(PETS)
    off = re.findall(r"^  #(\w+):\n((?:  #  .*\n)+)", content, re.MULTILINE)
    assert [name for name, _ in off] == ["latent", "prompt", "tokens", "inputs", "mine"]
    for name, block in off:
        on = re.sub(r"^  #", "  ", f"  #{name}:\n{block}", flags=re.MULTILINE)
        settings, _ = read(content.replace(f"  #{name}:\n{block}", on))
        assert set(settings.encoders) == {"mask", "pixels", name}
        assert settings.encoders[name].model_fields_set <= {"uses", "model"}
        for line in on.splitlines():
            alone = re.sub(r"^    #", "    ", line)
            if alone != line:
                switched, _ = read(content.replace(f"  #{name}:\n{block}", on.replace(line, alone)))
                assert len(switched.encoders[name].model_fields_set) > len(settings.encoders[name].model_fields_set)


def test_pictures_without_captions_get_the_empty_prompt(read: Reader) -> None:
    """The file says so in words, beside the setting."""
    content = write_config(PETS)
    settings, _ = read(content)
    assert settings.concepts[1].captions == FixedText(text="")
    assert (
        "# 1 picture, sides from 64 to 64 pixels\n  # no captions were found: a fixed text, the empty prompt" in content
    )


@pytest.mark.parametrize("field", ["store", "vae", "text", "dataset"])
def test_what_is_not_unicode_cannot_be_written(field: str) -> None:
    """A file name in another encoding is named, not mangled."""
    fields = {name: getattr(PETS, name) for name in ("dataset", "concepts", "store", "vae", "text", "resolution")}
    with pytest.raises(ValueError, match=r"'caf\\udce9' is not Unicode and cannot stand in a file: rename it"):
        write_config(TemplateFacts(**{**fields, field: "caf\udce9"}))
    bad = FoundConcept("a", "caf\udce9", 1, "sidecar", None, 1, 1)
    with pytest.raises(ValueError, match="is not Unicode"):
        write_config(TemplateFacts(**{**fields, "concepts": (bad,)}))


def test_what_no_config_may_hold_is_not_written() -> None:
    """A folder's name with a line break is no concept's name, and no concepts are no config."""
    bad = FoundConcept("a\nb", "a", 1, "sidecar", None, 1, 1)
    with pytest.raises(precook.ConfigError, match="must be 1 to 200 printable characters"):
        write_config(TemplateFacts("pets", (bad,), "cache", None, None, 512))
    with pytest.raises(precook.ConfigError, match="concepts: must not be empty"):
        write_config(TemplateFacts("pets", (), "cache", None, None, 512))


# --- the page

HEADINGS: dict[str, tuple[type[Section], set[str]]] = {
    "The whole file": (Settings, set()),
    "concepts": (Concept, set()),
    "image": (ImageSettings, set()),
    "text": (TextSettings, set()),
    "every encoder": (EncoderSection, set()),
    **{
        kind: (section, set(EncoderSection.model_fields))
        for kind, section in ENCODERS.items()
        if len(section.model_fields) > len(EncoderSection.model_fields)
    },
}


def page_example() -> str:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(example)


def test_the_example_on_the_page_is_a_config(read: Reader) -> None:
    """It can be copied as it stands."""
    settings, _ = read(page_example())
    assert [found.name for found in settings.concepts] == ["cats", "dogs"]


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_page_tells_every_field_and_its_true_default(heading: str) -> None:
    """Each table has the fields that are there, what they are without being written, and whether they change keys."""
    section, elsewhere = HEADINGS[heading]
    part = re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)
    (body,) = [text for text in part if text.startswith(f"{heading}\n")]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*) \|$", body, re.MULTILINE)
    expected = []
    for name, field in section.model_fields.items():
        if name not in elsewhere:
            change = "yes" if decides(section, name) else "no"
            if section is Settings and name in {"concepts", "image", "text", "encoders"}:
                change = "see below"
            if field.default_factory:
                default = "see below"
            else:
                default = "required" if field.is_required() else f"`{yaml_text(field.default)}`"
            expected.append((name, default, change))
    assert [row[:3] for row in rows] == expected
    assert all(meaning.endswith(".") for *_, meaning in rows)


def test_the_page_has_one_sentence_per_line() -> None:
    """So that a change shows what it changes; tables and code aside."""
    prose = re.sub(r"^```.*?^```", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    for line in prose.splitlines():
        if not line.startswith(("|", "    ")):
            assert not re.search(r"[a-z`)]\. [A-Z`]", line), line
