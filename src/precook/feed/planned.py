"""A feed of what a plan found: with the sources there, what is missing can be left out or made."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from precook.encode.line import Hand
from precook.errors import FeedError
from precook.feed.assembly import HINT
from precook.feed.content import Content
from precook.feed.feed import Feed, FeedOptions
from precook.feed.live import Live
from precook.plan.plan import Plan
from precook.plan.snapshot import snapshot_tree
from precook.units import format_count

_log = logging.getLogger("precook")


def feed_plan(plan: Plan, options: FeedOptions, *, hands: Mapping[str, Hand], captions: bool) -> Feed:
    """Batches of the samples of a plan; what failed before is left out."""
    if len(plan.missing):
        told = _told(plan)
        if options.on_missing == "error":
            raise FeedError(f"{plan.settings.dataset}: {told}", hint=HINT)
        if options.on_missing == "skip":
            _log.warning("%s: %s; their samples are left out", plan.settings.dataset, told)
    encode = options.on_missing == "encode"
    _, tree = snapshot_tree(plan, missing=encode, captions=captions)
    return Feed(plan.store, Content(tree), options, maker=Live(plan, hands) if encode else None)


def _told(plan: Plan) -> str:
    counts = {name: len(one.missing) for name, one in plan.encoders.items() if len(one.missing)}
    parts = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
    return f"{format_count(sum(counts.values()), 'entry')} missing: {parts}"
