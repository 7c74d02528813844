"""Lazy leaves that torch takes for tensors.

Only whoever makes such a leaf imports this module, because a class that inherits from torch's needs torch.

A lazy tensor is read for the call that uses it, and what was read goes with the call. So that a list of a whole dataset
can be converted and joined without being read, what only prepares tensors for use stays lazy: another type, a copy, an
index, a join of more than `LARGE` bytes. What shares memory with a tensor (a view, `detach()`, `.data`) stays lazy too,
and knows whose memory that is. A tensor that is written to is read once and kept from then on, so that every name for
its memory sees the write.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from precook.store.dtypes import load_torch
from precook.store.lazy import LazyTensor

torch: Any = load_torch()
_Tensor: Any = torch.Tensor

LARGE = 64 << 20
"""Bytes from which on a tensor that is joined, moved or scaled stays lazy: so much is never held for a part of it."""

_Read = Callable[[], Any]
_Row = Callable[[int], Any]


class LazyTorchTensor(LazyTensor, _Tensor):  # type: ignore[misc] # torch.Tensor, which only torch can name
    """A torch tensor whose elements are read when they are used."""

    lazy_read: _Read
    lazy_row: _Row | None
    lazy_owner: LazyTorchTensor | None
    lazy_view: Any
    lazy_kept: Any

    @staticmethod
    def __new__(  # noqa: PLR0913 - what a lazy tensor is made of
        cls: Any,
        shape: Sequence[int],
        dtype: Any,
        read: _Read,
        *,
        row: _Row | None = None,
        device: Any = None,
        strides: Sequence[int] | None = None,
        owner: LazyTorchTensor | None = None,
        view: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Make one that `read` reads; `row` reads one of its rows alone.

        Where it shares the memory of `owner`, `view` makes it of that tensor.
        """
        made = _Tensor._make_wrapper_subclass(  # noqa: SLF001 - how torch's own subclasses are made
            cls, tuple(shape), strides=strides, dtype=dtype, device=device or "cpu"
        )
        made.lazy_read, made.lazy_row, made.lazy_owner, made.lazy_view = read, row, owner, view
        made.lazy_kept = None
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        """Nothing is left to do: `__new__` has it all."""

    def load(self) -> Any:
        """The tensor, read anew, or as it was written to."""
        kept = self.lazy_current()
        return self.lazy_read() if kept is None else kept

    def lazy_current(self) -> Any:
        """The tensor, where it is kept because it, or what it shares memory with, was written to."""
        if self.lazy_owner is None:
            return self.lazy_kept
        kept = self.lazy_owner.lazy_current()
        return None if kept is None else self.lazy_view(kept)

    def lazy_keep(self) -> Any:
        """Read the tensor, and from now on be that tensor."""
        if self.lazy_owner is not None:
            return self.lazy_view(self.lazy_owner.lazy_keep())
        if self.lazy_kept is None:
            self.lazy_kept = self.lazy_read()
        return self.lazy_kept

    def __repr__(self, **_: Any) -> str:
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - there is no public name
            return f"LazyTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    def __hash__(self) -> int:
        return id(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return memo.setdefault(id(self), self.clone())

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a call of torch: by what is known, by another lazy tensor, or by the call itself."""
        kwargs = kwargs or {}
        if func in _KNOWN and args and args[0].lazy_current() is None:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - there is no public name
                return func(*args, **kwargs)
        deferred = _DEFERRED.get(func) if args else None
        if deferred is not None:
            made = deferred(func, *args, **kwargs)
            if made is not NotImplemented:
                return made
        if func in _SHAPE_ONLY and args and isinstance(args[0], LazyTorchTensor):
            # Of the first one only: what it is to be filled with may be lazy, too.
            return func(_stand_in(args[0]), *args[1:], **kwargs)
        if _writes(func, args, kwargs):
            return func(*_map(args, LazyTorchTensor.lazy_keep), **_map(kwargs, LazyTorchTensor.lazy_keep))
        return _call(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a call from inside of torch, which nothing above has seen: on memory that stays."""
        return func(*_map(args, LazyTorchTensor.lazy_keep), **_map(kwargs or {}, LazyTorchTensor.lazy_keep))


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """The arguments of a call with each lazy tensor in them changed."""
    if isinstance(value, LazyTorchTensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_map(item, change) for item in value)
    if type(value) is dict:
        return {key: _map(item, change) for key, item in value.items()}
    return value


def _stand_in(lazy: LazyTorchTensor) -> Any:
    """A tensor of the same shape, type and device, with one element in memory."""
    return torch.empty((), dtype=lazy.dtype, device=lazy.device).expand(lazy.shape)


def _writes(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call writes to a lazy tensor, or hands out its memory for others to write to."""
    name = getattr(func, "__name__", "")
    if isinstance(kwargs.get("out"), (LazyTorchTensor, tuple, list)) or kwargs.get("inplace"):
        return True
    writes = name in _WRITING or (name.endswith("_") and not name.endswith("__"))
    # `tensor.copy_(lazy)` only reads the lazy one.
    return writes and not (args and isinstance(args[0], _Tensor) and not isinstance(args[0], LazyTorchTensor))


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """What a call makes of the elements; a part of the result that shares memory with a lazy tensor is lazy again."""
    loaded: dict[int, tuple[LazyTorchTensor, Any]] = {}

    def load(lazy: LazyTorchTensor) -> Any:
        if id(lazy) not in loaded:
            loaded[id(lazy)] = (lazy, lazy.load())
        return loaded[id(lazy)][1]

    result = func(*_map(args, load), **_map(kwargs, load))
    owners = {_memory(tensor): (lazy, tensor) for lazy, tensor in loaded.values() if lazy.lazy_current() is None}

    def shared(part: Any, find: Callable[[Any], Any]) -> Any:
        if type(part) in (list, tuple):
            return type(part)(shared(item, _item_of(find, number)) for number, item in enumerate(part))
        if not isinstance(part, _Tensor) or _memory(part) not in owners:
            return part
        lazy, tensor = owners[_memory(part)]
        if part is tensor:
            return lazy

        def view(tensor: Any) -> Any:
            change = lambda other: tensor if other is lazy else other.load()  # noqa: E731
            return find(func(*_map(args, change), **_map(kwargs, change)))

        return _view(lazy, part, lambda: view(lazy.lazy_read()), view)

    return shared(result, lambda whole: whole)


def _item_of(find: Callable[[Any], Any], number: int) -> Callable[[Any], Any]:
    return lambda whole: find(whole)[number]


def _memory(tensor: Any) -> object:
    """Where a tensor's elements lie; itself where that is nowhere."""
    if tensor.layout != torch.strided or not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.untyped_storage().data_ptr()


# What only prepares a tensor for use. Each gives NotImplemented where the call has to be made.


def _changed(lazy: LazyTorchTensor, change: Callable[[Any], Any], *, dtype: Any = None, device: Any = None) -> Any:
    """A copy whose every element `change` makes of one element."""
    read, row = lazy.lazy_read, lazy.lazy_row  # of now: later writes to the lazy tensor are no part of a copy
    return LazyTorchTensor(
        lazy.shape,
        dtype or lazy.dtype,
        lambda: change(read()),
        row=None if row is None else lambda number: change(row(number)),
        device=device or lazy.device,
    )


def _is_open(value: Any) -> bool:
    """Whether this is a lazy tensor that nobody has written to."""
    return isinstance(value, LazyTorchTensor) and value.lazy_current() is None


def _is_plain(value: Any) -> bool:
    """Whether it is one whose elements lie row by row, as those of a copy do."""
    return _is_open(value) and value.is_contiguous()


def _defer_clone(_: Any, lazy: Any, **options: Any) -> Any:
    return _changed(lazy, lambda tensor: tensor.clone()) if _is_plain(lazy) and not options else NotImplemented


def _defer_contiguous(_: Any, lazy: Any, **options: Any) -> Any:
    return lazy if _is_plain(lazy) and not options else NotImplemented


def _defer_to(func: Any, lazy: Any, *args: Any, **kwargs: Any) -> Any:
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, LazyTorchTensor):
        # Only its type and device are asked for.
        rest = {key: value for key, value in kwargs.items() if key != "other"}
        return lazy.to(other.device, other.dtype, *args[1:], **rest)
    if not _is_plain(lazy) or isinstance(other, _Tensor) or len(args) > 2 or "memory_format" in kwargs:  # noqa: PLR2004
        return NotImplemented  # after a device and a type come flags, one of which asks for a copy
    where = {key: value for key, value in kwargs.items() if key != "copy"}
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **where)  # noqa: SLF001 - as Module.to does
    device, dtype = device or lazy.device, dtype or lazy.dtype
    moves = device != lazy.device
    if memory_format is not None or (moves and lazy.nbytes < LARGE):
        return NotImplemented
    if not moves and dtype == lazy.dtype and not kwargs.get("copy"):
        return lazy
    return _changed(lazy, lambda tensor: func(tensor, *args, **kwargs), dtype=dtype, device=device)


