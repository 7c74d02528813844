"""`precook verify`: every byte of every pack against what the store promised, and what to do about damage.

With --sources or --recompute it checks something else: sources are read again, or entries made again, and compared.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import output, progress
from precook.cli.options import (
    ConfigOption,
    JsonOption,
    NoCodeOption,
    StoreOption,
    duration_option,
    find_store,
    key_digits,
    open_project,
    open_to_read,
    open_to_write,
)
from precook.cli.output import Span, TableColumn
from precook.errors import DAMAGED, LockedError, StoreWriteError
from precook.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from precook.maintain.owners import Owner
    from precook.maintain.repair import Repaired, RepairPlan
    from precook.maintain.verify import Damage, Scope, Verification, VerifyCursor
    from precook.store.remote.url import StoreUrl
    from precook.values import Key

    Owners = dict[bytes, list[Owner]]
    """Who needs an entry, by its key."""

_MOST_OWNERS = 3
"""Samples that are named for an entry; many share one."""
_MOST_LOST = 20
"""Lost entries that are named; a pack that is gone may have had thousands."""


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


def _parse_subset(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        message = f"{text[:40]!a} is not a part of the whole: write k/n with k from 1 to n, such as 1/7"
        raise typer.BadParameter(message)
    return int(match[1]), int(match[2])


def _parse_share(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)%", text)
    if match is None or not 0 < float(match[1]) <= 100:  # noqa: PLR2004 - all of it
        raise typer.BadParameter(f"{text[:40]!a} is not a share: write 1% or 0.5%, up to 100%")
    return float(match[1]) / 100


def command(  # noqa: PLR0913 - each parameter is an option of the command
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    subset: Annotated[
        Any, typer.Option(parser=_parse_subset, metavar="K/N", help="Check only the K-th of N parts, such as 1/7.")
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
        typer.Option(
            parser=_parse_share, metavar="SHARE", help="Instead, encode so much again and compare, such as 1%."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Which entries --recompute takes.")] = 0,
    no_code: NoCodeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Check every byte of every pack and snapshot.

    The next build makes entries that were found damaged again. No pack or snapshot is changed without --repair and
    --yes. The exit code tells that damage was found, repaired or not.
    """
    if sources and recompute is not None:
        raise typer.BadParameter("takes a run of its own", param_hint="--recompute")
    if sources:
        return _verify_sources(config, store, code=not no_code, as_json=as_json)
    if recompute is not None:
        _recompute(config, store, recompute, seed=seed, code=not no_code, as_json=as_json)
        return 0
    arguments = VerifyArguments(
        subset=subset,
        keys=tuple(key or ()),
        recipes=tuple(recipe or ()),
        dataset=dataset,
        max_seconds=max_time,
        repair=repair,
        yes=yes,
    )
    return _verify(config, store, arguments, as_json=as_json)


def _verify(config: Path | None, store: Path | None, arguments: VerifyArguments, *, as_json: bool) -> int:
    """Check the packs, show what is wrong with them and, if asked to, drop it; the exit code."""
    from precook.cli.entries import find_key, matching_recipes
    from precook.maintain.owners import find_owners
    from precook.maintain.repair import plan_repair
    from precook.maintain.verify import Scope, verify_scope

    place = find_store(config, store)
    with open_to_read(None, place) as opened:
        if arguments.repair:
            opened.check_removable("repair")  # before a look that may take hours
        keys = sorted(find_key(opened, digits).hex for digits in arguments.keys)
        recipes = {digest for name in arguments.recipes for digest in matching_recipes(opened, name)}
        scope = Scope(arguments.subset, tuple(keys), tuple(sorted(recipes)), arguments.dataset)
        result, cursor = verify_scope(opened, scope, max_seconds=arguments.max_seconds, report=progress.reporter())
        keys_found = [damage.key for damage in result.damage if damage.key is not None]
        owners = find_owners(opened, {key.bytes for key in (*keys_found, *result.lost)})
        root = opened.path
    remembered = _remember(place, root, cursor, result.damage)
    plan, repaired = None, None
    if arguments.repair and not result.clean:
        with open_to_write(None, place) as opened:
            plan = plan_repair(opened, result)
            repaired = plan.execute(report=progress.reporter()) if arguments.yes else None
    if as_json:
        output.document(
            {
                **_document(result, owners, scope),
                "pass": {"finished": cursor.finished is not None, "packs": cursor.packs, "damaged": cursor.damaged},
                "repair": None if plan is None else _repair_document(plan, repaired),
            }
        )
    else:
        _show_damage(result, owners, root)
        _show_verdict(result, scope, remembered=remembered)
        if plan is not None:
            _show_repair(plan, repaired)
    return 0 if result.clean else DAMAGED


