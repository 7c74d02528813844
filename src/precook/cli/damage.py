"""Damage: what a verification found and what a repair drops, for people and for programs."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.cli import output
from precook.cli.output import Line, Span
from precook.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from precook.maintain.owners import Owner
    from precook.maintain.repair import Repaired, RepairPlan
    from precook.maintain.verify import Damage, Scope, Verification

    Owners = dict[bytes, list[Owner]]
    """Who needs an entry, by its key."""

_FEW = 3
"""Samples that are named for an entry; many share one."""


def damage_document(found: Verification, owners: Owners, scope: Scope) -> dict[str, Any]:
    """What was checked and found, for programs."""
    return {
        "clean": found.clean,
        "complete": found.complete,
        "subset": "{}/{}".format(*scope.subset),
        "packs": found.packs,
        "packs_in_store": found.packs_in_store,
        "snapshots": found.snapshots,
        "entries": found.entries,
        "bytes": found.nbytes,
        "seconds": round(found.seconds, 3),
        "damage": [
            {
                "pack": str(damage.pack),
                "key": damage.key.hex if damage.key else None,
                "offset": damage.offset,
                "reason": damage.reason,
                "samples": [_owner_document(one) for one in _owners_of(damage, owners)],
            }
            for damage in found.damage
        ],
    }


def _owner_document(owner: Owner) -> dict[str, Any]:
    return {
        "dataset": owner.dataset,
        "snapshot": owner.snapshot,
        "encoder": owner.encoder,
        "sample": owner.sample,
        "concept": owner.concept,
        "path": owner.path,
    }


def repair_document(plan: RepairPlan, repaired: Repaired | None) -> dict[str, Any]:
    """What a repair drops or has dropped, for programs."""
    return {
        "done": repaired is not None,
        "lost": [
            {"key": loss.key.hex, "reason": loss.reason, "samples": [_owner_document(one) for one in loss.owners]}
            for loss in plan.losses
        ],
        "packs": [{"pack": str(wreck.path), "removed": bool(wreck.reason)} for wreck in plan.wrecks],
        "snapshots": [str(path) for path in plan.snapshots],
        "left": [str(path) for path in plan.left],
        "freed": repaired.nbytes if repaired is not None else None,
    }


def show_damage(found: Verification, owners: Owners, root: Path, scope: Scope, *, remembered: bool) -> None:
    """What was checked and found, for people; whether a pass that was cut short is `remembered` says how to go on."""
    packs = format_count(found.packs, "pack")
    if not found.complete:
        packs = f"{found.packs:,} of {format_count(found.packs_in_store, 'pack')}"
    rate = f" ({format_size(int(found.nbytes / found.seconds))}/s)" if found.seconds > 1 else ""
    took = f"{format_size(found.nbytes)} in {format_duration(found.seconds)}{rate}"
    verdict = Span("no damage", "bold green") if found.clean else Span(_count(found), "bold red")
    _show_each(found, owners, root)
    output.line([f"checked {packs}, {format_count(found.entries, 'entry')}, {took}: ", verdict])
    if not found.clean:
        output.hint(
            "look at the disk's health first; a build makes the entries again, "
            "and `precook verify --repair` shows what a repair would drop"
        )
    elif not found.finished:
        going_on = "the next run with the same options goes on here" if remembered else "the next run begins anew"
        output.hint(f"not all packs were looked at; {going_on}")
    elif not found.complete and scope.subset[1] > 1:
        part, parts = scope.subset
        output.hint(f"this was one part; `precook verify --subset {part % parts + 1}/{parts}` checks the next")


def _show_each(found: Verification, owners: Owners, root: Path) -> None:
    """Damage under the file it was found in."""
    for pack, group in groupby(found.damage, key=lambda damage: damage.pack):
        output.line(Span(str(pack.relative_to(root) if pack.is_relative_to(root) else pack), "bold"), whole=True)
        for damage in group:
            output.line(_damage_line(damage))
            for line in _owner_lines(_owners_of(damage, owners)):
                output.line(Span(f"    {line}", "dim"))
        output.line()


def _damage_line(damage: Damage) -> Line:
    what = (
        f"entry {damage.key.hex[:16]}" if damage.key else f"whole {'snapshot' if _is_snapshot(damage.pack) else 'pack'}"
    )
    where = f"  at byte {damage.offset:,}" if damage.offset is not None else ""
    return [f"  {what}{where}  ", Span(damage.reason, "red")]


def _owners_of(damage: Damage, owners: Owners) -> list[Owner]:
    return owners.get(damage.key.bytes, []) if damage.key is not None else []


def _owner_lines(owners: list[Owner]) -> list[str]:
    """Who needs an entry: the first few, and how many more."""
    lines = [_owner_line(owner) for owner in owners[:_FEW]]
    if len(owners) > _FEW:
        lines.append(f"and {format_count(len(owners) - _FEW, 'more sample')}")
    return lines


def _owner_line(owner: Owner) -> str:
    if owner.sample is None:
        return f"{owner.dataset}: {owner.encoder} of the empty prompt"
    sample = owner.path or f"sample {owner.sample[:16]}"
    return f"{owner.dataset}: {owner.encoder} of {sample} ({owner.concept})"


def _count(found: Verification) -> str:
    entries = sum(damage.key is not None for damage in found.damage)
    files = {damage.pack for damage in found.damage if damage.key is None}
    snapshots = sum(map(_is_snapshot, files))
    counts = ((len(files) - snapshots, "damaged pack"), (snapshots, "damaged snapshot"), (entries, "damaged entry"))
    return ", ".join(format_count(number, noun) for number, noun in counts if number)


def _is_snapshot(path: Path) -> bool:
    return path.parent.parent.name == "snapshots"


def show_repair(plan: RepairPlan, repaired: Repaired | None) -> None:
    """What a repair drops or has dropped, for people."""
    removed = sum(bool(wreck.reason) for wreck in plan.wrecks)
    parts = [
        (len(plan.losses), "entry", "to be made again"),
        (len(plan.wrecks) - removed, "pack", "written anew without them"),
        (removed, "pack", "removed"),
        (len(plan.snapshots), "snapshot", "removed"),
    ]
    told = ", ".join(f"{format_count(number, noun)} {what}" for number, noun, what in parts if number)
    output.line([Span("repaired: " if repaired else "a repair: ", "bold"), told or "nothing to drop"])
    datasets = Counter(dataset for loss in plan.losses for dataset in {owner.dataset for owner in loss.owners})
    for dataset, number in sorted(datasets.items()):
        output.line(f"  {dataset} needs {number:,} of them")
    for path in plan.left:
        output.tell(f"{path.parent.name}: its latest snapshot is damaged; the next build writes a new one")
    if repaired is None:
        output.hint("nothing was changed; --yes does it")
    elif plan.losses:
        output.hint("the next build makes what was dropped again")
