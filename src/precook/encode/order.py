"""The order in which entries are encoded."""

from __future__ import annotations

import numpy as np

from precook.plan.plan import EncoderPlan, Plan
from precook.sources.geometry import TARGET
from precook.sources.pairing import Numbers


def in_order(plan: Plan, one: EncoderPlan, rows: Numbers) -> Numbers:
    """Rows in the order in which they are encoded: those of one file together, files that are cut alike in a row."""
    if one.wants.encoding.input == "text":
        return rows
    samples, parts = one.wants.samples[rows], one.wants.parts[rows]
    sizes = np.zeros((len(rows), 2), np.int64)
    for number, cuts in enumerate(plan.framed.cuts):
        chosen = parts == number
        sizes[chosen] = cuts[samples[chosen]][:, TARGET]
    order = np.lexsort((parts, samples))
    # A file stands where its first picture does.
    leads = np.append(True, samples[order][1:] != samples[order][:-1])
    lead = order[np.maximum.accumulate(np.where(leads, np.arange(len(order)), 0))]
    return rows[order[np.lexsort((np.arange(len(order)), *sizes[lead].T))]]
