"""Every encoder of ours passes the tests that are shipped for encoders of users."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

import precook
from precook.config import encoders
from precook.encode.pixels import ImageEncoder, MaskEncoder
from precook.encode.processor import ProcessorEncoder
from precook.encode.prompt import PromptEncoder
from precook.encode.text import TextEncoder
from precook.encode.tokens import TokensEncoder
from precook.encode.vae import VaeEncoder
from precook.encode.video_vae import VideoVaeEncoder
from precook.encode.vision import VisionEncoder
from precook.testing import EncoderTests


class BuiltIn(EncoderTests):
    """One of ours: what decides its results is what a plan puts into its keys."""

    settings: ClassVar[dict[str, Any]]

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def identity(self, encoder: Any) -> object:
        """The key of an entry of one small dataset, which follows from the recipe."""
        picture = self.folder / "data" / "a.png"
        picture.parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(picture)
        Image.fromarray(np.zeros((64, 64), np.uint8)).save(picture.with_name("a-masklabel.png"))
        project = precook.Project(
            base=self.folder,
            dataset="test",
            concepts=[{"name": "all", "path": "data", "captions": {"text": "a cat"}, "masks": "{stem}-masklabel.png"}],
            image={"resolutions": [64]},
            text={"empty_prompt": False},
            encoders={"tested": self.settings},
        )
        with project:
            return [entry.key for entry in project.plan().missing]


class TestImage(BuiltIn):
    """`image`."""

    settings: ClassVar[dict[str, Any]] = {"uses": "image"}

    def make_encoder(self) -> Any:
        return ImageEncoder(encoders.ImageSection(**self.settings))


class TestMask(BuiltIn):
    """`mask`."""

    settings: ClassVar[dict[str, Any]] = {"uses": "mask", "factor": 8}

    def make_encoder(self) -> Any:
        return MaskEncoder(encoders.MaskSection(**self.settings))


@pytest.mark.usefixtures("one_thread")
class TestVae(BuiltIn):
    """`diffusers-vae`."""

    settings: ClassVar[dict[str, Any]] = {"uses": "diffusers-vae", "model": "model"}

    @pytest.fixture(autouse=True)
    def _model(self, _folder: None) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
        torch.manual_seed(0)
        blocks: dict[str, Any] = {
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
        }
        model = diffusers.AutoencoderKL(block_out_channels=(32, 64), sample_size=32, **blocks)
        model.save_pretrained(self.folder / "model")

    def make_encoder(self) -> Any:
        return VaeEncoder(encoders.DiffusersVae(**self.settings), self.folder / "model")


class TestVaeMoments(TestVae):
    """`diffusers-vae` with a dict of mean and variance."""

    settings: ClassVar[dict[str, Any]] = {"uses": "diffusers-vae", "model": "model", "posterior": "moments"}


class TestVaeSample(TestVae):
    """`diffusers-vae` with a sample, whose noise follows from the picture."""

    settings: ClassVar[dict[str, Any]] = {"uses": "diffusers-vae", "model": "model", "posterior": "sample"}


@pytest.mark.usefixtures("one_thread")
class TestVideoVae(BuiltIn):
    """`diffusers-video-vae`."""

    settings: ClassVar[dict[str, Any]] = {"uses": "diffusers-video-vae", "model": "model"}
    rtol, atol = 1e-3, 1e-4

    @pytest.fixture(autouse=True)
    def _model(self, _folder: None) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        vaes = pytest.importorskip("tests.support.vaes", reason="diffusers is not installed")
        torch.manual_seed(0)
        vaes.wan().save_pretrained(self.folder / "model")

    def make_encoder(self) -> Any:
        return VideoVaeEncoder(encoders.DiffusersVideoVae(**self.settings), self.folder / "model")


@pytest.mark.usefixtures("one_thread")
class TestText(BuiltIn):
    """`transformers-text`."""

    settings: ClassVar[dict[str, Any]] = {"uses": "transformers-text", "model": "model", "max_length": 12}

    @pytest.fixture(autouse=True)
    def _model(self, _folder: None) -> None:
        text = pytest.importorskip("tests.encode.test_text", reason="torch or transformers is not installed")
        clip = text.FAMILIES["clip"]
        text.save_model(self.folder / "model", clip.saved(), **clip.tokenizer)

    def make_encoder(self) -> Any:
        folder = self.folder / "model"
        return TextEncoder(encoders.TransformersText(**self.settings), folder, folder)


@pytest.mark.usefixtures("one_thread")
class TestPrompt(BuiltIn):
    """`diffusers-prompt`, with a pipeline whose prompts have lengths of their own."""

    settings: ClassVar[dict[str, Any]] = {"uses": "diffusers-prompt", "model": "model"}
    family = "qwen-image"

    @pytest.fixture(autouse=True)
    def _model(self, _folder: None, pipeline_of: Callable[[str], Path]) -> None:
        (self.folder / "model").symlink_to(pipeline_of(self.family))

    def make_encoder(self) -> Any:
        return PromptEncoder(encoders.DiffusersPrompt(**self.settings), self.folder / "model")


class TestPromptOfOneLength(TestPrompt):
    """`diffusers-prompt`, with several text encoders whose states are all of one shape."""

    family = "sdxl"


class TestTokens(TestText):
    """`transformers-tokens`."""

    settings: ClassVar[dict[str, Any]] = {"uses": "transformers-tokens", "model": "model", "max_length": 12}

    def make_encoder(self) -> Any:
        return TokensEncoder(encoders.TransformersTokens(**self.settings), self.folder / "model")


@pytest.mark.usefixtures("one_thread")
class TestVision(BuiltIn):
    """`transformers-vision`."""

    settings: ClassVar[dict[str, Any]] = {"uses": "transformers-vision", "model": "model"}

    @pytest.fixture(autouse=True)
    def _model(self, _folder: None) -> None:
        vision = pytest.importorskip("tests.encode.test_vision", reason="torch or transformers is not installed")
        vision.save(self.folder / "model")

    def make_encoder(self) -> Any:
        return VisionEncoder(encoders.TransformersVision(**self.settings), self.folder / "model")


@pytest.mark.usefixtures("one_thread")
class TestProcessor(BuiltIn):
    """`transformers-processor`."""

    settings: ClassVar[dict[str, Any]] = {"uses": "transformers-processor", "model": "model"}

    @pytest.fixture(autouse=True)
    def _model(self, _folder: None) -> None:
        processor = pytest.importorskip("tests.encode.test_processor", reason="torch or transformers is not installed")
        processor.save(self.folder / "model", "CLIPImageProcessor")

    def make_encoder(self) -> Any:
        return ProcessorEncoder(encoders.TransformersProcessor(**self.settings), self.folder / "model")
