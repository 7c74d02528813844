"""Compiled code: the parts of a model that run on what `torch.compile` made of them, and the way back.

Not the whole model is compiled but the parts that it repeats: the code of one serves them all, takes seconds to make
where that of the whole takes a minute, and is as fast. Sizes stay open, so that batches and texts of any number and
length need no code of their own; of pictures one size may have it (`CompiledVae`). torch keeps what it made in its own
cache, and finds it there the next time.

Nothing depends on it: what cannot be compiled, or gives something else than before, runs on as the library wrote it.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from precook.encode.results import free_memory, is_device_lost, is_out_of_memory
from precook.encode.torch_tools import library
from precook.errors import printable

_log = logging.getLogger("precook")

_FEWEST = 2
"""Layers of one class in a list that are worth compiling: what one costs is spread over all."""
_FORWARD = "forward"
_MOST_CODES = 64
"""Forms of one function that torch may compile before it gives up: it counts those of all parts together, of any number
of channels, and by itself stops at 8."""

_DOUBLED = 16
"""Single pictures that are encoded twice before torch makes code for one."""

_T = TypeVar("_T")


def repeated_layers(model: Any) -> list[Any]:
    """The layers of a model that stand in lists of one class, such as the decoder's; none of those inside of another.

    Empty for a model whose parts move between devices while it runs: that cannot be compiled.
    """
    return [] if is_patched(model) else list(_lists(model, library("torch").nn.ModuleList))


def is_patched(model: Any) -> bool:
    """Whether somebody has put code of their own around parts of a model, such as to move them between devices."""
    return any(_FORWARD in vars(module) for module in model.modules())


def _lists(module: Any, kind: Any) -> Iterator[Any]:
    for child in module.children():
        layers: list[Any] = list(child.children()) if isinstance(child, kind) else []
        if len(layers) >= _FEWEST and len({type(layer) for layer in layers}) == 1:
            yield from layers
        else:
            yield from _lists(child, kind)


class CompiledParts:
    """Parts of one model, as the library wrote them or on compiled code; for one thread at a time."""

    def __init__(self, name: str, parts: Sequence[Any]) -> None:
        self._name = name
        """What the log calls the model."""
        self._parts = parts
        self._hooks: list[tuple[dict[int, Any], dict[int, Any]]] = []
        """Hooks inside of the parts, by where they belong, while they are taken off."""
        self.on = False
        """Whether they run on compiled code."""
        self._given_up = False

    @property
    def possible(self) -> bool:
        """Whether there is something to compile that was not given up."""
        return bool(self._parts) and not self._given_up

    def turn_on(self, example: Callable[[], Sequence[Any]]) -> None:
        """Compile the parts by running an example, which returns tensors; `on` tells whether it worked.

        The tensors are compared with those of the same example before: compiled code may round otherwise, no more.
        """
        if self.on or not self.possible:
            return
        reason = ""
        try:
            before = example()
            self.on = True
            self._prepare()
            for part in self._parts:
                # Not the whole call: hooks, by which libraries take hidden states out of a model, stay outside.
                part.forward = self._compile(part.forward)
            now = example()
            if self.on and not all(map(_close, before, now)):
                reason = "its results would be others"
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything, and all goes on without it
            reason = self._described(error)
        if reason:
            self._turn_off(reason)

    def run(self, call: Callable[[], _T]) -> _T:
        """What a call of the model returns; where its compiled code fails, it is called once more without."""
        if not self.on:
            return call()
        try:
            with _many_codes():
                return call()
        except Exception as error:
            if is_out_of_memory(error) or is_device_lost(error):
                raise
            self._turn_off(self._described(error))
        return call()

    def _compile(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Code for one part, made when it is first called."""
        # As one graph or not at all: in pieces it would be slow, and nobody would know.
        compiled: Callable[..., Any] = library("torch").compile(forward, dynamic=True, fullgraph=True)
        return compiled

    def _prepare(self) -> None:
        """Change the model into the form that is compiled."""
        # By such hooks transformers takes attentions out of a model that is asked for hidden states: nobody here wants
        # them, and no graph can be made of them. Those of the parts themselves stay.
        inside = [module for part in self._parts for module in part.modules() if module is not part]
        self._hooks = [(hooks, dict(hooks)) for module in inside if (hooks := module._forward_hooks)]  # noqa: SLF001
        for hooks, _ in self._hooks:
            hooks.clear()

    def _restore(self) -> None:
        """Change it back."""
        for hooks, before in self._hooks:
            hooks.update(before)
        self._hooks = []

    def _turn_off(self, reason: str) -> None:
        self.on, self._given_up = False, True
        for part in self._parts:
            vars(part).pop(_FORWARD, None)
        self._restore()
        _log.warning("%s runs without compiled code: %s", self._name, reason)

    def _described(self, error: Exception) -> str:
        _log.debug("the compiled code of %s failed", self._name, exc_info=error)
        free_memory(error)
        # Torch names the cause in the second line, and ends with what its own developers may want to know.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return printable(" ".join([type(error).__name__ + ":", *lines[:2]]))


