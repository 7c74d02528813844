"""qwen-image-finetune on our manager: its command line caches in one process and trains in another, import swapped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import precook
from precook.integrations.adopt.embeddings import plan_adopt_embeddings
from precook.integrations.embedding import EmbeddingCacheManager
from tests.clients.checkouts import checkout
from tests.support.pages import ROOT
from tests.support.projects import picture

CHECKOUT = checkout("qwen-image-finetune", "tsiendragon/qwen-image-finetune")
pytestmark = pytest.mark.timeout(3600)  # processes that import torch, one after the other
PROMPTS = ("prompt_embeds", "prompt_embeds_mask")


@dataclass(frozen=True)
class Project:
    """A dataset of four samples and a config of the trainer for it."""

    root: Path
    trainer: str
    cache: str
    size: int = 32
    vae: int = 0

    @classmethod
    def make(cls, root: Path, trainer: str) -> Project:
        """Two samples of one target and one prompt with a control picture each, and two that share nothing."""
        for number, target in enumerate((1, 1, 2, 3)):
            picture(root / "data" / "training_images" / f"s{number}.png", target, size=(80, 72))
            picture(root / "data" / "control_images" / f"s{number}.png", 50 + number, size=(80, 72))
            (root / "data" / "training_images" / f"s{number}.txt").write_text(f"make it {target}")
        return cls(root, trainer, "own")

    @property
    def cache_dir(self) -> Path:
        return self.root / f"cache-{self.cache}"

    def run(self, manager: str, *arguments: str, fails: bool = False) -> Any:
        """What one process of the project has recorded; of one that is to fail, what it wrote."""
        side = {"process_type": "center_crop", "target_size": [self.size] * 2, "controls_size": [[self.size] * 2]}
        config = {
            "trainer": self.trainer,
            "model": {"pretrained_model_name_or_path": "none", "lora": {"r": 2, "target_modules": ["to_k", "to_q"]}},
            "data": {
                "class_path": "qflux.data.dataset.ImageDataset",
                "init_args": {"dataset_path": str(self.root / "data"), "processor": {"init_args": side}},
                "batch_size": 2,
                "shuffle": False,
            },
            "logging": {"output_dir": str(self.root / "out"), "tracker_project_name": "tiny"},
            "train": {"gradient_accumulation_steps": 1, "max_train_steps": 2, "gradient_checkpointing": False},
            "cache": {
                "devices": dict.fromkeys(("vae", "text_encoder", "text_encoder_2"), "cpu"),
                "cache_dir": str(self.cache_dir),
            },
        }
        file, record = self.root / "config.yaml", self.root / "record.pt"
        file.write_text(yaml.safe_dump(config))
        record.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.clients.qflux", CHECKOUT, manager, record, "--config", file, *arguments]
        settings = {
            "QFLUX_TRAINER": self.trainer,
            "QFLUX_VAE": str(self.vae),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            # Instructions for halves that an emulated processor names and does not have.
            "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        }
        done = subprocess.run(
            list(map(str, command)), env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) == fails, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stderr if fails else torch.load(record, weights_only=True)


def wrong(made: list[dict[str, Any]], steps: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Which embeddings training was given that are not what the cache step made of that very sample."""
    by_hash = {sample["main_hash"][0]: sample["made"] for sample in made}
    found = []
    for number, step in enumerate(steps):
        for row, main_hash in enumerate(step["main_hash"]):
            for name in step["given"].keys() & by_hash[main_hash].keys() - {"image", "control"}:
                expected = by_hash[main_hash][name].half()
                expected = expected if name in ("text_ids", "control_ids") else expected[0]
                if not torch.equal(step["given"][name][row][: len(expected)], expected):
                    found.append((2 * number + row, name))
    return sorted(found)


def same_steps(first: list[dict[str, Any]], second: list[dict[str, Any]], *, but: tuple[str, ...] = ()) -> bool:
    """Whether training was given the same, in type and numbers."""
    return len(first) == len(second) == 2 and all(
        before["main_hash"] == after["main_hash"]
        and before["given"].keys() == after["given"].keys()
        and all(
            tensor.dtype == after["given"][name].dtype and (name in but or torch.equal(tensor, after["given"][name]))
            for name, tensor in before["given"].items()
        )
        for before, after in zip(first, second, strict=True)
    )


def test_flux_kontext_trains_on_the_same_data(tmp_path: Path) -> None:
    """FLUX Kontext: every tensor and every loss as on the project's own manager, and so on its adopted folder."""
    own = Project.make(tmp_path, "FluxKontext")
    own.run("own", "--cache")
    steps = own.run("own")
    ours = replace(own, cache="ours")
    made = ours.run("ours", "--cache")
    trained = ours.run("ours")
    assert all(all(step["cached"]) for step in trained)
    assert wrong(made, trained) == []
    assert same_steps(steps, trained)
    assert [step["loss"] for step in trained] == [step["loss"] for step in steps]

    told = own.run("ours", fails=True)
    assert "it holds embeddings of qwen-image-finetune" in told
    adopted = replace(own, cache="adopted")
    plan = plan_adopt_embeddings(own.cache_dir)
    assert not plan.left_out
    with precook.open(adopted.cache_dir) as store:
        assert plan.execute(store).entries == 4
    assert same_steps(steps, adopted.run("ours"))


