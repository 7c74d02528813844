"""Pipelines as OneTrainer puts them together, small: real mgds where it can be imported, else our stand-in.

Pictures are files of a few bytes; what the encoders do is exact, so that every value tells which sample, which draw
and which weights made it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

if importlib.util.find_spec("mgds") is None:
    sys.path.insert(0, str(Path(__file__).parent / "mgds_stand_in"))

from mgds.MGDS import MGDS
from mgds.OutputPipelineModule import OutputPipelineModule
from mgds.PipelineModule import PipelineModule, PipelineState
from mgds.pipelineModules.AspectBatchSorting import AspectBatchSorting
from mgds.pipelineModules.CollectPaths import CollectPaths
from mgds.pipelineModules.DiskCache import DiskCache as Theirs
from mgds.pipelineModules.EncodeVAE import EncodeVAE
from mgds.pipelineModules.GetFilename import GetFilename
from mgds.pipelineModules.LoadMultipleTexts import LoadMultipleTexts
from mgds.pipelineModules.MapData import MapData
from mgds.pipelineModules.ModifyPath import ModifyPath
from mgds.pipelineModules.SampleVAEDistribution import SampleVAEDistribution
from mgds.pipelineModules.SelectInput import SelectInput
from mgds.pipelineModules.SelectRandomText import SelectRandomText
from mgds.pipelineModules.Tokenize import Tokenize
from mgds.pipelineModules.VariationSorting import VariationSorting
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule
from mgds.pipelineModuleTypes.SingleVariationRandomAccessPipelineModule import SingleVariationRandomAccessPipelineModule

from precook.integrations.mgds import DiskCache
from precook.report import SILENT

__all__ = [
    "MGDS",
    "AspectBatchSorting",
    "DiskCache",
    "EncodeVAE",
    "GetFilename",
    "MapData",
    "ModifyPath",
    "OutputPipelineModule",
    "PipelineModule",
    "PipelineState",
    "Run",
    "SampleVAEDistribution",
    "SingleVariationRandomAccessPipelineModule",
    "Theirs",
    "Tokenize",
]

IMAGE_GROUP = ["concept.path", "concept.seed", "concept.include_subdirectories", "concept.image"]
TEXT_GROUP = ["concept.path", "concept.seed", "concept.include_subdirectories", "concept.text"]


def collect_pictures(*, but: tuple[str, ...] = ("-masklabel",)) -> CollectPaths:
    """The pictures of every concept, without those whose names end so."""
    return CollectPaths(
        concept_in_name="concept",
        path_in_name="path",
        include_subdirectories_in_name="concept.include_subdirectories",
        enabled_in_name="enabled",
        path_out_name="image_path",
        concept_out_name="concept",
        extensions=[".png"],
        include_postfix=None,
        exclude_postfix=list(but),
    )


class Module(PipelineModule, RandomAccessPipelineModule):
    """One input, one output, and a record of what was asked."""

    def __init__(self, in_name: str, out_name: str) -> None:
        super().__init__()
        self.in_name = in_name
        self.out_name = out_name

    def length(self) -> int:
        return self._get_previous_length(self.in_name)

    def get_inputs(self) -> list[str]:
        return [self.in_name]

    def get_outputs(self) -> list[str]:
        return [self.out_name]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        return {self.out_name: self.make(variation, index)}

    def make(self, variation: int, index: int) -> Any:
        raise NotImplementedError

    def given(self, variation: int, index: int) -> Any:
        return self._get_previous_item(variation, self.in_name, index)


class ReadPixels(Module):
    """The bytes of a file as numbers; nothing where there is no file, as mgds' loaders do."""

    def __init__(self, path_in_name: str, image_out_name: str) -> None:
        super().__init__(path_in_name, image_out_name)

    def make(self, variation: int, index: int) -> Any:
        path = self.given(variation, index)
        if not os.path.exists(path):
            return None
        content = Path(path).read_bytes()
        if content == b"broken":
            message = "cannot decode"
            raise OSError(message)
        return torch.tensor(list(content), dtype=torch.float32)


class WhiteMask(Module):
    """A mask for pictures that have none."""

    def make(self, variation: int, index: int) -> Any:
        return torch.ones_like(self.given(variation, index))


class Augment(Module):
    """Adds a drawn number, up to what the concept allows."""

    def __init__(self, in_name: str, out_name: str, strength_in_name: str) -> None:
        super().__init__(in_name, out_name)
        self.strength_in_name = strength_in_name

    def make(self, variation: int, index: int) -> Any:
        strength = self._get_previous_item(variation, self.strength_in_name, index)
        return self.given(variation, index) + self._get_rand(variation, index).randint(0, 1000) * strength


