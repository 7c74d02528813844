"""Models that cannot be an encoder's: `plan` ends with what lacks and what to write, before anything is loaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.commands import environment, run
from tests.support.projects import dataset, vae_folder

PARTS = {
    "vae": ["diffusers", "AutoencoderKL"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "scheduler": ["diffusers", "EulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "image_encoder": [None, None],
}
TABLE = 40
"""Tokens that the text encoders know."""


def write_config(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def text_encoder(folder: Path, kind: str = "CLIPTextModel", **config: Any) -> Path:
    """A text encoder as transformers writes it, without a tokenizer."""
    fields = {"model_type": "clip_text_model", "vocab_size": TABLE, "num_hidden_layers": 2}
    write_config(folder, **{"architectures": [kind], "max_position_embeddings": 77, **fields, **config})
    table = {"text_model.embeddings.token_embedding.weight": np.zeros((TABLE, 8), np.float32)}
    save_file(table, folder / "model.safetensors")
    return folder


def tokenizer(folder: Path, tokens: int = TABLE, kind: str = "CLIPTokenizer") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    model = {"type": "WordLevel", "vocab": {f"w{number}": number for number in range(tokens)}, "unk_token": "w0"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    return folder


def pipeline(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """The folder of a pipeline as diffusers lays it out."""
    parts = {name: part for name, part in PARTS.items() if name not in without}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionXLPipeline", **parts}))
    vae_folder(folder / "vae")
    write_config(folder / "unet", _class_name="UNet2DConditionModel")
    for name in set(parts) & {"text_encoder", "text_encoder_2"}:
        text_encoder(folder / name, PARTS[name][1] or "")
    for name in set(parts) & {"tokenizer", "tokenizer_2"}:
        tokenizer(folder / name)
    return folder


def _alone(base: Path) -> None:
    text_encoder(base / "alone")


def _complete(base: Path) -> Path:
    text_encoder(base / "text")
    return tokenizer(base / "text")


def _settings_only(base: Path) -> None:
    (_complete(base) / "tokenizer.json").unlink()


def _lost_tokenizer(base: Path) -> None:
    shutil.rmtree(base / "sdxl" / "tokenizer_2")


def _large_vocabulary(base: Path) -> None:
    tokenizer(_complete(base), 100)


def _sentencepiece(base: Path) -> None:
    (_complete(base) / "tokenizer.json").unlink()
    piece = b"\x0a\x05\x0a\x03abc"
    (base / "text" / "spiece.model").write_bytes(piece * 100)


def _table_in_the_weights(base: Path) -> None:
    tokenizer(_complete(base), 100)
    write_config(base / "text", architectures=["CLIPTextModel"], model_type="clip_text_model")


def _pickled(base: Path) -> None:
    (_complete(base) / "model.safetensors").rename(base / "text" / "pytorch_model.bin")


def _without_weights(base: Path) -> None:
    (_complete(base) / "model.safetensors").unlink()


def _variant(base: Path) -> None:
    (_complete(base) / "model.safetensors").rename(base / "text" / "model.fp16.safetensors")


def _shards(base: Path) -> None:
    (_complete(base) / "model.safetensors").rename(base / "text" / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (base / "text" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def _cut_off(base: Path) -> None:
    file = _complete(base) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def _pointer(base: Path) -> None:
    (_complete(base) / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


def _pointer_for_tokens(base: Path) -> None:
    (_complete(base) / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")


def _adapter(base: Path) -> None:
    (_complete(base) / "adapter_config.json").write_text("{}")


def _without_config(base: Path) -> None:
    (_complete(base) / "config.json").unlink()


def _no_json(base: Path) -> None:
    (_complete(base) / "config.json").write_text("<html>")


def _endless_json(base: Path) -> None:
    (_complete(base) / "config.json").write_text("[" * 200_000)


def _index_from_a_fifo(base: Path) -> None:
    os.mkfifo(_complete(base) / "model.safetensors.index.json")


def _scaled_apart(base: Path) -> None:
    file = vae_folder(base / "apart") / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "invert_scale_latents": True}))


def _config_from_a_fifo(base: Path) -> None:
    (_complete(base) / "config.json").unlink()
    os.mkfifo(base / "text" / "config.json")


def _config_without_end(base: Path) -> None:
    with (_complete(base) / "config.json").open("r+b") as file:
        file.truncate(1 << 40)


def _both_towers(base: Path) -> None:
    text_encoder(base / "text", "CLIPModel", model_type="clip")


def _vision(base: Path) -> None:
    text_encoder(base / "text", "CLIPVisionModelWithProjection", model_type="clip_vision_model")


def _t5(base: Path) -> None:
    text_encoder(_complete(base), "T5EncoderModel", model_type="t5", num_layers=2)


def _file(base: Path) -> None:
    vae_folder(base)
    (base / "diffusion_pytorch_model.safetensors").rename(base / "ae.safetensors")


def _nothing(base: Path) -> None:
    pass


TEXT = {"uses": "transformers-text", "model": "text"}


@dataclass(frozen=True)
class Case:
    """What somebody has in a folder and writes in the config, and what is said about it."""

    encoder: dict[str, Any]
    message: str
    hint: str = ""
    make: Callable[[Path], object] = field(default=_nothing)


WRONG = {
    "a pipeline's root with two text encoders": Case(
        {"uses": "transformers-text", "model": "sdxl"},
        "sdxl: a whole pipeline (StableDiffusionXLPipeline), with text_encoder and text_encoder_2",
        "write `subfolder: text_encoder` or `subfolder: text_encoder_2`",
    ),
    "a pipeline's root with two tokenizers": Case(
        {"uses": "transformers-tokens", "model": "sdxl"},
        "with tokenizer and tokenizer_2",
        "write `subfolder: tokenizer` or `subfolder: tokenizer_2`",
    ),
    "a pipeline's root without a processor": Case(
        {"uses": "transformers-processor", "model": "sdxl"}, "no part of it is for transformers-processor"
    ),
    "a text encoder as a VAE": Case(
        {"uses": "diffusers-vae", "model": "sdxl/text_encoder"},
        "sdxl/text_encoder: CLIPTextModel is a model of transformers, not a VAE",
        "write `model: sdxl/vae`",
    ),
    "a text encoder as a VAE, by subfolder": Case(
        {"uses": "diffusers-vae", "model": "sdxl", "subfolder": "text_encoder"},
        "CLIPTextModel is a model of transformers, not a VAE",
        "write `subfolder: vae`",
    ),
    "a UNet as a VAE": Case(
        {"uses": "diffusers-vae", "model": "sdxl/unet"}, "UNet2DConditionModel is not a VAE", "write `model: sdxl/vae`"
    ),
    "a VAE as a text encoder": Case(
        {"uses": "transformers-text", "model": "sdxl/vae"},
        "sdxl/vae: AutoencoderKL is a model of diffusers, not a text encoder",
        "write `model: sdxl/text_encoder` or `model: sdxl/text_encoder_2`",
    ),
    "a single file": Case(
        {"uses": "transformers-text", "model": "ae.safetensors"},
        "ae.safetensors: a single file, not the folder of a model",
        "config.json",
        _file,
    ),
    "a single file for a VAE": Case(
        {"uses": "diffusers-vae", "model": "ae.safetensors"},
        "ae.safetensors: a single file does not say what it holds without config.json",
        "set config to a folder",
        _file,
    ),
    "a single file with the config of something else": Case(
        {"uses": "diffusers-vae", "model": "ae.safetensors", "config": "sdxl/unet"},
        "sdxl/unet: UNet2DConditionModel is not a VAE",
        "write `config: sdxl/vae`",
        _file,
    ),
    "a text encoder as a pipeline": Case(
        {"uses": "diffusers-prompt", "model": "sdxl/text_encoder"}, "no model_index.json in there", "transformers-text"
    ),
    "a pipeline without a tokenizer's folder": Case(
        {"uses": "diffusers-prompt", "model": "sdxl"},
        "sdxl: there is no folder tokenizer_2",
        "download the whole pipeline",
        _lost_tokenizer,
    ),
    "a pipeline with an empty tokenizer": Case(
        {"uses": "diffusers-prompt", "model": "sdxl"},
        "sdxl/tokenizer_2: no tokenizer in there",
        "download the whole pipeline",
        lambda base: (base / "sdxl" / "tokenizer_2" / "tokenizer.json").unlink(),
    ),
    "a pipeline without the weights of a text encoder": Case(
        {"uses": "diffusers-prompt", "model": "sdxl"},
        "sdxl/text_encoder: no weights in there",
        "",
        lambda base: (base / "sdxl" / "text_encoder" / "model.safetensors").unlink(),
    ),
    "a pipeline with a tokenizer of a larger model": Case(
        {"uses": "diffusers-prompt", "model": "sdxl"},
        "sdxl/tokenizer_2: the tokenizer knows tokens up to 99, and sdxl/text_encoder_2 has embeddings for 40",
        "",
        lambda base: tokenizer(base / "sdxl" / "tokenizer_2", 100),
    ),
    "a folder that is not there": Case({"uses": "diffusers-vae", "model": "gone"}, "no such model: gone", "revision"),
    "two towers": Case(TEXT, "CLIPModel encodes texts and pictures", "CLIPTextModel.from_pretrained(", _both_towers),
    "no texts": Case(TEXT, "CLIPVisionModelWithProjection takes no text", "name the folder", _vision),
    "no tokenizer": Case(
        {"uses": "transformers-text", "model": "alone"},
        "alone: no tokenizer in there",
        "`tokenizer: FOLDER`",
        _alone,
    ),
    "a pipeline without the tokenizer of this encoder": Case(
        {"uses": "transformers-text", "model": "sdxl", "subfolder": "text_encoder_2"},
        "sdxl/text_encoder_2: no tokenizer in there",
        "download the folder tokenizer_2 of this pipeline, too",
        _lost_tokenizer,
    ),
    "settings of a tokenizer and no vocabulary": Case(TEXT, "text: no tokenizer in there", "", _settings_only),
    "no tokenizer for tokens": Case(
        {"uses": "transformers-tokens", "model": "alone"}, "no tokenizer in there", "`model: FOLDER`", _alone
    ),
    "a tokenizer of a larger model": Case(
        TEXT,
        "text: the tokenizer knows tokens up to 99, and text has embeddings for 40",
        "`tokenizer: ",
        _large_vocabulary,
    ),
    "sentencepiece of a larger model": Case(TEXT, "tokens up to 99", "", _sentencepiece),
    "a config that does not tell the table": Case(TEXT, "has embeddings for 40", "", _table_in_the_weights),
    "a tokenizer of another family": Case(
        TEXT, "text: a CLIPTokenizer, and text is a model of type t5", "`tokenizer: FOLDER`", _t5
    ),
    "pickled weights": Case(TEXT, "text: only pickled weights (pytorch_model.bin)", "safetensors", _pickled),
    "no weights": Case(TEXT, "text: no weights in there", "name the folder", _without_weights),
    "a variant": Case(
        TEXT,
        "text: only the variant model.fp16.safetensors is in there",
        "rename model.fp16.safetensors to model.safetensors",
        _variant,
    ),
    "a missing shard": Case(
        TEXT, "1 of the 2 files that model.safetensors.index.json names are not there", "download the rest", _shards
    ),
    "weights that are cut off": Case(TEXT, "text/model.safetensors: ", "download this file again", _cut_off),
    "a pointer for weights": Case(TEXT, "model.safetensors: a pointer of git-lfs", "git lfs pull", _pointer),
    "a pointer for tokens": Case(TEXT, "tokenizer.json: a pointer of git-lfs", "git lfs pull", _pointer_for_tokens),
    "an adapter": Case(TEXT, "text: an adapter, not a model", "merge", _adapter),
    "no config": Case(TEXT, "text/config.json: No such file", "`subfolder`", _without_config),
    "a page for a config": Case(TEXT, "text/config.json: not JSON", "download the model again", _no_json),
    "brackets for a config": Case(TEXT, "text/config.json: not JSON", "download the model again", _endless_json),
    "a FIFO for a config": Case(TEXT, "text/config.json: a FIFO", "name the folder", _config_from_a_fifo),
    "a terabyte of config": Case(TEXT, "text/config.json: larger than", "name the folder", _config_without_end),
    "a FIFO for a list of weights": Case(TEXT, "model.safetensors.index.json: a FIFO", "again", _index_from_a_fifo),
    "a VAE whose pictures are scaled in two ways": Case(
        {"uses": "diffusers-vae", "model": "apart", "scaled": True},
        "scale a picture that they are given",
        "scaled",
        _scaled_apart,
    ),
    "a tokenizer with a name of 300 letters": Case(
        {**TEXT, "tokenizer": "x" * 300}, "name too long", "relative paths", _complete
    ),
    "a layer that is not there": Case({**TEXT, "layers": [-4]}, "there is no layer -4", "-3 to -1", _complete),
    "more tokens than positions": Case(
        {**TEXT, "max_length": 512}, "max_length is 512, and the model has 77 positions", "set max_length", _complete
    ),
    "no chat template": Case({**TEXT, "chat_template": True}, "the tokenizer has no chat template", "", _complete),
    "no processor": Case(
        {"uses": "transformers-processor", "model": "text"}, "text: no processor in there", "", _complete
    ),
}
SCRIPT = """
import json, os, sys
from precook.cli.main import app
for folder in json.loads(sys.argv[1]):
    os.chdir(folder)
    sys.stderr = open("told", "w")
    code = 0
    try:
        app([*sys.argv[2:]], prog_name="precook")
    except SystemExit as ending:
        code = ending.code or 0
    sys.stderr.close()
    print(json.dumps([code, sorted({"torch", "diffusers", "transformers"} & sys.modules.keys())]), flush=True)
