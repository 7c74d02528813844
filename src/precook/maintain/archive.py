"""Archives: written and read member by member, in one form. docs/guides/share.md describes it.

An archive from somewhere else is never given to a general tar reader, which would follow long names, sparse maps and
extended headers before anyone could object. A header is accepted only if it is, byte for byte, the one we would write.

The manifest is the first member, so a reader knows the bounds before it reads on, and its own digest is part of its
name. Every member has a line of fixed width in it: an export fills them in one by one while it writes the archive, and
after an interruption finds there what it had finished.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from blake3 import blake3

from precook.errors import BundleError, printable
from precook.identity.canonical import dump_json
from precook.store import files
from precook.store.format.build import PackImage
from precook.store.format.header import HeaderError, load_json
from precook.store.format.pack import FORMAT as STORE_FORMAT
from precook.store.snapshot_content import is_dataset

BLOCK = 512
END = bytes(2 * BLOCK)
"""What follows the last member."""
FORMAT = 1
MAX_MEMBERS = 100_000
MAX_BYTES = 1 << 50
LINE = 256
"""Bytes of a member's line in the manifest."""
_TAIL = 128
"""Bytes that are set aside for what follows the lines."""
MAX_MANIFEST = LINE * (MAX_MEMBERS + 64)
_PIECE = 1 << 20
"""Bytes that are read at a time."""

_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.DIRTYPE: "a folder",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.XGLTYPE: "an extended header",
    tarfile.XHDTYPE: "an extended header",
    tarfile.GNUTYPE_LONGNAME: "a long name",
    tarfile.GNUTYPE_LONGLINK: "a long name",
}
_MEMBER = re.compile(r"(snapshot|packs)/([0-9a-f]{64})\.safetensors")
_NAME = re.compile(r"manifest-([0-9a-f]{64})\.json")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"format", "store", "dataset", "samples", "keep", "contents", "members", "entries", "bytes"}


class ArchiveError(ValueError):
    """Bytes that are not of the form that we write; the message says why."""


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

    @property
    def stride(self) -> int:
        """Bytes that it takes in the archive, with its header and its padding."""
        return BLOCK + self.nbytes + padding(self.nbytes)

    def line(self, *, last: bool) -> bytes:
        """Its line in the manifest."""
        form = {"name": self.name, "bytes": self.nbytes, "entries": self.entries, "blake3": self.digest}
        return (dump_json(form) + (b"" if last else b",")).ljust(LINE - 1) + b"\n"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds: one snapshot, and the packs with the entries that it names."""

    dataset: str
    samples: int
    keep: tuple[str, ...]
    """What it holds beyond what training needs: `captions`, `paths`."""
    contents: str
    """A digest of the snapshot and of the keys, pack by pack: equal ones, equal archives."""
    members: tuple[Member, ...] = ()
    """The snapshot first."""

    @property
    def entries(self) -> int:
        """Entries in all packs."""
        return sum(member.entries for member in self.members[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all members."""
        return sum(member.nbytes for member in self.members)

    def start(self) -> bytes:
        """What stands before the lines of its members."""
        fields = {
            "format": FORMAT,
            "store": STORE_FORMAT,
            "dataset": self.dataset,
            "samples": self.samples,
            "keep": list(self.keep),
            "contents": self.contents,
        }
        return dump_json(fields)[:-1] + b',"members":[\n'

    def size(self, members: int) -> int:
        """Its size with so many members, padding included."""
        used = len(self.start()) + LINE * members + _TAIL
        return used + padding(used)

    def to_bytes(self) -> bytes:
        """The manifest as a file; padded with spaces to whole blocks."""
        last = len(self.members) - 1
        lines = [member.line(last=number == last) for number, member in enumerate(self.members)]
        tail = f'],"entries":{self.entries},"bytes":{self.nbytes}}}'.encode()
        return b"".join([self.start(), *lines, tail]).ljust(self.size(len(lines)) - 1) + b"\n"


def padding(size: int) -> int:
    """Zeros that follow a member of this size."""
    return -size % BLOCK


