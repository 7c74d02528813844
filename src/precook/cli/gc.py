"""`precook gc`: collects what no snapshot and no lease needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from precook.cli import output
from precook.cli.options import (
    ConfigOption,
    JsonOption,
    StoreOption,
    YesOption,
    duration_option,
    named_config,
    open_to_read,
)
from precook.cli.remove import plan_and_remove


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    grace: Annotated[Any, duration_option("Keep what was written or used since, such as 24h.")] = "24h",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Remove entries that no snapshot and no lease needs.

    It is a preview until --yes.
    """
    from precook.maintain.gc import plan_gc

    absent = _absent_sources(config) if store is None or config is not None else []
    planner = partial(plan_gc, grace=grace, absent=absent)
    with open_to_read(config, store) as opened:
        has_snapshots = bool(opened.snapshots())
    if not has_snapshots and not as_json:
        output.tell("no dataset was frozen in this store: only age and leases keep an entry")
    _, code = plan_and_remove(config, store, planner, yes=yes, as_json=as_json)
    if absent and not as_json:
        output.hint("mount the drive; or name the store alone, with --store DIR, to go by its snapshots")
    return code


def _absent_sources(config: Path | None) -> list[str]:
    """The concepts of a config whose folder or table is not there; an empty folder may be where a drive belongs."""
    path = named_config(config)
    if path is None:
        return []
    from precook.config.check import read_config

    places = [(concept, path.parent / concept.path) for concept in read_config(path)[0].concepts]
    return [
        f"{concept.name} ({concept.path})"
        for concept, place in places
        if not place.exists() or (place.is_dir() and not any(place.iterdir()))
    ]
