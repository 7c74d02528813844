"""Freezing: a plan as a snapshot, with everything a feed needs and nothing private unless it is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precook.errors import IncompleteError, SourceChangedError
from precook.plan.dataset import PlannedDataset
from precook.plan.reasons import History
from precook.plan.source_texts import SourceTexts
from precook.plan.targets import Samples
from precook.plan.wanted import NOBODY, NOTHING, text_rows
from precook.sources.captions import CaptionError
from precook.sources.documents import text_digest
from precook.sources.geometry import SOURCE, TARGET, GeometryRows, shown_crops
from precook.store.snapshot import Snapshot
from precook.store.snapshot_content import (
    FrozenConcept,
    FrozenEncoder,
    FrozenEos,
    FrozenImage,
    LineColumns,
    PairColumns,
    PictureColumns,
    SampleColumns,
    Small,
    SnapshotContent,
    Texts,
)
from precook.values import Bytes, Numbers

TOKENS = "transformers-tokens"
"""The kind of encoder that keeps token ids."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What a tokenizer fills texts up with and what it ends them with; None where it does not say."""

    pad: int | None = None
    eos: FrozenEos | None = None


def freeze(plan: PlannedDataset, special: Mapping[str, SpecialTokens]) -> Snapshot:
    """Keep the samples and their keys as the dataset's latest snapshot; `special` by encoder of token ids."""
    dataset = plan.settings.dataset
    if set(plan.encoders) != set(plan.settings.encoders):
        raise IncompleteError("a plan of some encoders only cannot be frozen", hint="plan for all of them")
    if len(plan.missing):
        raise IncompleteError(f"{len(plan.missing):,} entries of {dataset} are missing")
    if not plan.complete:
        hint = "is the drive mounted? `precook plan` says what is left out, and why"
        raise IncompleteError(f"{dataset}: no sample to keep", hint=hint)
    chosen, content = snapshot_content(plan, special)
    keys = np.concatenate([encoder.wants.keys[encoder.ready_rows] for encoder in plan.encoders.values()])
    snapshot = plan.store.freeze(dataset, content, needs=keys, seen=plan.generation)
    History(dataset, plan.samples, plan.memory).record(chosen)
    plan.store.remember(plan.memory)
    return snapshot


def snapshot_content(
    plan: PlannedDataset,
    special: Mapping[str, SpecialTokens],
    *,
    missing: bool = False,
    captions: bool = False,
) -> tuple[Numbers, SnapshotContent]:
    """The samples that are complete, and what a snapshot of them says; in the order of their identities.

    `missing`: also those whose entries are still to be made; `captions`: with their texts, whatever the config keeps.
    """
    settings, samples = plan.settings, plan.samples
    complete = plan.complete_samples(missing=missing)
    ids = np.array([np.frombuffer(samples.id(sample), np.uint8) for sample in complete.tolist()], np.uint8)
    ids = ids.reshape(-1, 32)
    order = np.lexsort(ids.T[::-1])
    chosen, ids = complete[order], ids[order]
    # The row of each sample of the plan in the snapshot; -1 where it is left out.
    row_of = np.full(samples.count, -1, np.int64)
    row_of[chosen] = np.arange(len(chosen))
    pictures, picture_keys, cut_of = _pictures(plan, row_of)
    paths = None
    if "paths" in settings.keep:
        paths = Texts.join([os.fsencode(samples.path(sample)) for sample in chosen.tolist()])
    with_captions = captions or "captions" in settings.keep
    lines = _lines(plan, row_of, with_captions=with_captions)
    pairs, pair_keys = _pairs(plan, row_of, cut_of, lines)
    token_ids = any(encoder.wants.encoding.recipe.kind == TOKENS for encoder in plan.encoders.values())
    encoders = {}
    for name, encoder in plan.encoders.items():
        encoding, tokens = encoder.wants.encoding, special.get(name, SpecialTokens())
        encoders[name] = FrozenEncoder(encoding.input, encoding.recipe.form.decode("ascii"), tokens.pad, tokens.eos)
    content = SnapshotContent(
        dataset=settings.dataset,
        image=FrozenImage(
            list(plan.targets.resolutions),
            max(concept.image.variations for concept in samples.by_concept),
            settings.image.pick,
        ),
        concepts=[
            FrozenConcept(
                concept.name, concept.loss_weight, concept.repeats, concept.samples, validation=concept.validation
            )
            for concept in (planned.concept for planned in samples.by_concept)
        ],
        encoders=encoders,
        samples=SampleColumns(id=ids, image=samples.images[chosen], concept=samples.concepts[chosen].astype(np.int32)),
        pictures=pictures,
        picture_keys=picture_keys,
        # Only where somebody can ask for it: elsewhere a dataset under other names is the same snapshot.
        lines=LineColumns(row_of[lines.samples].astype(np.int32), lines.source_order(samples) if token_ids else None),
        line_keys={
            name: encoder.wants.keys[lines.rows]
            for name, encoder in plan.encoders.items()
            if encoder.wants.encoding.per == "line"
        },
        empty_keys=_empty_keys(plan),
        paths=paths,
        captions=_captions(plan, lines) if with_captions else None,
        pairs=pairs,
        pair_keys=pair_keys,
    )
    return chosen, content


