"""The libraries behind the built-in encoders: imported at the first load, and never let near the network or a pickle.

A model comes from a folder that is already here; `hub` sees to that before. Its weights are safetensors and complete: a
library that misses some fills in random numbers and only warns, and weights in a pickle can run code.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.encode.encoder import Cost
from precook.errors import EncodeError, printable
from precook.fs.read import read_small

_CHOOSING = threading.Lock()
"""Torch has one choice for the whole process: two that change it at once would not find it as it was."""


@contextmanager
def planless_attention(device: str) -> Iterator[None]:
    """On a GPU, attention in here runs on kernels that need no plan.

    Those of cuDNN make one for each new shape, and texts come in many lengths.
    """
    if not device.startswith("cuda"):
        yield
        return
    attention = importlib.import_module("torch.nn.attention")
    kinds = attention.SDPBackend
    with (
        _CHOOSING,
        attention.sdpa_kernel([kinds.FLASH_ATTENTION, kinds.EFFICIENT_ATTENTION, kinds.MATH]),
    ):
        yield


LOCAL: dict[str, Any] = {"local_files_only": True}
"""Arguments of `from_pretrained` for anything: only what is on this machine."""
WEIGHTS: dict[str, Any] = {**LOCAL, "use_safetensors": True, "output_loading_info": True}
"""Arguments of `from_pretrained` for a model: it then answers (model, what was missing or did not fit)."""
TRANSFORMERS_WEIGHTS: dict[str, Any] = {**WEIGHTS, "ignore_mismatched_sizes": True}
"""The same for transformers; whoever uses it calls `check_shapes`."""

_EXTRAS = {
    "torch": "torch",
    "transformers": "transformers",
    "diffusers": "diffusers",
    "huggingface_hub": "transformers",
}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHOWN = 3
_CONFIG_BYTES = 16 << 20
"""More than any config of a model, or list of its weights; some tokenizers keep thousands of tokens in theirs."""
_LOADING = threading.RLock()
"""from_pretrained sets torch's default dtype for as long as it runs, for all threads."""


