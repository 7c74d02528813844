"""An entry's tree to look at: its nesting, and type, shape and numbers of its tensors.

The tree is put together with a `Tensor` in the place of each tensor. That works on the bits as they are stored, so that
neither torch nor ml_dtypes is needed for bfloat16 and smaller floats.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.cli.output import Line, Span
from precook.errors import printable
from precook.identity.canonical import scalar_form
from precook.store.dtypes import DType
from precook.store.leaves import Library, is_infinite, is_nan
from precook.units import format_size
from precook.values import Array

_Numbers = npt.NDArray[np.float64]

_MOST_ITEMS = 24
"""Items of one list or dict that are shown to people."""
_MOST_LEVELS = 32
_INLINE_LENGTH = 48
_TEXT_LENGTH = 48
_BYTES_LENGTH = 16
_NAME_LENGTH = 24
_TIMES = " × "  # noqa: RUF001 - a multiplication sign is meant
_WHOLE = 1e4
"""Numbers from here on are shown without digits after the point, and from `_HUGE` on with an exponent."""
_HUGE = 1e9
_CHUNK = 1 << 20
"""Elements that are decoded together: a bound on memory, whatever the tensor's size."""
_MANTISSA_AND_BIAS = {
    "F8_E4M3": (3, 7),
    "F8_E5M2": (2, 15),
    "F8_E4M3FNUZ": (3, 8),
    "F8_E5M2FNUZ": (2, 16),
    "F4": (1, 1),
}
"""Array of the mantissa, and what is subtracted from the exponent."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that is looked at, not used."""

    dtype: DType
    library: Library
    shape: tuple[int, ...]
    bits: Array | None
    """Its elements as `dtype.bits`; None where they are damaged and must not be shown."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.size

    @property
    def type_name(self) -> str:
        """The type as its library calls it."""
        return self.dtype.torch if self.library == "torch" else self.dtype.numpy


def count_tensors(tree: Any) -> int:
    """How many tensors a tree holds."""
    return isinstance(tree, Tensor) + sum(count_tensors(item) for _, item in _items(tree))


def _items(tree: Any) -> Sequence[tuple[object, Any]]:
    if isinstance(tree, dict):
        return list(tree.items())
    if isinstance(tree, set | frozenset):
        return [("", item) for item in sorted(tree, key=repr)]
    return list(enumerate(tree)) if isinstance(tree, list | tuple) else []


def tree_document(tree: Any) -> dict[str, Any]:
    """A tree as JSON, whole; each node says its type."""
    if isinstance(tree, Tensor):
        return _tensor_document(tree)
    kind = type(tree).__name__
    if isinstance(tree, dict):
        return {"type": kind, "items": [{"key": key, **tree_document(item)} for key, item in tree.items()]}
    if isinstance(tree, list | tuple | set | frozenset):
        return {"type": kind, "items": [tree_document(item) for _, item in _items(tree)]}
    return {"type": "None" if tree is None else kind, "value": scalar_form(tree)}


def _tensor_document(tensor: Tensor) -> dict[str, Any]:
    document: dict[str, Any] = {
        "type": "tensor",
        "library": tensor.library,
        "dtype": tensor.type_name,
        "shape": list(tensor.shape),
        "bytes": tensor.nbytes,
        "statistics": None,
    }
    if tensor.bits is not None:
        measured = statistics(tensor.bits, tensor.dtype)
        document["statistics"] = {
            "of": "magnitudes" if measured.magnitudes else "values",
            "min": measured.min,
            "max": measured.max,
            "mean": measured.mean,
            "std": measured.std,
            "nan": measured.nan,
            "inf": measured.inf,
        }
    return document


def tree_lines(tree: Any) -> Iterator[Line]:
    """A tree as lines, each node below its parent, statistics below their tensor."""
    return _node_lines(tree, "", "", "", 0)


def _node_lines(node: Any, name: str, branch: str, below: str, level: int) -> Iterator[Line]:
    """The lines of a node and of all under it: `branch` leads to it, `below` to what hangs under it."""
    head: list[str | Span] = [Span(branch, "dim"), Span(f"{name}  " if name else "", "bold")]
    if isinstance(node, Tensor):
        shape = f"[{_TIMES.join(f'{dim:,}' for dim in node.shape)}]" if node.shape else "scalar"
        size = f" {shape}  {format_size(node.nbytes)}  "
        yield [*head, Span(node.type_name, "cyan"), size, Span(node.library, "dim")]
        yield [Span(below, "dim"), " " * (len(name) + 2), *_statistics_spans(node)]
    elif not _items(node) or _inline_text(node) is not None:
        yield [*head, Span(_value_text(node), "green")]
    else:
        yield [*head, Span(f"{type(node).__name__} of {len(_items(node)):,}", "dim")]
        yield from _child_lines(node, below, level)


def _child_lines(node: Any, below: str, level: int) -> Iterator[Line]:
    items = _items(node)
    if level >= _MOST_LEVELS:
        yield Span(f"{below}└─ … nested more deeply (--json shows all)", "dim")
        return
    shown = items[:_MOST_ITEMS]
    names = [_node_name(key) for key, _ in shown]
    width = max(map(len, names))
    for number, (name, (_, item)) in enumerate(zip(names, shown, strict=True)):
        last = number == len(items) - 1
        branches = (f"{below}└─ ", f"{below}   ") if last else (f"{below}├─ ", f"{below}│  ")
        yield from _node_lines(item, name.ljust(width), *branches, level + 1)
    if len(items) > len(shown):
        yield Span(f"{below}└─ … {len(items) - len(shown):,} more (--json shows all)", "dim")


def _statistics_spans(tensor: Tensor) -> list[str | Span]:
    if tensor.bits is None:
        return [Span("damaged", "bold red")]
    if not tensor.bits.size:
        return [Span("no elements", "dim")]
    measured = statistics(tensor.bits, tensor.dtype)
    if tensor.dtype.name == "BOOL":
        return [Span(f"{measured.mean:.1%} true", "dim")]
    values = [(name, value) for name in ("min", "max", "mean", "std") if (value := getattr(measured, name)) is not None]
    text = "  ".join(f"{name} {_number_text(value)}" for name, value in values) or "nothing finite"
    spans: list[str | Span] = [Span(f"{'absolute: ' if measured.magnitudes else ''}{text}", "dim")]
    if measured.nan or measured.inf:
        bad = "  ".join(f"{count:,} {name}" for name, count in (("NaN", measured.nan), ("inf", measured.inf)) if count)
        return [*spans, Span(f"  {bad}", "bold red")]
    whole = tensor.dtype.bits.kind in "iu" and not tensor.dtype.foreign
    return spans if whole else [*spans, Span("  no NaN, no inf", "dim")]


def _number_text(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if _WHOLE <= abs(value) < _HUGE else f"{value:.4g}"


def _value_text(value: Any) -> str:
    """A plain value on one line, cut where it is long."""
    if isinstance(value, str):
        more = f"  ({len(value):,} characters)" if len(value) > _TEXT_LENGTH else ""
        return repr(value) if not more else f"{value[:_TEXT_LENGTH]!r}…{more}"
    if isinstance(value, bytes):
        return f"{value[:_BYTES_LENGTH]!r}{'…' if len(value) > _BYTES_LENGTH else ''}  ({len(value):,} bytes)"
    if isinstance(value, int) and abs(value) >= 1 << 256:
        return f"an integer of {value.bit_length():,} bits"
    return _inline_text(value) or repr(value)


def _inline_text(value: Any) -> str | None:
    """A short list or dict of plain values as Python writes it, None for anything that needs lines of its own."""
    items = _items(value)
    if len(items) > _INLINE_LENGTH or any(isinstance(item, dict | list | tuple | Tensor) for _, item in items):
        return None
    text = repr(value) if isinstance(value, dict | list | tuple | set | frozenset) else None
    return text if text is not None and len(text) <= _INLINE_LENGTH else None


def _node_name(key: object) -> str:
    """The key of a dict or the number in a list; a key that is a number looks like one of a list."""
    if not isinstance(key, str):
        return f"[{key}]"
    return printable(key if len(key) <= _NAME_LENGTH else f"{key[: _NAME_LENGTH - 1]}…")


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
        return _integer_statistics(elements, dtype)
    magnitudes = dtype.name == "C64"
    low, high, total, count, nan, inf = math.inf, -math.inf, 0.0, 0, 0, 0
    for chunk in _decode(elements, dtype):
        finite = chunk[np.isfinite(chunk)]
        nan += int(np.isnan(chunk).sum())
        inf += int(np.isinf(chunk).sum())
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
            total += float(finite.sum())
            count += finite.size
    if not count:
        return Statistics(None, None, None, None, nan, inf, magnitudes)
    mean = total / count
    squares = sum(float(((chunk[np.isfinite(chunk)] - mean) ** 2).sum()) for chunk in _decode(elements, dtype))
    std = math.sqrt(squares / count)
    # Sums of the largest float64 numbers overflow, and JSON has no infinity.
    mean_or_none, std_or_none = (number if math.isfinite(number) else None for number in (mean, std))
    return Statistics(low, high, mean_or_none, std_or_none, nan, inf, magnitudes)


def _integer_statistics(elements: Array, dtype: DType) -> Statistics:
    if not elements.size:
        return Statistics(None, None, None, None, 0, 0)
    # The ends exactly: float64 does not hold every 64-bit integer.
    low, high = int(elements.min()), int(elements.max())
    mean = sum(float(chunk.sum()) for chunk in _decode(elements, dtype)) / elements.size
    squares = sum(float(((chunk - mean) ** 2).sum()) for chunk in _decode(elements, dtype))
    return Statistics(low, high, mean, math.sqrt(squares / elements.size), 0, 0)


def _decode(elements: Array, dtype: DType) -> Iterator[_Numbers]:
    """The elements as float64, a chunk at a time."""
    for start in range(0, elements.size, _CHUNK):
        chunk = elements[start : start + _CHUNK]
        if dtype.name == "BF16":
            # The upper half of a float32.
            yield (chunk.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        elif dtype.name == "F4":
            values = _values_by_pattern(dtype, 4)
            yield np.concatenate([values[chunk & 15], values[chunk >> 4]])
        elif dtype.foreign:
            yield _values_by_pattern(dtype, 8)[chunk]
        elif dtype.name == "C64":
            yield np.abs(chunk.astype(np.complex128))
        else:
            yield chunk.astype(np.float64)


@functools.cache
def _values_by_pattern(dtype: DType, bits: int) -> _Numbers:
    """What each pattern of bits of a small float type stands for."""
    patterns = np.arange(1 << bits)
    if dtype.name == "F8_E8M0":  # an exponent alone
        values = np.ldexp(1.0, patterns - 127)
    else:
        # Sign, exponent, mantissa, as in IEEE 754; the exponent zero is that of numbers below the smallest normal one.
        mantissa_bits, bias = _MANTISSA_AND_BIAS[dtype.name]
        sign = np.where(patterns >> (bits - 1), -1.0, 1.0)
        exponent = patterns % (1 << (bits - 1)) >> mantissa_bits
        fraction = patterns % (1 << mantissa_bits) / (1 << mantissa_bits)
        values = sign * np.ldexp(fraction + (exponent > 0), np.maximum(exponent, 1) - bias)
    elements = patterns.astype(dtype.bits)
    values[is_infinite(dtype, elements)] *= math.inf
    values[is_nan(dtype, elements)] = math.nan
    return values