def make_header(name: str, size: int) -> bytes:
    """The tar header of a regular file: nobody's, of no particular time."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT, "ascii", "strict")


def read_header(block: bytes) -> tuple[str, int]:
    """Name and size of the member that a header announces; `ArchiveError` for anything that we do not write."""
    if not any(block):
        raise ArchiveError("ends before its last member")
    try:
        info = tarfile.TarInfo.frombuf(block, "ascii", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise ArchiveError("a header in it is not one that precook writes") from error
    if info.type in _KINDS:
        raise ArchiveError(f"its member {info.name[:100]!a} is {_KINDS[info.type]}, not a file")
    if make_header(info.name, info.size) != block:
        raise ArchiveError("a header in it is not one that precook writes")
    return info.name, info.size


def manifest_name(content: bytes) -> str:
    """The name of the member that holds this manifest."""
    return f"manifest-{blake3(content).hexdigest()}.json"


def manifest_digest(name: str) -> str:
    """The digest in a manifest's name; `ArchiveError` where it is no such name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ArchiveError("not the name of a manifest")
    return match[1]


def read_manifest(content: bytes) -> Manifest:
    """The manifest with these bytes; `ArchiveError` for anything doubtful, whoever made it."""
    form = _read_form(content)
    if not isinstance(form["dataset"], str) or not is_dataset(form["dataset"]):
        _refuse(f"{form['dataset']!a:.80} is no name of a dataset")
    if form["keep"] not in ([], ["captions"], ["paths"], ["captions", "paths"]):
        _refuse("it keeps something unknown")
    if not isinstance(form["contents"], str) or _DIGEST.fullmatch(form["contents"]) is None:
        _refuse("it has no digest of its contents")
    members = tuple(_read_member(member) for member in form["members"])
    if members[0].folder != "snapshot" or any(member.folder != "packs" for member in members[1:]):
        _refuse("it does not name one snapshot and then packs")
    if len({member.pack for member in members}) != len(members):
        _refuse("it names a member twice")
    manifest = Manifest(form["dataset"], _read_count(form["samples"]), tuple(form["keep"]), form["contents"], members)
    if (manifest.entries, manifest.nbytes) != (form["entries"], form["bytes"]):
        _refuse("its sums are wrong")
    if manifest.nbytes > MAX_BYTES:
        _refuse(f"it announces {manifest.nbytes:,} bytes; at most {MAX_BYTES:,} are accepted")
    return manifest


def _read_form(content: bytes) -> dict[str, Any]:
    """A manifest's fields, which are those that it should have; what they hold is not looked at yet."""
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
    return form


def read_line(line: bytes, *, last: bool) -> Member | None:
    """The member whose line this is; None where nothing was filled in, or not all of it."""
    try:
        member = _read_member(json.loads(line.rstrip(b" \n\0,")))
    except (ValueError, RecursionError):
        return None
    return member if member.line(last=last) == line else None


def _read_member(form: Any) -> Member:
    if not isinstance(form, dict) or set(form) != {"name", "bytes", "entries", "blake3"}:
        _refuse("a member lacks a field or has one too many")
    name, digest = form["name"], form["blake3"]
    match = _MEMBER.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        _refuse(f"it names a member {printable(name)[:100]!r}")
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        _refuse(f"{name} has no digest")
    return Member(match[2], match[1], _read_count(form["bytes"]), _read_count(form["entries"]), digest)


def _read_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_BYTES:
        _refuse(f"{value!a:.40} is not a count")
    return value


def _refuse(reason: str) -> NoReturn:
    raise ArchiveError(f"its manifest cannot be accepted: {reason}")


