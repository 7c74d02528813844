"""The real ComfyUI server on our nodes: workflows are posted to it, and what it trains on is what its own nodes give.

The checkpoint has Stable Diffusion's keys and random weights: one level of its UNet, a tiny autoencoder, its text
encoder. A training is three steps of ComfyUI's own Train LoRA node.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.checkouts import checkout

COMFYUI = checkout("ComfyUI", "Comfy-Org/ComfyUI")

# ruff: noqa: E402, I001 - without the checkout there is nothing to import, and one import has to come first
import tests.clients.torchvision_operators  # noqa: F401 - before all that imports torchvision

import aiohttp
import numpy as np
import safetensors.torch
import torch
from PIL import Image

import precook
import precook.integrations.comfyui_nodes
from precook.integrations.comfyui import load_dataset, save_dataset
from precook.integrations.shards import convert_pickled
from tests.support.trees import same

ROOT = Path(__file__).parents[2]
STEPS = 3
Workflow = dict[str, dict[str, Any]]


class Server:
    """A ComfyUI server of its own, on a free port, with all its folders under one."""

    def __init__(self, base: Path) -> None:
        self.base = base
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        options = ["--cpu", "--port", str(self._port), "--base-directory", str(base), "--disable-auto-launch"]
        options += ["--database-url", f"sqlite:///{base / 'comfyui.sqlite'}", "--disable-api-nodes"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src"))),
            "PYTHONDONTWRITEBYTECODE": "1",  # nothing is written into the checkout
            "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
            # What is let go goes back to the system: memory that is kept for later would hide what is taken next.
            "MALLOC_MMAP_THRESHOLD_": "65536",
            "MALLOC_TRIM_THRESHOLD_": "65536",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.clients.comfyui_server", str(COMFYUI), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        self.log: list[str] = []
        self._listens = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self._listens.wait()
        assert self._process.poll() is None, "".join(self.log)

    def _read_log(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log.append(line)
            if "To see the GUI go to" in line:
                self._listens.set()
        self._listens.set()  # it has ended

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def run(self, workflow: Workflow) -> None:
        """Post a workflow and wait until it is done; an error of a node is raised."""
        asyncio.run(self._run(workflow))

    async def _run(self, workflow: Workflow) -> None:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{self._port}") as session,
            session.ws_connect("/ws?clientId=test", max_msg_size=0) as messages,
        ):
            async with session.post("/prompt", json={"prompt": workflow, "client_id": "test"}) as response:
                answer = await response.json()
                assert response.status == 200, answer
            async for message in messages:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    continue
                told = json.loads(message.data)
                if told["type"] == "execution_error":
                    raise RuntimeError(told["data"]["exception_message"])
                if told["type"] == "execution_success" and told["data"]["prompt_id"] == answer["prompt_id"]:
                    return
        raise AssertionError("the server hung up")

    def info(self, node: str) -> dict[str, Any]:
        """What the server says about a node."""

        async def ask() -> Any:
            address = f"http://127.0.0.1:{self._port}/object_info/{node}"
            async with aiohttp.ClientSession() as session, session.get(address) as response:
                return (await response.json())[node]

        return asyncio.run(ask())

    def forget_peak(self) -> int:
        """Begin a new peak of memory; how much is in use now, in MiB."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")
        return self._memory("VmRSS")

    def peak(self) -> int:
        """The most memory that was in use since then, in MiB."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) >> 10

    def output(self, name: str) -> Path:
        return self.base / "output" / name


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("comfyui")
    for folder in ("custom_nodes", "models/checkpoints", "models/loras", "input/pictures", "input/squares", "output"):
        (base / folder).mkdir(parents=True)
    (base / "custom_nodes" / "precook").symlink_to(Path(precook.integrations.comfyui_nodes.__file__).parent)
    random = np.random.default_rng(1)
    for number in range(6):
        size = (64, 64, 3) if number < 4 else (64, 128, 3)
        picture = Image.fromarray(random.integers(0, 255, size, dtype=np.uint8))
        for folder in ("pictures", "squares") if number < 4 else ("pictures",):
            picture.save(base / "input" / folder / f"{number}.png")
            (base / "input" / folder / f"{number}.txt").write_text(f"picture {number % 4}")
    write_checkpoint(base / "models" / "checkpoints" / "tiny.safetensors")
    opened = Server(base)
    yield opened
    opened.close()


def write_checkpoint(path: Path) -> None:
    """Random weights under the names that ComfyUI knows Stable Diffusion 1 by."""
    code = """
