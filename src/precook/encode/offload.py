"""Offloading: a model whose weights are more than its device may hold keeps the rest of them in main memory.

As many parts as may be are on the device for good, in the order of the model; each of the others comes when it is run
and goes again, by accelerate. That is slow, because weights cross the bus for every batch, and the same to the bit.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

from precook.encode.compiled import repeated_layers
from precook.encode.torch_tools import library, move_to_device
from precook.errors import EncodeError, printable
from precook.units import format_size, parse_size

_log = logging.getLogger("precook")

AUTO = "auto"
_FOR_WEIGHTS = 0.8
"""Of the memory that is free, where nobody says how much: the rest is for batches."""
_HINT = "raise device_memory, or choose another device"


def place_model(model: Any, device: str, memory: str, *, beside: int = 0) -> Any:
    """The model on its device, all of it or as much as may be; the log says what stays in main memory.

    `memory` is the most that weights may take, such as `8GiB`, of which other models have `beside`; `auto` is most of
    what is free.
    """
    most = _allowed(device, memory, beside)
    size = weights_size(model)
    if most is None or size <= most:
        return move_to_device(model, device)
    name = type(model).__name__
    try:
        accelerate = importlib.import_module("accelerate")
    except ImportError as error:
        message = f"{name} takes {format_size(size)}, and {format_size(most)} of {printable(device)}"
        raise EncodeError(f"{message} may be taken; to offload the rest needs accelerate", hint=_HINT) from error
    parts = list(_parts(model))
    # Whatever comes and goes needs room, too.
    room = most - max(map(weights_size, parts))
    if room < 0:
        message = f"the largest part of {name} takes {format_size(max(map(weights_size, parts)))}"
        raise EncodeError(f"{message}, and {format_size(most)} of {printable(device)} may be taken", hint=_HINT)
    model.requires_grad_(requires_grad=False)
    away = 0
    placed: set[int] = set()
    for part in parts:
        tensors = {id(tensor) for tensor in (*part.parameters(), *part.buffers())}
        if tensors <= placed:
            continue  # those of another part, which is there already
        placed |= tensors
        if (taken := weights_size(part)) <= room:
            move_to_device(part, device)
            room -= taken
        else:
            _offload(accelerate, part, device)
            away += taken
    # What belongs to no part: tensors beside those of parts, which are few.
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if not tensor.is_meta and not hasattr(module, "_hf_hook"):
                tensor.data = tensor.data.to(device)
    _log.warning(
        "%s takes %s, and %s of %s may be taken: %s of it stay in main memory and come for every batch, which is slow",
        name,
        format_size(size),
        format_size(most),
        device,
        format_size(away),
    )
    return model


def weights_size(model: Any) -> int:
    """Bytes of a model's weights, but for those that are offloaded; what two of its parts share counts once."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _allowed(device: str, memory: str, beside: int) -> int | None:
    """Bytes of the device's memory that weights may take; None where nothing limits them."""
    if memory != AUTO:
        return max(0, parse_size(memory) - beside)
    if not device.startswith("cuda"):
        return None
    cuda = library("torch").cuda
    try:
        unused = cuda.memory_reserved(device) - cuda.memory_allocated(device)
        return int(_FOR_WEIGHTS * (cuda.mem_get_info(device)[0] + unused))
    except (AssertionError, RuntimeError):
        return None  # there is no such device: whoever moves the model there says so


def _parts(model: Any) -> Iterator[Any]:
    """The parts that stay or go as one, in order: layers, what the library says is not to be split, and what is left.

    A layer may use the weights of what is inside of it without running that.
    """
    whole = set(getattr(model, "_no_split_modules", None) or ())
    layers = set(map(id, repeated_layers(model)))

    def walk(module: Any) -> Iterator[Any]:
        children = [child for child in module.children() if weights_size(child)]
        if not children or id(module) in layers or type(module).__name__ in whole:
            yield module
            return
        for child in children:
            yield from walk(child)

    return walk(model)


def _offload(accelerate: Any, part: Any, device: str) -> None:
    """Keep a part's weights in main memory, where a GPU can fetch them quickly."""
    on_cuda = device.startswith("cuda")
    kept = {name: tensor.pin_memory() if on_cuda else tensor for name, tensor in part.state_dict().items()}
    accelerate.cpu_offload(
        part,
        execution_device=library("torch").device(device),
        state_dict=kept,
        preload_module_classes=[type(part).__name__],
    )
