"""Names of objects in a bucket, and their patterns; pure. docs/reference/bucket.md has them word for word.

Nothing that is listed becomes a path unless it matches its pattern.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from precook.store.layout import Layout
from precook.store.snapshot_content import is_dataset

MARKER = "store.toml"
PACKS = "packs/"
LEAVES = "index/leaves/"
SNAPSHOTS = "snapshots/"
_PACK = re.compile(r"packs/([0-9a-f]{2})/([0-9a-f]{64})\.safetensors")
_LEAF = re.compile(r"index/leaves/([0-9]{10})-([0-9a-f]{64})")
_SNAPSHOT = re.compile(r"snapshots/([^/]+)/([0-9]{8}-[0-9a-f]{64}\.(?:safetensors|pin))")


def pack_object(pack_id: str) -> str:
    """The object of a pack."""
    return f"packs/{pack_id[:2]}/{pack_id}.safetensors"


def leaf_object(pack_id: str, seconds: float | None = None) -> str:
    """The object of a pack's leaf: its hour is for whoever lists leaves in order, and decides nothing."""
    hour = time.strftime("%Y%m%d%H", time.gmtime(seconds))
    return f"{LEAVES}{hour}-{pack_id}"


def snapshot_object(dataset: str, name: str) -> str:
    """The object of a snapshot, or of the pin beside it."""
    return f"{SNAPSHOTS}{dataset}/{name}"


def read_pack(name: str) -> str | None:
    """The id of the pack that an object is; None where it is none."""
    match = _PACK.fullmatch(name)
    return match[2] if match is not None and match[2].startswith(match[1]) else None


def read_leaf(name: str) -> str | None:
    """The id of the pack whose leaf an object is; None where it is none."""
    match = _LEAF.fullmatch(name)
    return match[2] if match is not None else None


def read_snapshot_name(name: str) -> tuple[str, str] | None:
    """The dataset and the file's name of a snapshot, or of the pin beside it; None for anything else."""
    match = _SNAPSHOT.fullmatch(name)
    return (match[1], match[2]) if match is not None and is_dataset(match[1]) else None


@dataclass(frozen=True, slots=True)
class NearLayout(Layout):
    """What this machine keeps of a remote store: names inside its folder."""

    @property
    def heads(self) -> Path:
        """Where the heads of packs lie, as the leaves have them."""
        return self.root / "heads"

    @property
    def outbox(self) -> Path:
        """Where packs lie that are on their way to the bucket."""
        return self.root / "outbox"

    def head(self, pack_id: str) -> Path:
        """The file of a pack's head; its time is that of the leaf in the bucket."""
        return self.heads / pack_id[:2] / pack_id

    def written(self, pack_id: str) -> Path:
        """The file whose time says when a pack was written."""
        return self.head(pack_id)
