"""Small configs, what is allowed in them and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import precook
from precook.config.check import check
from precook.config.concept import Concept
from precook.config.encoders import ENCODERS
from precook.config.field_types import Section
from precook.config.schema import Settings
from precook.config.sections import ImageSettings, TextSettings, VideoSettings
from precook.config.yaml import Origin

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


def video(**fields: Any) -> dict[str, Any]:
    return small(video=fields)


def text(**fields: Any) -> dict[str, Any]:
    return small(text=fields)


def encoder(uses: str, **fields: Any) -> dict[str, Any]:
    model = {"model": "m"} if uses.startswith(("diffusers", "transformers")) else {}
    return small(encoders={"x": {"uses": uses, **model, **fields}})


Reader = Callable[[str | bytes], tuple[Settings, Origin]]


SECTIONS: list[tuple[type[Section], Callable[..., dict[str, Any]]]] = [
    (Settings, small),
    (Concept, concept),
    (ImageSettings, image),
    (TextSettings, text),
    (VideoSettings, video),
    *[
        (section, lambda kind=kind, **fields: encoder("a:B" if kind == ":" else kind, **fields))
        for kind, section in ENCODERS.items()
    ],
]


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
    concept(captions={"whole": "sidecar"}, prefix="a photo of ", suffix=".", trigger="sks"),
    table(captions={"json": "tags"}, caption_extension=".meta"),
    concept(tags={}),
    concept(image={}, text={"variations": 3}, validation=True),
    {**concept(image={"resolutions": [32], "flip": "none"}), "image": {"step": 16, "flip": "random"}},
    small(concepts=[{"name": "a", "path": "a", "enabled": False}, {"name": "b", "path": "b"}]),
    concept(tags={"separator": ";", "shuffle": False, "keep_first": 2, "dropout": 1, "variations": 1000, "seed": 3}),
    image(resolutions=["64x128"], crop="random", flip="always", variations=1000, resampling="area", upscale="refuse"),
    image(resolutions=[8], step=8, max_aspect=1, extreme_aspect="refuse", max_pixels=178_956_970, pick="each"),
    image(seed=2**63 - 1),
    image(resolutions="native", max_pixels=1_003_520, multiple_of=28),
    image(resolutions=["native", 512, "512x512"]),
    text(variations=1, empty_prompt=False),
    encoder("diffusers-vae", posterior="moments", scaled=True, tiling=True, slicing=True, revision="main"),
    encoder("transformers-text", layers="all", pooled=False, prefix=" ", crop_start=3, attention="sdpa"),
    encoder("transformers-text", layers=[0, -1, 5], tokenizer="t", batch_size=3, device="cuda:1"),
    encoder("transformers-tokens", truncation=False, special_tokens=False, subfolder="s"),
    encoder("transformers-processor", options={"do_resize": False, "size": {"height": 3}}, dtype="bfloat16"),
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
    (concept(captions={"text": "a", "column": "b"}), "concepts[0].captions", "must be sidecar, filename, {whole"),
    (concept(captions={"txt": "a"}), "concepts[0].captions", "not a mapping"),
    (concept(captions={"text": 3}), "concepts[0].captions.text", "must be text, not the number 3"),
    (concept(captions={"whole": "column"}), "concepts[0].captions.whole", "must be sidecar, not text 'column'"),
    (concept(captions={"json": ""}), "concepts[0].captions.json", "must not be empty"),
    (concept(captions={"json": 1}), "concepts[0].captions.json", "must be text, not the number 1"),
    (concept(captions={1: "a"}), "concepts[0].captions", "not a mapping"),
    (concept(enabled=False), "concepts", "none of them is enabled"),
    (concept(image={"flipp": "none"}), "concepts[0].image.flipp", "did you mean 'flip'?"),
    (concept(image={"flip": "no"}), "concepts[0].image.flip", "must be none, random or always, not text 'no'"),
    (concept(image={"pick": "each"}), "concepts[0].image.pick", "is for all concepts together"),
    (concept(image={"resolutions": [32]}), "concepts[0].image.resolutions[0]", "32 is less than step, 64"),
    (concept(text={"empty_prompt": False}), "concepts[0].text.empty_prompt", "is for all concepts together"),
    (concept(text={"variations": 0}), "concepts[0].text.variations", "must be a whole number of at least 1"),
    (concept(tags=True), "concepts[0].tags", "must be a mapping of fields, not true"),
    (concept(tags={"shufle": True}), "concepts[0].tags.shufle", "did you mean 'shuffle'?"),
    (concept(tags={"separator": ""}), "concepts[0].tags.separator", "must not be empty"),
    (concept(tags={"keep_first": -1}), "concepts[0].tags.keep_first", "must be 0 or more, not the number -1"),
    (concept(tags={"dropout": 1.5}), "concepts[0].tags.dropout", "must be 1 or less, not the number 1.5"),
    (concept(tags={"variations": 0}), "concepts[0].tags.variations", "must be 1 or more, not the number 0"),
    (concept(trigger=None), "concepts[0].trigger", "must be text, not nothing"),
    (concept(texts={"column": "c"}), "concepts[0].texts", "a column needs a table, and path is a folder"),
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
    (image(resolutions="natve"), "image.resolutions", "must be a list, or native, not text 'natve'"),
    (image(resolutions=["Native"]), "image.resolutions[0]", "or native, not text 'Native'"),
    (image(resolutions=["native", "native"]), "image.resolutions[1]", "'native' stands here twice"),
    (image(multiple_of=0), "image.multiple_of", "must be 1 or more, not the number 0"),
    (
        image(resolutions="native", max_pixels=783, multiple_of=28),
        "image.max_pixels",
        "no size of multiples of 28 has at most 783 pixels",
    ),
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
    (image(rounding="up"), "image.rounding", "must be auto, down or nearest, not text 'up'"),
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
    (encoder("transformers-processor", dtype="half"), "encoders.x.dtype", "must be auto, float32, float16 or bfloat16"),
    (encoder("transformers-processor", options=[]), "encoders.x.options", "must be a mapping, not a list"),
    (encoder("transformers-processor", options={"a": [float("inf")]}), "encoders.x.options.a[0]", "must be a finite"),
    (encoder("transformers-processor", options={"a": {1: 2}}), "encoders.x.options.a", "a name must be text"),
    (encoder("a:B", thing=object()), "encoders.x.thing", "must be plain data, not a value of the Python type object"),
    (encoder("a:B", thing={"a": "\0"}), "encoders.x.thing.a", "must not contain a null character"),
    *[
        (small(encoders={name: {"uses": "image"}}), f"encoders.{name}", "a batch has something of that name")
        for name in ("sample", "concept", "path", "caption", "loss_weight", "size")
    ],
]
