"""The modules before a cache: which of them lead to the cached names, and what these modules are.

It is worked out in three steps:

1. `inspect_modules` takes down the attributes of every module when the pipeline is put together. Later, modules keep
   lists of paths and other findings of a run in their attributes, and those are no settings.
2. `trace` follows the cached names back. mgds modules keep the names that they ask for in attributes of their own
   (`image_in_name="image"`), so every text among a module's attributes that names an output of an earlier module is
   followed. That finds every module that can have a say, and perhaps some that have none: a key with too much in it
   costs an encoding, a key with too little in it gives wrong data.
3. `module_identities` says in plain data what the modules are, for the recipe.

A module that was not found and is asked all the same while a build runs ends the build (`only_traced`).
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, NamedTuple

from precook.errors import IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.functions import class_identity, is_function
from precook.identity.identify import identify
from precook.identity.models import is_module, is_tensor
from precook.identity.patches import random_names
from precook.identity.plain import plain
from precook.identity.processors import is_tokenizer, processor_kind
from precook.values import Digest

_SETTINGS = "mgds.SettingsPipelineModule.SettingsPipelineModule"
COLLECT_PATHS = "mgds.pipelineModules.CollectPaths.CollectPaths"
_ENUMERATORS = frozenset(
    {
        "mgds.ConceptPipelineModule.ConceptPipelineModule",
        _SETTINGS,
        COLLECT_PATHS,
        "mgds.pipelineModules.DownloadHuggingfaceDatasets.DownloadHuggingfaceDatasets",
    }
)
"""Modules whose attributes say which samples there are; what these become is in the values they hand on."""
_PATH_MAKERS = frozenset({COLLECT_PATHS, "mgds.pipelineModules.ModifyPath.ModifyPath"})
"""Modules whose outputs are paths."""
_LOADERS = frozenset(
    f"mgds.pipelineModules.{name}.{name}" for name in ("LoadImage", "LoadVideo", "LoadText", "LoadMultipleTexts")
)
"""Modules that use a path for the content of its file and for its extension."""
_FILE_NAMERS = frozenset({"mgds.pipelineModules.GetFilename.GetFilename"})
"""Modules that use the last part of a path and not the file."""
_TEXT_FUNCTIONS = {
    "mgds.pipelineModules.MapData.MapData": "map_fn",
    "mgds.pipelineModules.Tokenize.Tokenize": "apply_chat_template",
}
"""Modules that call a function on the text they ask for, and the attribute that holds it."""
_ENCODING_HALVES = {"mgds.pipelineModules.EncodeVAE.EncodeVAE": "vae"}
"""Modules that encode with an autoencoder of diffusers, and the attribute that holds it."""
_BATCHES = "mgds.TextEncoderBatching.BatchCollector"
"""Puts the texts of several threads into one batch: that says how a module runs, and nothing about what it makes."""
_SET_BY_MGDS = frozenset({"pipeline", "_state", "started", "current_variation", "current_index"})
"""Attributes that mgds itself gives to every module."""
_NO_SETTING: Any = object()
"""Stands for an attribute that decides nothing: a lock, a pool, a device."""


class PathUse(enum.Flag):
    """What a module takes from a path."""

    CONTENT = enum.auto()
    """What is in the file."""
    SUFFIX = enum.auto()
    NAME = enum.auto()
    """The last part of the path, as text."""
    WHOLE = enum.auto()
    """All of the path, as text."""


@dataclass(frozen=True, slots=True)
class UpstreamModule:
    """A module before the cache, as it was when the pipeline was put together."""

    module: Any
    kind: str
    """Its class, with the module that defines it."""
    outputs: frozenset[str]
    settings: dict[str, Any]
    """By attribute: plain data, `_ToIdentify`, `TextFunction`, `_NO_SETTING`, or the error that says why it cannot be
    identified."""
    texts: tuple[tuple[str, str], ...]
    """Every text in its attributes, each after the attribute it stands in."""


@dataclass(frozen=True, slots=True)
class _ToIdentify:
    """A setting that is identified when it is needed: weights are large, and nothing of a run is kept in them."""

    value: Any


@dataclass(frozen=True, slots=True)
class TextFunction:
    """A function that a module calls on a text: code does not say what it does, so what it gives stands in the key.

    OneTrainer writes embeddings into prompts with methods of its models, and chat templates with lambdas.
    """

    module: Any
    attribute: str

    @property
    def where(self) -> str:
        """Its module and attribute, as `identities` names them."""
        return f"{type(self.module).__name__}.{self.attribute}"

    def ask(self, variation: int, index: int) -> str:
        """The text that it is called on for a sample, as the modules before it draw it now."""
        text = self.module._get_previous_item(variation, self.module.in_name, index)  # noqa: SLF001 - mgds' own way
        if not isinstance(text, str):
            raise _explained(self.where, IdentityError(self.where, f"a function of a {type(text).__name__}"))
        return text

    def value(self, text: str) -> object:
        """What it makes of a text, as plain data."""
        template = getattr(self.module, "format_text", None)
        made = getattr(self.module, self.attribute)(text if template is None else template.format(text))
        return plain(made, self.where)


# 1. What the modules are made of


def inspect_modules(modules: Sequence[Any]) -> tuple[UpstreamModule, ...]:
    """Take down the names and the settings of the modules before a cache."""
    return tuple(_inspect(module) for module in modules)


def qualified_name(module: Any) -> str:
    """A module's class, with the file that defines it."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _inspect(module: Any) -> UpstreamModule:
    class_name = type(module).__name__
    kind = qualified_name(module)
    if getattr(type(module), "is_precook_cache", False):
        # A cache of ours in front of this one adds nothing: whoever reads through it depends on what stands before it.
        attributes = {}
        texts = [("", name) for name in module.get_outputs()]
    else:
        attributes = {
            name: value
            for name, value in vars(module).items()
            if name not in _SET_BY_MGDS and not name.startswith("_PipelineModule__")
        }
        texts = [("", text) for text in _texts(module.get_inputs())]
        texts += [(name, text) for name, value in attributes.items() for text in _texts(value)]
    settings: dict[str, Any] = {}
    if kind not in _ENUMERATORS:
        for name, value in attributes.items():
            if _TEXT_FUNCTIONS.get(kind) == name and value is not None:
                settings[name] = TextFunction(module, name)
                continue
            try:
                settings[name] = _setting(value, f"{class_name}.{name}")
            except IdentityError as error:
                settings[name] = error  # raised if the module turns out to lead to a cached name
    return UpstreamModule(module, kind, frozenset(module.get_outputs()), settings, tuple(texts))


