"""Old caches as the entries that a config wants, for those of its encoders that use `Adopted`."""

from __future__ import annotations

from dataclasses import dataclass

from precook.config.encoders import ADOPTED, UserSection
from precook.errors import PrecookError
from precook.fs.old_caches import AI_TOOLKIT, MUSUBI_TUNER
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.integrations.adopt.formats import OldPart, UnusableError, load
from precook.integrations.adopt.plan import AdoptedSample, AdoptionPlan, checked_parts
from precook.integrations.adopt.search import LeftOut, OldCache
from precook.plan.entries import PlannedEntry
from precook.project import Project
from precook.report import SILENT, Reporter
from precook.sources.geometry import Geometry
from precook.values import Key


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
            for filling in self.fillings:
                path = filling.cache.path
                try:
                    tree = load(path, filling.cache.part)
                    parts = checked_parts(path, tree if filling.field is None else tree[filling.field])
                    writer.put_parts(filling.key, parts, recipe=filling.recipe)
                except UnusableError as error:
                    failed.append(LeftOut(path, str(error)))
                task.advance()
        return len(self.fillings) - len(failed), tuple(failed)


def names_adopted(project: Project) -> bool:
    """Whether a config has an encoder for adopted entries."""
    return any(section.uses == ADOPTED for section in project.settings.encoders.values())


def plan_filling(project: Project, adoption: AdoptionPlan, *, report: Reporter = SILENT) -> FillingPlan:
    """Which entries of a config's adopted encoders these caches have; nothing is changed."""
    names = [
        name
        for name, section in project.settings.encoders.items()
        if isinstance(section, UserSection)
        and section.uses == ADOPTED
        and section.arguments.get("tool") == adoption.tool
        and section.arguments.get("architecture") == adoption.architecture
    ]
    if not names:
        hint = f"write tool: {adoption.tool}, architecture: {adoption.architecture} in one that uses {ADOPTED}"
        raise PrecookError(f"no encoder of the config names what {adoption.family} made", hint=hint)
    plan = project.plan(encoders=names, report=report)
    by_picture = {sample.content: sample for sample in adoption.samples}
    by_caption = {digest(sample.caption): sample for sample in adoption.samples if sample.prompt is not None}
    fillings, left_out = [], []
    for entry in plan.missing:
        sample = by_caption.get(entry.input) if entry.target is None else by_picture.get(entry.input)
        try:
            cache, field = _cache_of(adoption.tool, entry, sample)
        except UnusableError as error:
            left_out.append(LeftOut(entry.path or "the empty prompt", str(error)))
            continue
        recipe = plan.encoders[entry.encoder].wants.encoding.recipe
        fillings.append(Filling(entry.key, recipe, cache, field))
    return FillingPlan(tuple(fillings), len(plan.ready), tuple(left_out))


def _cache_of(tool: str, entry: PlannedEntry, sample: AdoptedSample | None) -> tuple[OldCache, str | None]:
    """The cache that has an entry, and which of its tensors is the one."""
    if entry.target is None:
        if sample is None or sample.prompt is None:
            raise UnusableError(f"{entry.encoder}: no text cache of this caption")
        return sample.prompt, None
    if sample is None:
        raise UnusableError(f"{entry.encoder}: no latent of this picture")
    geometry = entry.geometry
    assert geometry is not None  # an entry with a target is cut from a picture
    for cache in sample.latents:
        field = _field_of_cut(tool, cache.part, geometry)
        if field is not None:
            return cache, field
    sizes = ", ".join(sorted({f"{cache.part.size[1]}x{cache.part.size[0]}" for cache in sample.latents}))
    wanted = f"{geometry.target[0]}x{geometry.target[1]}{', mirrored' if geometry.flip else ''}"
    raise UnusableError(f"{entry.encoder}: no latent of the cut {wanted}, only of {sizes}")


def _field_of_cut(tool: str, part: OldPart, geometry: Geometry) -> str | None:
    """The tensor of a cache that was made of this cut; None where it was made of another.

    The tools cut from the middle; ai-toolkit notes where, and its rounding differs from ours by a pixel at most.
    """
    (width, height), (down, across) = geometry.target, part.size
    margins = [whole - side for whole, side in zip(geometry.scaled, geometry.target, strict=True)]
    centered = tuple(geometry.crop) == tuple(margin // 2 for margin in margins)
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