class Bucket(PipelineModule, RandomAccessPipelineModule):
    """Draws a resolution; its values are tuples."""

    def __init__(self, image_in_name: str, target_in_name: str) -> None:
        super().__init__()
        self.image_in_name = image_in_name
        self.target_in_name = target_in_name

    def length(self) -> int:
        return self._get_previous_length(self.image_in_name)

    def get_inputs(self) -> list[str]:
        return [self.image_in_name, self.target_in_name]

    def get_outputs(self) -> list[str]:
        return ["crop_resolution", "original_resolution"]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        sides = [int(side) for side in self._get_previous_item(variation, self.target_in_name, index).split(",")]
        side = self._get_rand(variation, index).choice(sides)
        size = len(self._get_previous_item(variation, self.image_in_name, index))
        return {"crop_resolution": (side, 2 * side), "original_resolution": (1, size)}


class Encode(Module):
    """Multiplies by the one weight of a torch module, and counts."""

    hook: Callable[[Encode], object] = staticmethod(lambda _: None)
    """Called at each item; of the class, so that it is no setting of the module's."""

    def __init__(self, in_name: str, out_name: str, model: torch.nn.Module, dtype: torch.dtype | None = None) -> None:
        super().__init__(in_name, out_name)
        self.model = model
        self.dtype = dtype
        # A list grows by single steps of the interpreter: threads need no lock for it.
        self.calls: list[tuple[int, int]] = []

    def make(self, variation: int, index: int) -> Any:
        self.calls.append((variation, index))
        type(self).hook(self)
        assert not torch.is_grad_enabled()
        return (self.given(variation, index) * self.model.weight.flatten()[0]).to(self.dtype)


class EncodeText(PipelineModule, RandomAccessPipelineModule):
    """Tokens, and a list of tensors whose length is that of the text."""

    def __init__(self, text_in_name: str, model: torch.nn.Module) -> None:
        super().__init__()
        self.text_in_name = text_in_name
        self.model = model
        self.calls: list[str] = []

    def length(self) -> int:
        return self._get_previous_length(self.text_in_name)

    def get_inputs(self) -> list[str]:
        return [self.text_in_name]

    def get_outputs(self) -> list[str]:
        return ["tokens", "hidden"]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        text = self._get_previous_item(variation, self.text_in_name, index)
        self.calls.append(text)
        tokens = torch.tensor([ord(char) for char in text], dtype=torch.int64)
        wide = tokens[:, None].expand(-1, 4) * self.model.weight.flatten()[0]
        return {"tokens": tokens, "hidden": [wide[:, :2].to(torch.bfloat16), wide[:, 2:]]}


def weights(value: float = 1.0) -> torch.nn.Module:
    """An encoder with one weight."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, value)
    return model


def concept(path: Path, **changes: Any) -> dict[str, Any]:
    """A concept as OneTrainer hands it on."""
    made: dict[str, Any] = {
        "name": path.name,
        "path": str(path),
        "seed": 7,
        "enabled": True,
        "include_subdirectories": False,
        "image_variations": 1,
        "text_variations": 1,
        "balancing": 1.0,
        "balancing_strategy": "REPEATS",
        "loss_weight": 1.0,
        "image": {"strength": 1, "notes": []},
        "text": {"prompt_source": "sample"},
    }
    return made | changes


def pictures(folder: Path, count: int, *, first: int = 0, captions: bool = True) -> None:
    """Pictures of different bytes, with captions of two lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        (folder / f"{number:03}.png").write_bytes(bytes([number % 200, 1, 2]) + folder.name.encode())
        if captions:
            (folder / f"{number:03}.txt").write_text(f"{folder.name} {number}\nanother {number}\n")
    settle(folder)


def settle(folder: Path) -> None:
    """Files as if written a while ago, so that their stamps are believed."""
    for path in folder.iterdir():
        status = path.stat()
        if time.time() - status.st_mtime < 60:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 60_000_000_000))


