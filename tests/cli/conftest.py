"""Stores and projects that tests of several commands begin with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import precook
from precook import Key
from tests.support.commands import TEXT, VAE, cook, run
from tests.support.projects import dataset, picture, text_folder
from tests.support.snapshots import freeze, make_older, put_packs

PETS = """\
store: cache
dataset: pets
concepts:
  - name: cats
    path: data/cats
  - name: dogs
    path: data/dogs
    captions: {text: a dog}
    masks: "{stem}-masklabel.png"
image:
  resolutions: [64]
  step: 16
text:
  empty_prompt: false
encoders:
  pixels: {uses: image}
  tokens: {uses: transformers-tokens, model: models/text, max_length: 77}
  mask: {uses: mask, factor: 1}
"""
"""For two cats with two captions each, and two dogs with a mask each."""
WORDS = '''\
import os, sys


class Words:
    """Keeps the device and the text; says when it is inside its first batch and waits there, if it is asked to."""

    input = "text"

    def __init__(self, gate=None, bad=None, grows=None):
        self.gate = gate
        self.grows = grows
        self.bad = bad

    def identity(self):
        return {"encoder": "words"}

    def load(self, device):
        self.device = device

    def encode(self, batch):
        gate, self.gate = self.gate, None
        if gate is not None:
            sys.__stderr__.write("inside\\n")
            sys.__stderr__.flush()
            with open(gate, "rb", buffering=0) as opened:
                opened.read(1)
        if self.grows is not None:
            with open(self.grows, "a") as caption:
                caption.write(f"another line, {os.path.getsize(self.grows)}\\n")
        if any(self.bad and self.bad in item.text for item in batch):
            raise ValueError("\\x1b[31mcannot read\\nthis")
        return [{"device": self.device, "text": item.text} for item in batch]

    def unload(self):
        pass
'''
THINGS = """\
store: cache
dataset: things
concepts:
  - {name: things, path: data}
image: {resolutions: [64], step: 16}
text: {empty_prompt: false}
encoders:
  pixels: {uses: image}
  words: {uses: "encoders:Words", batch_size: 2}
"""
TWINS = """\
dataset: {name}
concepts:
  - {{name: things, path: data}}
image: {{resolutions: [64, 32], step: 16}}
encoders:
  pixels: {{uses: image}}
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two packs: three latents, then two texts and an entry without a recipe."""
    path = tmp_path / "cache"
    with precook.open(path) as opened:
        with opened.writer() as writer:
            for number in range(3):
                latent = np.full((4, 8, 8), number, np.float16)
                tree = {"latent": latent, "crop": (64, 48)}
                writer.put(VAE.key(number), tree, recipe=VAE, labels={"file": f"cats/{number}.jpg"})
        with opened.writer() as writer:
            for text in ("a cat", "two dogs"):
                writer.put(TEXT.key(text), {"ids": np.arange(len(text)), "text": text}, recipe=TEXT)
            writer.put(Key(bytes(32)), [np.zeros(3, np.float32)])
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pets(here: Path) -> Path:
    """A project of two concepts and three encoders, of which nothing is built; its sources are old enough to trust."""
    dataset(here / "data" / "cats", 2, lines=2)
    for number in range(2):
        picture(here / "data" / "dogs" / f"d{number}.png", 10 + number)
        picture(here / "data" / "dogs" / f"d{number}-masklabel.png", 20 + number)
    text_folder(here / "models" / "text")
    (here / "precook.yaml").write_text(PETS)
    for path in here.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return here


@pytest.fixture
def built(pets: Path) -> Path:
    """The same project, built and frozen."""
    cook()
    return pets


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of six samples and two encoders, one of them a class beside the config; the user is in its folder."""
    dataset(tmp_path / "data", 6)
    (tmp_path / "encoders.py").write_text(WORDS)
    (tmp_path / "precook.yaml").write_text(THINGS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("encoders", None)


@pytest.fixture
def twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three pictures and two configs over them, both built into ./cache."""
    dataset(tmp_path / "data", 3)
    monkeypatch.chdir(tmp_path)
    for name in ("pets", "twins"):
        Path(f"{name}.yaml").write_text(TWINS.format(name=name))
        assert run("build", "--config", f"{name}.yaml").code == 0
    return tmp_path


DAY = 24 * 3600.0


@pytest.fixture
def cache(path: Path, recipe: precook.Recipe) -> Path:
    """Two packs of old entries, of which a snapshot names the first three."""
    with precook.open(path) as store:
        put_packs(store, recipe, [range(5), range(5, 10)])
        freeze(store, "cats", [recipe.key(number) for number in range(3)])
    make_older(path, 2 * DAY)
    return path