class ArchiveWriter:
    """Writes an archive whose number of members is known, or goes on with one.

    The header of the manifest is written last of all, because its name is a digest. Until then zeros stand there.
    """

    def __init__(self, descriptor: int, manifest: Manifest, count: int) -> None:
        self._descriptor = descriptor
        self._manifest = manifest
        self._count = count
        self._start = manifest.start()
        self._end = BLOCK + manifest.size(count)
        """Where the next member begins."""
        self.members: list[Member] = []
        """Members that are finished."""

    def resume(self) -> None:
        """Take over the members that an interrupted export of the same contents had finished."""
        if files.read_at(self._descriptor, len(self._start), BLOCK) == self._start:
            while len(self.members) < self._count and (member := self._read_next()) is not None:
                self._append(member)
        if self.members:
            os.ftruncate(self._descriptor, self._end)
        else:
            os.ftruncate(self._descriptor, 0)
            self._write(0, bytes(BLOCK), self._start)

    def add(self, image: PackImage, folder: str, entries: int) -> None:
        """Write a member, and its line when every byte of it is durable."""
        hasher = blake3()
        for buffer in (image.head, *image.body):
            hasher.update(memoryview(buffer))
        member = Member(image.id, folder, image.nbytes, entries, hasher.hexdigest())
        header = make_header(member.name, member.nbytes)
        self._write(self._end, header, image.head, *image.body, bytes(padding(member.nbytes)))
        files.sync_file(self._descriptor)
        self._write(self._line_offset, member.line(last=self._is_last))
        self._append(member)

    def finish(self) -> int:
        """Write the manifest and the archive's end: durable when it returns. The size of the archive."""
        content = dataclasses.replace(self._manifest, members=tuple(self.members)).to_bytes()
        self._write(self._end, END)
        self._write(0, make_header(manifest_name(content), len(content)), content)
        files.sync_file(self._descriptor)
        return self._end + len(END)

    @property
    def _line_offset(self) -> int:
        """Where the line of the next member stands."""
        return BLOCK + len(self._start) + LINE * len(self.members)

    @property
    def _is_last(self) -> bool:
        """Whether the next member is the last one."""
        return len(self.members) == self._count - 1

    def _append(self, member: Member) -> None:
        self.members.append(member)
        self._end += member.stride

    def _read_next(self) -> Member | None:
        """The next member if it is there, byte for byte: its line may be durable where its end is not."""
        member = read_line(files.read_at(self._descriptor, LINE, self._line_offset), last=self._is_last)
        if member is None or files.read_at(self._descriptor, BLOCK, self._end) != make_header(
            member.name, member.nbytes
        ):
            return None
        hasher = blake3()
        start = self._end + BLOCK
        for offset in range(start, start + member.nbytes, _PIECE):
            hasher.update(files.read_at(self._descriptor, min(_PIECE, start + member.nbytes - offset), offset))
        return member if hasher.hexdigest() == member.digest else None

    def _write(self, offset: int, *buffers: Any) -> None:
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        files.write_all(self._descriptor, buffers)


class EndedEarlyError(BundleError):
    """The archive stops before its end: cut off, or not all here yet."""

    hint = "get the rest of it and import it again: what was checked is kept for a week"

    def __init__(self, archive: str) -> None:
        super().__init__(archive, "ends early", hint=self.hint)


class ArchiveReader:
    """An archive as it is read: from the beginning to the end, once."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._seekable = stream.seekable()
        self._name = name

    def refuse(self, reason: str) -> BundleError:
        """The error for something that is wrong with the archive."""
        return BundleError(self._name, reason)

    def pieces(self, size: int) -> Iterator[bytes]:
        """Exactly so many bytes, some at a time: memory is taken for what is there, never for what is announced."""
        while size:
            piece = self._take(min(size, _PIECE))
            if not piece:
                raise EndedEarlyError(self._name)
            size -= len(piece)
            yield piece

    def skip(self, size: int) -> None:
        """Pass over so many bytes."""
        if self._seekable:
            # Beyond the end of a file that was cut off there is nothing to read: whoever reads on finds that out.
            self._stream.seek(size, os.SEEK_CUR)
        else:
            for _ in self.pieces(size):
                pass

    def read_manifest(self) -> tuple[Manifest, str]:
        """The manifest and its digest."""
        try:
            name, size = read_header(self._read(BLOCK))
            digest = manifest_digest(name)
        except ArchiveError as error:
            raise self.refuse("not an archive of precook") from error
        if size > MAX_MANIFEST:
            raise self.refuse(f"its manifest has {size:,} bytes; at most {MAX_MANIFEST:,} are accepted")
        content = self._read(size)
        if blake3(content).hexdigest() != digest:
            raise self.refuse("its manifest does not match its name")
        self.end_member(size)
        try:
            return read_manifest(content), digest
        except ArchiveError as error:
            raise self.refuse(str(error)) from error

    def begin_member(self, member: Member) -> None:
        """Read the header of the member that has to come next."""
        try:
            name, size = read_header(self._read(BLOCK))
        except ArchiveError as error:
            raise self.refuse(str(error)) from error
        if (name, size) != (member.name, member.nbytes):
            announced = f"{member.name} with {member.nbytes:,} bytes"
            raise self.refuse(f"it has a member {name!a} with {size:,} bytes where {announced} should come")

    def end_member(self, size: int) -> None:
        """Read the zeros that follow a member of this size."""
        if any(self._read(padding(size))):
            raise self.refuse("there is something between its members")

    def end(self) -> None:
        """Read the end, after which nothing may follow."""
        if self._read(len(END)) != END or self._take(1):
            raise self.refuse("something follows its last member")

    def _take(self, size: int) -> bytes:
        """At most so many bytes, none at the end."""
        try:
            return self._stream.read(size)
        except OSError as error:
            # Said about this read, and not about the archive: nobody has to get it again for that.
            raise files.read_error(Path(self._name), error) from error

    def _read(self, size: int) -> bytes:
        """Exactly so many bytes; few, by our own limits."""
        return b"".join(self.pieces(size))