def _defer_cast(dtype: Any) -> Callable[..., Any]:
    return lambda _, lazy, **kwargs: NotImplemented if kwargs else _defer_to(_Tensor.to, lazy, dtype)


def _defer_scale(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Arithmetic with a number, such as the scaling of latents."""
    lazies = [value for value in args if isinstance(value, LazyTorchTensor)]
    if len(lazies) != 1 or kwargs or not _is_plain(lazies[0]) or lazies[0].nbytes < LARGE:
        return NotImplemented
    if not all(value is lazies[0] or isinstance(value, (int, float)) for value in args):
        return NotImplemented

    def change(tensor: Any) -> Any:
        return func(*[tensor if value is lazies[0] else value for value in args])

    dtype = change(torch.empty(1, dtype=lazies[0].dtype)).dtype
    return _changed(lazies[0], change, dtype=dtype)


def _defer_index(func: Any, lazy: Any, index: Any) -> Any:
    if not _is_open(lazy):
        return NotImplemented
    row, count = lazy.lazy_row, len(lazy) if lazy.ndim else 0
    if row is not None and type(index) is list and index and all(type(number) is int for number in index):
        return torch.stack([row(_checked(number, count)) for number in index])
    parts = index if type(index) is tuple else (index,)
    if not all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts):
        return NotImplemented
    return _basic_index(func, lazy, index, parts)


def _basic_index(func: Any, lazy: Any, index: Any, parts: tuple[Any, ...]) -> Any:
    """A view of some rows, or of a part of the whole."""
    row, count = lazy.lazy_row, len(lazy) if lazy.ndim else 0
    if row is not None and len(parts) > 1 and type(parts[0]) is int:
        return lazy[parts[0]][parts[1:]]
    like = func(torch.empty_strided(lazy.shape, lazy.stride(), dtype=lazy.dtype, device="meta"), index)

    def view(tensor: Any) -> Any:
        return func(tensor, index)

    if row is not None and type(index) is int:
        return _view(lazy, like, functools.partial(row, _checked(index, count)), view)
    numbers = range(*index.indices(count)) if row is not None and type(index) is slice else range(0)
    if row is not None and numbers:
        return _view(
            lazy,
            like,
            lambda: torch.stack([row(number) for number in numbers]),
            view,
            row=lambda number: row(numbers[number]),
        )
    read = lazy.lazy_read
    return _view(lazy, like, lambda: view(read()), view)


def _view(lazy: LazyTorchTensor, like: Any, read: _Read, view: Callable[[Any], Any], *, row: _Row | None = None) -> Any:
    """A lazy tensor that looks like another one and shares the memory of `lazy`."""
    return LazyTorchTensor(
        like.shape, like.dtype, read, row=row, device=lazy.device, strides=like.stride(), owner=lazy, view=view
    )


def _checked(number: int, count: int) -> int:
    if not -count <= number < count:
        message = f"index {number} is out of bounds for dimension 0 with size {count}"
        raise IndexError(message)
    return number % count


def _defer_iter(_: Any, lazy: Any) -> Iterator[Any]:
    return NotImplemented if not _is_open(lazy) or not lazy.ndim else iter([lazy[i] for i in range(len(lazy))])


def _defer_cat(_: Any, tensors: Any, dim: Any = 0, **options: Any) -> Any:
    if not _joins(tensors, dim, options) or len({(t.shape[1:], t.dtype, t.device) for t in tensors}) > 1:
        return NotImplemented
    parts = [(tensor.lazy_read, tensor.lazy_row) for tensor in tensors]
    ends = list(itertools.accumulate(len(tensor) for tensor in tensors))

    def row(number: int) -> Any:
        part = bisect.bisect_right(ends, number)
        inside = number - (ends[part - 1] if part else 0)
        read, one = parts[part]
        return read()[inside] if one is None else one(inside)

    first = tensors[0]
    shape = (ends[-1], *first.shape[1:])
    return LazyTorchTensor(
        shape, first.dtype, lambda: torch.cat([read() for read, _ in parts]), row=row, device=first.device
    )


def _defer_stack(_: Any, tensors: Any, dim: Any = 0, **options: Any) -> Any:
    if not _joins(tensors, dim, options) or len({(t.shape, t.dtype, t.device) for t in tensors}) > 1:
        return NotImplemented
    reads = [tensor.lazy_read for tensor in tensors]
    first = tensors[0]
    return LazyTorchTensor(
        (len(reads), *first.shape),
        first.dtype,
        lambda: torch.stack([read() for read in reads]),
        row=lambda number: reads[number](),
        device=first.device,
    )


def _joins(tensors: Any, dim: Any, options: Any) -> bool:
    """Whether these are lazy tensors with dimensions, too large to be joined in memory."""
    if type(tensors) not in (list, tuple) or dim != 0 or options or not all(map(_is_open, tensors)):
        return False
    return sum(tensor.nbytes for tensor in tensors) >= LARGE and all(tensor.ndim for tensor in tensors)


def _count_nonzero(func: Any, lazy: Any, dim: Any = None, **options: Any) -> Any:
    if dim is not None or options or not _is_open(lazy) or lazy.lazy_row is None:
        return NotImplemented
    count = sum(int(func(lazy.lazy_row(number))) for number in range(len(lazy)))
    return torch.tensor(count, device=lazy.device)


_KNOWN_PROPERTIES = (
    *("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize", "names", "requires_grad", "retains_grad"),
    *("grad", "grad_fn", "output_nr", "is_leaf", "is_cuda", "is_cpu", "is_meta", "is_mps", "is_xpu", "is_nested"),
    *("is_sparse", "is_quantized", "is_mkldnn"),
)
_KNOWN_METHODS = (
    *("size", "dim", "ndimension", "numel", "nelement", "element_size", "stride", "storage_offset", "is_contiguous"),
    *("is_floating_point", "is_complex", "is_signed", "get_device", "__len__"),
)
_KNOWN = {
    *(getattr(_Tensor, name).__get__ for name in _KNOWN_PROPERTIES if hasattr(_Tensor, name)),
    *(getattr(_Tensor, name) for name in _KNOWN_METHODS),
    *(torch.numel, torch.is_floating_point, torch.is_complex, torch.is_signed),
}
"""What can be said of a tensor without its elements."""

_WRITING = {
    *("__set__", "__delete__", "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__"),
    *("__idiv__", "__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
    *("numpy", "__array__", "__dlpack__", "data_ptr", "storage", "untyped_storage", "_typed_storage"),
}
"""Calls that write to a tensor or hand out its memory, beside those whose name ends with `_`."""

_LIKE = (torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like, torch.rand_like, torch.randn_like)
_NEW = (_Tensor.new_empty, _Tensor.new_zeros, _Tensor.new_ones, _Tensor.new_full, _Tensor.new_tensor)
_SHAPE_ONLY = {*_LIKE, *_NEW, torch.randint_like}
"""Calls that ask a tensor for its shape, type and device only."""

_SUMS = (_Tensor.add, _Tensor.__add__, _Tensor.__radd__, _Tensor.sub, _Tensor.__sub__, _Tensor.__rsub__)
_PRODUCTS = (_Tensor.mul, _Tensor.__mul__, _Tensor.__rmul__, _Tensor.div, _Tensor.__truediv__, _Tensor.__rtruediv__)
_DEFERRED: dict[Any, Callable[..., Any]] = {
    _Tensor.to: _defer_to,
    _Tensor.type_as: lambda _, lazy, other: lazy.to(other),
    _Tensor.float: _defer_cast(torch.float32),
    _Tensor.double: _defer_cast(torch.float64),
    _Tensor.half: _defer_cast(torch.float16),
    _Tensor.bfloat16: _defer_cast(torch.bfloat16),
    **dict.fromkeys((_Tensor.clone, torch.clone), _defer_clone),
    _Tensor.contiguous: _defer_contiguous,
    _Tensor.__getitem__: _defer_index,
    _Tensor.__iter__: _defer_iter,
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), _defer_cat),
    torch.stack: _defer_stack,
    **dict.fromkeys((torch.count_nonzero, _Tensor.count_nonzero), _count_nonzero),
    **dict.fromkeys((*_SUMS, *_PRODUCTS, torch.add, torch.sub, torch.mul, torch.div), _defer_scale),
}
"""Calls that may stay lazy, and what makes them so."""
