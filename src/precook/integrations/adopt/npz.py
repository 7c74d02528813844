"""Arrays in .npz files: their headers and their bytes, without numpy's own loader and its pickles.

A header is read by its one form, in which numpy writes it, and not evaluated as the Python that it also is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.integrations.zip_file import ZipReader

_SUFFIX = ".npy"
_LENGTHS = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}
"""Bytes of the header's length, by how an array of each version begins."""
_MAGIC = 8
_MAX_HEADER = 4096
_HEADER = re.compile(
    rb"\{'descr': '([^']{1,16})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,18}, ?){0,64}(?:[0-9]{1,18})?)\),? ?\} *\n"
)
_TYPE = re.compile(rb"[<>|=][?bBiufc][0-9]{0,2}")


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What an array is, without its elements."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    """Whether its first index runs fastest."""
    length: int
    """Bytes before its elements."""


class NpzFile:
    """The arrays of one file, each read when it is asked for; a `ValueError` says what cannot be read."""

    def __init__(self, path: Path) -> None:
        self._archive = ZipReader(path)
        self.names = tuple(
            name.removesuffix(_SUFFIX) for name in self._archive.names if name.endswith(_SUFFIX) and name != _SUFFIX
        )
        """The arrays there are."""

    def header(self, name: str) -> ArrayHeader:
        """An array's shape and type; its size is that of its elements."""
        member = f"{name}{_SUFFIX}"
        start = self._archive.read(member, _MAX_HEADER)
        digits = _LENGTHS.get(start[:_MAGIC])
        if digits is None:
            raise ValueError(f"{name} is no array, or one of an unknown version")
        begin = _MAGIC + digits
        length = begin + int.from_bytes(start[_MAGIC:begin], "little")
        match = _HEADER.fullmatch(start, begin, length)
        if match is None:
            raise ValueError(f"{name} has no header that numpy would write for an array of numbers")
        if match[1] == b"|O":
            raise ValueError(f"{name} holds Python objects, which only a pickle could make")
        if _TYPE.fullmatch(match[1]) is None:
            raise ValueError(f"{name} holds elements of type {match[1].decode('latin-1')!a}, which are no numbers")
        try:
            dtype = np.dtype(match[1].decode())
        except TypeError as error:
            raise ValueError(
                f"{name} holds elements of type {match[1].decode()!a}, which numpy does not know"
            ) from error
        shape = tuple(int(side) for side in re.findall(rb"[0-9]+", match[3]))
        if prod(shape) * dtype.itemsize != self._archive.member_size(member) - length:
            raise ValueError(f"{name} has another size than its shape says")
        return ArrayHeader(shape, dtype, match[2] == b"True", length)

    def read(self, name: str) -> npt.NDArray[Any]:
        """An array, checked against the CRC of the archive."""
        header = self.header(name)
        content = bytearray(self._archive.read(f"{name}{_SUFFIX}"))
        array = np.frombuffer(content, header.dtype, offset=header.length)
        return array.reshape(header.shape, order="F" if header.fortran else "C")

    def close(self) -> None:
        """Let go of the file."""
        self._archive.close()

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
