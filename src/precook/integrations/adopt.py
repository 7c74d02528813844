"""Adopting: the caches that other tools left beside their pictures, taken over as they are.

Nobody can tell which encoder made such a file. So its entries have a recipe of their own that says so, which no encoder
of a config gives, and they are reached through one snapshot only: that of the dataset they are adopted as.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precook.errors import PrecookError, SourceError
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.integrations.lists import Cut, ListedSample, check_name, freeze
from precook.integrations.old_files import UnusableError, load
from precook.integrations.old_names import AI_TOOLKIT, SD_SCRIPTS
from precook.integrations.old_search import LeftOut, Looked, OldCache, find_caches, find_pictures, look, match
from precook.report import SILENT, Reporter
from precook.store.leaves import is_finite
from precook.store.snapshot import Snapshot
from precook.store.store import Store
from precook.store.tree import Parts, take_apart
from precook.store.writer import Writer
from precook.values import Digest

STATUS = "adopted, encoder not verified"


@dataclass(frozen=True, slots=True)
class AdoptedSample:
    """A picture with everything that was cached of it."""

    picture: Path
    content: Digest
    caption: str
    latents: tuple[OldCache, ...]
    prompt: OldCache | None

    @property
    def caches(self) -> list[tuple[str, OldCache]]:
        """All of it, with the name of its part."""
        found = [("latent", old) for old in self.latents]
        return found if self.prompt is None else [*found, ("prompt", self.prompt)]


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """What would be adopted; nothing is stored before `execute`."""

    tool: str
    architecture: str
    samples: tuple[AdoptedSample, ...]
    left_out: tuple[LeftOut, ...]
    strangers: int
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

    def recipe(self, part: str) -> Recipe:
        """The recipe of everything that is adopted: it says what is not known."""
        return Recipe("adopted", recipe_data(self.tool, self.architecture, part))

    def execute(self, store: Store, dataset: str, *, report: Reporter = SILENT) -> Adoption:
        """Store the entries and freeze them as a dataset: durable when it returns. The files stay as they are."""
        check_name(dataset)
        recipes = {part: self.recipe(part) for part in ("latent", "prompt")}
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


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was adopted."""

    samples: int
    failed: tuple[LeftOut, ...]
    """What turned out to be unusable on the way."""
    snapshot: Snapshot


def plan_adopt(
    folder: Path,
    *,
    caches: Path | None = None,
    only: str | None = None,
    ignore_times: bool = False,
    report: Reporter = SILENT,
) -> AdoptionPlan:
    """Look for old caches of the pictures in a folder and check them; nothing is changed.

    `caches` is a folder of their own, as musubi-tuner can have one. `only` chooses a tool, or a tool and architecture,
    where several left caches. A cache that is older than its picture or caption is left out, unless `ignore_times`: a
    copy that did not keep the times.
    """
    if not folder.is_dir():
        raise SourceError(folder, "no such folder")
    pictures = find_pictures(folder)
    found, strangers = match(pictures, list(find_caches(caches or folder)), beside=caches is None)
    looked = look(pictures, found, ignore_times=ignore_times, report=report)
    tool, architecture = _chosen(looked.latents, only, folder)
    samples, left_out = _complete(looked, tool, architecture)
    paths = {old.path for sample in samples for _, old in sample.caches}
    return AdoptionPlan(
        tool=tool,
        architecture=architecture,
        samples=tuple(samples),
        left_out=(*looked.left_out, *left_out),
        strangers=strangers,
        nbytes=sum(path.stat().st_size for path in paths),
    )


def recipe_data(tool: str, architecture: str, part: str) -> dict[str, str]:
    """All that is known about how adopted entries were made, and that the rest is not."""
    return {"status": STATUS, "tool": tool, "architecture": architecture, "part": part}


def check_finite(path: Path, parts: Parts) -> None:
    """Refuse what no training should see."""
    if not all(is_finite(leaf) for leaf in parts.leaves):
        raise UnusableError(f"{path.name} holds numbers that are not finite")