def _pictures(plan: PlannedDataset, row_of: Numbers) -> tuple[PictureColumns, dict[str, Bytes], Numbers]:
    """For each sample and target: how it is cut, and the keys of what picture and mask encoders made of it.

    Also the number of each cut, by target and sample of the plan; -1 where there is none.
    """
    samples, forms, cut_rows, counts = [], [], [], []
    further: dict[str, list[GeometryRows]] = {name: [] for name in plan.targets.further}
    # For each target and sample of the plan, the number of its cut, target after target.
    numbers = np.full((len(plan.targets.all), plan.samples.count), -1, np.int64)
    count = 0
    for number, target in enumerate(plan.targets.all):
        chosen = np.flatnonzero(plan.targets.usable[number] & (row_of >= 0))
        numbers[number, chosen] = count + np.arange(len(chosen))
        count += len(chosen)
        samples.append(row_of[chosen])
        forms.append(np.tile([target.resolution, target.variation], (len(chosen), 1)))
        cut_rows.append(plan.targets.cuts[number][chosen])
        if plan.targets.choices:
            counts.append(plan.targets.choices[number][chosen, 1])
        for name, blocks in further.items():
            blocks.append(plan.targets.further[name][number][chosen])
    sample, form, rows = np.concatenate(samples), np.concatenate(forms), np.concatenate(cut_rows)
    order = np.lexsort((form[:, 1], form[:, 0], sample))
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    cut_of = np.where(numbers >= 0, place[numbers], -1) if count else numbers
    columns: dict[str, Bytes] = {}
    for name, encoder in plan.encoders.items():
        wants = encoder.wants
        if wants.encoding.per == "cut":
            columns[name] = np.zeros((count, 32), np.uint8)
            cuts = cut_of[wants.targets, wants.samples]
            columns[name][cuts[cuts >= 0]] = wants.keys[cuts >= 0]
    rows = rows[order]
    pictures = PictureColumns(
        sample=sample[order].astype(np.int32),
        target=form[order].astype(np.int32),
        size=rows[:, TARGET][:, ::-1].copy(),  # height first, here and below
        original=rows[:, SOURCE][:, ::-1].copy(),
        crop=shown_crops(rows),
        frames=np.concatenate(counts)[order].astype(np.int32) if counts else None,
        further=_other_sizes(further, rows, order),
    )
    return pictures, columns, cut_of


def _other_sizes(
    further: Mapping[str, list[GeometryRows]], rows: GeometryRows, order: Numbers
) -> dict[str, Small] | None:
    """Height and width of further pictures, where some are not cut to the size of the samples' own."""
    sizes: dict[str, Small] = {}
    for name, blocks in further.items():
        targets = np.concatenate(blocks)[order][:, TARGET]
        if not np.array_equal(targets, rows[:, TARGET]):
            sizes[name] = targets[:, ::-1].copy()
    return sizes or None


