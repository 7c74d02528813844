"""Adopted entries in a config: an encoder that names them, and the adoption that fills them in.

    encoders:
      latent: {uses: "precook.integrations.adopted:Adopted", tool: sd-scripts, architecture: sdxl}

A plan then wants these entries like any other's, and finds those that were adopted for the cuts it makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from precook.config.encoders import UserSection
from precook.errors import EncodeError, PrecookError
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.integrations.adopt import AdoptedSample, AdoptionPlan, check_finite, recipe_data
from precook.integrations.old_files import OldPart, UnusableError, load
from precook.integrations.old_names import AI_TOOLKIT, MUSUBI_TUNER
from precook.integrations.old_search import LeftOut, OldCache
from precook.plan.entries import PlannedEntry
from precook.plan.wanted import Input
from precook.project import Project
from precook.report import SILENT, Reporter
from precook.sources.geometry import Geometry
from precook.store.tree import take_apart
from precook.values import Key

USES = f"{__name__}:Adopted"


class Adopted:
    """An encoder that names entries which another tool made, and cannot make any."""

    def __init__(self, tool: str, architecture: str, part: str = "latent") -> None:
        if part not in ("latent", "prompt"):
            raise PrecookError(f"part is latent or prompt, not {part!r}")
        self.input: Input = "image" if part == "latent" else "text"
        self._data = recipe_data(tool, architecture, part)

    def identity(self) -> object:
        """What is known about the entries, and that their encoder is not."""
        return self._data

    def load(self, device: str) -> None:  # noqa: ARG002 - there is nothing to put on a device
        """Refuse: nobody knows which model this would be."""
        self._refuse()

    def encode(self, batch: list[Any]) -> list[Any]:  # noqa: ARG002 - likewise
        """Refuse."""
        self._refuse()

    def unload(self) -> None:
        """Nothing was loaded."""

    def _refuse(self) -> NoReturn:
        hint = "let the tool cache what is missing and run `precook adopt` again, or use an encoder of your own"
        raise EncodeError(f"adopted entries of {self._data['tool']} cannot be made here", hint=hint)


@dataclass(frozen=True, slots=True)
class Filling:
    """One entry that a config wants, and the cache that has it."""

    key: Key
    recipe: Recipe
    cache: OldCache
    field: str | None
    """The tensor that becomes the entry; None for all of them, as a dict."""


@dataclass(frozen=True, slots=True)
class FillingPlan:
    """What would be adopted for the encoders of a config; nothing is stored before `execute`."""

    fillings: tuple[Filling, ...]
    ready: int
    """Entries that are there already."""
    left_out: tuple[LeftOut, ...]

    def execute(self, project: Project, *, report: Reporter = SILENT) -> tuple[int, tuple[LeftOut, ...]]:
        """Store the entries: how many, and what turned out to be unusable."""
        failed = []
        with (
            project.store.writer() as writer,
            report.task("adopting", total=len(self.fillings), unit="entries") as task,
        ):
            for one in self.fillings:
                try:
                    tree = load(one.cache.path, one.cache.part)
                    parts = take_apart(tree if one.field is None else tree[one.field])
                    check_finite(one.cache.path, parts)
                    writer.put_parts(one.key, parts, recipe=one.recipe)
                except UnusableError as error:
                    failed.append(LeftOut(one.cache.path, str(error)))
                task.advance()
        return len(self.fillings) - len(failed), tuple(failed)


def names_adopted(project: Project) -> bool:
    """Whether a config has an encoder for adopted entries."""
    return any(one.uses == USES for one in project.settings.encoders.values())


def plan_filling(project: Project, adoption: AdoptionPlan, *, report: Reporter = SILENT) -> FillingPlan:
    """Which entries of a config's adopted encoders these caches have; nothing is changed."""
    names = [name for name, one in project.settings.encoders.items() if _is_meant(one, adoption)]
    if not names:
        hint = f"write tool: {adoption.tool}, architecture: {adoption.architecture} in one that uses {USES}"
        raise PrecookError(f"no encoder of the config names what {adoption.family} made", hint=hint)
    plan = project.plan(encoders=names, report=report)
    samples = {sample.content: sample for sample in adoption.samples}
    texts = {digest(sample.caption): sample for sample in adoption.samples if sample.prompt is not None}
    fillings, left_out = [], []
    for entry in plan.missing:
        found = texts.get(entry.input) if entry.target is None else samples.get(entry.input)
        try:
            cache, field = _found(adoption.tool, entry, found)
        except UnusableError as error:
            left_out.append(LeftOut(_place(entry), str(error)))
            continue
        recipe = plan.encoders[entry.encoder].wants.encoding.recipe
        fillings.append(Filling(entry.key, recipe, cache, field))
    return FillingPlan(tuple(fillings), len(plan.ready), tuple(left_out))


def _is_meant(section: object, adoption: AdoptionPlan) -> bool:
    if not isinstance(section, UserSection) or section.uses != USES:
        return False
    asked = section.arguments
    return (asked.get("tool"), asked.get("architecture")) == (adoption.tool, adoption.architecture)


def _place(entry: PlannedEntry) -> str:
    return entry.path or "the empty prompt"


def _found(tool: str, entry: PlannedEntry, sample: AdoptedSample | None) -> tuple[OldCache, str | None]:
    """The cache that has an entry, and which of its tensors is the one."""
    if entry.target is None:
        if sample is None or sample.prompt is None:
            raise UnusableError(f"{entry.encoder}: no text cache of this caption")
        return sample.prompt, None
    if sample is None:
        raise UnusableError(f"{entry.encoder}: no latent of this picture")
    geometry = entry.parts.geometry
    assert geometry is not None  # an entry with a target is cut from a picture
    for cache in sample.latents:
        field = _field(tool, cache.part, geometry)
        if field is not None:
            return cache, field
    sizes = ", ".join(sorted({f"{old.part.size[1]}x{old.part.size[0]}" for old in sample.latents}))
    wanted = f"{geometry.target[0]}x{geometry.target[1]}{', mirrored' if geometry.flip else ''}"
    raise UnusableError(f"{entry.encoder}: no latent of the cut {wanted}, only of {sizes}")


def _field(tool: str, part: OldPart, geometry: Geometry) -> str | None:
    """The tensor of a cache that was made of this cut; None where it was made of another.

    The tools cut from the middle; ai-toolkit notes where, and its rounding differs from ours by a pixel at most.
    """
    (width, height), (down, across) = geometry.target, part.size
    room = [whole - side for whole, side in zip(geometry.scaled, geometry.target, strict=True)]
    centered = tuple(geometry.crop) == tuple(one // 2 for one in room)
    if tool == AI_TOOLKIT:
        noted = [*part.cut["scaled"], *part.cut["crop"]]
        near = all(abs(a - b) <= 1 for a, b in zip(noted, (*geometry.scaled, *geometry.crop), strict=True))
        alike = part.cut["flip_x"] == geometry.flip and not part.cut["flip_y"]
        return "latent" if near and alike and (across, down) == (width, height) else None
    if tool == MUSUBI_TUNER:
        # The latent's own size is known only: it must be the target's, so many times smaller on both sides.
        fits = width % across == height % down == 0 and width // across == height // down and not geometry.flip
        return "latents" if fits and centered else None
    field = "latents_flipped" if geometry.flip else "latents"
    return field if (across, down) == (width, height) and centered and field in part.fields else None
