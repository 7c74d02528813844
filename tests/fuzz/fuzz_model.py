"""Model folders: whatever lies in one, a plan takes it for a model or refuses it by a `ConfigError`.

An input is a JSON document with the content of each file, byte by byte as a text of Latin-1.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from precook.config.encoders import ENCODERS
from precook.config.template import FoundConcept, TemplateFacts, write_config
from precook.encode.families import family_of
from precook.encode.pipeline_folder import read_pipeline
from precook.encode.propose import propose, read_facts
from precook.encode.registry import EncoderSpec
from precook.errors import ConfigError, EncodeError
from precook.memo.memo import Memory
from tests.fuzz.frame import Target, mutate_bytes, mutate_json
from tests.support.projects import text_folder, vae_folder

NAMES = (
    "model_index.json",
    "config.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "text_encoder/model.safetensors.index.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer/spiece.model",
    "tokenizer/vocab.json",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
    "unet/config.json",
)
"""The files that there may be; others are not written."""
SECTIONS: list[dict[str, Any]] = [
    {"uses": "diffusers-vae"},
    {"uses": "transformers-text", "layers": [-2], "max_length": 8},
    {"uses": "transformers-text", "subfolder": "text_encoder", "chat_template": True},
    {"uses": "transformers-text", "subfolder": "vae"},
    {"uses": "transformers-tokens"},
    {"uses": "transformers-processor"},
    {"uses": "diffusers-vae", "subfolder": "text_encoder"},
]


@functools.cache
def place() -> Path:
    """Where the folders are written."""
    return Path(tempfile.mkdtemp())


def check(data: bytes) -> bool:
    """Plan with each encoder; whether one of them took the folder."""
    try:
        files = json.loads(data)
        contents = {name: str(files[name]).encode("latin-1") for name in NAMES if name in files}
    except (ValueError, TypeError, RecursionError):
        return False
    folder = place() / "model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    taken = False
    for section in SECTIONS:
        spec = EncoderSpec("x", ENCODERS[section["uses"]](model="model", **section), base=place())
        try:
            spec.check(Memory(None))
            taken = True
        except ConfigError as error:
            for problem in error.problems:
                assert problem.told(error.file).isprintable()
                assert problem.hint.isprintable()
    return taken | check_proposal(folder)


def check_proposal(folder: Path) -> bool:
    """Write a config for the folder, as `init --for` does; whether one was."""
    try:
        pipeline = read_pipeline(folder)
        family = family_of(pipeline.kind)
        if family is None:
            return False  # diffusers would be searched for its class, each time
        proposal = propose(family, read_facts(pipeline, family), "model")
        concept = FoundConcept("x", "x", 1, "none", None, 1, 1)
        content = write_config(TemplateFacts("x", (concept,), "cache", None, None, 512, proposal))
    except (ConfigError, EncodeError) as error:
        assert error.message.isprintable()
        return False
    assert all(line.isprintable() for line in content.splitlines())
    return True


def seeds() -> list[bytes]:
    """A pipeline with all its folders, and the same with a tokenizer in other forms."""
    with tempfile.TemporaryDirectory() as home:
        base = Path(home)
        text_folder(base / "text_encoder")
        vae_folder(base / "vae")
        (base / "tokenizer").mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (base / "text_encoder" / name).rename(base / "tokenizer" / name)
        parts = {
            "vae": ["diffusers", "AutoencoderKL"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "tokenizer": ["transformers", "CLIPTokenizer"],
        }
        (base / "unet").mkdir()
        (base / "unet" / "config.json").write_text('{"sample_size": 64}')
        parts["unet"] = ["diffusers", "UNet2DConditionModel"]
        (base / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **parts}))
        pipeline = {name: (base / name).read_bytes().decode("latin-1") for name in NAMES if (base / name).is_file()}
    rest = {name: content for name, content in pipeline.items() if name != "tokenizer/tokenizer.json"}
    index = json.dumps({"weight_map": {"embed.weight": "model.safetensors"}})
    forms = [
        pipeline,
        {**rest, "tokenizer/spiece.model": "\x0a\x05\x0a\x03abc" * 3},
        {**rest, "tokenizer/vocab.json": '{"a": 0, "b": 1}', "text_encoder/model.safetensors.index.json": index},
    ]
    return [json.dumps(form).encode() for form in forms]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One file changed, left out or written under another's name."""
    try:
        files = {str(name): str(content) for name, content in json.loads(data).items()}
        name = rng.choice(sorted(files))
    except (ValueError, AttributeError, LookupError, RecursionError):
        return mutate_bytes(data, rng)  # the engine has changed the document itself
    kind = rng.randrange(8)
    if kind == 0 and len(files) > 1:
        del files[name]
    elif kind == 1:
        files[rng.choice(NAMES)] = files[name]
    else:
        content = files[name].encode("latin-1", "replace")
        files[name] = (mutate_json if kind > 4 else mutate_bytes)(content, rng).decode("latin-1")
    return json.dumps(files).encode()


TARGET = Target("model", seeds, check, mutate, NAMES)