def _texts(value: object) -> Iterator[str]:
    """Every text in a value, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from _texts(part)


def _setting(value: Any, where: str) -> Any:
    """A setting as `UpstreamModule.settings` holds it."""
    if is_module(value) or is_tensor(value) or is_tokenizer(value) or processor_kind(value) is not None:
        return _ToIdentify(value)
    if isinstance(value, (list, tuple)):
        return [_setting(item, f"{where}[{number}]") for number, item in enumerate(value)]
    if type(value) is dict:
        return {str(key): _setting(item, f"{where}[{key!r}]") for key, item in value.items()}
    type_name = f"{type(value).__module__}.{type(value).__qualname__}"
    is_autocast = type_name.startswith("torch.") and type_name.endswith(".autocast")
    if is_autocast or isinstance(value, contextlib.nullcontext):
        # Switched off, autocast is no context at all.
        enabled = is_autocast and value._enabled  # noqa: SLF001
        return {"autocast": plain(value.fast_dtype, where), "device": value.device} if enabled else None
    if type_name in ("torch.device", _BATCHES) or isinstance(value, _MACHINERY):
        return _NO_SETTING
    if is_function(value) or callable(value):
        raise IdentityError(where, "code does not say what it will do")
    return plain(value, where)


_MACHINERY = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.local,
    Executor,
    threading.Event,
    threading.Condition,
)
"""Types that say how a module runs, and nothing about what it makes."""


# 2. Which of them lead to the cached names


@dataclass(frozen=True, slots=True)
class Upstream:
    """The modules that lead to some names."""

    modules: tuple[UpstreamModule, ...]
    asked: frozenset[str]
    """Every name that is asked for on the way."""
    paths: dict[str, PathUse]
    """Those of them that are paths, and what is taken from each."""
    path_outputs: frozenset[str]
    """Names that are nothing but paths."""
    caches_between: tuple[Any, ...] = ()
    """Caches of ours that a module behind them asks on the way."""

    def functions(self, given: Mapping[str, object]) -> tuple[TextFunction, ...]:
        """The functions of texts that count by what they give; not those that a user identifies."""
        values = [value for module in self.modules for value in module.settings.values()]
        return tuple(value for value in values if isinstance(value, TextFunction) and value.where not in given)

    def made_up_tokens(self) -> dict[str, int]:
        """The ids of tokens that were added under random names, by these: OneTrainer does so for its embeddings."""
        ids: dict[str, int] = {}
        for setting in (setting for module in self.modules for setting in module.settings.values()):
            tokenizer: Any = setting.value if isinstance(setting, _ToIdentify) else None
            added = tokenizer.get_added_vocab() if callable(getattr(tokenizer, "get_added_vocab", None)) else {}
            ids |= {name: number for token, number in added.items() for name in random_names(token)}
        return ids

    def settings(self) -> tuple[str, ...]:
        """The names whose values come from concepts and settings as they are, and belong into a key."""
        given = {output for module in self.modules if module.kind in _ENUMERATORS for output in module.outputs}
        are_paths = self.path_outputs | set(self.paths)
        return tuple(sorted(name for name in self.asked - are_paths if name.partition(".")[0] in given))


class _Request(NamedTuple):
    """A name that a module asks the modules before it for."""

    name: str
    position: int
    """Of the module that asks: only earlier ones can answer."""
    attribute: str = ""
    """Of that module, which holds the name."""
    kind: str = ""
    """Of that module; empty for the cache itself."""

    def use_of_path(self, path_outputs: frozenset[str]) -> PathUse:
        """What is taken from the path of this name; nothing if it is no path, or asked for to make another path."""
        is_path = self.name in path_outputs or ("path" in self.attribute and not self.attribute.endswith("out_name"))
        if not is_path or not self.kind or self.kind in _PATH_MAKERS:
            return PathUse(0)
        if self.kind in _LOADERS:
            return PathUse.CONTENT | PathUse.SUFFIX
        # Of a loader that is not mgds' own nobody knows what else it takes from a path.
        return PathUse.NAME if self.kind in _FILE_NAMERS else PathUse.CONTENT | PathUse.WHOLE


def trace(modules: Sequence[UpstreamModule], names: Sequence[str], *, without: str | None = None) -> Upstream:
    """Follow names back through the modules; the name `without` is not followed, as if nothing led to it."""
    leading: set[int] = set()
    asked: set[str] = set()
    paths: dict[str, PathUse] = {}
    every_path = _path_outputs(modules)
    requests = [_Request(name, len(modules)) for name in names]
    followed: set[tuple[str, int]] = set()
    between: dict[int, Any] = {}
    while requests:
        request = requests.pop()
        root = request.name.partition(".")[0]
        # A value that is None lets mgds go on to earlier modules of the same name, so all of them count.
        providers = [number for number in range(request.position) if root in modules[number].outputs]
        if not providers or request.name == without:
            continue
        asked.add(request.name)
        if use := request.use_of_path(every_path):
            paths[request.name] = paths.get(request.name, PathUse(0)) | use
        if (root, request.position) in followed:
            continue
        followed.add((root, request.position))
        for number in providers:
            provider = modules[number]
            asks = request.kind and not request.kind.startswith("precook.")
            if asks and getattr(type(provider.module), "is_precook_cache", False):
                between[number] = provider.module
            if number not in leading:
                leading.add(number)
                if provider.kind not in _ENUMERATORS:
                    requests += [_Request(text, number, attribute, provider.kind) for attribute, text in provider.texts]
    traced = tuple(modules[number] for number in sorted(leading))
    return Upstream(traced, frozenset(asked), paths, _path_outputs(traced), tuple(between.values()))


def same_for_all(modules: Sequence[UpstreamModule]) -> frozenset[str]:
    """Names that have the same value for every sample: those that the pipeline's settings alone give."""
    given = {output for module in modules if module.kind == _SETTINGS for output in module.outputs}
    return frozenset(given.difference(*(module.outputs for module in modules if module.kind != _SETTINGS)))


