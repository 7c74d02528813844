"""A plan as a snapshot: everything a feed needs, and nothing private unless it is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from precook.errors import SourceChangedError
from precook.identity.digest import digest
from precook.plan.wanted import NOBODY, text_rows
from precook.sources.geometry import TARGET
from precook.store.snapshot import (
    FrozenConcept,
    FrozenEncoder,
    FrozenImage,
    LineColumns,
    PictureColumns,
    SampleColumns,
    SnapshotContent,
    Texts,
)
from precook.values import Bytes, Numbers

if TYPE_CHECKING:
    from precook.plan.plan import EncoderPlan, Plan


def snapshot_content(plan: Plan, *, missing: bool = False, captions: bool = False) -> tuple[Numbers, SnapshotContent]:
    """The samples that are complete, and what a snapshot of them says; in the order of their identities.

    `missing`: also those whose entries are still to be made; `captions`: with their texts, whatever the config keeps.
    """
    complete = complete_samples(plan, missing=missing)
    ids = np.array([np.frombuffer(plan.samples.id(sample), np.uint8) for sample in complete.tolist()], np.uint8)
    ids = ids.reshape(-1, 32)
    order = np.lexsort(ids.T[::-1])
    chosen, ids = complete[order], ids[order]
    number = np.full(plan.samples.count, -1, np.int64)
    number[chosen] = np.arange(len(chosen))

    settings = plan.settings
    pictures, picture_keys = _pictures(plan, number)
    captions = captions or "captions" in settings.keep
    lines, line_keys, owners = _lines(plan, number, captions=captions)
    paths = None
    if "paths" in settings.keep:
        paths = Texts.join([os.fsencode(plan.samples.path(sample)) for sample in chosen.tolist()])
    content = SnapshotContent(
        dataset=settings.dataset,
        image=FrozenImage(list(settings.image.resolutions), settings.image.variations, settings.image.pick),
        concepts=[
            FrozenConcept(concept.name, concept.loss_weight, concept.repeats, concept.samples)
            for concept in settings.concepts
        ],
        encoders=_encoders(plan),
        samples=SampleColumns(
            id=ids, image=plan.samples.images[chosen], concept=plan.samples.concepts[chosen].astype(np.int32)
        ),
        pictures=pictures,
        picture_keys=picture_keys,
        lines=lines,
        line_keys=line_keys,
        empty_keys=_empty_keys(plan),
        paths=paths,
        captions=Texts.join([text.encode("utf-8") for text in _captions(plan, owners)]) if captions else None,
    )
    return chosen, content


def _empty_keys(plan: Plan) -> dict[str, Bytes]:
    """The key of the empty prompt, by text encoder; one that could not make it has none, as a sample that failed."""
    keys: dict[str, Bytes] = {}
    for name, one in plan.encoders.items():
        if one.wants.encoding.input == "text":
            made = one.wants.keys[(one.wants.samples == NOBODY) & ~one.failed_rows]
            if len(made):
                keys[name] = made[0].copy()
    return keys


def _encoders(plan: Plan) -> dict[str, FrozenEncoder]:
    pads = plan.pads()
    return {
        name: FrozenEncoder(one.wants.encoding.input, one.wants.encoding.recipe.form.decode("ascii"), pads.get(name))
        for name, one in plan.encoders.items()
    }


def complete_samples(plan: Plan, *, missing: bool = False) -> Numbers:
    """Samples of which nothing failed, and nothing is missing unless that is allowed."""
    complete = np.any(plan.framed.usable, axis=0) if plan.samples.count else np.zeros(0, bool)
    for one in plan.encoders.values():
        lacking = one.wants.samples[one.failed_rows if missing else ~one.ready_rows]
        complete[lacking[lacking != NOBODY]] = False
    return np.flatnonzero(complete)


def _pictures(plan: Plan, number: Numbers) -> tuple[PictureColumns, dict[str, Bytes]]:
    """For each sample and target: its size, and the keys of what picture and mask encoders made of it."""
    samples, targets, sizes = [], [], []
    row_of = np.full((len(plan.framed.targets), plan.samples.count), -1, np.int64)
    count = 0
    for at, (target, cuts, usable) in enumerate(
        zip(plan.framed.targets, plan.framed.cuts, plan.framed.usable, strict=True)
    ):
        chosen = np.flatnonzero(usable & (number >= 0))
        row_of[at, chosen] = count + np.arange(len(chosen))
        count += len(chosen)
        samples.append(number[chosen])
        targets.append(np.tile([target.resolution, target.variation], (len(chosen), 1)))
        sizes.append(cuts[chosen][:, TARGET][:, ::-1])  # height first
    order = np.lexsort((np.concatenate(targets)[:, 1], np.concatenate(targets)[:, 0], np.concatenate(samples)))
    place = np.empty(count, np.int64)
    place[order] = np.arange(count)
    keys = {}
    for name, one in plan.encoders.items():
        if one.wants.encoding.input != "text":
            keys[name] = _placed(one, row_of, place, count)
    columns = [np.concatenate(column)[order].astype(np.int32) for column in (samples, targets, sizes)]
    return PictureColumns(sample=columns[0], target=columns[1], size=columns[2]), keys


def _placed(one: EncoderPlan, row_of: Numbers, place: Numbers, count: int) -> Bytes:
    keys = np.zeros((count, 32), np.uint8)
    rows = row_of[one.wants.parts, one.wants.samples]
    keys[place[rows[rows >= 0]]] = one.wants.keys[rows >= 0]
    return keys


def _lines(
    plan: Plan, number: Numbers, *, captions: bool
) -> tuple[LineColumns, dict[str, Bytes], list[tuple[int, int, bytes]]]:
    """For each caption that is kept: whose it is, and the keys of what text encoders made of it.

    Without a text encoder there is nothing to find by them: they are listed where their texts are wanted.
    """
    texts = [one for one in plan.encoders.values() if one.wants.encoding.input == "text"]
    if texts:
        wants = texts[0].wants  # every text encoder wants the same lines in the same order
        digests, owners, parts = wants.rows, wants.samples, wants.parts
    elif captions:
        digests, owners, parts = text_rows(plan.samples, plan.framed, plan.settings.text)
    else:
        return LineColumns(np.zeros(0, np.int32)), {}, []
    rows = np.flatnonzero(owners != NOBODY)
    rows = rows[number[owners[rows]] >= 0]
    rows = rows[np.lexsort((parts[rows], number[owners[rows]]))]
    keys = {one.wants.encoding.name: one.wants.keys[rows] for one in texts}
    who = [(int(owners[row]), int(parts[row]), digests[row].tobytes()) for row in rows.tolist()]
    return LineColumns(number[owners[rows]].astype(np.int32)), keys, who


def _captions(plan: Plan, owners: list[tuple[int, int, bytes]]) -> list[str]:
    """The texts themselves; one that is no longer what was planned is refused."""
    texts = []
    for sample, line, wanted in owners:
        home, number = plan.samples.home(sample)
        found = home.texts(number)
        if line >= len(found) or digest(found[line]).bytes != wanted:
            raise SourceChangedError(Path(home.caption_path(number) or home.full_path(number)))
        texts.append(found[line])
    return texts
