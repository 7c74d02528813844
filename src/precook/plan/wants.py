"""Wants: the entries each encoder needs for the samples, whether they are there or not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from precook.config.models import ImageSettings, TextSettings
from precook.identity.recipe import Recipe
from precook.plan.keys import find_keys, picture_kind, picture_rows, text_kind
from precook.plan.samples import Framed, Samples, kept_lines
from precook.sources.gather import EMPTY
from precook.sources.memory import Memory
from precook.sources.pairing import Numbers
from precook.sources.segments import Bytes, Kind

Input = Literal["image", "text", "mask"]
NOBODY = -1
"""The owner of the empty prompt."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoder as a plan sees it."""

    name: str
    """Its name in the config and in the batch; no part of any key."""
    input: Input
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Wants:
    """The entries that one encoder shall have, a row each; several rows may want the same entry."""

    encoding: Encoding
    kind: Kind
    rows: Bytes
    """What each key is made of, as memory has it."""
    samples: Numbers
    """Whose entry it is."""
    parts: Numbers
    """Which target of the sample, or which of its lines."""
    keys: Bytes
    first: npt.NDArray[np.bool_]
    """The first row with its key; the others share its entry."""


def want(
    encoding: Encoding, samples: Samples, framed: Framed, image: ImageSettings, text: TextSettings, memory: Memory
) -> Wants:
    """What an encoder needs for these samples."""
    if encoding.input == "text":
        kind = text_kind(encoding.recipe)
        rows, owners, parts = text_rows(samples, framed, text)
    else:
        kind = picture_kind(encoding.recipe)
        rows, owners, parts = _picture_rows(encoding, samples, framed, image)
    keys = find_keys(kind, rows, encoding.recipe, memory)
    return Wants(encoding, kind, rows, owners, parts, keys, first_of_each(keys))


def text_rows(samples: Samples, framed: Framed, settings: TextSettings) -> tuple[Bytes, Numbers, Numbers]:
    """The texts that are kept, with whose each is and which of its captions; the empty prompt comes last."""
    owners = np.repeat(np.arange(samples.count), samples.line_counts)
    starts = np.cumsum(samples.line_counts) - samples.line_counts
    parts = np.arange(len(owners)) - starts[owners]
    keep = kept_lines(samples, settings)
    if samples.count:
        keep &= np.any(framed.usable, axis=0)[owners]
    rows, owners, parts = (
        (samples.lines, owners, parts) if keep.all() else (samples.lines[keep], owners[keep], parts[keep])
    )
    if settings.empty_prompt:
        rows = np.concatenate([rows, np.frombuffer(EMPTY, np.uint8).reshape(1, 32)])
        owners, parts = np.append(owners, NOBODY), np.append(parts, 0)
    return rows, owners, parts


def _picture_rows(
    encoding: Encoding, samples: Samples, framed: Framed, settings: ImageSettings
) -> tuple[Bytes, Numbers, Numbers]:
    rows, owners, parts = [np.zeros((0, picture_kind(encoding.recipe).key), np.uint8)], [], []
    for number, (cuts, usable) in enumerate(zip(framed.cuts, framed.usable, strict=True)):
        chosen = usable & samples.masked if encoding.input == "mask" else usable
        if encoding.input == "mask":
            made = picture_rows(samples.masks[chosen], cuts[chosen], white=~samples.has_mask[chosen])
        elif chosen.all():
            made = picture_rows(samples.images, cuts, alphas=samples.alphas, background=settings.rgb)
        else:
            made = picture_rows(
                samples.images[chosen], cuts[chosen], alphas=samples.alphas[chosen], background=settings.rgb
            )
        rows.append(made)
        owners.append(np.flatnonzero(chosen))
        parts.append(np.full(len(made), number))
    if len(rows) == 2:  # noqa: PLR2004 - one target
        return rows[1], owners[0], parts[0]
    return np.concatenate(rows), np.concatenate(owners), np.concatenate(parts)


def first_of_each(keys: Bytes) -> npt.NDArray[np.bool_]:
    """Which rows are the first with their content."""
    words = np.ascontiguousarray(keys).view("<u8")
    order = np.argsort(words[:, 0], kind="stable")
    ordered = words[order]
    first = np.ones(len(keys), bool)
    # Keys are digests: those that share 64 bits are the same, or as good as never there; compared all the same.
    same = (ordered[1:] == ordered[:-1]).all(axis=1)
    first[order[1:][same]] = False
    return first


def rows_with(keys: Bytes, wanted: Collection[bytes]) -> Numbers:
    """The rows whose key is one of a few."""
    if not wanted:
        return np.zeros(0, np.int64)
    firsts = np.frombuffer(b"".join(key[:8] for key in wanted), "<u8")
    near = np.flatnonzero(np.isin(np.ascontiguousarray(keys).view("<u8")[:, 0], firsts))
    return near[[keys[row].tobytes() in wanted for row in near.tolist()]]