def _pairs(
    plan: PlannedDataset, row_of: Numbers, cut_of: Numbers, lines: _Lines
) -> tuple[PairColumns | None, dict[str, Bytes]]:
    """Each pair of a cut and a caption, and the keys of what encoders made of both."""
    encoders = {name: encoder for name, encoder in plan.encoders.items() if encoder.wants.encoding.per == "pair"}
    pairs, keys = None, {}
    for name, encoder in encoders.items():
        wants = encoder.wants
        chosen = np.flatnonzero(row_of[wants.samples] >= 0)
        samples, numbers = wants.samples[chosen], wants.lines[chosen]
        cuts = cut_of[wants.targets[chosen], samples]
        # Captions are listed by sample and number: the empty prompt stands behind all of them.
        width = int(plan.samples.line_counts.max(initial=0)) + 1
        listed = row_of[lines.samples] * width + lines.numbers
        line = np.where(numbers == NOTHING, len(listed), np.searchsorted(listed, row_of[samples] * width + numbers))
        order = np.lexsort((line, cuts))
        # Every encoder of this kind wants the same pairs.
        pairs = PairColumns(cuts[order].astype(np.int32), line[order].astype(np.int32))
        keys[name] = wants.keys[chosen[order]]
    return pairs, keys


@dataclass(frozen=True, slots=True, eq=False)
class _Lines:
    """The captions that are kept."""

    rows: Numbers
    """Their rows among what each text encoder wants."""
    samples: Numbers
    """Whose they are, in the plan."""
    numbers: Numbers
    """Which of its captions each is."""
    digests: Bytes

    def source_order(self, samples: Samples) -> Small:
        """The number of each caption where they stand as the sources have them."""
        places = np.empty(samples.count, np.int64)
        places[samples.in_source_order()] = np.arange(samples.count)
        order = np.empty(len(self.rows), np.int32)
        order[np.lexsort((self.numbers, places[self.samples]))] = np.arange(len(self.rows))
        return order


def _lines(plan: PlannedDataset, row_of: Numbers, *, with_captions: bool) -> _Lines:
    """The captions of the samples that are kept, sample after sample.

    Without a text encoder there is nothing to find by them: they are listed where their texts are wanted.
    """
    wanted = [encoder.wants for encoder in plan.encoders.values() if encoder.wants.encoding.per == "line"]
    paired = any(encoder.wants.encoding.per == "pair" for encoder in plan.encoders.values())
    if wanted:
        # Every text encoder wants the same lines in the same order.
        digests, samples, numbers = wanted[0].rows, wanted[0].samples, wanted[0].lines
    elif with_captions or paired:
        digests, samples, numbers = text_rows(plan.samples, plan.targets, plan.settings.text)
    else:
        nothing = np.zeros(0, np.int64)
        return _Lines(nothing, nothing, nothing, np.zeros((0, 32), np.uint8))
    rows = np.flatnonzero(samples != NOBODY)
    rows = rows[row_of[samples[rows]] >= 0]
    rows = rows[np.lexsort((numbers[rows], row_of[samples[rows]]))]
    return _Lines(rows, samples[rows], numbers[rows], digests[rows])


def _captions(plan: PlannedDataset, lines: _Lines) -> Texts:
    """The texts themselves; one that is no longer what was planned is refused."""
    captions = [b""] * len(lines.rows)
    texts, owners = SourceTexts(plan.samples), lines.samples.tolist()
    # File by file: the samples stand in the order of their identities, and so do the passages of a text.
    for row in sorted(range(len(owners)), key=lambda row: texts.file(owners[row])):
        concept, number = plan.samples.in_concept(owners[row])
        place = Path(concept.caption_path(number) or concept.file_path(number))
        try:
            text = texts.find(owners[row], int(lines.numbers[row]))
        except (OSError, CaptionError) as error:
            raise SourceChangedError(place) from error
        if text is None or text_digest(text) != lines.digests[row].tobytes():
            raise SourceChangedError(place)
        captions[row] = (text if isinstance(text, str) else text.form).encode("utf-8")
    return Texts.join(captions)


def _empty_keys(plan: PlannedDataset) -> dict[str, Bytes]:
    """The key of the empty prompt, by text encoder; one that could not make it has none, as a sample that failed."""
    keys: dict[str, Bytes] = {}
    for name, encoder in plan.encoders.items():
        if encoder.wants.encoding.per == "line":
            made = encoder.wants.keys[(encoder.wants.samples == NOBODY) & ~encoder.failed_rows]
            if len(made):
                keys[name] = made[0].copy()
    return keys
