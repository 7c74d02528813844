"""Patches: what was changed in a torch module after it was built.

A config says how a module was built, and nothing about what became of it: a padding mode that was set, a linear layer
that was exchanged for a quantised one, tiling that was switched on, an adapter that took the place of `forward`. So a
twin is built from the same config, without memory for weights, and compared with the module part by part. A module that
nobody touched has no patches, whatever version of its library built it.

Where no twin can be built, methods that were exchanged, hooks and adapter layers are found all the same.
"""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

from precook.errors import IdentityError
from precook.identity.canonical import MAX_DEPTH, canonical
from precook.identity.functions import class_identity, is_function
from precook.identity.plain import descends_from, named_values, plain

_NO_MATTER = frozenset(
    # How it trains.
    {"training", "train", "eval", "gradient_checkpointing", "_gradient_checkpointing_func", "requires_grad"}
    # That it is compiled.
    | {"_compiled_call_impl"}
    # Where it came from, where it lies, and where accelerate keeps the method that it took the place of.
    | {"name_or_path", "cache_dir", "hf_device_map", "_old_forward", "_hf_hook"}
    # How many tokens there are, which the weights say; set by whoever adds some.
    | {"vocab_size"}
    # Grows with the longest input so far; left behind by the latest one.
    | {"max_seq_len_cached", "original_max_seq_len", "rope_deltas"}
)
"""Attributes of parts that do not decide a result."""
_KEPT_BY_TORCH = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})
"""Attributes of every module that hold weights and parts, which are looked at by themselves."""
_OWN_HOOKS = ("torch", "transformers", "accelerate")
"""Libraries whose hooks belong to how a module is built and run: norms of weights, recorded outputs, moved weights."""
_LIBRARIES = ("torch", "torchvision", "transformers", "diffusers")
_RANDOM_NAME = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_PLAIN = (bool, int, float, str, bytes, type(None))
_MACHINERY = (type(threading.Lock()), type(threading.RLock()), threading.local, threading.Event, Executor)

Described = Callable[[Any, str], object]
"""Says what a weight is, given where it lies."""


def random_names(text: str) -> list[str]:
    """The random UUIDs in a text."""
    return _RANDOM_NAME.findall(text)


def replace_random_names(text: str, name_of: Callable[[str], str]) -> str:
    """A text with others in place of the random UUIDs in it, which programs make up as names anew in each process."""
    return _RANDOM_NAME.sub(lambda found: name_of(found[0]), text)


def without_random_names(text: str) -> str:
    """A text that says of the random UUIDs in it that they are there, and not which."""
    return replace_random_names(text, lambda _: "uuid")


def build_twin(module: Any) -> Any | None:
    """A module of the same class from the same config, on the meta device; None where that alone does not make one."""
    torch: Any = sys.modules["torch"]
    kind, config = type(module), module.config
    if named_values(config) is None:
        return None  # a name or a path: a constructor might load what lies there
    state = torch.random.get_rng_state()
    try:
        with torch.device("meta"):
            if descends_from(module, "diffusers", "ConfigMixin"):
                # Only what it asks for: of more, as some classes add to their own config, diffusers would warn.
                asked = inspect.signature(kind.__init__).parameters
                return kind(**{name: value for name, value in config.items() if name in asked})
            return kind(copy.deepcopy(config))
    except Exception:  # noqa: BLE001 - anybody's constructor; the caller then takes down the structure instead
        return None
    finally:
        torch.random.set_rng_state(state)  # some constructors draw on the CPU all the same


def find_patches(module: Any, twin: Any | None, *, identify_tensor: Described, where: str) -> dict[str, object]:
    """What was changed in each part, by the part's name; empty for a module that is as it was built."""
    parts: dict[str, Any] = dict(module.named_modules())
    twins: dict[str, Any] = {} if twin is None else dict(twin.named_modules())
    describe = _Describer({id(part): name for name, part in parts.items()}, identify_tensor)
    patches: dict[str, object] = {name: "removed" for name in twins if name not in parts}
    for name, part in parts.items():
        place = f"{where}.{name}" if name else where
        counterpart = twins.get(name)
        # By name: torch makes a class of its own for each part whose weights are parametrised.
        if (twin is not None and _code_name(part) != _code_name(counterpart)) or _is_adapter(part):
            patch = {"class": class_identity(part), **describe.attributes(part, place)}
        elif counterpart is not None:
            patch = _differences(part, counterpart, describe, place)
        else:
            patch = {"methods": _methods(part, describe, place), "settings": _settings(part, describe, place)}
        patch["hooks"] = [] if _hook_names(part) == _hook_names(counterpart) else describe.hooks(part, place)
        if kept := {key: value for key, value in patch.items() if value not in ({}, [])}:
            patches[name] = kept
    return patches


def _is_adapter(part: object) -> bool:
    return descends_from(part, "peft", "BaseTunerLayer")


