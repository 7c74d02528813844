"""What the numbers of a tensor look like: range, mean, spread, and how many are no numbers at all.

Works on the bits as they are stored, so that neither torch nor ml_dtypes is needed for bfloat16 and the 8-bit floats.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precook.store.dtypes import DType
from precook.values import Array

_CHUNK = 1 << 20
"""Elements looked at together: a bound on memory, whatever the tensor's size."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Minimum, maximum, mean and standard deviation of the finite numbers; None where there are none."""

    min: float | int | None
    max: float | int | None
    mean: float | None
    std: float | None
    nan: int
    inf: int
    magnitudes: bool = False
    """Whether these are of absolute values, as for complex numbers."""


@np.errstate(all="ignore")
def statistics(bits: Array, dtype: DType) -> Statistics:
    """Statistics of a tensor, from its elements as `dtype.bits`, computed in float64."""
    elements = bits.reshape(-1)
    if elements.dtype.kind in "bui" and not dtype.foreign:
        return _of_integers(elements)
    low, high, total, count, nan, inf = math.inf, -math.inf, 0.0, 0, 0, 0
    for chunk in _decoded(elements, dtype):
        finite = chunk[np.isfinite(chunk)]
        nan += int(np.isnan(chunk).sum())
        inf += int(np.isinf(chunk).sum())
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            total += float(finite.sum())
            count += finite.size
    if not count:
        return Statistics(None, None, None, None, nan, inf, magnitudes=dtype.name == "C64")
    mean = total / count
    squares = sum(float(((chunk[np.isfinite(chunk)] - mean) ** 2).sum()) for chunk in _decoded(elements, dtype))
    return Statistics(
        low, high, _finite(mean), _finite(math.sqrt(squares / count)), nan, inf, magnitudes=dtype.name == "C64"
    )


def _of_integers(elements: Array) -> Statistics:
    if not elements.size:
        return Statistics(None, None, None, None, 0, 0)
    # The ends exactly, which float64 cannot for large 64-bit integers.
    low, high = int(elements.min()), int(elements.max())
    mean = sum(float(chunk.sum()) for chunk in _chunks(elements)) / elements.size
    squares = sum(float(((chunk - mean) ** 2).sum()) for chunk in _chunks(elements))
    return Statistics(low, high, mean, math.sqrt(squares / elements.size), 0, 0)


def _chunks(elements: Array) -> Iterator[npt.NDArray[np.float64]]:
    for at in range(0, elements.size, _CHUNK):
        yield elements[at : at + _CHUNK].astype(np.float64)


def _decoded(elements: Array, dtype: DType) -> Iterator[npt.NDArray[np.float64]]:
    """The elements as float64, a few at a time."""
    for at in range(0, elements.size, _CHUNK):
        chunk = elements[at : at + _CHUNK]
        if dtype.name == "BF16":
            # The upper half of a float32.
            yield (chunk.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        elif dtype.name == "F4":
            yield np.concatenate([_F4[chunk & 15], _F4[chunk >> 4]])
        elif dtype.foreign:
            yield _eight_bit_floats(dtype.name)[chunk]
        elif dtype.name == "C64":
            yield np.abs(chunk.astype(np.complex128))
        else:
            yield chunk.astype(np.float64)


@functools.cache
def _eight_bit_floats(name: str) -> npt.NDArray[np.float64]:
    """The value of each of the 256 patterns of an 8-bit float type."""
    if name == "F8_E8M0":
        return np.array([2.0 ** (pattern - 127) for pattern in range(255)] + [math.nan])
    mantissa_bits, bias = {"F8_E4M3": (3, 7), "F8_E5M2": (2, 15), "F8_E4M3FNUZ": (3, 8), "F8_E5M2FNUZ": (2, 16)}[name]
    values = np.array([_value(pattern, mantissa_bits, bias) for pattern in range(256)])
    if name == "F8_E4M3":
        values[[0x7F, 0xFF]] = math.nan
    elif name == "F8_E5M2":
        values[[0x7C, 0xFC]] = [math.inf, -math.inf]
        values[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = math.nan
    else:
        values[0x80] = math.nan
    return values


def _value(pattern: int, mantissa_bits: int, bias: int) -> float:
    """Sign, exponent, mantissa: as in IEEE 754, with no pattern set aside for infinities or NaN."""
    sign = -1.0 if pattern & 0x80 else 1.0
    exponent = (pattern & 0x7F) >> mantissa_bits
    fraction = (pattern & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    return sign * (math.ldexp(1 + fraction, exponent - bias) if exponent else math.ldexp(fraction, 1 - bias))


_F4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _finite(number: float) -> float | None:
    """A number JSON can hold: sums of the largest float64 numbers overflow."""
    return number if math.isfinite(number) else None