"""


def write_project(base: Path, encoders: dict[str, Any]) -> Path:
    dataset(base / "data", 2)
    sections = {
        "store": "cache",
        "dataset": "test",
        "concepts": [{"name": "things", "path": "data"}],
        "image": {"resolutions": [64], "step": 16},
        "encoders": encoders,
    }
    (base / "precook.yaml").write_text(json.dumps(sections))  # which is YAML, too
    return base


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int, list[str]]]:
    """What became of each plan: its folder, its exit code, and the libraries that were imported; in one process."""
    folders = {}
    for name, case in WRONG.items():
        base = tmp_path_factory.mktemp("wrong")
        pipeline(base / "sdxl")
        case.make(base)
        folders[name] = write_project(base, {"x": case.encoder})
    places = json.dumps([str(folder) for folder in folders.values()])
    command = [sys.executable, "-c", SCRIPT, places, "plan"]
    done = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: (folder, *answer) for (name, folder), answer in zip(folders.items(), answers, strict=True)}


@pytest.mark.parametrize("name", WRONG)
def test_a_model_that_cannot_be_this_encoders_ends_the_plan(
    plans: dict[str, tuple[Path, int, list[str]]], name: str
) -> None:
    """Exit code 2, a sentence and the next step; no library was imported and nothing was written."""
    folder, code, imported = plans[name]
    told = (folder / "told").read_text()
    assert code == 2, told
    error, hint, *more = told.splitlines()
    assert WRONG[name].message in error
    assert error.startswith("error: precook.yaml")
    assert ": encoders.x" in error
    assert hint.startswith("hint: ")
    assert WRONG[name].hint in hint
    assert not more
    assert not imported
    assert not (folder / "cache").exists()


@pytest.mark.parametrize("command", ["build", "status"])
def test_other_commands_refuse_it_too(here: Path, command: str) -> None:
    """Whoever plans looks at the models first."""
    pipeline(here / "sdxl")
    write_project(here, {"x": {"uses": "diffusers-vae", "model": "sdxl/text_encoder"}})
    ended = run(command)
    assert ended.code == 2
    assert "not a VAE" in ended.err
    assert not (here / "cache").exists()


def test_every_wrong_model_is_told_and_none_is_used(here: Path) -> None:
    """What is wrong with the last encoder is known before the first one encodes anything."""
    pipeline(here / "sdxl")
    encoders = {
        "pixels": {"uses": "image"},
        "latent": {"uses": "diffusers-vae", "model": "sdxl/unet"},
        "prompt": {"uses": "transformers-text", "model": "sdxl"},
    }
    ended = run("build", "--config", write_project(here, encoders) / "precook.yaml")
    assert ended.code == 2
    assert [line.split(": ")[2] for line in ended.err.splitlines() if line.startswith("error")] == [
        "encoders.latent.model",
        "encoders.prompt.model",
    ]
    assert not (here / "cache").exists()


def recipes(base: Path, encoders: dict[str, Any]) -> list[str]:
    """The recipe of each encoder, as a plan has it."""
    ended = run("plan", "--no-write", "--json", "--config", write_project(base, encoders) / "precook.yaml")
    assert ended.code == 0, ended.err
    return [encoder["recipe"] for encoder in ended.document["encoders"]]


def test_the_tokenizer_beside_a_text_encoder_is_found(here: Path) -> None:
    """As diffusers lays a pipeline out: text_encoder_2 has tokenizer_2; found or written, the keys are the same."""
    pipeline(here / "sdxl")
    tokenizer(here / "sdxl" / "tokenizer_2", 30)
    text = {"uses": "transformers-text", "model": "sdxl"}
    for name, beside in (("text_encoder", "tokenizer"), ("text_encoder_2", "tokenizer_2")):
        found, joined, written, tokens, named = recipes(
            here,
            {
                "found": {**text, "subfolder": name},
                "joined": {**text, "model": f"sdxl/{name}"},
                "written": {**text, "subfolder": name, "tokenizer": f"sdxl/{beside}"},
                "tokens": {"uses": "transformers-tokens", "model": f"sdxl/{name}"},
                "named": {"uses": "transformers-tokens", "model": "sdxl", "subfolder": beside},
            },
        )
        assert found == joined == written
        assert tokens == named
    before = recipes(here, {"prompt": {**text, "subfolder": "text_encoder"}})
    tokenizer(here / "sdxl" / "tokenizer", 20)
    assert recipes(here, {"prompt": {**text, "subfolder": "text_encoder"}}) != before


def test_a_models_own_tokenizer_comes_first(here: Path) -> None:
    """Where the model's folder has a tokenizer, one beside it changes nothing."""
    text_encoder(here / "sd" / "text_encoder")
    tokenizer(here / "sd" / "text_encoder")
    encoders = {"prompt": {"uses": "transformers-text", "model": "sd/text_encoder"}}
    alone = recipes(here, encoders)
    tokenizer(here / "sd" / "tokenizer", 20)
    assert recipes(here, encoders) == alone