import json, sys
import tests.clients.torchvision_operators
sys.path.insert(0, sys.argv[1])
sys.argv[1:] = [sys.argv[1], sys.argv[2]]
import torch, safetensors.torch
import comfy.options
from comfy.cli_args import args
args.cpu = True
import comfy.ops, comfy.clip_model, comfy.taesd.taesd
from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
operations = comfy.ops.disable_weight_init
with torch.device("meta"):
    unet = UNetModel(
        image_size=32, in_channels=4, out_channels=4, model_channels=320, num_res_blocks=[1], channel_mult=[1],
        num_heads=8, num_head_channels=-1, use_spatial_transformer=True, transformer_depth=[1],
        transformer_depth_output=[1, 1], transformer_depth_middle=-2, context_dim=768, legacy=False,
        operations=operations,
    )
    config = json.load(open(sys.argv[1] + "/comfy/sd1_clip_config.json"))
    clip = comfy.clip_model.CLIPTextModel(config, torch.float32, "meta", operations)
    vae = comfy.taesd.taesd.TAESD(latent_channels=4)
torch.manual_seed(0)
weights = {}
modules = {"model.diffusion_model.": unet, "cond_stage_model.transformer.": clip, "first_stage_model.": vae}
for prefix, module in modules.items():
    for name, tensor in module.state_dict().items():
        made = torch.randn(tensor.shape) * 0.03 if tensor.ndim > 1 else torch.ones(tensor.shape)
        weights[prefix + name] = made.half()
safetensors.torch.save_file(weights, sys.argv[2])
"""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src"))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    subprocess.run([sys.executable, "-c", code, str(COMFYUI), str(path)], check=True, env=environment)


def make_and_save(prefix: str, folder: str, **options: Any) -> Workflow:
    """Pictures with their texts, encoded and saved, by our nodes or by ComfyUI's own."""
    pictures = {"folder": "pictures"}
    return {
        "model": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
        "pictures": {"class_type": "LoadImageTextDataSetFromFolder", "inputs": pictures},
        "make": {
            "class_type": f"{prefix}MakeTrainingDataset",
            "inputs": {"images": ["pictures", 0], "texts": ["pictures", 1], "vae": ["model", 2], "clip": ["model", 1]},
        },
        "save": {
            "class_type": f"{prefix}SaveTrainingDataset",
            "inputs": {
                "latents": ["make", 0],
                "conditioning": ["make", 1],
                "folder_name": folder,
                "shard_size": 4,
                **options,
            },
        },
    }


def bucketed(workflow: Workflow) -> Workflow:
    """The same, saved after a Resolution Bucket node."""
    inputs = {"latents": ["make", 0], "conditioning": ["make", 1]}
    workflow["bucket"] = {"class_type": "ResolutionBucket", "inputs": inputs}
    workflow["save"]["inputs"] |= {"latents": ["bucket", 0], "conditioning": ["bucket", 1]}
    return workflow


def masked(workflow: Workflow) -> Workflow:
    """The same for pictures of one size, with a mask in each conditioning."""
    workflow["pictures"]["inputs"]["folder"] = "squares"
    workflow["mask"] = {"class_type": "SolidMask", "inputs": {"value": 0.5, "width": 64, "height": 64}}
    inputs = {"conditioning": ["make", 1], "mask": ["mask", 0], "strength": 0.7, "set_cond_area": "default"}
    workflow["masked"] = {"class_type": "ConditioningSetMask", "inputs": inputs}
    workflow["save"]["inputs"]["conditioning"] = ["masked", 0]
    return workflow


