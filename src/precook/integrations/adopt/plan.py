"""Old caches as a dataset of their own.

Nobody can tell which encoder made such a file. So its entries have a recipe of their own that says so, which no encoder
of a config gives, and they are reached through one snapshot only: that of the dataset they are adopted as.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precook.errors import PrecookError, SourceError, TreeError, printable
from precook.fs.old_caches import AI_TOOLKIT, SD_SCRIPTS, TOOLS, name_old_cache
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.integrations.adopt.formats import UnusableError, load
from precook.integrations.adopt.search import LeftOut, OldCache, UsableCaches, find_caches, find_pictures, find_usable
from precook.integrations.adopted import recipe_data
from precook.integrations.lists import Cut, ListedSample, check_name, freeze
from precook.report import SILENT, Reporter
from precook.store.leaves import is_finite
from precook.store.snapshot import Snapshot
from precook.store.store import Store
from precook.store.tree import Parts, Tree, take_apart
from precook.store.writer import Writer
from precook.units import format_count
from precook.values import Digest


@dataclass(frozen=True, slots=True)
class AdoptedSample:
    """A picture with everything that was cached of it."""

    picture: Path
    content: Digest
    caption: str
    latents: tuple[OldCache, ...]
    """From the smallest to the largest cut."""
    prompt: OldCache | None

    @property
    def caches(self) -> list[tuple[str, OldCache]]:
        """All of it, with the name of its part."""
        latents = [("latent", cache) for cache in self.latents]
        return latents if self.prompt is None else [*latents, ("prompt", self.prompt)]


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was adopted."""

    samples: int
    failed: tuple[LeftOut, ...]
    """What turned out to be unusable on the way."""
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """What would be adopted; nothing is stored before `execute`."""

    tool: str
    architecture: str
    samples: tuple[AdoptedSample, ...]
    left_out: tuple[LeftOut, ...]
    without_picture: int
    """Cache files whose picture is not there."""
    nbytes: int
    """Of the cache files."""

    @property
    def family(self) -> str:
        """The tool and the architecture, as `only` takes them."""
        return f"{self.tool}/{self.architecture}"

    @property
    def has_prompts(self) -> bool:
        """Whether texts are adopted too: then every sample has one."""
        return bool(self.samples) and self.samples[0].prompt is not None

    def execute(self, store: Store, dataset: str, *, report: Reporter = SILENT) -> Adoption:
        """Store the entries and freeze them as a dataset: durable when it returns. The files stay as they are."""
        check_name(dataset)
        recipes = {
            part: Recipe("adopted", recipe_data(self.tool, self.architecture, part)) for part in ("latent", "prompt")
        }
        listed: list[ListedSample] = []
        failed: list[LeftOut] = []
        with store.writer() as writer, report.task("adopting", total=len(self.samples), unit="samples") as task:
            for sample in self.samples:
                try:
                    listed.append(_adopt(writer, sample, recipes))
                except (UnusableError, SourceError) as error:
                    failed.append(LeftOut(sample.picture, str(error)))
                task.advance()
        if not listed:
            raise PrecookError("nothing could be adopted", hint=str(failed[0].reason) if failed else None)
        texts = {"prompt": recipes["prompt"]} if self.has_prompts else {}
        snapshot = freeze(store, dataset, listed, images={"latent": recipes["latent"]}, texts=texts)
        return Adoption(len(listed), tuple(failed), snapshot)


def plan_adopt(
    folder: Path,
    *,
    caches: Path | None = None,
    only: str | None = None,
    ignore_times: bool = False,
    report: Reporter = SILENT,
) -> AdoptionPlan:
    """Look for old caches of the pictures in a folder and check them; nothing is changed.

    `caches` is a folder of their own, as mgds has one and musubi-tuner can. `only` chooses a tool, or a tool and
    architecture, where several left caches. A cache that is older than its picture or caption is left out, unless
    `ignore_times`: a copy that did not keep the times.
    """
    if not folder.is_dir():
        raise SourceError(folder, "no such folder")
    pictures = find_pictures(folder)
    found = find_caches(caches or folder, pictures, beside=caches is None)
    usable = find_usable(pictures, found.of_pictures, ignore_times=ignore_times, report=report)
    try:
        tool, architecture = _choose(usable.latents, only, folder, [*found.left_out, *usable.left_out])
    except SourceError as error:
        if found.without_picture and not usable.latents:
            error.hint = _say_without_pictures(folder, caches, found.without_picture)
        raise
    samples, left_out = _complete_samples(usable, tool, architecture)
    paths = {cache.path for sample in samples for _, cache in sample.caches}
    return AdoptionPlan(
        tool=tool,
        architecture=architecture,
        samples=tuple(samples),
        left_out=(*found.left_out, *usable.left_out, *left_out),
        without_picture=found.without_picture,
        nbytes=sum(path.stat().st_size for path in paths),
    )


def checked_parts(path: Path, tree: Tree) -> Parts:
    """What a cache file holds, ready to be stored; numbers that no training should see are refused."""
    try:
        parts = take_apart(tree)
    except TreeError as error:
        raise UnusableError(f"{path.name} holds what no entry can: {error}") from error
    if not all(is_finite(leaf) for leaf in parts.leaves):
        raise UnusableError(f"{path.name} holds numbers that are not finite")
    return parts


