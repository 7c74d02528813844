"""Packs, snapshots and archives as somebody would make them who knows the format: ids, checksums and digests fit."""

from __future__ import annotations

import dataclasses
import io
import json
import struct
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from precook.maintain.archive import BLOCK, END, ArchiveReader, Manifest, Member, make_header, manifest_name, padding
from precook.store.format.build import build_pack, make_entry
from precook.store.format.header import header_length
from precook.store.format.pack import Head, checksum, pack_id, parse_head, parse_pack_header
from precook.store.tree import take_apart

ROWS = 64
"""Rows of a pack that get another checksum."""


def read_head(pack: bytes) -> Head:
    """What the head of a pack says; `HeaderError` where it is none."""
    header = parse_pack_header(pack[: header_length(pack)])
    return parse_head(header, pack[: header.length + header.directory])


def name_of(pack: bytes) -> str:
    """The id of a pack; any name where it has no header."""
    try:
        header = parse_pack_header(pack[: header_length(pack)])
    except ValueError:
        return pack_id(pack)
    return pack_id(pack[: header.length + header.directory])


def with_metadata(pack: bytes, change: Callable[[Any], Any]) -> bytes:
    """A pack of which precook's metadata is changed."""
    length = header_length(pack)
    form = json.loads(pack[8:length])
    form["__metadata__"]["precook"] = json.dumps(change(json.loads(form["__metadata__"]["precook"])))
    text = json.dumps(form).encode()
    return struct.pack("<Q", len(text)) + text + pack[length:]


def signed(pack: bytes) -> bytes:
    """A pack whose rows have the checksums of what they are; one whose head is refused stays as it is."""
    try:
        head = read_head(pack)
    except ValueError:
        return pack
    changed = bytearray(pack)
    length = header_length(pack)
    starts = {column.name: length + column.start for column in parse_pack_header(pack[:length]).columns}
    for number, table in enumerate(head.tables):
        for row in range(min(table.rows, ROWS)):
            spans = [leaf.span(row) for leaf in table.leaves]
            if any(begin + size > len(pack) for begin, size in spans):
                continue
            start = starts[f"t{number}/checksums"] + 16 * row
            changed[start : start + 16] = checksum(
                key=table.keys[row].tobytes(),
                recipe=head.recipe_digests[table.recipes.item(row)],
                skeleton=table.skeleton,
                values=table.values.row(row),
                labels=table.labels.row(row),
                leaves=[
                    (leaf.row_shape(row), (pack[begin : begin + size],))
                    for leaf, (begin, size) in zip(table.leaves, spans, strict=True)
                ],
            )
    return bytes(changed)


def pack_of(*trees: Any) -> bytes:
    """A pack with these trees, under keys that count them."""
    entries = [make_entry(bytes([number]) * 32, take_apart(tree)) for number, tree in enumerate(trees, 1)]
    image = build_pack(entries, created=1, salt="forged")
    return b"".join([image.head, *map(bytes, image.body)])


def take_archive(archive: bytes) -> tuple[Manifest, list[bytes]]:
    """The manifest of an archive and its members, the snapshot first."""
    reader = ArchiveReader(io.BytesIO(archive), "archive")
    manifest, _ = reader.read_manifest()
    members = []
    for member in manifest.members:
        reader.begin_member(member)
        members.append(b"".join(reader.pieces(member.nbytes)))
        reader.end_member(member.nbytes)
    return manifest, members


def make_archive(
    manifest: Manifest, members: list[bytes], change: Callable[[bytes], bytes] = lambda text: text
) -> bytes:
    """An archive of these files with a manifest that fits them; `change` alters its text before it is signed."""
    named = []
    for number, content in enumerate(members):
        try:
            rows = read_head(content).rows
        except ValueError:
            rows = 1
        folder = "packs" if number else "snapshot"
        named.append(Member(name_of(content), folder, len(content), rows, blake3(content).hexdigest()))
    text = change(dataclasses.replace(manifest, members=tuple(named)).to_bytes())
    out = [make_header(manifest_name(text), len(text)), text, bytes(padding(len(text)))]
    for member, content in zip(named, members, strict=True):
        out += [make_header(member.name, member.nbytes), content, bytes(padding(member.nbytes))]
    assert sum(map(len, out)) % BLOCK == 0
    return b"".join([*out, END])