def test_qwen_image_edit_trains_on_its_own_prompts(tmp_path: Path) -> None:
    """Qwen-Image-Edit: as on the project's own manager where that is right, and right where it is not.

    Its prompts are encoded with the control picture, and its own manager names them by the prompt alone.
    """
    own = Project.make(tmp_path, "QwenImageEdit")
    made = own.run("own", "--cache")
    steps = own.run("own")
    assert {name for _, name in wrong(made, steps)} == {"prompt_embeds"}
    ours = replace(own, cache="ours")
    made = ours.run("ours", "--cache")
    trained = ours.run("ours")
    assert all(all(step["cached"]) for step in trained)
    assert wrong(made, trained) == []
    assert same_steps(steps, trained, but=("prompt_embeds",))
    assert len(plan_adopt_embeddings(own.cache_dir).left_out) == 2
    (tmp_path / "data" / "training_images" / "s3.txt").write_text("make it something else")
    assert "FileNotFoundError" in own.run("own", "--cache", fails=True)


def test_caching_again_adds_and_replaces(tmp_path: Path) -> None:
    """A prompt that was not cached is never served; caching again adds it, at another size and by another VAE."""
    ours = replace(Project.make(tmp_path, "QwenImageEdit"), cache="ours")
    ours.run("ours", "--cache")
    (tmp_path / "data" / "training_images" / "s3.txt").write_text("make it something else")
    assert "not cached" in ours.run("ours", fails=True)
    changed = replace(ours, size=64, vae=7)
    made = changed.run("ours", "--cache")
    assert wrong(made, changed.run("ours")) == []
    assert made[0]["made"]["image_latents"].shape[1] == 16


def test_only_what_depends_on_a_change_is_encoded(tmp_path: Path) -> None:
    """`cache_dataset` with the project's dataset and encoders: size, VAE, prompt and control cost what they must."""
    project = replace(Project.make(tmp_path, "QwenImageEdit"), cache="missing")
    prompts = (*PROMPTS, *(f"empty_{name}" for name in PROMPTS))

    def counts(images: int, controls: int, prompt: int, empty: int) -> dict[str, int]:
        names = ("image_latents", "control_latents", *prompts)
        return dict(zip(names, (images, controls, prompt, prompt, empty, empty), strict=True))

    assert project.run("missing") == counts(3, 4, 4, 4)
    assert project.run("missing") == counts(0, 0, 0, 0)
    trained = project.run("ours")
    assert all(all(step["cached"]) for step in trained)
    by_trainer = replace(project, cache="ours")
    made = by_trainer.run("ours", "--cache")
    assert wrong(made, trained) == []
    (tmp_path / "data" / "training_images" / "s3.txt").write_text("make it something else")
    assert project.run("missing") == counts(0, 0, 1, 0)
    picture(tmp_path / "data" / "control_images" / "s2.png", 99, size=(80, 72))
    assert project.run("missing") == counts(0, 1, 1, 1)
    assert replace(project, vae=7).run("missing") == counts(3, 4, 0, 0)
    assert replace(project, size=64).run("missing") == counts(3, 4, 4, 4)


def test_its_configs_name_the_same_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every config of the project that it can read itself: the same folder and the same devices, or no cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QFLUX_DOTENV_LOADED", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.syspath_prepend(str(CHECKOUT / "src"))
    from qflux.data.config import load_config_from_yaml  # noqa: PLC0415

    from precook.integrations.embedding_config import read_cache_section  # noqa: PLC0415

    compared = 0
    for file in [*(CHECKOUT / "configs").rglob("*.yaml"), *(CHECKOUT / "tests" / "test_configs").glob("*.yaml")]:
        try:
            config = load_config_from_yaml(str(file))
        except ValueError:
            continue
        section = read_cache_section(file)
        assert section == read_cache_section(config), file
        assert (section is not None) == config.cache.use_cache
        if section is not None:
            devices = config.cache.devices.model_dump(exclude_none=True)
            assert (section.cache_dir, dict(section.devices)) == (config.cache.cache_dir, devices)
        # As the second step of the guide has it.
        EmbeddingCacheManager(tmp_path / "settings", settings=config.data.init_args.processor).close()
        compared += 1
    assert compared > 5


def test_its_own_tests_of_the_manager(tmp_path: Path) -> None:
    """They pass on ours, but for those that look at the names of its files."""
    shutil.copy(CHECKOUT / "tests" / "src" / "data" / "test_cache_manager.py", tmp_path / "test_cache_manager.py")
    (tmp_path / "conftest.py").write_text(
        "import sys\nimport pytest\n"
        "import precook.integrations.embedding as ours\n"
        "sys.modules['qflux.data.cache_manager'] = ours\n"
        "@pytest.fixture\n"
        "def tmp_cache_dir(tmp_path):\n"
        "    (tmp_path / 'cache').mkdir()\n"
        "    return tmp_path / 'cache'\n"
    )
    python = [str(ROOT / "src"), str(CHECKOUT / "src")]
    settings = {"QFLUX_DOTENV_LOADED": "1", "PYTHONPATH": os.pathsep.join(python)}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    outcomes = {
        line.split("::")[-1].split(" ")[0]: line.split(" ")[0]
        for line in done.stdout.splitlines()
        if line.startswith(("PASSED", "FAILED", "ERROR"))
    }
    assert outcomes, done.stdout + done.stderr
    of_file_names = {"test_initialization", "test_get_metadata_path", "test_get_cache_embedding_path"}
    assert {name for name, outcome in outcomes.items() if outcome != "PASSED"} == of_file_names