def _remember(place: Path | StoreUrl, root: Path, cursor: VerifyCursor, damage: Sequence[Damage]) -> bool:
    """Keep how far the pass has come and what it found, where the store can be written to."""
    from precook.maintain.verify import save_cursor

    # Checked read-only and opened again to write: what cannot be written to can be verified all the same.
    if not os.access(root, os.W_OK):
        return False
    try:
        with open_to_write(None, place) as opened:
            save_cursor(opened, cursor, damage)
    except (LockedError, StoreWriteError) as error:
        output.tell(f"how far this came is not remembered: {error}")
        return False
    return True


def _document(result: Verification, owners: Owners, scope: Scope) -> dict[str, Any]:
    return {
        "clean": result.clean,
        "complete": result.complete,
        "subset": "{}/{}".format(*scope.subset),
        "packs": result.packs,
        "packs_in_store": result.packs_in_store,
        "snapshots": result.snapshots,
        "entries": result.entries,
        "bytes": result.nbytes,
        "seconds": round(result.seconds, 3),
        "damage": [
            {
                "pack": str(damage.pack),
                "key": damage.key.hex if damage.key else None,
                "offset": damage.offset,
                "reason": damage.reason,
                "refused": damage.refused,
                "samples": [owner.as_json() for owner in _owners_of(damage.key, owners)],
            }
            for damage in result.damage
        ],
        "lost": [
            {"key": key.hex, "samples": [owner.as_json() for owner in _owners_of(key, owners)]} for key in result.lost
        ],
    }


def _repair_document(plan: RepairPlan, repaired: Repaired | None) -> dict[str, Any]:
    """What a repair drops or has dropped."""
    return {
        "done": repaired is not None,
        "lost": [
            {"key": entry.key.hex, "reason": entry.reason, "samples": [one.as_json() for one in entry.owners]}
            for entry in plan.lost
        ],
        "packs": [{"pack": str(pack.path), "removed": bool(pack.reason)} for pack in plan.bad_packs],
        "snapshots": [str(path) for path in plan.snapshots],
        "left": [str(path) for path in plan.left],
        "freed": repaired.nbytes if repaired is not None else None,
    }


def _owners_of(key: Key | None, owners: Owners) -> list[Owner]:
    return owners.get(key.bytes, []) if key is not None else []


def _show_damage(result: Verification, owners: Owners, root: Path) -> None:
    """Damage under the file it was found in and entries that are lost, each with the samples that need it."""
    for pack, group in groupby(result.damage, key=lambda damage: damage.pack):
        output.line(Span(str(pack.relative_to(root) if pack.is_relative_to(root) else pack), "bold"), whole=True)
        for damage in group:
            whole = "whole snapshot" if _is_snapshot(pack) else "whole pack"
            subject = f"entry {damage.key.hex[:16]}" if damage.key else whole
            offset = f"  at byte {damage.offset:,}" if damage.offset is not None else ""
            output.line([f"  {subject}{offset}  ", Span(damage.reason, "red")])
            _show_owners(_owners_of(damage.key, owners))
        output.line()
    for key in result.lost[:_MOST_LOST]:
        output.line([f"entry {key.hex[:16]}  ", Span("a snapshot names it and no pack holds it", "red")])
        _show_owners(_owners_of(key, owners))
    if len(result.lost) > _MOST_LOST:
        output.line(f"and {format_count(len(result.lost) - _MOST_LOST, 'more lost entry')}")
    if result.lost:
        output.line()


def _show_owners(needed_by: list[Owner]) -> None:
    """A few of the samples that need an entry."""
    for owner in needed_by[:_MOST_OWNERS]:
        output.line(Span(f"    {_owner_text(owner)}", "dim"))
    if len(needed_by) > _MOST_OWNERS:
        more = format_count(len(needed_by) - _MOST_OWNERS, "more sample")
        output.line(Span(f"    and {more}", "dim"))


def _owner_text(owner: Owner) -> str:
    if owner.sample is None:
        return f"{owner.dataset}: {owner.encoder} of the empty prompt"
    sample = owner.path or f"sample {owner.sample[:16]}"
    return f"{owner.dataset}: {owner.encoder} of {sample} ({owner.concept})"


def _is_snapshot(path: Path) -> bool:
    return path.parent.parent.name == "snapshots"