DATASETS = {"plain": lambda workflow: workflow, "buckets": bucketed, "masks": masked}


def load_and_train(prefix: str, folder: str, lora: str, **options: Any) -> Workflow:
    """A dataset that is loaded, three steps, and the LoRA that they made."""
    settings = {
        "batch_size": 2,
        "grad_accumulation_steps": 1,
        "steps": STEPS,
        "learning_rate": 0.01,
        "rank": 2,
        "optimizer": "AdamW",
        "loss_function": "MSE",
        "seed": 7,
        "training_dtype": "fp32",
        "lora_dtype": "fp32",
        "algorithm": "LoRA",
        "gradient_checkpointing": False,
        "existing_lora": "[None]",
        "bucket_mode": False,
    }
    latents = ["bucket" if "bucket" in options else "load", 0]
    workflow: Workflow = {
        "model": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
        "load": {"class_type": f"{prefix}LoadTrainingDataset", "inputs": {"folder_name": folder}},
        "train": {
            "class_type": "TrainLoraNode",
            "inputs": {
                "model": ["model", 0],
                "latents": latents,
                "positive": [latents[0], 1],
                **settings,
                **{name: value for name, value in options.items() if name != "bucket"},
            },
        },
        "save": {"class_type": "SaveLoRA", "inputs": {"lora": ["train", 1], "prefix": lora, "steps": ["train", 3]}},
    }
    if "bucket" in options:
        inputs = {"latents": ["load", 0], "conditioning": ["load", 1]}
        workflow["bucket"] = {"class_type": "ResolutionBucket", "inputs": inputs}
    return workflow


def lora(server: Server, name: str) -> dict[str, Any]:
    """The weights that a training has saved."""
    (file,) = server.output("").glob(f"{name}_{STEPS}_steps_*.safetensors")
    return safetensors.torch.load_file(file)


def test_our_nodes_have_the_inputs_and_outputs_of_comfyuis_own(server: Server) -> None:
    """Names, types, order, defaults, limits and which of them are lists, as the server tells its clients."""
    for node in ("MakeTrainingDataset", "SaveTrainingDataset", "LoadTrainingDataset"):
        told = []
        for info in (server.info(node), server.info(f"Precook{node}")):
            inputs = {
                kind: {
                    name: [spec[0], {key: value for key, value in spec[1].items() if key != "tooltip"}]
                    for name, spec in described.items()
                }
                for kind, described in info["input"].items()
                if kind != "hidden"
            }
            names = ("input_order", "output", "output_is_list", "output_name", "output_node", "category")
            told.append((inputs, {name: info[name] for name in names}))
        assert told[1] == told[0]


def test_a_dataset_that_our_nodes_make_save_and_load_is_the_one_that_comfyuis_own_do(server: Server) -> None:
    """Bit for bit: what its Save wrote, converted without being run, and what ours has kept; buckets and masks, too."""
    for name, change in DATASETS.items():
        server.run(change(make_and_save("Precook", f"ours-{name}")))
        server.run(change(make_and_save("", f"theirs-{name}")))
        assert len(list(server.output(f"theirs-{name}").glob("shard_*.pkl"))) == (2 if name == "plain" else 1)
        convert_pickled(server.output(f"theirs-{name}"), server.base / "converted" / name)
        with (
            load_dataset(server.output(f"ours-{name}")) as ours,
            load_dataset(server.base / "converted" / name) as theirs,
        ):
            assert len(ours.latents) == {"plain": 6, "buckets": 2, "masks": 4}[name]
            assert same(list(ours.latents), list(theirs.latents))
            assert same(list(ours.conditionings), list(theirs.conditionings))
            assert set(ours.conditionings[0][0][1]) >= {"pooled_output", *(["mask"] if name == "masks" else [])}