def _differences(part: Any, twin: Any, describe: _Describer, where: str) -> dict[str, object]:
    """The attributes that differ from those of a part that nobody touched."""
    mine, theirs = vars(part), vars(twin)
    differing: dict[str, object] = {}
    for name in sorted(mine.keys() | theirs.keys()):
        if name in _NO_MATTER or name in _KEPT_BY_TORCH:
            continue
        if name not in mine:
            differing[name] = "removed"
            continue
        value, original = mine[name], theirs.get(name)
        if is_function(value):
            value = unwrapped(value, part, name)
            changed = value is not None and _code_name(value) != _code_name(original)
        elif name.startswith("_"):
            continue  # bookkeeping of the library, which may change with use
        elif _is_plain(value) and _is_plain(original):
            changed = name not in theirs or _plain_form(value) != _plain_form(original)
        else:
            # An attention processor of diffusers says how attention is computed, not what.
            own = name == "processor" and type(value).__module__.startswith("diffusers.")
            changed = not own and _code_name(value) != _code_name(original)
        if changed:
            differing[name] = describe(value, f"{where}.{name}")
    return {"attributes": differing}


def _methods(part: Any, describe: _Describer, where: str) -> dict[str, object]:
    """What stands in the place of the part's methods."""
    found = {
        name: unwrapped(value, part, name)
        for name, value in sorted(vars(part).items())
        # Names such as __dir__, which scripting keeps there, do nothing in an instance.
        if not (name in _NO_MATTER or name.startswith("__"))
        and is_function(value)
        and callable(getattr(type(part), name, None))
    }
    return {name: describe(value, f"{where}.{name}") for name, value in found.items() if value is not None}


def _settings(part: Any, describe: _Describer, where: str) -> dict[str, object]:
    """What a part without a twin holds beside weights and parts: a scale that it multiplies with is no weight.

    Layers of torch that show their arguments (`extra_repr`) are known by them already.
    """
    torch: Any = sys.modules["torch"]
    if _library(part) == "torch" and type(part).extra_repr is not torch.nn.Module.extra_repr:
        return {}
    left_out = _NO_MATTER | vars(torch.nn.Module()).keys()
    settings: dict[str, object] = {}
    for name, value in sorted(vars(part).items()):
        if name in left_out or "cache" in name or callable(getattr(type(part), name, None)):
            continue
        if name.startswith("_") and _library(part) in _LIBRARIES:
            continue  # bookkeeping of the library, which may change with use
        told = _is_plain(value) or isinstance(value, torch.Tensor)
        settings[name] = describe(value, f"{where}.{name}") if told else repr(_code_name(value))
    return settings


def unwrapped(function: Any, part: Any, name: str) -> Any | None:
    """What really computes: without wrappers that change where or when it is done; None for the part's own method."""
    for _ in range(MAX_DEPTH):
        owner: Any = getattr(function, "__self__", None)
        if owner is part and getattr(function, "__func__", None) is getattr(type(part), name, None):
            return None
        kinds = {kind.__name__ for kind in type(owner).__mro__}
        if "BaseCheckpointLayer" in kinds or ("AdditionalEmbeddingWrapper" in kinds and not owner.embeddings):
            # OneTrainer's checkpointing and offloading of layers, and its place for embeddings where there are none.
            function = owner.orig_forward
        elif _library(getattr(part, "_hf_hook", None)) == "accelerate" and hasattr(part, "_old_forward"):
            # Moves weights to the device that computes, and back.
            if function is part._old_forward:  # noqa: SLF001
                return function
            function = part._old_forward  # noqa: SLF001
        elif (offloaded := _offloaded_forward(function, part)) is not None:
            function = offloaded
        elif hasattr(function, "_torchdynamo_orig_callable"):
            function = function._torchdynamo_orig_callable  # noqa: SLF001
        else:
            return function
    return function


