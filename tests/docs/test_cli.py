"""docs/reference/cli.md: every example in it is run, and does what the page shows."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.cli import progress
from precook.cli.main import COMMANDS
from tests.support.commands import check_examples, run
from tests.support.pages import ROOT, Example, console_blocks
from tests.support.projects import build, picture, text_folder, vae_folder

PAGE = ROOT / "docs" / "reference" / "cli.md"


PETS = """\
dataset: pets
concepts:
  - {name: cats, path: data/cats}
  - {name: dogs, path: data/dogs, captions: {text: a dog}}
image: {resolutions: [512]}
encoders:
  latent: {uses: diffusers-vae, model: ../models/vae, dtype: float16}
  prompt: {uses: transformers-text, model: ../models/text, layers: [-1]}
"""


ZOO = """\
dataset: zoo
concepts:
  - {name: cats, path: data/cats, captions: {text: a cat}}
  - {name: dogs, path: data/dogs}
image: {resolutions: [512]}
text: {empty_prompt: false}
encoders:
  pixels: {uses: image}
  words: {uses: "zoo_encoders:Words"}
"""
ZOO_ENCODERS = """\
class Words:
    input = "text"

    def identity(self):
        return 1

    def load(self, device):
        pass

    def encode(self, batch):
        if any(item.text == "a strange dog" for item in batch):
            raise ValueError("no words for this")
        return [item.text.split() for item in batch]

    def unload(self):
        pass
"""


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where the reader is: stores in ./cache and ./damaged, pictures in ./data, ./old, projects in ./pets and ./zoo."""
    make_stores(tmp_path)
    make_zoo(tmp_path / "zoo")
    vae_folder(tmp_path / "models" / "vae")
    text_folder(tmp_path / "models" / "text")
    make_pictures(tmp_path / "data")
    make_old(tmp_path / "old")
    make_project(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRECOOK_CACHE", str(tmp_path / "near"))
    monkeypatch.setattr(progress, "LINES_EVERY", 3600.0)  # a slow machine has more to tell
    yield
    sys.modules.pop("zoo_encoders", None)


def make_stores(folder: Path) -> None:
    vae = precook.Recipe("vae", {"weights": precook.digest("weights"), "dtype": "float16"})
    text = precook.Recipe("text", {"max_length": 77})
    for name in ("cache", "damaged"):
        with precook.open(folder / name) as store, store.writer() as writer:
            for number in range(3):
                latent = np.linspace(-1, 1, 4 * 64 * 64, dtype=np.float16).reshape(4, 64, 64)
                labels = {"file": f"cats/{number}.jpg"}
                writer.put(vae.key(number), {"latent": latent, "crop": (64, 48)}, recipe=vae, labels=labels)
            for caption in ("a cat", "a dog on a mat"):
                hidden = np.zeros((len(caption), 16), np.float32)
                writer.put(text.key(caption), {"hidden": hidden, "caption": caption}, recipe=text)
    (pack,) = (folder / "damaged").glob("packs/*/*.safetensors")
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)


def make_pictures(folder: Path) -> None:
    """Three cats with captions, two dogs with masks."""
    for number in range(3):
        picture(folder / "cats" / f"cat{number}.png", number, (640, 480))
        (folder / "cats" / f"cat{number}.txt").write_text(f"a cat, number {number}\n")
    for number in range(2):
        picture(folder / "dogs" / f"dog{number}.png", 10 + number, (640, 480))
        picture(folder / "dogs" / f"dog{number}-masklabel.png", 20 + number, (640, 480))


def make_old(folder: Path) -> None:
    """A cat and a dog with the caches of sd-scripts; the dog was another when it was cached."""
    latent = np.zeros((4, 60, 80), np.float32)
    for number, (name, size) in enumerate((("cat", (640, 480)), ("dog", (320, 240)))):
        picture(folder / f"{name}.png", number, size)
        arrays = {"latents": latent, "original_size": np.array([640, 480]), "crop_ltrb": np.zeros(4)}
        np.savez(folder / f"{name}_0640x0480_sdxl.npz", **arrays)


def make_project(folder: Path) -> None:
    """The same, built; then another cat, one that is cut off, and another layer of the text encoder."""
    make_pictures(folder / "data")
    config = folder / "precook.yaml"
    config.write_text(PETS)
    with precook.load(config) as project:
        build(project)
    config.write_text(PETS.replace("[-1]", "[-2]"))
    new = picture(folder / "data/cats/new.png", 30, (640, 480))
    new.with_suffix(".txt").write_text("a new cat\n")
    (folder / "data/cats/cut.png").write_bytes(new.read_bytes()[:-20])


def make_zoo(folder: Path) -> None:
    """Two cats, two dogs, and an encoder beside the config that has no words for one of them."""
    for number, name in enumerate(("cats/cat0", "cats/cat1", "dogs/dog0", "dogs/dog1")):
        picture(folder / "data" / f"{name}.png", number, (640, 480))
    (folder / "data" / "dogs" / "dog0.txt").write_text("a dog\n")
    (folder / "data" / "dogs" / "dog1.txt").write_text("a strange dog\n")
    (folder / "zoo_encoders.py").write_text(ZOO_ENCODERS)
    (folder / "precook.yaml").write_text(ZOO)


@pytest.mark.parametrize("examples", console_blocks(PAGE), ids=lambda examples: examples[0].command)
def test_an_example_does_what_the_page_shows(reader: None, examples: list[Example]) -> None:
    """Output and exit code are those on the page."""
    if any("://" in example.command for example in examples):
        pytest.importorskip("obstore", reason="stores in buckets need precook[remote]")
    check_examples(examples)


def test_every_command_has_an_example() -> None:
    """A command that is not on the page is not documented."""
    commands = [shlex.split(example.command) for examples in console_blocks(PAGE) for example in examples]
    assert {command[1] for command in commands} >= set(COMMANDS)


def test_every_option_is_on_the_page() -> None:
    """So is an option."""
    page = PAGE.read_text("utf-8")
    for command in COMMANDS:
        for option in re.findall(r"(--[a-z-]+)", run(command, "--help").out):
            assert f"`{option}" in page or f" {option}" in page, option


def test_every_sentence_has_its_line() -> None:
    """One sentence per line, so that a change of one is a change of one line."""
    prose = re.sub(r"^```.*?^```", "", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for line in prose.splitlines():
        assert not re.search(r"[a-z`)][.?!] [A-Z`]", line), line