def test_a_pipelines_root_is_its_only_part_that_fits(here: Path) -> None:
    """Its VAE, and its text encoder where it has one: with the keys of that folder."""
    pipeline(here / "sd15", without=("text_encoder_2", "tokenizer_2"))
    for uses, part in (
        ("diffusers-vae", "vae"),
        ("transformers-text", "text_encoder"),
        ("transformers-tokens", "tokenizer"),
    ):
        root, named = recipes(
            here,
            {"root": {"uses": uses, "model": "sd15"}, "named": {"uses": uses, "model": "sd15", "subfolder": part}},
        )
        assert root == named


FAULTY = """
class Faulty:
    input = "text"

    def __init__(self, where):
        self.where = where

    def identity(self):
        return self.where

    def load(self, device):
        if self.where == "load":
            self.fail()

    def encode(self, batch):
        self.fail()

    def unload(self):
        pass

    def fail(self):
        raise RuntimeError("the first line\\nin between\\nthe cause")
"""


@pytest.mark.parametrize(("where", "code"), [("load", 1), ("encode", 3)])
def test_v_shows_the_traceback_of_an_encoder(here: Path, where: str, code: int) -> None:
    """`precook build -v` shows where an encoder failed, at its start or at single samples; without it, nobody sees."""
    (here / "faulty.py").write_text(FAULTY)
    write_project(here, {"x": {"uses": "faulty:Faulty", "where": where}})
    try:
        short, long = run("build"), run("build", "--retry-failed", "-v")
    finally:
        sys.modules.pop("faulty", None)
    assert (short.code, long.code) == (code, code)
    assert "Traceback" not in short.err
    assert "Traceback (most recent call last):" in long.err
    assert "in fail" in long.err
    assert "the cause" in (short.err if where == "load" else short.out)
    assert "Traceback" not in run("build", "--retry-failed").err


def test_weights_of_other_shapes_than_the_config_says_are_named(here: Path) -> None:
    """Transformers says only that it has written down which; the error names the first, and -v shows the traceback."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    write_project(here, {"x": {**TEXT, "device": "cpu"}})
    text_encoder(here / "text", vocab_size=TABLE + 1, hidden_size=8, intermediate_size=8, num_attention_heads=2)
    tokenizer(here / "text", kind="PreTrainedTokenizerFast")
    short, long = run("build"), run("-v", "build")
    assert short.code == long.code == 1
    assert "token_embedding.weight are (40, 8), and by the config (41, 8)" in short.err
    assert "Traceback" not in short.err
    assert "in _load_model" in long.err


def test_an_error_of_several_lines_is_told_by_its_first_and_its_last(here: Path) -> None:
    """The last line has the cause; what stands between is for -v."""
    (here / "broken.py").write_text('raise ImportError("the first line\\nin between\\nthe cause")')
    write_project(here, {"x": {"uses": "broken:Broken"}})
    ended = run("plan")
    assert ended.code == 2
    assert "broken cannot be imported: ImportError: the first line … the cause\n" in ended.err
    long = run("plan", "-v")
    assert "in between" in long.err
    assert long.err.endswith(ended.err)
