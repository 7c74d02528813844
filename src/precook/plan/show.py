"""The table: a plan as text, for `str(plan)` and the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from precook.errors import printable
from precook.plan.dataset import PlannedDataset
from precook.plan.reasons import Reason
from precook.plan.wanted import rows_with
from precook.sources.caption_rule import CaptionRule
from precook.sources.formats import EXTRA_SUFFIXES, VIDEO_SUFFIXES
from precook.sources.pictures import extra_for
from precook.sources.samples import ConceptSamples
from precook.units import by_number, format_count, format_duration, format_size
from precook.values import Flags

_FEW = 10
_CHANGES = 3
_HEADINGS = ("encoder", "ready", "missing", "failed")


def show(plan: PlannedDataset) -> str:
    """A plan as a table, with reasons, problems and the forecast below."""
    return "\n".join(printable(line) for line in _lines(plan))


def _lines(plan: PlannedDataset) -> Iterator[str]:
    count = plan.samples.count - len(plan.targets.problems)
    lost = sum(failure.encoder is None for failure in plan.failed)
    of_tables = any(concept.files.documents is not None for concept in plan.samples.by_concept)
    left_out = f", {format_count(lost, 'source' if of_tables else 'file')} left out" if lost else ""
    concepts = format_count(len(plan.samples.by_concept), "concept")
    yield f"{plan.settings.dataset}: {format_count(count, 'sample')} in {concepts}{left_out}"
    yield ""
    rows = [
        (name, f"{len(encoder.ready):,}", f"{len(encoder.missing):,}", f"{len(encoder.failures):,}")
        for name, encoder in plan.encoders.items()
    ]
    widths = [max(len(row[column]) for row in (_HEADINGS, *rows)) for column in range(len(_HEADINGS))]
    widths[0] = max(widths[0], *map(len, plan.not_loaded), 0)
    for row in (_HEADINGS, *rows):
        yield f"{row[0]:<{widths[0]}}  " + "  ".join(
            f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)
        )
    for name, uses in plan.not_loaded.items():
        yield f"{name:<{widths[0]}}  own class, not loaded: {uses}"
    yield from _section("missing", _reasons(plan))
    yield from _section("left out", _failures(plan))
    yield from _section("notes", _notes(plan))
    yield ""
    yield _forecast(plan)


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    listed = list(lines)
    if listed:
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in listed)


def _reasons(plan: PlannedDataset) -> Iterator[str]:
    old = False
    for name, encoder in plan.encoders.items():
        counted: Counter[tuple[str, str]] = Counter()
        for why in encoder.why:
            # What changed is told where that is the same for many entries: in the recipe.
            changes = [str(change) for change in why.differences if change.field.startswith("recipe.")]
            shown = ", ".join(change.removeprefix("recipe.") for change in changes[:_CHANGES])
            more = f" and {len(changes) - _CHANGES} more" if len(changes) > _CHANGES else ""
            counted[why.reason.value, shown + more] += 1
        for (reason, shown), count in counted.most_common(_FEW):
            yield f"{name}: {count:,} {reason}{f' ({shown})' if shown else ''}"
        if len(counted) > _FEW:
            rest = counted.total() - sum(count for _, count in counted.most_common(_FEW))
            yield f"{name}: {rest:,} for other reasons; `precook plan --json` lists them all"
        old = old or any(why.reason is not Reason.NEW for why in encoder.why)
    if old:
        yield "`precook explain FILE` shows what differs for one file"


def _failures(plan: PlannedDataset) -> Iterator[str]:
    told = [(plan.full_path(failure), failure.encoder, failure.reason) for failure in plan.failed]
    # Row 2 of a table comes before row 10: only the first few are shown.
    told.sort(key=lambda parts: (by_number(parts[0] or ""), parts[1] or "", parts[2]))
    listed = [": ".join(part for part in parts if part) for parts in told]
    yield from listed[:_FEW]
    if len(listed) > _FEW:
        yield f"… and {len(listed) - _FEW:,} more; `precook plan --json` lists them all"


def _notes(plan: PlannedDataset) -> Iterator[str]:
    yield from map(str, plan.version_differences)
    yield from _caption_notes(plan.samples.by_concept)
    for noun, samples in (("picture", plan.samples.pictured), ("text", ~plan.samples.pictured)):
        duplicates = int((plan.samples.repeats[samples] > 0).sum())
        if duplicates:
            yield f"{format_count(duplicates, 'sample')} with the same {noun} as another one of its concept"
        yield from _shared_notes(plan, noun, samples)
    for resolution, count in plan.targets.partly.items():
        yield f"{format_count(count, 'sample')} left out at {resolution} only"
    yield from _clip_notes(plan)
    yield from _ignored_notes(plan.samples.by_concept)
    for left_out in plan.settings.concepts:
        if not left_out.enabled:
            yield f"{left_out.name}: not enabled, and not looked at"
    for concept in plan.samples.by_concept:
        if concept.concept.validation and concept.count:
            yield f"{concept.concept.name}: {format_count(concept.count, 'sample')} for validation"
        found = len(concept.files.pictures)
        noun = "picture" if concept.passages is None else "text"
        if not found:
            yield f"{concept.concept.name}: no {noun}s in there"
        elif not concept.count:
            yield f"{concept.concept.name}: {format_count(found, noun)} in there, and none can be used"


def _shared_notes(plan: PlannedDataset, noun: str, chosen: Flags) -> Iterator[str]:
    """Samples for validation that are trained on, too: what is measured with them says nothing."""
    samples = plan.samples
    flags = np.array([concept.concept.validation for concept in samples.by_concept], bool)
    held_back = flags[samples.concepts]
    chosen = chosen & plan.targets.kept
    trained = np.flatnonzero(chosen & ~held_back)
    checked = np.flatnonzero(chosen & held_back)
    if not len(trained) or not len(checked):
        return
    # The smaller part is what is compared with, sample by sample.
    wanted = {row.tobytes() for row in samples.images[checked]}
    trained = trained[rows_with(samples.images[trained], wanted)]
    shared = checked[rows_with(samples.images[checked], {row.tobytes() for row in samples.images[trained]})]
    if not len(shared):
        return
    first = min(shared.tolist(), key=lambda sample: by_number(samples.path(sample)))
    equal = trained[rows_with(samples.images[trained], {samples.images[first].tobytes()})]
    other = min((samples.path(sample) for sample in equal.tolist()), key=by_number)
    count = format_count(len(shared), "sample")
    yield f"{count} for validation with the same {noun} as one to train on, such as {samples.path(first)} and {other}"


def _clip_notes(plan: PlannedDataset) -> Iterator[str]:
    """How many frames clips have, and that nobody listens to them."""
    if plan.targets.choices:
        usable = np.any(plan.targets.usable, axis=0)
        counts = Counter(plan.targets.choices[0][usable, 1].tolist())
        listed = ", ".join(f"{count:,} of {format_count(frames, 'frame')}" for frames, count in sorted(counts.items()))
        if listed:
            yield f"clips: {listed}"
    sound = sum(concept.with_sound for concept in plan.samples.by_concept)
    if sound:
        yield f"{format_count(sound, 'clip')} with sound, which is ignored"


def _ignored_notes(concepts: Sequence[ConceptSamples]) -> Iterator[str]:
    """Files that are nothing to a plan, by the ends of their names."""
    for concept in concepts:
        ignored = concept.listing.ignored
        if not ignored:
            continue
        listed = ", ".join(_ending(ending, count) for ending, count in ignored.most_common(_FEW))
        more = f" and {len(ignored) - _FEW} further endings" if len(ignored) > _FEW else ""
        hint = ""
        if any(ending in VIDEO_SUFFIXES for ending in ignored):
            hint += "; videos are samples where an encoder takes them, such as diffusers-video-vae"
        extras = sorted({extra_for(EXTRA_SUFFIXES[ending]) for ending in ignored if ending in EXTRA_SUFFIXES})
        if extras:
            hint += f"; pip install 'precook[{','.join(extras)}]' to read some of them"
        yield f"{concept.concept.name}: {format_count(ignored.total(), 'file')} ignored: {listed}{more}{hint}"


def _ending(ending: str, count: int) -> str:
    return f"{count:,} .{ending}" if ending else f"{count:,} without an ending"


def _caption_notes(concepts: Sequence[ConceptSamples]) -> Iterator[str]:
    """How captions were taken, where that is for their owner to know."""
    bare: Counter[bool] = Counter()
    for concept in concepts:
        bare[bool(CaptionRule.of(concept.concept).bare)] += len(concept.uncaptioned)
    for added, used in ((False, "the empty prompt"), (True, "only what the config puts into every caption")):
        if bare[added]:
            yield f"{format_count(bare[added], 'sample')} without a caption: {used} is used"
    for concept in concepts:
        if concept.several_lines:
            taken = "each file is one caption, with its line breaks; `captions: sidecar` would make every line one"
            if CaptionRule.of(concept.concept).form == "lines":
                taken = (
                    "each line is a caption of its own, and an epoch shows one of them; "
                    "`captions: {whole: sidecar}` would make each file one caption"
                )
            files = format_count(concept.several_lines, "caption file")
            yield f"{concept.concept.name}: {files} of several lines: {taken}"
        if len(concept.empty_tags):
            first = min(concept.caption_path(sample) or concept.path(sample) for sample in concept.empty_tags.tolist())
            samples = format_count(len(concept.empty_tags), "sample")
            yield f"{concept.concept.name}: {samples} with empty tags, such as {first}: they are passed over"


def _forecast(plan: PlannedDataset) -> str:
    """The last line: what a build would do."""
    apart = f", apart from what {', '.join(plan.not_loaded)} would make" if plan.not_loaded else ""
    if not len(plan.missing):
        return f"to build: nothing{apart}" if plan.samples.count else "to build: nothing, because there are no samples"
    forecast = plan.forecast
    size = (
        "size not known before the first build" if forecast.nbytes is None else f"about {format_size(forecast.nbytes)}"
    )
    time = "" if forecast.seconds is None else f", about {format_duration(forecast.seconds)}"
    free = "" if forecast.free is None else f"; {format_size(forecast.free)} free"
    warning = "" if forecast.fits else ": the disk cannot hold it"
    return f"to build: {format_count(len(plan.missing), 'entry')}{apart}, {size}{time}{free}{warning}"
