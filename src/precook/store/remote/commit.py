"""Commits to a bucket: the pack, then its leaf. An entry is committed when both are there.

A pack without a leaf is nobody's loss: `reindex` finds it and writes the leaf. Whatever is repeated is the same bytes
under the same name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from precook.errors import DamagedPackError
from precook.fs.system import calls
from precook.store import files
from precook.store.format.build import PackImage
from precook.store.remote.courier.client import CourierClient, NoObjectError
from precook.store.remote.layout import LEAVES, PACKS, NearLayout, leaf_object, pack_object, read_leaf, read_pack
from precook.store.remote.leaves import BucketHome, keep_head, read_head

_LEFT_SECONDS = 86_400.0
"""After so long a pack in the outbox, or one that is not here whole, is what somebody left who died."""


class Sender:
    """Brings packs to a bucket."""

    def __init__(self, layout: NearLayout, courier: CourierClient, home: BucketHome) -> None:
        self._layout = layout
        self._courier = courier
        self._home = home

    def send(self, image: PackImage) -> None:
        """Make a pack durable in the bucket; its file stays here as what was fetched would."""
        # Equal entries make an equal pack: another push may be sending it just now, or have died doing so.
        path = self._layout.outbox / f"{image.id}.{secrets.token_hex(8)}.safetensors"
        try:
            with files.explained(self._layout.root):
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = calls.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | calls.O_CLOEXEC, 0o600)
                try:
                    # Not synced: it is durable when the bucket says so, and what a crash leaves of it is never used.
                    files.write_all(descriptor, [image.head, *image.body])
                finally:
                    os.close(descriptor)
            self.send_file(image.id, path, image.head)
            with files.explained(self._layout.root):
                near = self._layout.pack(image.id)
                near.parent.mkdir(parents=True, exist_ok=True)
                path.rename(near)
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def send_file(self, pack: str, path: Path, head: bytes) -> None:
        """The same for a pack that is a file, which stays where it is."""
        self._courier.put(pack_object(pack), path)
        self._courier.put(leaf_object(pack), head)
        keep_head(self._layout, pack, head)
        self._home.note_sent(pack)

    def adopt(self) -> int:
        """Write the leaves of packs that have none, and note leaves whose packs are lost; how many were written."""
        # Leaves first: one that is written between the two lists must not look like that of a lost pack.
        known = {pack for item in self._courier.list(LEAVES) if (pack := read_leaf(item.name)) is not None}
        packs = {pack for item in self._courier.list(PACKS) if (pack := read_pack(item.name)) is not None}
        self._home.note_packs(known, packs)
        adopted = 0
        for pack in sorted(packs - known):
            try:
                head = self._courier.pack_head(pack)
                read_head(head, pack, self._layout.pack(pack))
            except (NoObjectError, DamagedPackError):
                continue  # nothing can be read from it, and `verify` says so
            self._courier.put(leaf_object(pack), head)
            adopted += 1
        return adopted

    def sweep(self) -> None:
        """Remove what writers and couriers that died have left here."""
        for path in (*self._layout.outbox.glob("*"), *self._layout.packs.glob(f"*/*{files.PARTIAL}")):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_ctime > _LEFT_SECONDS:
                    path.unlink()