def _offloaded_forward(function: Any, part: Any) -> Any | None:
    """What computes behind a hook of diffusers that brings groups of weights to the device; None for anything else."""
    hooks = getattr(getattr(part, "_diffusers_hook", None), "hooks", {}).values()
    cells = getattr(getattr(function, "func", None), "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells]
    moving = (hook for hook in hooks if type(hook).__module__ == "diffusers.hooks.group_offloading")
    return next((hook.fn_ref.forward for hook in moving if any(hook.fn_ref is one for one in held)), None)


def _library(value: object) -> str:
    """The top of the package in which a function or an object's class is defined."""
    value = value.func if isinstance(value, functools.partial) else value
    return str(getattr(value if is_function(value) else type(value), "__module__", None)).partition(".")[0]


def _code_name(value: object) -> object:
    """The name of a function, or of an object's class."""
    code = value.func if isinstance(value, functools.partial) else value
    kind: Any = code if is_function(code) or isinstance(code, type) else type(code)
    return getattr(kind, "__module__", None), getattr(kind, "__qualname__", None), isinstance(value, functools.partial)


def _hook_names(part: Any) -> list[object]:
    return [] if part is None else [_code_name(hook) for _, hook in _hooks(part)]


def _hooks(part: Any) -> Iterator[tuple[str, Any]]:
    """Whatever runs before and after the part's `forward` and is not the doing of a library that runs modules."""
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        for hook in getattr(part, kind).values():
            if _library(hook) not in _OWN_HOOKS:
                yield kind.strip("_"), hook


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return isinstance(value, (*_PLAIN, enum.Enum)) or type(value).__qualname__ == "dtype"


def _plain_form(value: object) -> str:
    return str(canonical(plain(value, "")))


class _Describer:
    """Says what an object is that took part in a patch: its class and all that it holds, weights by their content."""

    def __init__(self, parts: Mapping[int, str], identify_tensor: Described) -> None:
        self._parts = parts
        """The names of the module's own parts, by their ids: these are identified where they stand."""
        self._identify_tensor = identify_tensor
        self._seen: dict[int, int] = {}

    def hooks(self, part: Any, where: str) -> list[object]:
        """What runs before and after `forward`, in order."""
        return [[kind, self(hook, f"{where}.{kind}")] for kind, hook in _hooks(part)]

    def attributes(self, part: Any, where: str, depth: int = 0) -> dict[str, object]:
        """All that an object holds by itself; of a torch module, without what torch keeps in it."""
        torch: Any = sys.modules["torch"]
        left_out = _NO_MATTER | _KEPT_BY_TORCH
        if isinstance(part, torch.nn.Module):
            left_out |= vars(torch.nn.Module()).keys()
        values = {
            name: unwrapped(value, part, name) if is_function(value) else value
            for name, value in sorted(vars(part).items())
            if name not in left_out and "cache" not in name
        }
        return {"attributes": {name: self(value, f"{where}.{name}", depth + 1) for name, value in values.items()}}

    def __call__(self, value: Any, where: str, depth: int = 0) -> object:  # noqa: PLR0911 - one kind after the other
        torch: Any = sys.modules["torch"]
        if depth > MAX_DEPTH:
            raise IdentityError(where, f"nested more than {MAX_DEPTH} levels deep")
        if id(value) in self._parts:
            return {"part": self._parts[id(value)]}
        if isinstance(value, str):
            return without_random_names(value)
        if isinstance(value, torch.Tensor):
            return self._identify_tensor(value, where)
        if isinstance(value, (list, tuple)):
            return [self(item, f"{where}[{number}]", depth + 1) for number, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {str(key): self(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
        if is_function(value):
            return self._function(value, where, depth)
        if isinstance(value, (torch.device, *_MACHINERY)):
            return None
        return plain(value, where) if _is_plain(value) else self._object(value, where, depth)

    def _object(self, value: Any, where: str, depth: int) -> object:
        """An object as its class and what it holds."""
        torch: Any = sys.modules["torch"]
        if isinstance(value, type):
            return f"{value.__module__}.{value.__qualname__}"
        if not hasattr(value, "__dict__"):
            hint = "identify the model by the folder it comes from and by what was done to it"
            message = f"a {type(value).__module__}.{type(value).__qualname__} does not say what it is"
            raise IdentityError(where, message, hint=hint)
        if id(value) in self._seen:
            return {"seen": self._seen[id(value)]}
        self._seen[id(value)] = len(self._seen)
        described = {"class": class_identity(value), **self.attributes(value, where, depth)}
        if isinstance(value, torch.nn.Module):
            held = {**value._parameters, **value._buffers, **value._modules}  # noqa: SLF001
            described["holds"] = {name: self(item, f"{where}.{name}", depth + 1) for name, item in held.items()}
            described["hooks"] = self.hooks(value, where)
        return described

    def _function(self, function: Any, where: str, depth: int) -> object:
        """A function as its name and what it holds: what it is bound to, what it closes over, what it is given."""
        if isinstance(function, functools.partial):
            parts = {"function": function.func, "arguments": list(function.args), "named": function.keywords}
            return {name: self(part, f"{where}.{name}", depth + 1) for name, part in parts.items()}
        name = str(getattr(function, "__qualname__", function))
        if "<lambda>" in name:
            raise IdentityError(where, f"{name} has no name to know it by", hint="write a named function in a module")
        owner = getattr(function, "__self__", None)
        described: dict[str, object] = {"function": f"{getattr(function, '__module__', None)}.{name}"}
        if owner is not None and not isinstance(owner, types.ModuleType):
            described["object"] = self(owner, f"{where}.__self__", depth + 1)
        code = getattr(function, "__code__", None)
        cells = getattr(function, "__closure__", None) or ()
        for variable, cell in zip(code.co_freevars if code else (), cells, strict=True):
            described[f"closure {variable}"] = self(cell.cell_contents, f"{where}.{variable}", depth + 1)
        return described
