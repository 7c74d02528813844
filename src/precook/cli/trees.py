"""Trees to look at: what an entry holds, without torch.

An entry's tree is put together with a `Tensor` in the place of each tensor, and then described node by node: for people
as lines with guides, for programs as nested JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from precook.cli.numbers import statistics
from precook.cli.output import Line, Span
from precook.errors import printable
from precook.identity.canonical import scalar_form
from precook.store.dtypes import DType
from precook.store.leaves import Library
from precook.units import format_size
from precook.values import Array

_MOST_ITEMS = 24
"""Items of one list or dict that are shown to people."""
_MOST_LEVELS = 32
_INLINE = 48
_TEXT = 48
_NAME = 24
_TIMES = " × "  # noqa: RUF001 - a multiplication sign is meant
_WHOLE = 1e4
"""Numbers from here on are shown without digits after the point, and from `_HUGE` on with an exponent."""
_HUGE = 1e9


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
    """Number of tensors in a tree."""
    return isinstance(tree, Tensor) + sum(count_tensors(item) for _, item in _items(tree))


def tree_lines(tree: Any) -> Iterator[Line]:
    """A tree as lines, each node below its parent, statistics below their tensor."""
    yield from _node_lines(tree, "", "", "", 0)


def tree_document(tree: Any) -> dict[str, Any]:
    """A tree as JSON, whole; each node says its type."""
    if isinstance(tree, Tensor):
        return _tensor_document(tree)
    kind = type(tree).__name__
    if isinstance(tree, dict):
        return {"type": kind, "items": [{"key": key, **tree_document(item)} for key, item in tree.items()]}
    if isinstance(tree, list | tuple):
        return {"type": kind, "items": [tree_document(item) for item in tree]}
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
        found = statistics(tensor.bits, tensor.dtype)
        document["statistics"] = {
            "of": "magnitudes" if found.magnitudes else "values",
            "min": found.min,
            "max": found.max,
            "mean": found.mean,
            "std": found.std,
            "nan": found.nan,
            "inf": found.inf,
        }
    return document


def _items(tree: Any) -> Sequence[tuple[object, Any]]:
    if isinstance(tree, dict):
        return list(tree.items())
    return list(enumerate(tree)) if isinstance(tree, list | tuple) else []


def _node_lines(node: Any, name: str, branch: str, below: str, level: int) -> Iterator[Line]:
    """The lines of one node: `branch` leads to it, `below` to what hangs under it."""
    head: list[str | Span] = [Span(branch, "dim"), Span(f"{name}  " if name else "", "bold")]
    if isinstance(node, Tensor):
        yield [*head, *_tensor_spans(node)]
        yield [Span(below, "dim"), " " * (len(name) + 2), *_statistics_spans(node)]
    elif not _items(node) or _inline(node) is not None:
        yield [*head, Span(_plain(node), "green")]
    else:
        yield [*head, Span(f"{type(node).__name__} of {len(_items(node)):,}", "dim")]
        yield from _child_lines(node, below, level)


def _child_lines(node: Any, below: str, level: int) -> Iterator[Line]:
    items = _items(node)
    if level >= _MOST_LEVELS:
        yield Span(f"{below}└─ … nested more deeply (--json shows all)", "dim")
        return
    shown = items[:_MOST_ITEMS]
    names = [printable(_cut(key, _NAME)) if isinstance(key, str) else f"[{key}]" for key, _ in shown]
    width = max(map(len, names))
    for number, (name, (_, item)) in enumerate(zip(names, shown, strict=True)):
        last = number == len(items) - 1
        branches = (f"{below}└─ ", f"{below}   ") if last else (f"{below}├─ ", f"{below}│  ")
        yield from _node_lines(item, name.ljust(width), *branches, level + 1)
    if len(items) > len(shown):
        yield Span(f"{below}└─ … {len(items) - len(shown):,} more (--json shows all)", "dim")


def _tensor_spans(tensor: Tensor) -> list[str | Span]:
    shape = f"[{_TIMES.join(f'{dim:,}' for dim in tensor.shape)}]" if tensor.shape else "scalar"
    return [Span(tensor.type_name, "cyan"), f" {shape}  {format_size(tensor.nbytes)}  ", Span(tensor.library, "dim")]


def _statistics_spans(tensor: Tensor) -> list[str | Span]:
    if tensor.bits is None:
        return [Span("damaged", "bold red")]
    found = statistics(tensor.bits, tensor.dtype)
    if not tensor.bits.size:
        return [Span("no elements", "dim")]
    if tensor.dtype.name == "BOOL":
        return [Span(f"{found.mean:.1%} true", "dim")]
    values = [(name, value) for name in ("min", "max", "mean", "std") if (value := getattr(found, name)) is not None]
    text = "  ".join(f"{name} {_number(value)}" for name, value in values) or "nothing finite"
    spans: list[str | Span] = [Span(f"{'absolute: ' if found.magnitudes else ''}{text}", "dim")]
    if found.nan or found.inf:
        bad = "  ".join(f"{count:,} {name}" for name, count in (("NaN", found.nan), ("inf", found.inf)) if count)
        return [*spans, Span(f"  {bad}", "bold red")]
    whole = tensor.dtype.bits.kind in "iu" and not tensor.dtype.foreign
    return spans if whole else [*spans, Span("  no NaN, no inf", "dim")]


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if _WHOLE <= abs(value) < _HUGE else f"{value:.4g}"


def _plain(value: Any) -> str:
    """A plain value on one line, cut where it is long."""
    if isinstance(value, str):
        more = f"  ({len(value):,} characters)" if len(value) > _TEXT else ""
        return repr(value) if not more else f"{value[:_TEXT]!r}…{more}"
    if isinstance(value, bytes):
        return f"{value[:16]!r}{'…' if len(value) > 16 else ''}  ({len(value):,} bytes)"  # noqa: PLR2004
    if isinstance(value, int) and abs(value) >= 1 << 256:
        return f"an integer of {value.bit_length():,} bits"
    return _inline(value) or repr(value)


def _inline(value: Any) -> str | None:
    """A short list or dict of plain values as Python writes it, None for anything that needs lines of its own."""
    if any(isinstance(item, dict | list | tuple | Tensor) for _, item in _items(value)):
        return None
    if len(_items(value)) > _INLINE:
        return None
    text = repr(value) if isinstance(value, dict | list | tuple) else None
    return text if text is not None and len(text) <= _INLINE else None


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
