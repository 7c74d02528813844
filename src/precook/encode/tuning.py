"""Tuning: how an encoder runs quickest on a device, found out by builds and remembered for the next one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from precook.config.encoders import Compile
from precook.encode.batching import Shape
from precook.identity.recipe import Recipe
from precook.memo.memo import Memory

_NOTES = "tuning"
_SAVES = 0.25
"""Share of the time that compiled code saves, where nobody has measured it."""
_WORTH = 0.05
"""The least that it has to save."""
_COMPILING = 60.0
"""Seconds that compiling takes, where nobody has measured it."""
_SURELY = 2.0
"""Times what compiling takes that it has to save: a forecast may be wrong."""
_LONG_LAUNCH = 1.0
"""Seconds: orders for a batch that take longer are not given but compiled."""


_ShapeName = Annotated[str, StringConstraints(pattern=r"^([0-9]{1,9}(x[0-9]{1,9})*)?$")]


class Tuning(BaseModel):
    """What is known about one recipe on one kind of device."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    work: dict[_ShapeName, PositiveInt] = {}
    """Tokens or pixels of a batch, by the shape of its items, such as `512x768`."""
    eager: PositiveFloat | None = None
    """Items in a second, as the model is."""
    compiled: PositiveFloat | None = None
    """Items in a second, compiled."""
    compiling: PositiveFloat | None = None
    """Seconds that compiling took."""

    @property
    def sizes(self) -> dict[Shape, int]:
        """Work at a time, by shape."""
        return {tuple(map(int, filter(None, shape.split("x")))): work for shape, work in self.work.items()}


_TUNINGS = TypeAdapter(dict[str, Tuning])


def read_tunings(memory: Memory, recipe: Recipe) -> dict[str, Tuning]:
    """What is known about a recipe, by the names of devices."""
    note = memory.note(_NOTES, recipe.digest.bytes)
    try:
        return _TUNINGS.validate_json(note) if note is not None else {}
    except ValidationError:
        return {}  # of another version: found out again


def record_tunings(memory: Memory, recipe: Recipe, found: Mapping[str, Tuning]) -> None:
    """Remember what a build found out, beside what is known about other devices."""
    if found:
        known = {**read_tunings(memory, recipe), **found}
        memory.write_note(_NOTES, recipe.digest.bytes, _TUNINGS.dump_json(known, exclude_none=True).decode())


@dataclass(slots=True)
class _Pace:
    """How quick an encoder was."""

    items: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """Items in a second."""
        return self.items / self.seconds if self.items and self.seconds > 0 else None


class CompileChoice:
    """Says when an encoder is to be compiled; safe to use from several threads.

    `on` is at once, and `auto` as soon as the items that are left, by the pace seen so far or before, would save
    clearly more time than compiling takes. Without a number of `expected` items nobody knows, and `auto` is never.
    """

    def __init__(self, wanted: Compile, expected: int | None, known: Tuning) -> None:
        self._wanted = wanted
        self._expected = expected
        self._known = known
        self._lock = threading.Lock()
        self._paces = {False: _Pace(), True: _Pace()}
        """Of the model as it is, and compiled."""
        self._compiling = 0.0

    def is_due(self) -> bool:
        """Whether it is to be compiled now, if it is not."""
        if self._wanted != "auto" or self._expected is None:
            return self._wanted == "on"
        with self._lock:
            eager = self._paces[False].rate or self._known.eager
            left = self._expected - self._paces[False].items
        if eager is None:
            return False
        saves = _SAVES if self._known.compiled is None else 1 - eager / self._known.compiled
        return saves >= _WORTH and left / eager * saves > _SURELY * (self._known.compiling or _COMPILING)

    def compiled_in(self, seconds: float) -> None:
        """Note that compiling has taken so long."""
        with self._lock:
            self._compiling += seconds

    def took(self, items: int, seconds: float, *, launch: float, compiled: bool) -> None:
        """Note a batch of so many items that took a device so long, and to launch so long."""
        with self._lock:
            if compiled and launch > _LONG_LAUNCH:
                self._compiling += launch
            else:
                pace = self._paces[compiled]
                pace.items += items
                pace.seconds += seconds

    def found(self, sizes: Mapping[Shape, int]) -> Tuning:
        """What is known now, with these sizes."""
        known = self._known
        with self._lock:
            return Tuning(
                work={**known.work, **{"x".join(map(str, shape)): work for shape, work in sizes.items()}},
                eager=self._paces[False].rate or known.eager,
                compiled=self._paces[True].rate or known.compiled,
                compiling=self._compiling or known.compiling,
            )