def _show_verdict(result: Verification, scope: Scope, *, remembered: bool) -> None:
    """What was checked and whether it is well; that a pass which was cut short is `remembered` says how to go on."""
    packs = format_count(result.packs, "pack")
    if not result.complete:
        packs = f"{result.packs:,} of {format_count(result.packs_in_store, 'pack')}"
    rate = f" ({format_size(int(result.nbytes / result.seconds))}/s)" if result.seconds > 1 else ""
    took = f"{format_size(result.nbytes)} in {format_duration(result.seconds)}{rate}"
    verdict = Span("no damage", "bold green") if result.clean else Span(_damage_counts(result), "bold red")
    output.line([f"checked {packs}, {format_count(result.entries, 'entry')}, {took}: ", verdict])
    if result.damage:
        output.hint(
            "look at the disk's health first; a build makes the entries again, "
            "and `precook verify --repair` shows what a repair would drop"
        )
    elif result.lost:
        output.hint("a build makes the entries again")
    elif not result.finished:
        going_on = "the next run with the same options goes on here" if remembered else "the next run begins anew"
        output.hint(f"not all packs were looked at; {going_on}")
    elif not result.complete and scope.subset[1] > 1:
        part, parts = scope.subset
        output.hint(f"this was one part; `precook verify --subset {part % parts + 1}/{parts}` checks the next")


def _damage_counts(result: Verification) -> str:
    entries = Counter(damage.refused for damage in result.damage if damage.key is not None)
    whole = {damage.pack: damage.refused for damage in result.damage if damage.key is None}
    snapshots = Counter(refused for path, refused in whole.items() if _is_snapshot(path))
    packs = Counter(refused for path, refused in whole.items() if not _is_snapshot(path))
    counts = [
        (found[refused], f"{word} {noun}")
        for refused, word in ((False, "damaged"), (True, "unreadable"))
        for found, noun in ((packs, "pack"), (snapshots, "snapshot"), (entries, "entry"))
    ]
    counts.append((len(result.lost), "lost entry"))
    return ", ".join(format_count(number, noun) for number, noun in counts if number)


def _show_repair(plan: RepairPlan, repaired: Repaired | None) -> None:
    """What a repair drops or has dropped."""
    removed = sum(bool(pack.reason) for pack in plan.bad_packs)
    parts = [
        (len(plan.lost), "entry", "to be made again"),
        (len(plan.bad_packs) - removed, "pack", "written anew without them"),
        (removed, "pack", "removed"),
        (len(plan.snapshots), "snapshot", "removed"),
    ]
    text = ", ".join(f"{format_count(number, noun)} {fate}" for number, noun, fate in parts if number)
    output.line([Span("repaired: " if repaired else "a repair: ", "bold"), text or "nothing to drop"])
    datasets = Counter(dataset for entry in plan.lost for dataset in {owner.dataset for owner in entry.owners})
    for dataset, number in sorted(datasets.items()):
        output.line(f"  {dataset} needs {number:,} of them")
    for path in plan.left:
        output.tell(f"{path.parent.name}: its latest snapshot is damaged; the next build writes a new one")
    if repaired is None:
        output.hint("nothing was changed; --yes does it")
    elif plan.lost:
        output.hint("the next build makes what was dropped again")


def _verify_sources(config: Path | None, store: Path | None, *, code: bool, as_json: bool) -> int:
    """Read every source again; the exit code."""
    with open_project(config, store, code=code) as project:
        check = project.verify_sources(report=progress.reporter())
    if as_json:
        output.document(
            {
                "clean": check.clean,
                "files": check.files,
                "changed": list(check.changed),
                "encoders": list(check.encoders),
            }
        )
        return 0 if check.clean else DAMAGED
    for path in check.changed:
        output.line(path, whole=True)
    for name in check.encoders:
        output.line(f"the model of {name}")
    number = len(check.changed) + len(check.encoders)
    verdict = Span("as remembered", "bold green") if check.clean else Span(f"{number:,} not as remembered", "bold red")
    output.line([f"read {format_count(check.files, 'file')} again: ", verdict])
    if not check.clean:
        output.hint("what was remembered wrongly is forgotten; `precook plan` shows what is to be made")
    return 0 if check.clean else DAMAGED


def _recompute(config: Path | None, store: Path | None, share: float, *, seed: int, code: bool, as_json: bool) -> None:
    """Encode a part of what is ready once more."""
    with open_project(config, store, code=code) as project:
        differences = project.recompute(share, seed=seed, report=progress.reporter())
    if as_json:
        names = ("encoder", "checked", "equal", "rounded", "max_abs", "max_rel", "unlike", "failed")
        encoders = [{name: getattr(difference, name) for name in names} for difference in differences]
        output.document({"share": share, "seed": seed, "encoders": encoders})
        return
    columns = ("checked", "equal", "rounded", "max abs", "max rel", "unlike", "failed")
    rows = [
        (
            difference.encoder,
            f"{difference.checked:,}",
            f"{difference.equal:,}",
            f"{difference.rounded:,}" if difference.rounded else "",
            f"{difference.max_abs:.3g}",
            f"{difference.max_rel:.3g}",
            f"{difference.unlike:,}" if difference.unlike else "",
            f"{difference.failed:,}" if difference.failed else "",
        )
        for difference in differences
    ]
    output.table([TableColumn("encoder", wrap=True), *(TableColumn(name, right=True) for name in columns)], rows)
