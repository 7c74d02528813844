"""`precook verify`: every byte of every pack against what the store promised, and what to do about damage."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import bars, output
from precook.cli.codes import DAMAGED
from precook.cli.damage import damage_document, repair_document, show_damage, show_repair
from precook.cli.options import ConfigOption, JsonOption, StoreOption, duration_option, key_digits
from precook.cli.projects import place_of_store
from precook.cli.recheck import run_recompute, run_sources
from precook.cli.stores import open_to_read, open_to_write
from precook.errors import LockedError, StoreWriteError

if TYPE_CHECKING:
    from precook.maintain.verify import Damage, Scope, VerifyCursor
    from precook.store.store import Store


@dataclass(frozen=True, slots=True)
class VerifyArguments:
    """What is to be verified, and what is done about damage."""

    subset: tuple[int, int]
    keys: tuple[str, ...]
    """First digits of keys."""
    recipes: tuple[str, ...]
    dataset: str | None
    max_seconds: float | None
    repair: bool
    yes: bool


def _subset(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        message = f"{text[:40]!a} is not a part of the whole: write k/n with k from 1 to n, such as 1/7"
        raise typer.BadParameter(message)
    return int(match[1]), int(match[2])


def _share(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text)
    if match is None or not 0 < float(match[1]) <= 100:  # noqa: PLR2004 - all of it
        raise typer.BadParameter(f"{text[:40]!a} is not a share: write 1% or 0.5%, up to 100%")
    return float(match[1]) / 100


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    subset: Annotated[
        Any, typer.Option(parser=_subset, metavar="K/N", help="Check only the K-th of N parts, such as 1/7.")
    ] = "1/1",
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", parser=key_digits, metavar="KEY", help="Only this entry, by its first digits; may be repeated."
        ),
    ] = None,
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", metavar="RECIPE", help="Only what this recipe made: its kind or first digits."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="NAME", help="Only what this dataset's snapshots name.")
    ] = None,
    max_time: Annotated[float | None, duration_option("Stop after so long, such as 10m; the next run goes on.")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Drop what is damaged, so that the next build makes it again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Repair; without it, only show what would be dropped.")] = False,
    sources: Annotated[
        bool, typer.Option("--sources", help="Instead, read every source of the config again and compare.")
    ] = False,
    recompute: Annotated[
        float | None,
        typer.Option(parser=_share, metavar="SHARE", help="Instead, encode so much again and compare, such as 1%."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Which entries --recompute takes.")] = 0,
    as_json: JsonOption = False,
) -> int:
    """Check every byte of every pack and snapshot.

    The next build makes entries that were found damaged again. No pack or snapshot is changed without --repair and
    --yes. The exit code tells that damage was found, repaired or not.
    """
    if sources and recompute is not None:
        raise typer.BadParameter("takes a run of its own", param_hint="--recompute")
    if sources:
        return run_sources(config, store, as_json=as_json)
    if recompute is not None:
        run_recompute(config, store, recompute, seed=seed, as_json=as_json)
        return 0
    asked = VerifyArguments(
        subset=subset,
        keys=tuple(key or ()),
        recipes=tuple(recipe or ()),
        dataset=dataset,
        max_seconds=max_time,
        repair=repair,
        yes=yes,
    )
    return _verify(place_of_store(config, store), asked, as_json=as_json)


def _verify(store: Path | None, asked: VerifyArguments, *, as_json: bool) -> int:
    """Check the packs, show what is wrong with them and, if asked to, drop it; the exit code."""
    from precook.maintain.owners import find_owners
    from precook.maintain.repair import plan_repair
    from precook.maintain.verify import verify_scope

    with open_to_read(store) as opened:
        scope = _scope(opened, asked)
        found, done = verify_scope(opened, scope, max_seconds=asked.max_seconds, report=bars.reporter())
        owners = find_owners(opened, {one.key.bytes for one in found.damage if one.key is not None})
        root = opened.path
    remembered = _remember(root, done, found.damage)
    plan, repaired = None, None
    if asked.repair and not found.clean:
        with open_to_write(root) as opened:
            plan = plan_repair(opened, found)
            repaired = plan.execute(report=bars.reporter()) if asked.yes else None
    if as_json:
        output.document(
            {
                **damage_document(found, owners, scope),
                "pass": {"finished": done.finished is not None, "packs": done.packs, "damaged": done.damaged},
                "repair": None if plan is None else repair_document(plan, repaired),
            }
        )
    else:
        show_damage(found, owners, root, scope, remembered=remembered)
        if plan is not None:
            show_repair(plan, repaired)
    return 0 if found.clean else DAMAGED


def _scope(store: Store, asked: VerifyArguments) -> Scope:
    from precook.cli.entries import find_key
    from precook.cli.recipes import matching_recipes
    from precook.maintain.verify import Scope

    keys = tuple(sorted(find_key(store, digits).hex for digits in asked.keys))
    recipes = {digest for name in asked.recipes for digest in matching_recipes(store, name)}
    return Scope(asked.subset, keys, tuple(sorted(recipes)), asked.dataset)


def _remember(root: Path, done: VerifyCursor, damage: Sequence[Damage]) -> bool:
    """Keep how far the pass has come and what it found, where the store can be written to."""
    from precook.maintain.verify import save_cursor

    if not os.access(root, os.W_OK):
        return False
    try:
        with open_to_write(root) as opened:
            save_cursor(opened, done, damage)
    except (LockedError, StoreWriteError) as error:
        output.tell(f"how far this came is not remembered: {error}")
        return False
    return True
