"""Configs: any bytes are a config, or refused by a `ConfigError`; what is accepted can be built, or an error says why.

Only what names no class and no model is built, and only from the pictures that lie there: a config is trusted with the
folders and the code that it names.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
from pathlib import Path

import yaml
from PIL import Image

import precook
from precook.config.check import read_config
from precook.errors import ConfigError, PrecookError
from tests.fuzz.frame import Target, mutate_bytes, mutate_json

GOOD = """\
store: cache
dataset: portraits
concepts:
  - {name: cats, path: data/cats, captions: sidecar, masks: "{stem}-masklabel.png", repeats: 1.0, outside: allow}
  - name: dogs
    path: data/dogs.jsonl
    captions: {column: caption}
    samples: 200
    loss_weight: 0.5
image: {resolutions: [512, "768x512"], crop: random, flip: random, variations: 4, background: "#ff8800"}
text: {variations: all}
encoders:
  latent: {uses: diffusers-vae, model: models/vae, dtype: float16}
  prompt: {uses: transformers-text, model: models/text, layers: [-2], max_length: 512}
  mask: {uses: mask, factor: 8}
  pixels: {uses: image}
  style: {uses: "my_package.my_module:MyEncoder", strength: 0.5}
keep: [paths, captions]
"""


PLAIN = """\
dataset: pets
concepts:
  - {name: cats, path: data/cats, masks: "{stem}-masklabel.png", repeats: 1.5, missing_mask: white}
  - {name: dogs, path: data/dogs.jsonl, captions: {column: caption}, samples: 3, loss_weight: 0.5}
image: {resolutions: [64, "32x48"], step: 16, crop: random, flip: random, variations: 2, max_aspect: 2.0, seed: 7}
text: {variations: 2, empty_prompt: true}
encoders:
  pixels: {uses: image, batch_size: 2}
  mask: {uses: mask, factor: 8}
keep: [paths, captions]
"""
PATHS = {"cache", "data/cats", "data/dogs.jsonl"}


@functools.cache
def place() -> Path:
    """A config's place, beside a folder and a table of pictures."""
    home = Path(tempfile.mkdtemp())
    (home / "data/cats").mkdir(parents=True)
    for number, name in enumerate(("a", "b", "c", "a-masklabel")):
        Image.new("RGB", (96, 64 + 8 * (number % 3)), (number, 0, 0)).save(home / f"data/cats/{name}.png")
        (home / f"data/cats/{name}.txt").write_text("one\ntwo\nthree")
    (home / "data/dogs.jsonl").write_text('{"image": "cats/c.png", "caption": ["a dog", "a small dog"]}')
    return home / "precook.yaml"


def check(data: bytes) -> bool:
    """Read a config; what is wrong with it is told in full, on lines that are harmless to a terminal."""
    place().write_bytes(data)
    try:
        settings, origin = read_config(place())
    except ConfigError as error:
        for problem in error.problems:
            assert problem.told(error.file).isprintable()
            assert problem.hint.isprintable()
        assert str(error)
        return False
    assert origin.line(("dataset",))
    assert json.dumps(settings.model_dump(mode="json"))
    paths = {settings.store, *(concept.path for concept in settings.concepts)}
    uses = {section.uses for section in settings.encoders.values()}
    return build() if paths <= PATHS and uses <= {"image", "mask"} else True


def build() -> bool:
    """Build what a config says and take the first batch of it; whether that was possible."""
    shutil.rmtree(place().parent / "cache", ignore_errors=True)
    try:
        with precook.load(place()) as project:
            project.build(devices=["cpu"])
            with project.feed(batch_size=2) as feed:
                next(iter(feed.epoch(0)), None)
    except PrecookError:
        return False
    return True


def seeds() -> list[bytes]:
    """A config as people write it, and the same as JSON, which is YAML too."""
    return [form for text in (PLAIN, GOOD) for form in (text.encode(), json.dumps(yaml.safe_load(text)).encode())]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Bytes, a part of the document, a line, or a word of YAML put somewhere."""
    kind = rng.randrange(4)
    if kind == 0:
        return mutate_bytes(data, rng)
    if kind == 1:
        return mutate_json(data, rng)
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    if kind == 2:
        lines[number : number + 1] = rng.choice([[], [lines[number]] * rng.choice([2, 3, 500]), [lines[number - 1]]])
        return b"\n".join(lines)[: 1 << 16]
    line = lines[number]
    column = rng.randrange(len(line) + 1)
    word = rng.choice(TOKENS).encode() * rng.choice([1, 1, 1, 2, 50])
    lines[number] = line[:column] + word + line[column:]
    return b"\n".join(lines)[: 1 << 16]


TOKENS = (
    *(
        "&a ",
        "*a ",
        "<<: ",
        "!!python/name:os.system ",
        "!x ",
        "- ",
        "? ",
        ": ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "|\n",
        ">\n",
    ),
    *("#", '"', "'", '"\\U00110000"', "\\x", "%YAML 9999999999.1\n", "---\n", "...\n", "~", "1e999", "0x10", ".inf"),
    *("9" * 200, "\t", "\ufeff", "\x85", "\u2028", "\ud7ff", "null", "-1", "1_000", "12:30", "{stem}", "../..", "\0"),
)
TARGET = Target("config", seeds, check, mutate, tuple(token.encode() for token in TOKENS))