def _adopt(writer: Writer, sample: AdoptedSample, recipes: Mapping[str, Recipe]) -> ListedSample:
    """Put what was cached of one sample; everything is read and checked before anything of it is put."""
    if digest(sample.picture) != sample.content:
        raise UnusableError("the picture changed meanwhile")
    made = []
    for part, old in sample.caches:
        # The file is a part of the key: another cache of the same picture is another entry, whoever made it.
        content = digest(old.path)
        parts = take_apart(load(old.path, old.part))
        if digest(old.path) != content:
            raise UnusableError(f"{old.path.name} changed meanwhile")
        check_finite(old.path, parts)
        caption = sample.caption if old.part.caption is None else old.part.caption
        source = sample.content if part == "latent" else digest(caption)
        made.append((part, old, recipes[part].key(source, cache=content, cut=dict(old.part.cut)), parts))
    for part, _, key, parts in made:
        writer.put_parts(key, parts, recipe=recipes[part])
    cuts = [Cut(old.part.size, {"latent": key}) for part, old, key, _ in made if part == "latent"]
    return ListedSample(sample.content, cuts, {part: key for part, _, key, _ in made if part == "prompt"})


def _chosen(latents: Mapping[Path, list[tuple[str, OldCache]]], only: str | None, folder: Path) -> tuple[str, str]:
    """The tool and architecture to adopt: those that were asked for, or the only ones there are."""
    counts = Counter((tool, old.part.architecture) for found in latents.values() for tool, old in found)
    told = ", ".join(f"{tool}/{architecture} ({count:,})" for (tool, architecture), count in sorted(counts.items()))
    if only is not None:
        counts = Counter({one: count for one, count in counts.items() if only in (one[0], "/".join(one))})
    if not counts:
        hint = f"there are {told}" if told else "sd-scripts, musubi-tuner and ai-toolkit are known; look at --caches"
        raise SourceError(folder, f"no latents of {only or 'any known tool'} here that could be adopted", hint=hint)
    if len(counts) > 1:
        raise SourceError(folder, f"latents of several kinds: {told}", hint="choose one with --only TOOL/ARCHITECTURE")
    return next(iter(counts))


def _complete(looked: Looked, tool: str, architecture: str) -> tuple[list[AdoptedSample], list[LeftOut]]:
    """The samples of one kind; all have the same tensors, and texts either all or none."""
    latents = {
        path: [old for by, old in found if (by, old.part.architecture) == (tool, architecture)]
        for path, found in looked.latents.items()
    }
    latents = {path: found for path, found in latents.items() if found}
    prompts = {
        path: [old for by, old in found if by == tool and _belongs(tool, old.part.architecture, architecture)]
        for path, found in looked.prompts.items()
        if path in latents
    }
    left_out: list[LeftOut] = []
    latent_fields = _commonest([old for found in latents.values() for old in found])
    prompt_fields = _commonest([old for found in prompts.values() for old in found])
    samples = []
    for path, found in latents.items():
        texts = prompts.get(path, [])
        reason = None
        if any(tuple(old.part.fields) != latent_fields for old in found):
            reason = f"its latents have other tensors than most: {', '.join(latent_fields)}"
        elif prompt_fields and len(texts) != 1:
            reason = "it has several text caches" if texts else "it has no text cache, and others have"
        elif prompt_fields and tuple(texts[0].part.fields) != prompt_fields:
            reason = f"its text cache has other tensors than most: {', '.join(prompt_fields)}"
        if reason is not None:
            left_out.append(LeftOut(path, reason))
            continue
        samples.append(
            AdoptedSample(
                picture=path,
                content=looked.contents[path],
                caption=looked.captions[path],
                latents=tuple(_by_size(found)),
                prompt=texts[0] if texts else None,
            )
        )
    return samples, left_out


def _belongs(tool: str, of_text: str, of_latent: str) -> bool:
    """Whether a text cache goes with a latent: ai-toolkit's do not say, and sd-scripts' old latents neither."""
    return of_text == of_latent or tool == AI_TOOLKIT or (tool, of_latent, of_text) == (SD_SCRIPTS, "old", "sdxl")


def _commonest(caches: Sequence[OldCache]) -> tuple[str, ...]:
    counts = Counter(tuple(old.part.fields) for old in caches)
    return counts.most_common(1)[0][0] if counts else ()


def _by_size(caches: Sequence[OldCache]) -> list[OldCache]:
    """From the smallest to the largest cut."""
    return sorted(caches, key=lambda old: (old.part.size[0] * old.part.size[1], old.part.size, old.path.name))
