"""The manifest of an archive: what is in it, so that a reader knows the bounds before it reads on.

It is the first member. Its lines have a fixed width, and are filled in one by one while the archive is written: so an
export that was interrupted finds there what it had finished. Its own digest is part of its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from blake3 import blake3

from precook.errors import printable
from precook.identity.canonical import dump_json
from precook.maintain.tar import BLOCK
from precook.store.format.header import HeaderError, load_json
from precook.store.format.pack import FORMAT as STORE_FORMAT
from precook.store.snapshot import is_dataset

FORMAT = 1
MAX_MEMBERS = 100_000
MAX_BYTES = 1 << 50
_SLOT = 256
"""Bytes of a member's line."""
_END = 128
"""Bytes of the end of the manifest."""
MAX_MANIFEST = _SLOT * (MAX_MEMBERS + 64)
_MEMBER = re.compile(r"(snapshot|packs)/([0-9a-f]{64})\.safetensors")
_NAME = re.compile(r"manifest-([0-9a-f]{64})\.json")
_HEX = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"format", "store", "dataset", "samples", "keep", "contents", "members", "entries", "bytes"}


class ManifestError(ValueError):
    """Bytes that are no manifest; the message says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive: the snapshot or a pack."""

    pack: str
    """Its id."""
    folder: str
    """`snapshot` or `packs`."""
    nbytes: int
    entries: int
    digest: str
    """BLAKE3 of the file."""

    @property
    def name(self) -> str:
        """Its name in the archive."""
        return f"{self.folder}/{self.pack}.safetensors"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds: one snapshot, and the packs with the entries that it names."""

    dataset: str
    samples: int
    keep: tuple[str, ...]
    """What it holds beyond what training needs: `captions`, `paths`."""
    contents: str
    """A digest of the snapshot and of the keys, pack by pack: equal ones, equal archives."""
    members: tuple[Member, ...]
    """The snapshot first."""

    @property
    def entries(self) -> int:
        """Entries in all packs."""
        return sum(member.entries for member in self.members[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all members."""
        return sum(member.nbytes for member in self.members)


class Sheet:
    """The manifest's bytes while its lines are filled in: where each stands, counted from the manifest's start."""

    def __init__(self, manifest: Manifest, members: int) -> None:
        fields = {
            "format": FORMAT,
            "store": STORE_FORMAT,
            "dataset": manifest.dataset,
            "samples": manifest.samples,
            "keep": list(manifest.keep),
            "contents": manifest.contents,
        }
        self.start = dump_json(fields)[:-1] + b',"members":[\n'
        self.members = members
        used = len(self.start) + _SLOT * members + _END
        self.nbytes = used + -used % BLOCK

    def slot(self, number: int) -> int:
        """Where the line of a member stands."""
        return len(self.start) + _SLOT * number

    def line(self, number: int, member: Member) -> bytes:
        """The line of a member."""
        form = {"name": member.name, "bytes": member.nbytes, "entries": member.entries, "blake3": member.digest}
        return (dump_json(form) + (b"," if number < self.members - 1 else b"")).ljust(_SLOT - 1) + b"\n"

    def read_line(self, number: int, line: bytes) -> Member | None:
        """The member whose line this is; None where nothing was filled in, or not all of it."""
        try:
            member = _read_member(json.loads(line.rstrip(b" \n\0,")))
        except (ValueError, RecursionError):
            return None
        return member if self.line(number, member) == line else None

    def whole(self, manifest: Manifest) -> bytes:
        """The finished manifest."""
        lines = b"".join(self.line(number, member) for number, member in enumerate(manifest.members))
        end = f'],"entries":{manifest.entries},"bytes":{manifest.nbytes}}}'.encode()
        return (self.start + lines + end).ljust(self.nbytes - 1) + b"\n"


def manifest_name(content: bytes) -> str:
    """The name of the member that holds this manifest."""
    return f"manifest-{blake3(content).hexdigest()}.json"


def manifest_digest(name: str) -> str:
    """The digest in a manifest's name; `ManifestError` where it is no such name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ManifestError("not the name of a manifest")
    return match[1]


def read_manifest(content: bytes) -> Manifest:
    """The manifest with these bytes; `ManifestError` for anything doubtful, whoever made it."""
    try:
        form = load_json(content)
    except HeaderError as error:
        _refuse(str(error))
    if not isinstance(form, dict) or type(form.get("format")) is not int:
        _refuse("it is not an object with a format")
    if form["format"] > FORMAT or form.get("store") != STORE_FORMAT:
        _refuse("it was made by another version of precook")
    if set(form) != _FIELDS or not isinstance(form["members"], list):
        _refuse("it lacks a field or has one too many")
    if not 1 <= len(form["members"]) <= MAX_MEMBERS:
        _refuse(f"it names {len(form['members']):,} members; from 1 to {MAX_MEMBERS:,} are accepted")
    if not isinstance(form["dataset"], str) or not is_dataset(form["dataset"]):
        _refuse(f"{form['dataset']!a:.80} is no name of a dataset")
    if form["keep"] not in ([], ["captions"], ["paths"], ["captions", "paths"]):
        _refuse("it keeps something unknown")
    if not isinstance(form["contents"], str) or _HEX.fullmatch(form["contents"]) is None:
        _refuse("it has no digest of its contents")
    members = tuple(_read_member(one) for one in form["members"])
    _check_members(members)
    manifest = Manifest(form["dataset"], _count(form["samples"]), tuple(form["keep"]), form["contents"], members)
    if (manifest.entries, manifest.nbytes) != (form["entries"], form["bytes"]):
        _refuse("its sums are wrong")
    if manifest.nbytes > MAX_BYTES:
        _refuse(f"it announces {manifest.nbytes:,} bytes; at most {MAX_BYTES:,} are accepted")
    return manifest


def _check_members(members: Sequence[Member]) -> None:
    if members[0].folder != "snapshot" or any(member.folder != "packs" for member in members[1:]):
        _refuse("it does not name one snapshot and then packs")
    if len({member.pack for member in members}) != len(members):
        _refuse("it names a member twice")


def _read_member(form: Any) -> Member:
    if not isinstance(form, dict) or set(form) != {"name", "bytes", "entries", "blake3"}:
        _refuse("a member lacks a field or has one too many")
    name, digest = form["name"], form["blake3"]
    match = _MEMBER.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        _refuse(f"it names a member {printable(name)[:100]!r}")
    if not isinstance(digest, str) or _HEX.fullmatch(digest) is None:
        _refuse(f"{name} has no digest")
    return Member(match[2], match[1], _count(form["bytes"]), _count(form["entries"]), digest)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_BYTES:
        _refuse(f"{value!a:.40} is not a count")
    return value


def _refuse(reason: str) -> NoReturn:
    raise ManifestError(f"its manifest cannot be accepted: {reason}")
