"""Verification: every byte of every pack against what the store promised."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors

from precook.errors import DamagedPackError
from precook.report import Reporter
from precook.store.layout import Layout, list_packs
from precook.store.packfile import Guard, PackFile, damage_reason
from precook.values import Key


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it was put."""

    pack: Path
    key: Key | None
    """The entry, or None where the pack as a whole is damaged."""
    offset: int | None
    """Where its bytes begin in the pack."""
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What was checked and what was found."""

    packs: int
    packs_in_store: int
    entries: int
    nbytes: int
    seconds: float
    damage: tuple[Damage, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing damaged was found."""
        return not self.damage

    @property
    def complete(self) -> bool:
        """Whether every pack of the store was looked at."""
        return self.packs == self.packs_in_store


def verify_packs(
    layout: Layout, *, subset: tuple[int, int], max_seconds: float | None, report: Reporter
) -> Verification:
    """Check the k-th of n parts of all packs, for so many seconds at most."""
    part, parts = subset
    if not 1 <= part <= parts:
        message = f"subset {part}/{parts}: give k/n with k from 1 to n"
        raise ValueError(message)
    started = time.monotonic()
    every = sorted(list_packs(layout)[0])
    chosen = [name for name in every if int(name[:8], 16) % parts == part - 1]
    if max_seconds is not None:
        # Whoever stops early starts elsewhere next time, so that repeated short checks cover everything.
        random.shuffle(chosen)
    damage: list[Damage] = []
    packs = entries = nbytes = 0
    with report.task("verify", total=len(chosen), unit="packs") as task:
        for name in chosen:
            if max_seconds is not None and time.monotonic() - started > max_seconds:
                break
            path = layout.pack(name)
            try:
                pack = PackFile(path, name, Guard())
            except FileNotFoundError:
                continue  # removed since it was listed
            except (DamagedPackError, OSError) as error:
                damage.append(Damage(path, None, None, damage_reason(error, path)))
            else:
                damage += _check_pack(pack)
                entries += pack.head.rows
                nbytes += pack.nbytes
            packs += 1
            task.advance()
    return Verification(packs, len(every), entries, nbytes, time.monotonic() - started, tuple(damage))


def _check_pack(pack: PackFile) -> Iterator[Damage]:
    if pack.nbytes != pack.head.file_bytes:
        reason = f"the file has {pack.nbytes} bytes and should have {pack.head.file_bytes}"
        yield Damage(pack.path, None, None, reason)
    else:
        try:
            # A second opinion: the format's own library has to agree that this is a safetensors file.
            with safetensors.safe_open(pack.path, framework="numpy"):
                pass
        except (safetensors.SafetensorError, OSError) as error:
            yield Damage(pack.path, None, None, f"safetensors refuses it: {error}")
    try:
        with pack.open() as descriptor:
            for table in pack.tables:
                for row, reason in table.damage(descriptor):
                    offset = table.table.leaves[0].span(row)[0] if table.table.leaves else None
                    yield Damage(pack.path, Key(table.key(row)), offset, reason)
    except FileNotFoundError:
        return  # removed since it was opened