def library(name: str) -> Any:
    """Torch, transformers, diffusers or huggingface_hub, imported now."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        reason = "is not installed" if absent else f"cannot be imported: {error}"
        hint = f"pip install 'precook[{_EXTRAS[name]}]'"
        raise EncodeError(f"this encoder needs {name}, which {reason}", hint=hint) from error


def torch_dtype(name: str) -> Any:
    """The torch type of this name, such as `bfloat16`."""
    return getattr(library("torch"), name)


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """A model's config, as its file says it."""
    file = folder / name
    try:
        config = json.loads(read_small(file, _CONFIG_BYTES))
    except OSError as error:
        hint = "name the folder that holds the model's config; `subfolder` names one inside it"
        raise EncodeError(f"{printable(file)}: {error.strerror or error}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise EncodeError(f"{printable(file)}: not JSON: {error}", hint="download the model again") from error
    if not isinstance(config, dict):
        raise EncodeError(f"{printable(file)}: not a mapping of settings", hint="download the model again")
    return config


def check_weights(folder: Path) -> None:
    """Refuse a folder without safetensors weights of its own; what else is in it is the library's matter.

    An index of shards may name any file: a pickle, which the library would open, or one that is not in the key.
    """
    names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    if "adapter_config.json" in names:
        # The library would follow it to the base model, which lies elsewhere and is not in the key.
        hint = "merge it into its base model (peft's merge_and_unload) and name that folder"
        raise EncodeError(f"{printable(folder)}: an adapter, not a model", hint=hint)
    for index in folder.rglob("*.safetensors.index.json"):
        for shard in named_shards(index):
            parts = shard.split("/")
            if not shard.endswith(".safetensors") or "\\" in shard or any(part[:1] in ("", ".") for part in parts):
                message = f"{printable(index)} names {printable(shard)}: not a .safetensors file of this folder"
                raise EncodeError(message, hint="download the model again, from somebody you trust")
    if any(name.endswith(".safetensors") for name in names):
        return
    pickled = [name for name in names if name.endswith(_PICKLES)]
    if pickled:
        hint = "save them again with save_pretrained(folder, safe_serialization=True), or download the safetensors"
        raise EncodeError(f"{printable(folder)}: only pickled weights ({printable(pickled[0])})", hint=hint)
    hint = "name the folder that holds the model's .safetensors files"
    raise EncodeError(f"{printable(folder)}: no weights in there", hint=hint)


def named_shards(index: Path) -> set[str]:
    """The files that an index of weights names; none where it is not an index: whoever loads the model says so."""
    try:
        return {str(shard) for shard in json.loads(read_small(index, _CONFIG_BYTES))["weight_map"].values()}
    except OSError as error:
        raise EncodeError(f"{printable(index)}: {error.strerror or error}", hint="download the model again") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()


def check_complete(folder: Path, missing: Iterable[str]) -> None:
    """Refuse a model some of whose weights were not in the folder: they are random now."""
    names = sorted(missing)
    if names:
        shown = ", ".join(map(printable, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
        hint = "the weights do not belong to this config, or the download is not complete"
        raise EncodeError(f"{printable(folder)}: {len(names)} weights are missing: {shown}", hint=hint)


def check_shapes(folder: Path, mismatched: Iterable[tuple[str, Any, Any]]) -> None:
    """Refuse weights of other shapes than the config says, each as its name, its shape and the config's.

    transformers is told to load them all the same: else it writes their names to a log and says no more than that.
    """
    wrong = sorted((name, tuple(found), tuple(wanted)) for name, found, wanted in mismatched)
    if wrong:
        name, found, wanted = wrong[0]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        message = f"the weights of {printable(name)} are {found}, and by the config {wanted}{more}"
        raise EncodeError(
            f"{printable(folder)}: {message}", hint="name a folder whose weights and config.json belong together"
        )


def load_weights(kind: Any, folder: Path, config: Any, dtype: Any) -> tuple[Any, set[str]]:
    """A model of transformers, ready to run, and the weights that the folder does not have; to be called in `loading`.

    `config` says which attention it has: left to its file, that could name code from the hub.
    """
    # The name of this argument changed with 4.56.
    old = tuple(map(int, library("transformers").__version__.split(".")[:2])) < (4, 56)
    # Said here, too: where the config is the library's and the class is not, it would ask at the terminal.
    model, info = kind.from_pretrained(
        folder,
        config=config,
        trust_remote_code=False,
        **{"torch_dtype" if old else "dtype": dtype},
        **TRANSFORMERS_WEIGHTS,
    )
    check_shapes(folder, info["mismatched_keys"])
    return model.eval(), set(info["missing_keys"])


def release_memory() -> None:
    """Give back the memory of a model that nobody holds any more, also where its parts refer to each other."""
    gc.collect()
    torch = library("torch")
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def move_to_device(model: Any, device: str) -> Any:
    """The model on its device; out of memory stays what it is, for whoever can make room."""
    torch = library("torch")
    try:
        return model.to(device)
    except torch.cuda.OutOfMemoryError:
        raise
    except (AssertionError, RuntimeError) as error:
        message = f"{type(model).__name__} cannot run on {printable(device)}: {summary(error)}"
        raise EncodeError(message, hint="set device to auto or cpu") from error


def summary(error: BaseException) -> str:
    """What an error of a library says: its first line and, of several, the last, where the cause often stands."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(" … ".join([lines[0], *lines[1:][-1:]]) if lines else type(error).__name__)


def raised(error: BaseException) -> str:
    """What somebody else's code raised: the kind of error, and what it says."""
    return f"{type(error).__name__}: {summary(error)}" if str(error).strip() else type(error).__name__


@contextmanager
def loading(part: str, folder: Path) -> Iterator[None]:
    """Load a part of an encoder in here: alone, silently, and with one kind of error, which names part and folder."""
    from safetensors import SafetensorError  # noqa: PLC0415 - only loading needs it

    with _LOADING, hushed():
        try:
            yield
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ImportError, RuntimeError) as error:
            raise _unloadable(part, folder, error) from error
        except SafetensorError as error:
            raise _unloadable(part, folder, error) from error


class _Quiet:
    """The libraries' own bars and reports, off while anybody wants it: they have one choice for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._before: dict[str, tuple[int, bool]] = {}
        """How loud each was, and whether it showed bars."""

    def begin(self) -> None:
        with self._lock:
            for name in {"transformers", "diffusers"} & sys.modules.keys() - self._before.keys():
                log = importlib.import_module(f"{name}.utils.logging")
                self._before[name] = log.get_verbosity(), log.is_progress_bar_enabled()
                log.set_verbosity_error()
                log.disable_progress_bar()
            self._wanted += 1

    def end(self) -> None:
        with self._lock:
            self._wanted -= 1
            while not self._wanted and self._before:
                name, (verbosity, bars) = self._before.popitem()
                log = importlib.import_module(f"{name}.utils.logging")
                log.set_verbosity(verbosity)
                if bars:
                    log.enable_progress_bar()


_QUIET = _Quiet()


@contextmanager
def hushed() -> Iterator[None]:
    """Without the libraries' own bars and reports, which would run through ours."""
    _QUIET.begin()
    try:
        yield
    finally:
        _QUIET.end()


def _unloadable(part: str, folder: Path, error: Exception) -> EncodeError:
    hint = "check that the folder is whole; `precook build -v` shows the traceback"
    return EncodeError(f"{printable(folder)}: the {part} cannot be loaded: {raised(error)}", hint=hint)


def send(arrays: Sequence[npt.NDArray[Any]], device: str) -> Any:
    """Arrays of one shape and type, stacked on the device: N x shape."""
    torch = library("torch")
    host = torch.empty(
        (len(arrays), *arrays[0].shape),
        dtype=torch.from_numpy(arrays[0][:0]).dtype,
        pin_memory=device.startswith("cuda"),
    )
    stacked = host.numpy()
    for number, array in enumerate(arrays):
        stacked[number] = array
    return host.to(device, non_blocking=True)


_PINNED = threading.local()
"""Each thread's memory that a GPU writes to: two pieces, so that one is filled while the other is emptied."""
_PIECE = 16 << 20
"""Bytes of such a piece. Memory of this kind is made slowly, and meanwhile a GPU gets no orders: so it is little."""


def _copy_from_gpu(tensor: Any, stream: Any) -> Any:
    """A tensor of a GPU in this machine's memory, copied by the stream at hand; waits until it is there."""
    torch = library("torch")
    if not hasattr(_PINNED, "pieces"):
        _PINNED.pieces = [torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    host = torch.empty(tensor.shape, dtype=tensor.dtype)
    source, target = (one.reshape(-1).view(torch.uint8) for one in (tensor, host))
    arrived: Any = None
    for number, start in enumerate(range(0, source.numel() + _PIECE, _PIECE)):
        before = arrived
        if (some := source[start : start + _PIECE]).numel():
            piece = _PINNED.pieces[number % 2][: some.numel()]
            piece.copy_(some, non_blocking=True)
            # Blocking: whoever waits sleeps, instead of keeping a core busy with asking.
            event = torch.cuda.Event(blocking=True)
            event.record(stream)
            arrived = event, piece, start
        if before is not None:
            event, piece, begin = before
            event.synchronize()
            target[begin : begin + piece.numel()].copy_(piece)
    return host


class DeviceRun:
    """What a device does for one batch: begun by the thread that gives the orders, waited for by any other."""

    def __init__(self, device: str) -> None:
        self._cuda: Any = library("torch").cuda if device.startswith("cuda") else None
        self._device = device
        self._tensors: list[Any] = []
        self._flags: list[Any] = []
        self._cost: Cost | None = None
        self.finite: list[npt.NDArray[np.bool_]] | None = None
        """Of each tensor, which of its parts are finite, once they are fetched; None where nobody has looked."""
        if self._cuda is not None:
            self._before = self._cuda.memory_allocated(device)
            self._cuda.reset_peak_memory_stats(device)
            self._start, self._end = (self._cuda.Event(enable_timing=True) for _ in range(2))
            self._start.record(self._cuda.current_stream(device))

    def ordered(self, tensors: Sequence[Any], dtype: Any, parts: Sequence[int]) -> None:
        """All orders are given: these tensors are wanted, in this type; `parts` are how many dimensions number parts.

        A GPU looks there and then whether each part is finite, which costs it next to nothing.
        """
        for tensor, dimensions in zip(tensors, parts, strict=True):
            converted = tensor.to(dtype)
            if self._cuda is not None:
                converted = converted.contiguous()
                self._flags.append(converted.isfinite().flatten(dimensions).all(-1))
            self._tensors.append(converted)
        if self._cuda is not None:
            self._end.record(self._cuda.current_stream(self._device))
            needed = self._cuda.max_memory_allocated(self._device) - self._before
            unused = self._cuda.memory_reserved(self._device) - self._cuda.memory_allocated(self._device)
            self._cost = Cost(0.0, needed, self._cuda.mem_get_info(self._device)[0] + unused)

    def fetch(self) -> list[Any]:
        """The tensors, in this machine's memory, when they are there."""
        tensors, self._tensors = self._tensors, []
        if self._cuda is None:
            return [tensor.to("cpu") for tensor in tensors]
        wanted = [*tensors, *self._flags]
        # By a stream of its own: the device goes on with the next batch meanwhile.
        stream = self._cuda.Stream(self._device)
        stream.wait_event(self._end)
        with self._cuda.stream(stream):
            hosts = [_copy_from_gpu(tensor, stream) for tensor in wanted]
        self._flags = []
        self.finite = [flags.numpy() for flags in hosts[len(tensors) :]]
        return hosts[: len(tensors)]

    @property
    def cost(self) -> Cost | None:
        """What it took of the device, once it was fetched; None where nobody measures it."""
        if self._cost is None:
            return None
        return dataclasses.replace(self._cost, seconds=self._start.elapsed_time(self._end) / 1000)
