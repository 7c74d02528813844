"""Arrays in .npz files: their headers and their bytes, without numpy's own loader and its pickles."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

_SUFFIX = ".npy"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What an array is, without its elements."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class NpzFile:
    """The arrays of one file, each read when it is asked for; a `ValueError` says what cannot be read."""

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise ValueError(f"not an .npz file: {error}") from error
        self._members = {
            info.filename.removesuffix(_SUFFIX): info
            for info in self._archive.infolist()
            if info.filename.endswith(_SUFFIX)
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The arrays there are."""
        return tuple(self._members)

    def header(self, name: str) -> ArrayHeader:
        """An array's shape and type."""
        with self._archive.open(self._members[name]) as file:
            return self._header(name, file)[0]

    def read(self, name: str) -> npt.NDArray[Any]:
        """An array, checked against the CRC of the archive."""
        try:
            with self._archive.open(self._members[name]) as file:
                header, fortran = self._header(name, file)
                data = bytearray(file.read())
        except zipfile.BadZipFile as error:
            raise ValueError(f"damaged: {error}") from error
        array = np.frombuffer(data, header.dtype)
        return array.reshape(header.shape, order="F" if fortran else "C")

    def close(self) -> None:
        """Let go of the file."""
        self._archive.close()

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _header(self, name: str, file: IO[bytes]) -> tuple[ArrayHeader, bool]:
        read = _HEADERS.get(npy.read_magic(file))
        if read is None:
            raise ValueError(f"{name} is an array of an unknown version")
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which only a pickle could make")
        # Before anything of that size is allocated.
        if prod(shape) * dtype.itemsize != self._members[name].file_size - file.tell():
            raise ValueError(f"{name} has another size than its shape says")
        return ArrayHeader(tuple(shape), dtype), fortran