class CompiledVae(CompiledParts):
    """The blocks of a VAE's encoder: convolutions with what stands between them.

    They are compiled with the channels of a pixel side by side in memory, as fast convolutions want them. Group norm,
    as torch takes it apart, would then divide whole numbers for each element to find its group: `_channel_norm` does
    not. Pictures of one size get code of their own, in which that size is a constant: a compiler can do more with it,
    and many datasets have one size only. Those of all other sizes share one code.
    """

    def __init__(self, model: Any) -> None:
        self._encoder: Any = getattr(model, "encoder", model)
        blocks = [] if is_patched(model) else list(_blocks(self._encoder))
        # Norms alone would gain little, and the memory order that they are compiled for is slow for all the rest.
        known = {type(block) for block in blocks} != {library("torch").nn.GroupNorm}
        super().__init__(type(model).__name__, blocks if known else [])
        self._tiled: bool = getattr(model, "use_tiling", False)
        self._size: tuple[int, int] | None = None
        """Height and width of the pictures that have code of their own."""
        self._any_size = True
        """Whether the batch of the moment runs on the code for any size."""
        self._largest = 0
        """The pixels of the largest batch so far."""
        self._doubled = 0
        """How often a single picture was encoded twice."""

    def prefer(self, height: int, width: int) -> None:
        """Let pictures of this size have code of their own; to be called before they are turned on."""
        # Tiles have several sizes.
        self._size = None if self._tiled else (height, width)

    def begin(self, pixels: Any) -> Any:
        """The batch that comes next, N x H x W x 3: a single picture perhaps twice, so that there are two or more.

        torch makes code of its own for one. That pays only where single ones are many; and two of them may take more
        memory than there is, unless as many pixels were there before.
        """
        if not self.on:
            return pixels
        count, height, width, _ = pixels.shape
        self._any_size = (height, width) != self._size
        if count == 1 and self._doubled < _DOUBLED and 2 * height * width <= self._largest:
            self._doubled += 1
            return pixels.repeat(2, 1, 1, 1)
        self._largest = max(self._largest, count * height * width)
        return pixels

    def _compile(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        torch = library("torch")
        any_size = super()._compile(forward)
        one_size = torch.compile(forward, dynamic=False, fullgraph=True)
        leave_open = importlib.import_module("torch._dynamo").maybe_mark_dynamic

        def run(inputs: Any, *args: Any, **options: Any) -> Any:
            if self._any_size:
                return any_size(inputs, *args, **options)
            if len(inputs) > 1:
                leave_open(inputs, 0)
            return one_size(inputs, *args, **options)

        return run

    def _prepare(self) -> None:
        super()._prepare()
        self._encoder.to(memory_format=library("torch").channels_last)
        for norm in self._norms():
            norm.__class__ = _channel_norm()

    def _restore(self) -> None:
        super()._restore()
        for norm in self._norms():
            norm.__class__ = library("torch").nn.GroupNorm
        self._encoder.to(memory_format=library("torch").contiguous_format)

    def _norms(self) -> list[Any]:
        kind = library("torch").nn.GroupNorm
        return [module for part in self._parts for module in part.modules() if isinstance(module, kind)]


def _blocks(module: Any) -> Iterator[Any]:
    """The blocks of an encoder that are known to be one graph each, and its norms outside of them."""
    kinds = (
        importlib.import_module("diffusers.models.resnet").ResnetBlock2D,
        importlib.import_module("diffusers.models.downsampling").Downsample2D,
        library("torch").nn.GroupNorm,
    )
    for child in module.children():
        if type(child) in kinds:
            yield child
        else:
            yield from _blocks(child)


@functools.cache
def _channel_norm() -> type:
    """Group norm that reads memory in its order, whatever that is; a class that modules change theirs to."""
    torch = library("torch")

    class ChannelNorm(torch.nn.GroupNorm):  # type: ignore[misc, name-defined]
        """Group norm by the mean and the variance of each channel, which are then those of the group: exactly."""

        def forward(self, inputs: Any) -> Any:
            """The same as group norm, in float32 until the end."""
            exact = inputs.float()
            # Row by row, then over the rows: neither has to tell from a number in which row an element stands.
            var, mean = torch.var_mean(exact, dim=-1, correction=0)
            if inputs.ndim > 3:  # noqa: PLR2004 - N x C x H x W
                var, mean = _joined(var, mean)
            var, mean = _joined(var.unflatten(1, (self.num_groups, -1)), mean.unflatten(1, (self.num_groups, -1)))
            each = self.num_channels // self.num_groups
            shape = (-1, self.num_channels, *(1,) * (inputs.ndim - 2))
            scale = (var + self.eps).rsqrt().repeat_interleave(each, dim=1).view(shape)
            middle = mean.repeat_interleave(each, dim=1).view(shape)
            normed = (exact - middle) * scale
            if self.affine:
                normed = normed * self.weight.float().view(shape) + self.bias.float().view(shape)
            return normed.to(inputs.dtype)

    def _joined(var: Any, mean: Any) -> tuple[Any, Any]:
        """The variance and the mean over the last dimension, of parts that have as many elements each."""
        whole = mean.mean(dim=-1)
        return var.mean(dim=-1) + (mean - whole.unsqueeze(-1)).square().mean(dim=-1), whole

    return ChannelNorm


def _many_codes() -> Any:
    """Torch may compile as many forms of a function in here as a model can need, in the whole process."""
    config = importlib.import_module("torch._dynamo.config")
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    return config.patch({name: max(_MOST_CODES, getattr(config, name))})


def _close(before: Any, now: Any) -> bool:
    """Whether two tensors are the same but for rounding, which adds up over the layers of a model."""
    torch = library("torch")
    if before.shape != now.shape or before.dtype != now.dtype:
        return False
    if not before.is_floating_point():
        return bool(torch.equal(before, now))
    # Half of the digits: what is wrong differs in the first one. Not a number is never close.
    tolerance = torch.finfo(before.dtype).eps ** 0.5
    apart = (before.float() - now.float()).norm()
    return bool(apart <= tolerance * before.float().norm())
