"""Values of Parquet files: the bytes in the cells of a column, page by page.

Pages are taken apart here, strictly and one at a time: a picture costs its page, however large the file is. Unpacking
is pyarrow's, for those codecs that Parquet files are written with.
"""

from __future__ import annotations

import contextlib
import zlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from precook.fs.read import read_at
from precook.sources.parquet import Chunk, Leaf, ParquetFooter, TableFileError, most_unfolded
from precook.sources.thrift import I32, I64, STRUCT, Struct, ThriftError, read_struct
from precook.sources.thrift import field as value_of
from precook.units import format_size
from precook.values import Numbers

_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_SILENT = ("snappy", "gzip", "brotli", "lz4_raw")
"""Codecs of which pyarrow does not say that a page is shorter than it claims."""
_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
"""Types of pages."""
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_LENGTH, _RLE_DICTIONARY = 0, 2, 3, 6, 8
"""How values are written."""
_OF_DICTIONARY = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
_CRC, _IS_PACKED = 4, 7
"""Fields of a page's header that may be absent."""
_HEADER = 1 << 10
"""Bytes that are read for the header of a page; of those that are longer, more."""
_LARGEST_HEADER = 1 << 20
MAX_PAGE = 1 << 30
_WIDEST = 32


@dataclass(frozen=True, slots=True)
class _Page:
    """Where a page lies, and what its header says."""

    first: int
    """The first of its rows, from the beginning of its part of the file."""
    start: int
    kind: int
    size: int
    unfolded: int
    crc: int | None
    header: Struct

    @property
    def values(self) -> int:
        """How many there are, those that are null counted."""
        count: int = value_of(self.header, 1, I32)
        return count


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of a page: where each lies in some bytes, from and to; -1 for null."""

    content: bytes | None
    """None where they lie in the dictionary, which may be large and is kept once."""
    places: Numbers

    @property
    def nbytes(self) -> int:
        return len(self.content or b"") + self.places.nbytes


@dataclass(slots=True)
class _Part:
    """The pages of a column in one part of the file, found at the first question for one."""

    count: int
    """Of values, those that are null counted."""
    chunk: Chunk
    pages: list[_Page] | None = None
    dictionary: _Page | None = None

    def find_pages(self, descriptor: int) -> list[_Page]:
        """The pages of data; only headers are read, and those once."""
        if self.pages is None:
            self.pages, self.dictionary = _find_pages(descriptor, self)
        return self.pages


Recall = Callable[[object, Callable[[], Any]], Any]
"""What was made under a name, kept or made now: a cache of pages."""


class ParquetCells:
    """Bytes in the cells of a column of one file; pages are taken apart one at a time. For one thread at a time."""

    def __init__(self, footer: ParquetFooter, leaf: Leaf) -> None:
        self._leaf = leaf
        self._parts = [_Part(value_of(chunk.meta, 5, I64), chunk) for _, chunk in footer.chunks(leaf)]
        self._starts = np.cumsum([0, *(part.count for part in self._parts)])[:-1].tolist()

    def read(self, descriptor: int, row: int, recall: Recall) -> bytes | None:
        """What stands in a cell of a column that is no list; None where it is null."""
        number = bisect_right(self._starts, row) - 1
        part = self._parts[number]
        row -= self._starts[number]
        pages = part.find_pages(descriptor)
        place = bisect_right(pages, row, key=lambda page: page.first) - 1
        page = pages[place]
        values: _Values = recall((number, place), lambda: self._decode(descriptor, part, page, number, recall))
        start, end = values.places[row - page.first].tolist()
        return None if start < 0 else self._content(descriptor, part, values, number, recall)[start:end]

    def read_all(self, descriptor: int, most: int) -> list[bytes | None]:
        """What stands in all cells, where that is no more than so many bytes."""
        cells: list[bytes | None] = []
        for number, part in enumerate(self._parts):
            kept: dict[object, Any] = {}

            def recall(name: object, make: Callable[[], Any], kept: dict[object, Any] = kept) -> Any:
                return kept[name] if name in kept else kept.setdefault(name, make())

            for page in part.find_pages(descriptor):
                values = self._decode(descriptor, part, page, number, recall)
                starts, ends = values.places.T
                most -= int((ends - starts).sum())
                if most < 0:
                    raise TableFileError("its texts are very much more than the file")
                content = self._content(descriptor, part, values, number, recall)
                cells += [
                    None if start < 0 else content[start:end]
                    for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
                ]
        return cells

    def count_bytes(self, descriptor: int) -> int | None:
        """About how many bytes all values have once they are written out; None where that is not known.

        Values of a dictionary may stand in the column any number of times; others are there as often as they are shown.
        """
        total = 0
        for part in self._parts:
            lengths = None
            for page in part.find_pages(descriptor):
                encoding = _of_page(page, 2 if page.kind == _DATA else 4)
                if encoding in (_PLAIN, _DELTA_LENGTH):
                    total += page.unfolded
                elif encoding in _OF_DICTIONARY:
                    content, levels, _ = _unpack(descriptor, part, page, self._leaf)
                    if lengths is None:
                        starts, ends = _read_dictionary(descriptor, part).places.T
                        lengths = ends - starts
                    chosen = _chosen_values(content, int((levels == self._leaf.definition).sum()), len(lengths))
                    total += int(lengths[chosen].sum())
                else:
                    return None
        return total

    def _decode(self, descriptor: int, part: _Part, page: _Page, number: int, recall: Recall) -> _Values:
        content, levels, encoding = _unpack(descriptor, part, page, self._leaf)
        present = levels == self._leaf.definition
        count = int(present.sum())
        if encoding == _PLAIN:
            places = _plain(content, count)
        elif encoding in _OF_DICTIONARY:
            known = self._dictionary(descriptor, part, number, recall)
            places = known.places[_chosen_values(content, count, len(known.places))]
        else:
            raise TableFileError(f"cells in encoding {encoding}, which is not known here")
        where = np.full((len(levels), 2), -1, np.int64)
        where[present] = places
        return _Values(content if encoding == _PLAIN else None, where)

    @staticmethod
    def _dictionary(descriptor: int, part: _Part, number: int, recall: Recall) -> _Values:
        known: _Values = recall((number, None), lambda: _read_dictionary(descriptor, part))
        return known

    def _content(self, descriptor: int, part: _Part, values: _Values, number: int, recall: Recall) -> bytes:
        """The bytes that values lie in."""
        if values.content is None:
            return self._dictionary(descriptor, part, number, recall).content or b""
        return values.content


def _find_pages(descriptor: int, part: _Part) -> tuple[list[_Page], _Page | None]:
    """The pages of data, and of the dictionary: only their headers are read."""
    pages: list[_Page] = []
    dictionary = None
    place, end, row = part.chunk.start, part.chunk.start + part.chunk.size, 0
    while place < end and row < part.count:
        page = _read_header(descriptor, place, end, row)
        if page.kind == _DICTIONARY and dictionary is None and not pages:
            dictionary = page
        elif page.kind in (_DATA, _DATA_2):
            if not 0 <= page.values <= part.count - row:
                raise TableFileError("a page claims more values than there are")
            if page.values:
                pages.append(page)
            row += page.values
        place = page.start + page.size
    if row != part.count:
        raise TableFileError("its pages have other values than its footer says")
    return pages, dictionary


def _read_header(descriptor: int, place: int, end: int, row: int) -> _Page:
    length = _HEADER
    while True:
        data = read_at(descriptor, place, min(length, end - place))
        try:
            header, used = read_struct(data)
            kind, unfolded, size = (value_of(header, number, I32) for number in (1, 2, 3))
            crc = value_of(header, _CRC, I32, 0) & 0xFFFFFFFF if _CRC in header else None
            number = {_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}.get(kind)
            inner = {} if number is None else value_of(header, number, STRUCT)
            page = _Page(row, place + used, kind, size, unfolded, crc, inner)
            if number is not None:
                value_of(inner, 1, I32)
            break
        except ThriftError as error:
            if length >= min(_LARGEST_HEADER, end - place):
                raise TableFileError(f"the header of a page cannot be read: {error}") from None
            length *= 32
    if min(size, unfolded) < 0 or page.start + size > end:
        raise TableFileError("a page lies outside of its column")
    if unfolded > MAX_PAGE or unfolded > most_unfolded(size):
        claims = f"a page of {format_size(size)} claims {format_size(unfolded)}"
        raise TableFileError(f"{claims}: write it again in smaller parts")
    return page


def _unpack(descriptor: int, part: _Part, page: _Page, leaf: Leaf) -> tuple[bytes, Numbers, int]:
    """What follows the levels of a page of data, the level of each value, and how values are written."""
    data = _read_page(descriptor, page)
    width = leaf.definition.bit_length()
    levels = np.zeros(page.values, np.int64)
    if page.kind == _DATA:
        data = _decompressed(part, data, page.unfolded)
        for is_there, number in ((leaf.repetition, 4), (leaf.definition, 3)):
            if is_there:
                length = int.from_bytes(data[:4], "little")
                if _of_page(page, number) != _RLE or 4 + length > len(data):
                    raise TableFileError("the levels of a page cannot be read")
                if number == 3:  # noqa: PLR2004 - of those of repetition nothing is to be known
                    levels = _hybrid(data[4 : 4 + length], width, page.values)
                data = data[4 + length :]
        return data, levels, _of_page(page, 2)
    defined, repeated = _of_page(page, 5), _of_page(page, 6)
    if min(defined, repeated) < 0 or defined + repeated > min(page.size, page.unfolded):
        raise TableFileError("the levels of a page cannot be read")
    levels = _hybrid(data[repeated : repeated + defined], width, page.values)
    data = data[repeated + defined :]
    if _IS_PACKED not in page.header or page.header[_IS_PACKED][1]:
        data = _decompressed(part, data, page.unfolded - defined - repeated)
    return data, levels, _of_page(page, 4)


def _of_page(page: _Page, number: int) -> int:
    """A number in the header of a page."""
    try:
        value: int = value_of(page.header, number, I32)
    except ThriftError as error:
        raise TableFileError(f"the header of a page cannot be read: {error}") from None
    return value


def _read_dictionary(descriptor: int, part: _Part) -> _Values:
    page = part.dictionary
    if page is None or _of_page(page, 2) not in (_PLAIN, _PLAIN_DICTIONARY):
        raise TableFileError("a page names a dictionary that is not there")
    content = _decompressed(part, _read_page(descriptor, page), page.unfolded)
    return _Values(content, _plain(content, page.values))


def _chosen_values(content: bytes, count: int, known: int) -> Numbers:
    """Which values of a dictionary of so many stand in a page."""
    chosen = _hybrid(content[1:], content[0] if content else 0, count)
    if count and int(chosen.max()) >= known:
        raise TableFileError("a page names a value that its dictionary does not have")
    return chosen


def _read_page(descriptor: int, page: _Page) -> bytes:
    data = read_at(descriptor, page.start, page.size)
    if page.crc is not None and zlib.crc32(data) != page.crc:
        raise TableFileError("a page is damaged: its checksum is another one")
    return data


def _decompressed(part: _Part, data: bytes, size: int) -> bytes:
    import pyarrow  # noqa: PLC0415, ICN001 - an extra, and slow to import

    codec = value_of(part.chunk.meta, 4, I32)
    if codec not in _CODECS:
        raise TableFileError(f"packed by codec {codec}, which is not known here")
    name = _CODECS[codec]
    try:
        unfolded = data if name is None else pyarrow.decompress(data, size, codec=name, asbytes=True) if size else b""
    except (pyarrow.ArrowException, OSError, MemoryError) as error:
        raise TableFileError(f"a page is damaged: {error}") from None
    if len(unfolded) != size or (name in _SILENT and size and _fits(name, data, size - 1)):
        raise TableFileError("a page is damaged: it has another size than it says")
    return bytes(unfolded)


def _fits(name: str, data: bytes, size: int) -> bool:
    """Whether a page unpacks to so many bytes at most: pyarrow leaves whatever is in memory behind fewer of them."""
    import pyarrow  # noqa: PLC0415, ICN001 - an extra, and slow to import

    if name == "gzip":
        unpacker = zlib.decompressobj(wbits=47)
        with contextlib.suppress(zlib.error):
            return len(unpacker.decompress(data, size + 1)) <= size
        return False
    try:
        pyarrow.decompress(data, size, codec=name, asbytes=True)
    except (pyarrow.ArrowException, OSError, MemoryError):
        return False
    return True


def _plain(content: bytes, count: int) -> Numbers:
    """Where values lie that are written one after the other, each behind its length."""
    if not 0 <= 4 * count <= len(content):
        raise TableFileError("a page claims more values than it has")
    places = np.zeros((count, 2), np.int64)
    end = 0
    for number in range(count):
        start = end + 4
        end = start + int.from_bytes(content[end:start], "little")
        if end > len(content):
            raise TableFileError("a value is longer than its page")
        places[number] = start, end
    return places


def _hybrid(data: bytes, width: int, count: int) -> Numbers:
    """Small numbers, of so many bits each, as runs of equal ones and packed in groups of eight."""
    if width > _WIDEST:
        raise TableFileError(f"numbers of {width} bits")
    values = np.zeros(count, np.int64)
    place = done = 0
    step = (width + 7) // 8
    while done < count and width:
        head = shift = 0
        while True:
            if place >= len(data) or shift > 7 * 5:
                raise TableFileError("numbers end in the middle")
            head |= (data[place] & 0x7F) << shift
            shift += 7
            place += 1
            if data[place - 1] < 0x80:  # noqa: PLR2004 - the last byte of a number
                break
        if head & 1:
            groups = min(head >> 1, -(-(count - done) // 8))
            packed = np.frombuffer(data[place : place + groups * width], np.uint8)
            if len(packed) < groups * width:
                raise TableFileError("numbers end in the middle")
            bits = np.unpackbits(packed, bitorder="little").reshape(-1, width).astype(np.int64)
            some = (bits << np.arange(width))[: count - done].sum(axis=1)
            values[done : done + len(some)] = some
            done += len(some)
            place += (head >> 1) * width
        else:
            run = min(head >> 1, count - done)
            values[done : done + run] = int.from_bytes(data[place : place + step], "little")
            done += run
            place += step
    return values
