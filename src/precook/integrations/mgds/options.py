"""Options of concepts: which of them matter to a sample.

A concept of OneTrainer's has some forty options, most of them off, and new ones come with new versions. A module that
is switched off hands on what it is given, so neither it nor its other options decide anything; an option that no module
asks for decides nothing either. What is left is what a key holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precook.identity.digest import digest
from precook.identity.plain import plain
from precook.integrations.mgds.upstream import Upstream

_SWITCHES = {
    **dict.fromkeys(
        ("RandomFlip", "RandomRotate", "RandomBrightness", "RandomContrast", "RandomSaturation", "RandomHue"),
        ("enabled_in_name", "fixed_enabled_in_name"),
    ),
    **dict.fromkeys(
        ("RandomCircularMaskShrink", "RandomMaskRotateCrop", "DropTags", "ShuffleTags"), ("enabled_in_name",)
    ),
    "CapitalizeTags": ("enabled_in_name", "convert_lowercase_in_name"),
}
"""Modules of mgds that hand on what they are given unless one of these names has a value that is true."""
_OVERRIDES = dict.fromkeys(
    ("AspectBucketing", "SingleAspectCalculation"),
    ("enable_target_resolutions_override_in_name", "target_resolutions_override_in_name"),
)
"""Modules of mgds that ask for the second of these names only if the first is true."""


@dataclass(frozen=True, slots=True)
class SwitchedOptions:
    """What counts only where it is switched on."""

    switches: tuple[str, ...]
    """Names of options, of which one has to be true."""
    options: frozenset[str]
    """Names of options that matter then."""
    module: int | None = None
    """The module that does something then, by its number among those that lead to the cached names."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options that decide the entries of a cache, as far as the pipeline says it."""

    always: tuple[str, ...]
    """Names of values that concepts and the pipeline's settings give."""
    grouping: tuple[str, ...] = ()
    """More of them, by which samples are grouped: of a whole section of options those count that are asked for."""
    switched: tuple[SwitchedOptions, ...] = ()
    modules: Mapping[int, object] = field(default_factory=dict)
    """Where the modules stand that are switched on and off, and what they are, by their numbers."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that may be asked for."""
        more = {name for part in self.switched for name in (*part.switches, *part.options)}
        return tuple(sorted({*self.always, *self.grouping, *more}))

    def matter(self, value_of: Callable[[str], Any]) -> dict[str, object]:
        """What matters to the samples of a concept, given its options."""
        on = [part for part in self.switched if any(value_of(name) for name in part.switches)]
        names = {*self.always, *(name for part in on for name in part.options)}
        names |= {name for name in self.grouping if not isinstance(value_of(name), Mapping)}
        values = {name: _with_content(plain(value_of(name), name)) for name in sorted(names)}
        modules = [self.modules[part.module] for part in on if part.module is not None]
        return values | {"": modules} if modules else values


def _with_content(value: object) -> object:
    """An option; a list of tags in a file, as `DropTags` takes it, with what the file holds."""
    if isinstance(value, str) and value.endswith((".txt", ".csv")) and Path(value).is_file():
        return [value, digest(Path(value))]
    return value


def counted_options(upstream: Upstream, grouping: tuple[str, ...], identities: Mapping[int, object]) -> Options:
    """What counts of all options that modules ask for; `identities` says what the modules are, by their numbers."""
    given = frozenset(upstream.settings())
    switched: list[SwitchedOptions] = []
    always: set[str] = set(given - {text for module in upstream.modules for _, text in module.texts})
    modules: dict[int, object] = {}
    for number, module in enumerate(upstream.modules):
        name = module.kind.rpartition(".")[2]
        texts = module.texts if module.kind == f"mgds.pipelineModules.{name}.{name}" else ()
        named = {attribute: text for attribute, text in texts if text in given}
        asked = given.intersection(text for _, text in module.texts)
        switches = _SWITCHES.get(name, ())
        if switches and named.keys() >= set(switches):
            switched.append(SwitchedOptions(tuple(named[switch] for switch in switches), asked, number))
            # Behind how many of the others it stands: what is turned and cut is not what is cut and turned.
            modules[number] = [
                len([other for other in identities.keys() - modules if other < number]),
                identities[number],
            ]
            continue
        switch, override = (named.get(attribute) for attribute in _OVERRIDES.get(name, ("", "")))
        if switch is not None and override is not None:
            switched.append(SwitchedOptions((switch,), frozenset({override})))
            asked -= {override}
        always |= asked
    return Options(tuple(sorted(always)), grouping, tuple(switched), modules)