def _adopt(writer: Writer, sample: AdoptedSample, recipes: Mapping[str, Recipe]) -> ListedSample:
    """Put what was cached of one sample; everything is read and checked before anything of it is put."""
    if digest(sample.picture) != sample.content:
        raise UnusableError("the picture changed meanwhile")
    entries = []
    for part, cache in sample.caches:
        # The file is a part of the key: another cache of the same picture is another entry, whoever made it.
        content = digest(cache.path)
        tree = load(cache.path, cache.part)
        if digest(cache.path) != content:
            raise UnusableError(f"{cache.path.name} changed meanwhile")
        parts = checked_parts(cache.path, tree)
        caption = sample.caption if cache.part.caption is None else cache.part.caption
        source = sample.content if part == "latent" else digest(caption)
        entries.append((part, cache, recipes[part].key(source, cache=content, cut=dict(cache.part.cut)), parts))
    for part, _, key, parts in entries:
        writer.put_parts(key, parts, recipe=recipes[part])
    cuts = [Cut(cache.part.size, {"latent": key}) for part, cache, key, _ in entries if part == "latent"]
    return ListedSample(sample.content, cuts, {part: key for part, _, key, _ in entries if part == "prompt"})


def _choose(
    latents: Mapping[Path, list[OldCache]], only: str | None, folder: Path, left_out: Sequence[LeftOut]
) -> tuple[str, str]:
    """The tool and architecture to adopt: those that were asked for, or the only ones there are."""
    counts = Counter((cache.tool, cache.part.architecture) for caches in latents.values() for cache in caches)
    kinds = ", ".join(f"{tool}/{architecture} ({count:,})" for (tool, architecture), count in sorted(counts.items()))
    if only is not None:
        counts = Counter({kind: count for kind, count in counts.items() if only in (kind[0], "/".join(kind))})
    if not counts:
        hint = f"{', '.join(TOOLS)} are known; look at --caches"
        if left_out:
            hint = f"{printable(left_out[0].path)} was left out: {left_out[0].reason}"
        hint = f"there are {kinds}" if kinds else hint
        raise SourceError(folder, f"no latents of {only or 'any known tool'} here that could be adopted", hint=hint)
    if len(counts) > 1:
        raise SourceError(folder, f"latents of several kinds: {kinds}", hint="choose one with --only TOOL/ARCHITECTURE")
    return next(iter(counts))


def _say_without_pictures(folder: Path, caches: Path | None, count: int) -> str:
    """What to do about caches none of which has its picture in the folder."""
    old = name_old_cache(caches or folder)
    holds = f"{old.what} lies" if old is not None else f"{format_count(count, 'cache file')} lie"
    if caches is None:
        return f"{holds} here without pictures: `precook adopt PICTURES --caches {printable(folder)}`"
    return f"{holds} in {printable(caches)}, made of pictures that are not here"


def _complete_samples(usable: UsableCaches, tool: str, architecture: str) -> tuple[list[AdoptedSample], list[LeftOut]]:
    """The samples of one kind; all have the same tensors, and texts either all or none."""
    latents: dict[Path, list[OldCache]] = {}
    prompts: dict[Path, list[OldCache]] = {}
    for path, caches in usable.latents.items():
        if kept := [cache for cache in caches if (cache.tool, cache.part.architecture) == (tool, architecture)]:
            latents[path] = kept
            texts = usable.prompts.get(path, [])
            prompts[path] = [cache for cache in texts if cache.tool == tool and _goes_with(cache, architecture)]
    latent_fields = _commonest_fields(cache for caches in latents.values() for cache in caches)
    prompt_fields = _commonest_fields(cache for caches in prompts.values() for cache in caches)
    samples: list[AdoptedSample] = []
    left_out: list[LeftOut] = []
    for path, caches in latents.items():
        texts = prompts[path]
        reason = None
        if any(tuple(cache.part.fields) != latent_fields for cache in caches):
            reason = f"its latents have other tensors than most: {', '.join(latent_fields)}"
        elif prompt_fields and len(texts) != 1:
            reason = "it has several text caches" if texts else "it has no text cache, and others have"
        elif prompt_fields and tuple(texts[0].part.fields) != prompt_fields:
            reason = f"its text cache has other tensors than most: {', '.join(prompt_fields)}"
        if reason is not None:
            left_out.append(LeftOut(path, reason))
            continue
        by_size = sorted(caches, key=lambda old: (old.part.size[0] * old.part.size[1], old.part.size, old.path.name))
        prompt = texts[0] if texts else None
        samples.append(AdoptedSample(path, usable.contents[path], usable.captions[path], tuple(by_size), prompt))
    return samples, left_out


def _goes_with(text: OldCache, architecture: str) -> bool:
    """Whether a text cache goes with latents: ai-toolkit's do not say, and sd-scripts' old latents neither."""
    of_text = text.part.architecture
    if of_text == architecture or text.tool == AI_TOOLKIT:
        return True
    return (text.tool, architecture, of_text) == (SD_SCRIPTS, "old", "sdxl")


def _commonest_fields(caches: Iterable[OldCache]) -> tuple[str, ...]:
    counts = Counter(tuple(cache.part.fields) for cache in caches)
    return counts.most_common(1)[0][0] if counts else ()
