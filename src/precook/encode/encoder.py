"""Encoders: what every encoder has to do, and what one of ours can do beyond that.

`Encoder` is all that is asked of a user's class. The engine works with `BaseEncoder`, which has a default for all that
goes beyond it; `as_base` makes one of an encoder that only follows the protocol.
"""

from __future__ import annotations

import inspect
import logging
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from precook.config.further_pictures import NAME, OWN
from precook.config.messages import did_you_mean, either
from precook.errors import EncodeError
from precook.plan.wanted import Input
from precook.sources.documents import Document
from precook.store.tree import Tree

_log = logging.getLogger("precook")

_METHODS = ("identity", "load", "encode", "unload")
"""What a class of encoders has; its `input` may be known only once an encoder is made."""


_INPUTS: tuple[Input, ...] = get_args(Input)


@dataclass(frozen=True, slots=True)
class Item:
    """What an encoder gets of one sample: the parts that its `inputs` name, the others are None.

    Pictures and masks come with the numbers of their cut, which are part of every key that is made from them: those
    that SDXL is trained with, in the order of its `add_time_ids`. With several pictures these are the numbers of
    `image` or, where the encoder does not take it, of the first of `images`.
    """

    image: npt.NDArray[np.uint8] | None = None
    """H x W x 3, cut to the geometry."""
    mask: npt.NDArray[np.uint8] | None = None
    """H x W, cut like its picture."""
    video: npt.NDArray[np.uint8] | None = None
    """T x H x W x 3: the frames that were chosen, each cut to the geometry."""
    text: str | None = None
    document: Document | None = None
    """A text in parts, which stands in the place of `text`: an encoder gets it that says `documents = True`."""
    original_size: tuple[int, int] | None = None
    """Height and width of the picture before it was cut, upright."""
    crop: tuple[int, int] | None = None
    """Top and left of the cut in the picture as it was scaled and, where it is mirrored, mirrored."""
    target_size: tuple[int, int] | None = None
    """Height and width of the cut."""
    images: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    """Further pictures by name, each H x W x 3, cut to its own geometry; an optional one may not be there."""

    def picture(self, name: str) -> npt.NDArray[np.uint8] | None:
        """The picture of that name, if it is there: `image`, the sample's own, or a further one."""
        return self.image if name == OWN else self.images.get(name)

    @property
    def pixels(self) -> list[npt.NDArray[np.uint8]]:
        """Everything in it that is made of pixels."""
        return [array for array in (self.video, self.image, self.mask, *self.images.values()) if array is not None]


@runtime_checkable
class Encoder(Protocol):
    """Turns items into trees."""

    input: str
    """What it takes: image, text, mask, or the name of a further picture. An encoder of several has `inputs` in its
    place, a tuple of these names."""

    def identity(self) -> object:
        """Plain data: everything that decides the output. Cheap, and called before `load`."""

    def load(self, device: str) -> None:
        """Called before the first batch, never when nothing is missing."""

    def encode(self, batch: list[Item]) -> list[Any]:
        """One tree for each item."""

    def unload(self) -> None:
        """Let go of the device."""