@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("plain", {}),
        ("masks", {}),
        ("buckets", {"bucket_mode": True}),
        ("plain", {"bucket_mode": True, "bucket": True, "batch_size": 1}),
    ],
    ids=["several sizes", "one size and masks", "buckets that were saved", "buckets that are made of what was loaded"],
)
def test_three_steps_on_our_dataset_train_what_they_train_on_comfyuis_own(
    server: Server, folder: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """The LoRA is equal bit for bit: from our store, from its pickles, and from its pickles by our Load node."""
    name = request.node.callspec.id.replace(" ", "-")
    # A training leaves torch's generator where the next one starts, so the first of all is no measure.
    runs = [
        ("", "theirs", "first"),
        ("Precook", "ours", "ours"),
        ("", "theirs", "theirs"),
        ("Precook", "theirs", "old"),
    ]
    for prefix, dataset, title in runs:
        copied = f"{dataset}-{folder}-{name}-{title}"  # ComfyUI would not run equal nodes again
        shutil.copytree(server.output(f"{dataset}-{folder}"), server.output(copied))
        server.run(load_and_train(prefix, copied, f"{name}-{title}", **options))
    trained = {title: lora(server, f"{name}-{title}") for _, _, title in runs}
    assert any(tensor.abs().sum() > 0 for key, tensor in trained["ours"].items() if "up" in key)
    assert same(trained["ours"], trained["theirs"])
    assert same(trained["old"], trained["theirs"])


def test_a_dataset_that_was_saved_anew_is_loaded_anew(server: Server) -> None:
    """ComfyUI keeps what a node gave for equal inputs; a Load node of ours runs again when its folder has changed."""
    samples = [{"samples": torch.full((1, 4, 8, 8), float(number))} for number in range(3)]
    texts = [[[torch.zeros(1, 77, 768), {"pooled_output": torch.zeros(1, 768)}]]]
    copy = {
        "load": {"class_type": "PrecookLoadTrainingDataset", "inputs": {"folder_name": "changing"}},
        "save": {
            "class_type": "PrecookSaveTrainingDataset",
            "inputs": {"latents": ["load", 0], "conditioning": ["load", 1], "folder_name": "copy", "shard_size": 1},
        },
    }
    for count in (1, 3):
        save_dataset(samples[:count], texts * count, server.output("changing"))
        server.run(copy)
        with load_dataset(server.output("copy")) as (latents, _):
            assert same(list(latents), samples[:count])


def test_comfyuis_own_nodes_give_what_was_there_before(server: Server) -> None:
    """What our page says of them: shards of a longer dataset stay, and a Load node that is run again loads nothing."""
    copy: Workflow = {
        "load": {"class_type": "LoadTrainingDataset", "inputs": {"folder_name": "shorter"}},
        "save": {
            "class_type": "PrecookSaveTrainingDataset",
            "inputs": {"latents": ["load", 0], "conditioning": ["load", 1], "shard_size": 1},
        },
    }

    def loaded(name: str) -> int:
        copy["save"]["inputs"]["folder_name"] = name
        server.run(copy)
        with load_dataset(server.output(name)) as (latents, _):
            return len(latents)

    for size in (2, 6):
        server.run(make_and_save("", "shorter", shard_size=size))
    assert loaded("left-over") == 6 + 4
    for number in (1, 2):
        (server.output("shorter") / f"shard_{number:04d}.pkl").unlink()
    assert loaded("not-loaded") == 6 + 4


def test_nodes_that_know_nothing_of_lazy_tensors_take_them(server: Server) -> None:
    """Latents from our Load node are decoded, scaled and written as those of ComfyUI's own are."""
    for prefix, folder in (("Precook", "ours"), ("", "theirs")):
        workflow: Workflow = {
            "model": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
            "load": {"class_type": f"{prefix}LoadTrainingDataset", "inputs": {"folder_name": f"{folder}-plain"}},
            "larger": {
                "class_type": "LatentUpscaleBy",
                "inputs": {"samples": ["load", 0], "upscale_method": "bilinear", "scale_by": 1.5},
            },
            "latent": {
                "class_type": "SaveLatent",
                "inputs": {"samples": ["load", 0], "filename_prefix": f"{folder}/n"},
            },
            "decode": {"class_type": "VAEDecode", "inputs": {"samples": ["larger", 0], "vae": ["model", 2]}},
            "image": {"class_type": "SaveImage", "inputs": {"images": ["decode", 0], "filename_prefix": f"{folder}/n"}},
        }
        server.run(workflow)
    for ours, theirs in zip(
        sorted(server.output("ours").iterdir()), sorted(server.output("theirs").iterdir()), strict=True
    ):
        if ours.suffix == ".png":
            assert np.array_equal(Image.open(ours), Image.open(theirs))
        else:
            assert same(safetensors.torch.load_file(ours), safetensors.torch.load_file(theirs))
    assert len(list(server.output("ours").iterdir())) == 12


def test_memory_is_flat_in_the_number_of_samples(server: Server) -> None:
    """A training on 1,000 samples takes hardly more than one on 100; on ComfyUI's own it takes all that they hold."""

    def dataset(count: int) -> tuple[Iterator[Any], Iterator[Any]]:
        torch.manual_seed(count)
        latents = ({"samples": torch.randn(1, 4, 8, 8)} for _ in range(count))
        texts = ([[torch.randn(1, 77, 768), {"pooled_output": torch.randn(1, 768)}]] for _ in range(count))
        return latents, texts

    def trained(prefix: str, folder: str) -> int:
        before = server.forget_peak()
        server.run(load_and_train(prefix, folder, f"memory-{folder}"))
        return server.peak() - before

    ours, theirs = {}, {}
    for count in (10, 100, 1000):  # the first one loads the model
        save_dataset(*dataset(count), server.output(f"ours-{count}"))
        ours[count] = trained("Precook", f"ours-{count}")
    for count in (100, 1000):
        folder = server.output(f"theirs-{count}")
        folder.mkdir()
        latents, texts = map(list, dataset(count))
        torch.save({"latents": latents, "conditioning": texts}, folder / "shard_0000.pkl")
        theirs[count] = trained("", folder.name)
    held = 900 * (77 * 768 + 768 + 256) * 4 >> 20
    print(f"\npeaks above the start in MiB: {ours}, on ComfyUI's own {theirs}; 900 samples hold {held}")
    assert theirs[1000] - theirs[100] > held // 2  # the measure sees what is held
    assert ours[1000] - ours[100] < held // 10


def test_latents_that_are_too_many_to_join_train_the_same(server: Server) -> None:
    """Latents of one size, 69 MiB of them: the training node's join of all stays lazy, and batches take their rows."""
    torch.manual_seed(3)
    latents = [{"samples": torch.randn(1, 4, 32, 32)} for _ in range(4400)]
    texts = [[[torch.randn(1, 77, 768), {}]]] * 4400
    save_dataset(latents, texts, server.output("many"))
    for name in ("many-first", "many-theirs"):
        server.output(name).mkdir()
        torch.save({"latents": latents, "conditioning": texts}, server.output(name) / "shard_0000.pkl")
    peaks = {}
    for prefix, folder in (("", "many-first"), ("Precook", "many"), ("", "many-theirs")):
        before = server.forget_peak()
        server.run(load_and_train(prefix, folder, f"lora-{folder}", batch_size=1))
        peaks[folder] = server.peak() - before
    print(f"\npeaks above the start in MiB: {peaks}")
    assert same(lora(server, "lora-many"), lora(server, "lora-many-theirs"))
    assert peaks["many-theirs"] - peaks["many"] > 2 * 69


def test_what_cannot_be_kept_is_told_in_the_workflow(server: Server) -> None:
    """A folder outside of the output directory, and one with nothing in it, are errors that name the reason."""
    with pytest.raises(RuntimeError, match="not inside of the output directory"):
        server.run(make_and_save("Precook", "../elsewhere"))
    with pytest.raises(RuntimeError, match="no store"):
        server.run(load_and_train("Precook", "nothing", "nothing"))
    server.output("old").mkdir()
    (server.output("old") / "shard_0000.pkl").write_bytes(b"")
    with pytest.raises(RuntimeError, match="a dataset of ComfyUI"):
        server.run(make_and_save("Precook", "old"))
