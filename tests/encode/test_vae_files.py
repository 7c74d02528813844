"""VAEs that are one file, as their makers publish them: read by diffusers, with a config that lies here."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import precook
from precook import ConfigError, EncodeError
from precook.config import encoders
from precook.encode.encoder import Item
from precook.encode.vae import VaeEncoder
from tests.support.projects import dataset, project

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
vaes = pytest.importorskip("tests.support.vaes")

LEVELS = 2
RENAMED = (
    (r"conv_norm_out", "norm_out"),
    (r"conv_shortcut", "nin_shortcut"),
    (r"down_blocks\.(\d)\.resnets\.(\d)", r"down.\1.block.\2"),
    (r"down_blocks\.(\d)\.downsamplers\.0", r"down.\1.downsample"),
    (r"up_blocks\.(\d)\.resnets\.(\d)", lambda found: f"up.{LEVELS - 1 - int(found[1])}.block.{found[2]}"),
    (r"up_blocks\.(\d)\.upsamplers\.0", lambda found: f"up.{LEVELS - 1 - int(found[1])}.upsample"),
    (r"mid_block\.resnets\.(\d)", lambda found: f"mid.block_{int(found[1]) + 1}"),
    (r"mid_block\.attentions\.0", "mid.attn_1"),
    (r"attn_1\.group_norm", "attn_1.norm"),
    (r"attn_1\.to_([qkv])", r"attn_1.\1"),
    (r"attn_1\.to_out\.0", "attn_1.proj_out"),
)
"""How the first authors of latent diffusion call the weights."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A VAE in the format of diffusers, and in `original` the same weights under the names that their authors use."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    vaes.kl(scaling_factor=0.3611, shift_factor=0.1159).save_pretrained(folder / "vae")
    weights = {}
    for name, weight in load_file(folder / "vae" / "diffusion_pytorch_model.safetensors").items():
        for pattern, replacement in RENAMED:
            name = re.sub(pattern, replacement, name)  # noqa: PLW2901 - step by step
        flat = re.search(r"attn_1\.(q|k|v|proj_out)\.weight", name)
        weights[name] = weight[:, :, None, None] if flat else weight
    save_file(weights, folder / "ae.safetensors")
    whole = {f"first_stage_model.{name}": weight for name, weight in weights.items()}
    save_file({**whole, "model.diffusion_model.out.weight": np.zeros(3, np.float32)}, folder / "whole.safetensors")
    (folder / "config").mkdir()
    shutil.copy(folder / "vae" / "config.json", folder / "config")
    return folder


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is looked for elsewhere")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def encode(place: Path, config: Path | None = None, **fields: Any) -> Any:
    section = encoders.DiffusersVae(uses="diffusers-vae", model="model", **fields)
    made = VaeEncoder(section, place, config)
    made.load("cpu")
    try:
        shown = np.random.default_rng(5).integers(0, 256, (32, 48, 3), np.uint8)
        return made.encode([Item(image=shown)])[0]
    finally:
        made.unload()


@pytest.mark.parametrize("name", ["ae.safetensors", "whole.safetensors", "vae/diffusion_pytorch_model.safetensors"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_gives_the_latents_of_its_folder(folder: Path, name: str, dtype: str) -> None:
    """Under the authors' names, inside of a whole checkpoint or as diffusers writes them: the same weights."""
    found = encode(folder / name, folder / "config", scaled=True, dtype=dtype)
    torch.testing.assert_close(found, encode(folder / "vae", scaled=True, dtype=dtype), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["encoder.conv_in.weight", "decoder.conv_out.bias"])
def test_a_file_that_lacks_weights_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    """Left to itself, diffusers leaves them at random and says nothing."""
    weights = load_file(folder / "ae.safetensors")
    del weights[name]
    save_file(weights, tmp_path / "ae.safetensors")
    with pytest.raises(EncodeError, match=rf"ae\.safetensors: 1 weights are missing: {re.escape(name)}"):
        encode(tmp_path / "ae.safetensors", folder / "config")


def test_a_config_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    """The weights do not fit into what it describes."""
    config = json.loads((folder / "config" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "latent_channels": 8}))
    with pytest.raises(EncodeError, match=r"ae\.safetensors: the VAE cannot be loaded: RuntimeError"):
        encode(folder / "ae.safetensors", tmp_path)


def test_files_that_diffusers_does_not_read_are_refused(folder: Path, tmp_path: Path) -> None:
    """A pickle, a class that has no single files, and a file without a config: each by name, with the next step."""
    (tmp_path / "ae.ckpt").write_bytes(b"\x80\x02.")
    with pytest.raises(EncodeError, match=r"ae\.ckpt: not a \.safetensors file.*name a \.safetensors file"):
        encode(tmp_path / "ae.ckpt", folder / "config")
    with pytest.raises(EncodeError, match=r"does not say what it holds without config\.json.*set config to a folder"):
        encode(folder / "ae.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKLQwenImage"}))
    with pytest.raises(EncodeError, match=r"reads no single file of AutoencoderKLQwenImage.*name the folder"):
        encode(folder / "ae.safetensors", tmp_path)


class TestPlans:
    """Files in a config."""

    def project(self, base: Path, **fields: Any) -> precook.Project:
        vae = {"uses": "diffusers-vae", "scaled": True, **fields}
        return project(base, encoders={"latent": vae}, image={"resolutions": [32], "step": 16})

    def test_a_file_is_known_by_its_content_and_its_configs(self, folder: Path, tmp_path: Path) -> None:
        """Built once, everything is a hit from another place and under another name, until the config differs."""
        shutil.copytree(folder, tmp_path / "models")
        dataset(tmp_path / "data", 2)
        with self.project(tmp_path, model="models/ae.safetensors", config="models/config") as first:
            first.build()
            assert not len(first.plan().missing)
        (tmp_path / "models/ae.safetensors").rename(tmp_path / "other.safetensors")
        (tmp_path / "models/config").rename(tmp_path / "elsewhere")
        with self.project(tmp_path, model="other.safetensors", config="elsewhere") as moved:
            assert not len(moved.plan().missing)
            with moved.feed(batch_size=2) as feed:
                (batch,) = feed.epoch(0)
            assert batch["latent"].shape == (2, 4, *(side // 2 for side in batch["size"]))
        config = tmp_path / "elsewhere" / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "scaling_factor": 2.0}))
        with self.project(tmp_path, model="other.safetensors", config="elsewhere") as other:
            assert len(other.plan().missing) == 2

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"model": "ae.safetensors"}, r"latent.model: .*without config.json.*set config to a folder"),
            ({"model": "ae.safetensors", "config": "data"}, r"latent.config: no config.json in .*data"),
            ({"model": "vae", "config": "config"}, r"latent.config: only a model that is one file.*leave it out"),
        ],
    )
    def test_what_lacks_is_said_before_anything_runs(
        self, folder: Path, tmp_path: Path, fields: dict[str, Any], message: str
    ) -> None:
        """The plan names the field and what to write."""
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        dataset(tmp_path / "data", 1)
        with self.project(tmp_path, **fields) as wrong, pytest.raises(ConfigError, match=message):
            wrong.plan()