class Run:
    """One process' worth of a pipeline: made, started, read."""

    def __init__(  # noqa: PLR0913 - mgds' own signature
        self,
        folder: Path,
        concepts: list[dict[str, Any]],
        *,
        vae: torch.nn.Module | None = None,
        text_model: torch.nn.Module | None = None,
        target: str = "64",
        masks: bool = False,
        filenames: bool = False,
        extra: list[Any] | None = None,
        cache: Callable[..., Any] = DiskCache,
        epoch: int = 0,
        state: PipelineState | None = None,
        text_names: tuple[str, ...] = ("tokens", "hidden"),
        image_options: dict[str, Any] | None = None,
        text_options: dict[str, Any] | None = None,
    ) -> None:
        self.before: list[str] = []
        self.state = state or PipelineState(2)
        self._own_state = state is None
        ours = cache is DiskCache
        self.encoder = Encode("image", "latent_image", vae or weights(), dtype=torch.float16)
        self.text_encoder = EncodeText("prompt", text_model or weights())
        self.image_cache = cache(
            cache_dir=str(folder / "image"),
            split_names=["latent_image", "original_resolution", *(["latent_mask"] if masks else [])],
            aggregate_names=["crop_resolution", "image_path"],
            variations_in_name="concept.image_variations",
            balancing_in_name="concept.balancing",
            balancing_strategy_in_name="concept.balancing_strategy",
            variations_group_in_name=IMAGE_GROUP,
            group_enabled_in_name="concept.enabled",
            before_cache_fun=lambda: self.before.append("image"),
            **({"source_path_in_name": "image_path", "report": SILENT} | (image_options or {}) if ours else {}),
        )
        self.text_cache = cache(
            cache_dir=str(folder / "text"),
            split_names=list(text_names),
            aggregate_names=[],
            variations_in_name="concept.text_variations",
            balancing_in_name="concept.balancing",
            balancing_strategy_in_name="concept.balancing_strategy",
            variations_group_in_name=TEXT_GROUP,
            group_enabled_in_name="concept.enabled",
            before_cache_fun=lambda: self.before.append("text"),
            **({"report": SILENT} | (text_options or {}) if ours else {}),
        )
        mask_modules = [
            ModifyPath(in_name="image_path", out_name="mask_path", postfix="-masklabel", extension=".png"),
            WhiteMask("image", "mask"),
            ReadPixels("mask_path", "mask"),
            Encode("mask", "latent_mask", weights()),
        ]
        prompts = {"sample": "sample_prompts", "filename": "filename_prompt"}
        filename_modules = [
            GetFilename(path_in_name="image_path", filename_out_name="filename_prompt", include_extension=False),
            SelectInput("concept.text.prompt_source", "prompts", prompts, default_in_name="sample_prompts"),
        ]
        definition = [
            collect_pictures(),
            ModifyPath(in_name="image_path", out_name="sample_prompt_path", postfix="", extension=".txt"),
            ReadPixels("image_path", "image"),
            LoadMultipleTexts(
                path_in_name="sample_prompt_path", texts_out_name="sample_prompts" if filenames else "prompts"
            ),
            filename_modules if filenames else None,
            mask_modules if masks else None,
            Bucket("image", "settings.target_resolution"),
            Augment("image", "image", "concept.image.strength"),
            SelectRandomText(texts_in_name="prompts", text_out_name="prompt"),
            extra,
            self.encoder,
            self.text_encoder,
            self.image_cache,
            self.text_cache,
            VariationSorting(
                names=["concept"],
                balancing_in_name="concept.balancing",
                balancing_strategy_in_name="concept.balancing_strategy",
                variations_group_in_name=TEXT_GROUP,
                group_enabled_in_name="concept.enabled",
            ),
            OutputPipelineModule(
                names=[
                    "latent_image",
                    "original_resolution",
                    "crop_resolution",
                    "image_path",
                    *text_names,
                    ("concept.name", "concept_name"),
                    *(["latent_mask"] if masks else []),
                ]
            ),
        ]
        self.data = MGDS(
            torch.device("cpu"),
            concepts,
            {"target_resolution": target},
            definition,
            batch_size=1,
            state=self.state,
            initial_epoch=epoch,
        )

    def epoch(self) -> list[dict[str, Any]]:
        """Start the next epoch and read all of it."""
        self.start()
        return list(self.items())

    def start(self) -> None:
        self.encoder.calls.clear()
        self.text_encoder.calls.clear()
        self.before.clear()
        self.data.start_next_epoch()

    def items(self) -> Iterator[dict[str, Any]]:
        iterator = iter(self.data)
        while True:
            try:
                yield next(iterator)
            except StopIteration:
                return

    @property
    def encoded(self) -> tuple[int, int]:
        """How many pictures and texts were encoded since the epoch's start."""
        return len(self.encoder.calls), len(self.text_encoder.calls)

    def close(self) -> None:
        for cache in (self.image_cache, self.text_cache):
            if hasattr(cache, "close"):
                cache.close()
        if self._own_state:
            self.state.executor.shutdown()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def without_sources(folder: Path, concepts: list[dict[str, Any]], *, more: tuple[str, ...] = (), **options: Any) -> Run:
    """A run whose pipeline has no sources: caches and output, and modules of these classes."""
    sourceless = {"sourceless": True}
    made = Run(folder, concepts, image_options=sourceless, text_options=sourceless, **options)
    pipeline = made.data.loading_pipeline
    kept = ("ConceptPipelineModule", "SettingsPipelineModule", "DiskCache", "OutputPipelineModule", *more)
    pipeline.modules[:] = [module for module in pipeline.modules if type(module).__name__ in kept]
    for place, module in enumerate(pipeline.modules):
        module.init(pipeline, 42, place, made.state)
    return made


def shown(items: list[dict[str, Any]]) -> list[Any]:
    """Items as plain data, to be compared."""
    return [{name: _plain(value) for name, value in item.items()} for item in items]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.double().tolist()
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(part) for part in value)
    return value
