"""What stands before a cache in an mgds pipeline: which modules lead to its names, and who they are.

mgds modules name what they ask for in their own attributes (`image_in_name="image"`), so following every text among
those attributes that names an earlier output finds every module that can have a say. That is rather too much than too
little; and a module that is asked all the same without having been found ends the build.

Settings are read when the pipeline is put together: later, modules keep lists of paths and other findings of a run in
their attributes, and those are no settings.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from precook.errors import IdentityError
from precook.identity.functions import class_identity, is_function
from precook.identity.identify import identify
from precook.identity.models import is_module, is_tensor
from precook.identity.processors import is_tokenizer, plain, processor_kind

ENUMERATORS = frozenset(
    {
        "mgds.ConceptPipelineModule.ConceptPipelineModule",
        "mgds.SettingsPipelineModule.SettingsPipelineModule",
        "mgds.pipelineModules.CollectPaths.CollectPaths",
        "mgds.pipelineModules.DownloadHuggingfaceDatasets.DownloadHuggingfaceDatasets",
    }
)
"""Modules whose attributes say which samples there are; what these become is in the values they hand on."""
PATH_MAKERS = frozenset(
    {"mgds.pipelineModules.CollectPaths.CollectPaths", "mgds.pipelineModules.ModifyPath.ModifyPath"}
)
"""Modules whose outputs are paths."""
_LOADERS = frozenset(
    f"mgds.pipelineModules.{name}.{name}" for name in ("LoadImage", "LoadVideo", "LoadText", "LoadMultipleTexts")
)
"""Modules that use a path for the content of its file and for its extension."""
_NAMERS = frozenset({"mgds.pipelineModules.GetFilename.GetFilename"})
"""Modules that use the last part of a path and not the file."""
_OF_THE_PIPELINE = frozenset({"pipeline", "_state", "started", "current_variation", "current_index"})
"""Attributes that mgds itself sets."""
_LEFT_OUT: Any = object()
_seen: weakref.WeakKeyDictionary[Any, tuple[object, object]] = weakref.WeakKeyDictionary()
"""Who torch modules are, with what their tensors looked like at the time: hashing gigabytes takes seconds, and several
caches ask for the same encoder."""


class Use(enum.Flag):
    """What a module takes from a path."""

    CONTENT = enum.auto()
    SUFFIX = enum.auto()
    NAME = enum.auto()
    WHOLE = enum.auto()


@dataclass(frozen=True, slots=True)
class _Heavy:
    """Something that is identified when it is needed: it may be large, and nothing of a run is kept in it."""

    value: Any


@dataclass(frozen=True, slots=True)
class Stage:
    """A module as it was when the pipeline was put together."""

    module: Any
    kind: str
    outputs: frozenset[str]
    settings: dict[str, Any]
    """By attribute: plain data, or what is to be identified, or why it cannot be."""
    texts: tuple[tuple[str, str], ...]
    """Every text in its attributes, with the attribute it stands in."""


@dataclass(frozen=True, slots=True)
class Closure:
    """The stages that lead to some names."""

    stages: tuple[Stage, ...]
    asked: frozenset[str]
    """Every name that is asked for on the way."""
    paths: dict[str, Use] = field(default_factory=dict)
    """Names of paths, and what is taken from them."""

    def values(self) -> tuple[str, ...]:
        """The names whose values come from concepts and settings as they are, and belong into a key."""
        given = {output for stage in self.stages if stage.kind in ENUMERATORS for output in stage.outputs}
        left_out = self.path_outputs() | set(self.paths)
        return tuple(sorted(n for n in self.asked if n.partition(".")[0] in given and n not in left_out))

    def path_outputs(self) -> frozenset[str]:
        """Names that are nothing but paths."""
        return _path_outputs(self.stages)


def look_at(modules: Sequence[Any]) -> tuple[Stage, ...]:
    """The stages before a cache."""
    return tuple(_look_at(module) for module in modules)


def closure(stages: Sequence[Stage], names: Sequence[str], *, given: str | None = None) -> Closure:
    """Everything that leads to some names; what leads to the name that is `given` is left out."""
    found: set[int] = set()
    asked: set[str] = set()
    paths: dict[str, Use] = {}
    path_outputs = _path_outputs(stages)
    todo = [(name, len(stages), "", "") for name in names]
    seen = set()
    while todo:
        name, before, attribute, kind = todo.pop()
        root = name.partition(".")[0]
        # A value that is None lets mgds go on to earlier modules of the same name, so all of them count.
        providers = [at for at in range(before) if root in stages[at].outputs]
        if not providers or name == given:
            continue
        asked.add(name)
        is_path = name in path_outputs or ("path" in attribute and not attribute.endswith("out_name"))
        if is_path and kind and kind not in PATH_MAKERS:
            paths[name] = paths.get(name, Use(0)) | _use(kind)
        if (root, before) in seen:
            continue
        seen.add((root, before))
        for at in providers:
            if at not in found:
                found.add(at)
                if stages[at].kind not in ENUMERATORS:
                    todo += [(text, at, where, stages[at].kind) for where, text in stages[at].texts]
    return Closure(tuple(stages[at] for at in sorted(found)), frozenset(asked), paths)


def identities(found: Closure, given: Mapping[str, object], model: object) -> list[object]:
    """Who the stages are, as plain data for a recipe; `given` and `model` stand for what they cannot say themselves."""
    return [_identity(stage, given, model) for stage in found.stages if stage.kind not in ENUMERATORS]


@contextlib.contextmanager
def nobody_else(stages: Sequence[Stage], found: Closure) -> Iterator[None]:
    """While this lasts, a module that no key covers cannot be asked."""
    inside = {id(stage.module) for stage in found.stages}
    outside = [stage.module for stage in stages if id(stage.module) not in inside]
    for module in outside:
        module.get_item = _refuser(module)
    try:
        yield
    finally:
        for module in outside:
            del module.get_item


def _path_outputs(stages: Sequence[Stage]) -> frozenset[str]:
    return frozenset(
        output
        for stage in stages
        if stage.kind in PATH_MAKERS
        for attribute, output in stage.texts
        if output in stage.outputs and attribute in ("path_out_name", "out_name")
    )


def _refuser(module: Any) -> Callable[..., Any]:
    name = type(module).__name__

    def refuse(*_: object, **__: object) -> Any:
        message = "was asked for an item, but no attribute of the modules that lead to the cache names its outputs"
        raise IdentityError(name, message, hint="let the module that asks keep the name in an attribute")

    return refuse


def _look_at(module: Any) -> Stage:
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    # The cache's own class says what it holds by its keys: whoever reads through it depends on what stands before it.
    own = getattr(type(module), "is_precook_cache", False)
    attributes = {} if own else {name: value for name, value in vars(module).items() if _is_own(name)}
    texts = [("", text) for text in _texts(module.get_outputs() if own else module.get_inputs())]
    texts += [(name, text) for name, value in attributes.items() for text in _texts(value)]
    settings: dict[str, Any] = {}
    if kind not in ENUMERATORS:
        for name, value in attributes.items():
            try:
                settings[name] = _setting(value, f"{type(module).__name__}.{name}")
            except IdentityError as error:
                settings[name] = error
    return Stage(module, kind, frozenset(module.get_outputs()), settings, tuple(texts))


def _is_own(name: str) -> bool:
    return name not in _OF_THE_PIPELINE and not name.startswith("_PipelineModule__")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from _texts(part)


def _use(kind: str) -> Use:
    if kind in _LOADERS:
        return Use.CONTENT | Use.SUFFIX
    if kind in _NAMERS:
        return Use.NAME
    return Use.CONTENT | Use.WHOLE


def _setting(value: Any, where: str) -> Any:
    """A setting as plain data, or as something to be identified later."""
    if is_module(value) or is_tensor(value) or is_tokenizer(value) or processor_kind(value) is not None:
        return _Heavy(value)
    if isinstance(value, (list, tuple)):
        return [_setting(item, f"{where}[{at}]") for at, item in enumerate(value)]
    if type(value) is dict:
        return {str(key): _setting(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, contextlib.nullcontext):
        return None
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if name.startswith("torch.") and name.endswith(".autocast"):
        # Switched off it is no context at all.
        return {"autocast": plain(value.fast_dtype, where), "device": value.device} if value._enabled else None  # noqa: SLF001
    if name == "torch.device" or isinstance(value, (type(threading.Lock()), type(threading.RLock()), threading.local)):
        return _LEFT_OUT
    if isinstance(value, (Executor, threading.Event, threading.Condition)):
        return _LEFT_OUT
    if is_function(value) or callable(value):
        raise IdentityError(where, "code does not say what it will do")
    return plain(value, where)


def _identity(stage: Stage, given: Mapping[str, object], model: object) -> object:
    name = type(stage.module).__name__
    settings: dict[str, object] = {}
    for attribute, value in stage.settings.items():
        where = f"{name}.{attribute}"
        if where in given:
            settings[attribute] = {"given": identify(given[where])}
        elif isinstance(value, IdentityError):
            raise _named(where, value)
        elif value is not _LEFT_OUT:
            try:
                settings[attribute] = _weigh(value, model)
            except IdentityError as error:
                raise _named(where, error) from error
    return {"class": class_identity(stage.module), "settings": settings}


def _named(where: str, error: IdentityError) -> IdentityError:
    hint = f'say who it is: identities={{"{where}": "…"}}, and something else whenever its results change'
    text = error.message.removeprefix(f"{error.where}: ")
    inner = f"{error.where.removeprefix(where)}: " if error.where.removeprefix(where) else ""
    return IdentityError(where, f"{inner}{text}", hint=hint)


def _weigh(value: Any, model: object) -> object:
    if isinstance(value, list):
        return [_weigh(item, model) for item in value if item is not _LEFT_OUT]
    if isinstance(value, dict):
        return {key: _weigh(item, model) for key, item in value.items() if item is not _LEFT_OUT}
    if not isinstance(value, _Heavy):
        return value
    if not is_module(value.value):
        return identify(value.value)
    if model is not None:
        return {"class": class_identity(value.value), "model": identify(model)}
    return _identify_module(value.value)


def _identify_module(module: Any) -> object:
    """Who a torch module is; hashed again only if a tensor of it was written to, moved or replaced meanwhile."""
    look = [_look(tensor) for tensor in (*module.parameters(), *module.buffers())]
    known = _seen.get(module)
    if known is None or known[0] != look:
        known = _seen[module] = (look, identify(module))
    return known[1]


def _look(tensor: Any) -> tuple[object, ...]:
    # Writing in place raises the version; assigning to `.data`, as moving and converting do, changes the place.
    version = 0 if tensor.is_inference() else tensor._version  # noqa: SLF001
    return version, tensor.data_ptr() if not tensor.is_meta else 0, str(tensor.dtype), tuple(tensor.shape)