def why_no_encoder_class(kind: object) -> str | None:
    """Why something is not a class of encoders, told without calling anything of it; None where it is one."""
    if not isinstance(kind, type):
        if isinstance(kind, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
            return "is a function, not a class"
        if isinstance(kind, types.ModuleType):
            return "is a module, not a class"
        return f"is an object of the class {type(kind).__name__}, not a class"
    absent = [
        name
        for name in _METHODS
        # As it stands in the class: a plain look-up may run code of a metaclass or a property.
        if not isinstance(found := inspect.getattr_static(kind, name, None), (classmethod, staticmethod))
        and not callable(found)
    ]
    return f"has no method{'s' if len(absent) > 1 else ''} {', '.join(absent)}" if absent else None


def missing_methods(encoder: object) -> list[str]:
    """The methods of an encoder that an object does not have."""
    return [name for name in _METHODS if not callable(getattr(encoder, name, None))]


def read_inputs(encoder: object) -> tuple[str, ...]:
    """What an encoder takes, as its `input` says, or in its place `inputs`; `EncodeError` where that is nothing.

    Names that are not among a sample's own parts are those of further pictures: a plan knows whether there are such.
    """
    takes = getattr(encoder, "input", None)
    named: object = (takes,) if takes is not None else getattr(encoder, "inputs", None)
    hint = f"write input = {either([repr(known) for known in _INPUTS])}, or the name of a further picture"
    if named is None:
        raise EncodeError("it does not say what it takes", hint=hint)
    if not isinstance(named, (tuple, list)) or not named:
        raise EncodeError(f"inputs is {named!a:.80}, not a tuple of names", hint='write inputs = ("image",)')
    names: list[str] = []
    for name in named:
        if not isinstance(name, str) or (name not in _INPUTS and re.fullmatch(NAME, name) is None):
            meant = did_you_mean(name, _INPUTS) if isinstance(name, str) else ""
            raise EncodeError(f"unknown input {name!a:.80}{meant}", hint=hint)
        if name in names:
            raise EncodeError(f"it takes {name!a:.80} twice", hint="name each input once")
        names.append(name)
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a batch took of its device."""

    seconds: float
    """From its first order to its last result, without what the device did before."""
    memory: int
    """Bytes that it needed at most."""
    free: int
    """Bytes that were left for it."""


class StagedBatch(Protocol):
    """A batch on its way through a device.

    Once it has landed, it may have two attributes more: `cost`, what it took of the device, and `not_finite`, the
    numbers of the items whose results are not finite, where it has looked at all of them.
    """

    def launch(self) -> None:
        """Tell the device all that it has to do, without waiting for it: `stage` did what may have to wait."""

    def land(self) -> list[Tree]:
        """One tree for each item, when they are there; trees may lie side by side in one piece of memory."""


class BaseEncoder:
    """An encoder as the engine runs it; what a subclass does not say has a default.

    Where `can_stage` is true, `stage`, `lengths` and the batches' `launch` and `land` are called from different
    threads, for different batches. Otherwise one thread calls everything.
    """

    gives_away = False
    """Whether it never touches a tree again once it has returned it, nor the memory under it: such a tree is stored
    without a copy."""
    can_stage = False
    """Whether the engine has batches by `stage`: a GPU can then be handed the next before the last is back, and a CPU's
    results are stored without the copies that `encode` makes for those who keep them."""
    can_compile = False
    """Whether `compile` may make it faster; to be asked once it is loaded."""
    compiled = False
    """Whether it runs on compiled code, which is recorded with the entries of a batch: to be asked when that batch was
    launched or encoded, for code that fails with it is given up for good."""
    measures = False
    """Whether `lengths` says what texts cost, so that batches of short ones can be larger; else each costs the same."""
    most_work: int | None = None
    """The most pixels or tokens of a batch that it wants, where there is such a bound; asked once it is loaded."""
    truncated = 0
    """Texts that were cut to fit, so far."""

    def load(self, device: str) -> None:
        """Called before the first batch."""

    def compile(self, batch: Sequence[Item] = ()) -> None:
        """Run on compiled code from now on, which takes a while to make; where that fails, the log says so in one line.

        Called between two batches, by the thread that encodes or launches them; `batch` is the one that comes next.
        Results differ by rounding only.
        """

    def encode(self, batch: list[Item]) -> list[Tree]:
        """One tree for each item."""
        raise NotImplementedError

    def unload(self) -> None:
        """Let go of the device."""

    def lengths(self, texts: list[str]) -> list[int]:
        """What each text costs to encode: texts of similar cost are encoded together, so that little is padded."""
        return [len(text) for text in texts]

    def stage(self, batch: list[Item]) -> StagedBatch:
        """A batch made ready for the device."""
        raise NotImplementedError


class _WrappedEncoder(BaseEncoder):
    """A user's encoder; what it has beyond the protocol, under the names of `BaseEncoder`, is used.

    It may also have `length(text)`, which measures one text. An attribute of that name that is no method is its own
    affair.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    # Asked for each time: an encoder may decide it when it is loaded.
    @property
    def gives_away(self) -> bool:  # type: ignore[override]
        """As the encoder says, if it does."""
        return bool(getattr(self._encoder, "gives_away", False))

    @property
    def can_stage(self) -> bool:  # type: ignore[override]
        """Whether the encoder has a method for it."""
        return callable(getattr(self._encoder, "stage", None))

    @property
    def measures(self) -> bool:  # type: ignore[override]
        """Whether the encoder has a measure of its own."""
        return any(callable(getattr(self._encoder, name, None)) for name in ("lengths", "length"))

    @property
    def truncated(self) -> int:  # type: ignore[override]
        """As the encoder counts, if it does."""
        return int(getattr(self._encoder, "truncated", 0))

    def load(self, device: str) -> None:
        """Load the encoder itself."""
        self._encoder.load(device)

    def encode(self, batch: list[Item]) -> list[Tree]:
        """Whatever the encoder returns; the engine checks it."""
        trees: list[Tree] = self._encoder.encode(batch)
        return trees

    def unload(self) -> None:
        """Unload the encoder itself."""
        self._encoder.unload()

    def lengths(self, texts: list[str]) -> list[int]:
        """By the encoder's own measure, if it has one."""
        many, measure = (getattr(self._encoder, name, None) for name in ("lengths", "length"))
        if callable(many):
            try:
                return list(many(texts))
            except Exception:  # noqa: BLE001 - one by one it shows which of them it was
                _log.debug("%d texts cannot be measured together", len(texts), exc_info=True)
        if not callable(measure):
            return super().lengths(texts)
        lengths = []
        for text in texts:
            try:
                lengths.append(int(measure(text)))
            except Exception:  # noqa: BLE001 - it says so again when it encodes the text, and is heard then
                lengths.append(0)
        return lengths

    def stage(self, batch: list[Item]) -> StagedBatch:
        """The encoder's own."""
        staged: StagedBatch = self._encoder.stage(batch)
        return staged


def as_base(encoder: Any) -> BaseEncoder:
    """An encoder as the engine runs it."""
    return encoder if isinstance(encoder, BaseEncoder) else _WrappedEncoder(encoder)