def _path_outputs(modules: Sequence[UpstreamModule]) -> frozenset[str]:
    return frozenset(
        text
        for module in modules
        if module.kind in _PATH_MAKERS
        for attribute, text in module.texts
        if text in module.outputs and attribute in ("path_out_name", "out_name")
    )


def collected_path(modules: Sequence[UpstreamModule]) -> str | None:
    """The name under which the files of the samples are listed."""
    collected = [module for module in modules if module.kind == COLLECT_PATHS]
    return next(
        (text for module in collected for attribute, text in module.texts if attribute == "path_out_name"), None
    )


@contextlib.contextmanager
def only_traced(modules: Sequence[UpstreamModule], upstream: Upstream) -> Iterator[None]:
    """While this lasts, a module that was not found cannot be asked: no key says what it gives."""
    known = {id(module.module) for module in upstream.modules}
    others = [module.module for module in modules if id(module.module) not in known]
    for other in others:
        other.get_item = _refuser(type(other).__name__)
    try:
        yield
    finally:
        for other in others:
            del other.get_item


def _refuser(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        message = "was asked for an item, but no attribute of the modules that lead to the cache names its outputs"
        raise IdentityError(name, message, hint="let the module that asks keep the name in an attribute")

    return refuse


# 3. What these modules are, for the recipe


FirstWeights = Callable[[Digest, Digest], Digest]
"""Given what encodes and all weights, the weights that stood beside the same encoder first."""


def module_identities(
    upstream: Upstream, given: Mapping[str, object], model: object, first_weights: FirstWeights
) -> dict[int, object]:
    """What the modules are, by their numbers; `given` stands for single attributes and `model` for all weights.

    A VAE counts by the half of it that encodes: with the decoder trained, it stays the one that was met first.
    """
    # Hashed anew at each call, once: a weight that was written to through `.data` looks as it did before.
    encoders: dict[int, object] = {}
    for module in upstream.modules:
        vae = module.settings.get(_ENCODING_HALVES.get(module.kind, ""))
        where = f"{type(module.module).__name__}.vae"
        if isinstance(vae, _ToIdentify) and model is None and where not in given and id(vae.value) not in encoders:
            encoders[id(vae.value)] = _encoding_half(vae.value, where, first_weights)
    return {
        number: _identity(module, given, model, encoders)
        for number, module in enumerate(upstream.modules)
        if module.kind not in _ENUMERATORS
    }


def _identity(
    module: UpstreamModule, given: Mapping[str, object], model: object, encoders: dict[int, object]
) -> object:
    settings: dict[str, object] = {}
    for attribute, value in module.settings.items():
        where = f"{type(module.module).__name__}.{attribute}"
        if where in given:
            settings[attribute] = {"given": identify(given[where])}
        elif isinstance(value, IdentityError):
            raise _explained(where, value)
        elif isinstance(value, TextFunction):
            settings[attribute] = {"function": "by value"}
        elif value is not _NO_SETTING:
            try:
                settings[attribute] = _identified(value, model, encoders)
            except IdentityError as error:
                raise _explained(where, error) from error
    return {"class": class_identity(module.module), "settings": settings}


def _encoding_half(vae: Any, where: str, first_weights: FirstWeights) -> object:
    """What a VAE is, with the weights of its decoder as they were when its encoder was met first."""
    try:
        identity = identify(vae)
        if not isinstance(identity, dict) or not isinstance(identity.get("weights"), Digest):
            return identity
        encoding = {
            name: identify(tensor)
            for name, tensor in vae.state_dict().items()
            if is_tensor(tensor) and name.partition(".")[0] not in ("decoder", "post_quant_conv")
        }
    except IdentityError as error:
        raise _explained(where, error) from error
    half = digest(canonical([{**identity, "weights": None}, encoding]))
    return {**identity, "weights": first_weights(half, identity["weights"])}


def _explained(where: str, error: IdentityError) -> IdentityError:
    """The same error, which names the attribute and says how a user can identify it."""
    hint = f'say who it is: identities={{"{where}": "…"}}, and something else whenever its results change'
    text = error.message.removeprefix(f"{error.where}: ")
    inside = error.where.removeprefix(where)
    return IdentityError(where, f"{inside}: {text}" if inside else text, hint=hint)


def _identified(value: Any, model: object, encoders: dict[int, object]) -> object:
    """A setting with everything in it identified; `encoders` holds the identities of torch modules, by their ids."""
    if isinstance(value, list):
        return [_identified(item, model, encoders) for item in value if item is not _NO_SETTING]
    if isinstance(value, dict):
        return {key: _identified(item, model, encoders) for key, item in value.items() if item is not _NO_SETTING}
    if not isinstance(value, _ToIdentify):
        return value
    if not is_module(value.value):
        return identify(value.value)
    if model is not None:
        return {"class": class_identity(value.value), "model": identify(model)}
    if id(value.value) not in encoders:
        encoders[id(value.value)] = identify(value.value)
    return encoders[id(value.value)]
