"""A feed of a snapshot: everything it needs lies in the store."""

from __future__ import annotations

from typing import Any

from precook.errors import FeedError
from precook.feed.content import Content
from precook.feed.feed import Feed, FeedOptions
from precook.store.snapshots import Snapshot


def feed_snapshot(snapshot: Snapshot, **options: Any) -> Feed:
    """Batches of the samples of a snapshot."""
    chosen = FeedOptions(**options)
    if chosen.on_missing == "encode":
        hint = "feed the project instead: precook.load(...).feed(...)"
        raise FeedError("a snapshot has no sources to encode from", hint=hint)
    if snapshot.store is None:
        raise FeedError("this snapshot was read without its store", hint="use store.snapshot(...)")
    return Feed(snapshot.store, Content(snapshot.content), chosen)
