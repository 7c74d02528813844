"""The parts of ComfyUI that our nodes meet, as its server was seen to behave: tests/clients runs the server itself."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@dataclass(frozen=True)
class Port:
    """An input or an output, with what was said about it."""

    io_type: str
    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Schema:
    """What a node says about itself."""

    node_id: str
    display_name: str
    category: str
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    is_input_list: bool = False
    is_output_node: bool = False
    is_experimental: bool = False


class NodeOutput:
    """What a node gives."""

    def __init__(self, *args: Any) -> None:
        self.result = args or None


class ComfyNode:
    """What a node inherits from."""


class ComfyExtension:
    """What an entrypoint gives."""


def _type(name: str) -> Any:
    return SimpleNamespace(
        Input=lambda id_, **options: Port(name, id_, options),
        Output=lambda display_name, **options: Port(name, display_name, options),
    )


_TYPES = ("Image", "Vae", "Clip", "String", "Int", "Latent", "Conditioning")
IO = SimpleNamespace(
    Schema=Schema,
    NodeOutput=NodeOutput,
    ComfyNode=ComfyNode,
    **{name: _type(name.upper()) for name in _TYPES},
)


def install(monkeypatch: pytest.MonkeyPatch, output: Path, *, schemas: bool = True) -> None:
    """Make this process look like a ComfyUI, one that knows schemas or an older one."""
    paths: Any = ModuleType("folder_paths")
    paths.get_output_directory = lambda: str(output)
    monkeypatch.setitem(sys.modules, "folder_paths", paths)
    if schemas:
        package: Any = ModuleType("comfy_api")
        package.__path__ = []
        latest: Any = ModuleType("comfy_api.latest")
        latest.__spec__ = importlib.util.spec_from_loader("comfy_api.latest", loader=None)
        latest.io, latest.ComfyExtension = IO, ComfyExtension
        monkeypatch.setitem(sys.modules, "comfy_api", package)
        monkeypatch.setitem(sys.modules, "comfy_api.latest", latest)


def load_custom_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, type]:
    """The node classes of a folder by their ids: imported under its path, mappings before the entrypoint."""
    name = str(folder).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    mappings = getattr(module, "NODE_CLASS_MAPPINGS", None)
    if mappings is not None:
        return dict(mappings)

    async def classes() -> list[Any]:
        extension = await module.comfy_entrypoint()
        assert isinstance(extension, ComfyExtension)
        return list(await extension.get_node_list())

    return {cls.define_schema().node_id: cls for cls in asyncio.run(classes())}


def run_node(node: Any, **inputs: list[Any]) -> list[list[Any]]:
    """Run a node as the server does: every input and every output is a list.

    A node that takes lists gets them whole; for another it is called once for each item. What an output list gives is
    gathered in a list of the server's own.
    """
    if issubclass(node, ComfyNode):
        schema = node.define_schema()
        takes_lists, lists = schema.is_input_list, [port.options["is_output_list"] for port in schema.outputs]
        call: Callable[..., Any] = lambda **given: node.execute(**given).result  # noqa: E731
    else:
        takes_lists, lists = node.INPUT_IS_LIST, list(node.OUTPUT_IS_LIST)
        call = getattr(node(), node.FUNCTION)
    if takes_lists:
        results = [call(**inputs)]
    else:
        longest = max(map(len, inputs.values()))
        each = [
            {name: values[min(number, len(values) - 1)] for name, values in inputs.items()} for number in range(longest)
        ]
        results = [call(**given) for given in each]
    gathered: list[list[Any]] = [[] for _ in lists]
    for result in results:
        for number, is_list in enumerate(lists):
            if is_list:
                gathered[number].extend(result[number])
            else:
                gathered[number].append(result[number])
    return gathered


def train(latents: list[Any], positive: list[Any], torch: Any, *, steps: int, batch_size: int) -> list[float]:
    """What the training node does with its lists: converted and joined whole, copied whole, used in batches."""
    tensors = [latent["samples"].to(torch.float64) for latent in latents]
    joined = torch.cat(tensors, dim=0) if len({tensor.shape for tensor in tensors}) == 1 else tensors
    texts = []
    for conditioning in positive:
        for one in conditioning:
            extra = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in one[1].items()}
            texts.append({**extra, "cross_attn": one[0].clone()})
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        numbers = torch.randperm(len(joined), generator=generator)[:batch_size].tolist()
        batch = torch.stack([joined[number] for number in numbers])
        context = torch.cat([texts[number]["cross_attn"] for number in numbers])
        losses.append((batch.mean() + context.mean()).item())
    return losses
