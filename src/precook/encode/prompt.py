"""Prompts of diffusers' pipelines: what a pipeline's own `encode_prompt` makes of a text.

An entry of `diffusers-prompt` is a dict with the names of that call's return statement: `prompt_embeds`, and what else
there is, such as `pooled_prompt_embeds`, `prompt_attention_mask` or `text_ids`. Left out are negative prompts (the
empty prompt is a text like any other) and what is None. Each tensor is the call's own for this text alone, less the
dimension of the batch; where zeros fill it up, they are left out and a batch puts them back (`prompt_leaves`).

Of the pipeline only text encoders, tokenizers and processors are loaded; its class is diffusers' own. `encode_prompt`
runs as it is, with its defaults: no guidance, one picture for each prompt, `max_sequence_length` where the settings
have a max_length, and what `options` say. Texts that are too long are cut as the pipeline cuts them; how many were is
not known here.

**Pictures.** Where `of` names pictures of a sample, the call gets them, too, as its `image`: one, or a list of several.
Such prompts are made one by one, as a pipeline makes them.

**Batches.** Some texts of different length are tried at load, alone and together. Where a pipeline makes something else
of them together, beyond rounding, texts are encoded one by one. A pipeline whose tensors are not of the form that is
known of its class is refused.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from precook.config.encoders import DiffusersPrompt
from precook.encode.compiled import CompiledParts, repeated_layers
from precook.encode.encoder import BaseEncoder, Item
from precook.encode.offload import place_model, weights_size
from precook.encode.pipeline_folder import PipelineFolder, PipelinePart
from precook.encode.prompt_folder import IMAGE, find_pipeline, text_parts
from precook.encode.prompt_leaves import COMMON, LeafForm, known_forms
from precook.encode.results import is_out_of_memory
from precook.encode.torch_tools import (
    LOCAL,
    check_complete,
    check_weights,
    hushed,
    library,
    load_weights,
    loading,
    raised,
    release_memory,
    torch_dtype,
)
from precook.errors import EncodeError, printable
from precook.plan.wanted import Input
from precook.store.tree import Tree

_GIVEN: dict[str, Any] = {
    "do_classifier_free_guidance": False,
    "num_images_per_prompt": 1,
    "num_videos_per_prompt": 1,
    "num_waveforms_per_prompt": 1,
}
"""What `encode_prompt` is told where it asks for it: only the prompt of each text is wanted."""
_LONG = (
    "seven red balloons over the old harbour, seen from a hill at dawn, two dogs asleep in the grass, the sea behind"
)
_PROBES = ("a cat", _LONG, " ".join([_LONG] * 30), "")
"""Texts of different length, to see how a pipeline's tensors follow from them: one that any would cut, and none."""


class PromptEncoder(BaseEncoder):
    """Keeps what a pipeline makes of each text."""

    input: Input = "text"
    gives_away = True

    def __init__(self, section: DiffusersPrompt, folder: Path) -> None:
        self._section = section
        self._folder = folder
        self._pipeline: PromptPipeline | None = None
        self._together = False
        """Whether texts may be encoded together."""
        self._shapes: dict[str, tuple[int, ...]] = {}
        """Leaves that have the same shape for every text."""

    def load(self, device: str) -> None:
        """Load the pipeline's text encoders and tokenizers, and try them."""
        section, seen = self._section, self._section.pictures
        found = find_pipeline(self._folder, section.max_length, section.options, pictures=len(seen))
        pipeline = PromptPipeline(found, section, device)
        alone = [pipeline.encode([text], _probe_pictures(len(seen)))[0] for text in _PROBES]
        self._shapes = {name: tuple(leaf.shape) for name, leaf in alone[0].items() if pipeline.form(name).fixed}
        for tree in alone:
            self._check_shapes(tree)
        pipeline.check_shared(alone)
        # In either order: Mochi takes all texts of a call for empty where the last one is.
        self._together = (
            not seen
            and all(map(_close, pipeline.encode(list(_PROBES)), alone))
            and all(map(_close, pipeline.encode(list(_PROBES[::-1])), alone[::-1]))
        )
        self._pipeline = pipeline

    @property
    def can_compile(self) -> bool:  # type: ignore[override]
        """Whether its text encoders have layers that repeat."""
        return self._pipeline is not None and self._pipeline.compiled.possible

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        """Whether they run on compiled code."""
        return self._pipeline is not None and self._pipeline.compiled.on

    def compile(self, batch: Sequence[Item] = ()) -> None:  # noqa: ARG002 - its sizes stay open
        """Compile the layers of the text encoders."""
        if self._pipeline is None:
            raise EncodeError("this encoder is not loaded", hint="call load(device) first")
        self._pipeline.compiled.turn_on(
            lambda: [
                leaf
                for tree in self._encode(list(_PROBES), [_probe_pictures(len(self._section.pictures))] * len(_PROBES))
                for leaf in tree.values()
            ]
        )

    def encode(self, batch: list[Item]) -> list[Tree]:
        """A dict of the tensors that `encode_prompt` returns, for each text."""
        texts = [item.text for item in batch if item.text is not None]
        assert len(texts) == len(batch), "a text encoder gets items with a text"
        trees = self._encode(texts, [self._pictures(item) for item in batch])
        for tree in trees:
            self._check_shapes(tree)
        # Each with memory of its own, and outside of inference mode: autograd takes no tensor that was made in it.
        return [{name: leaf.clone() for name, leaf in tree.items()} for tree in trees]

    def unload(self) -> None:
        """Let go of the models and of their memory on the device."""
        if self._pipeline is None:
            return
        self._pipeline = None
        release_memory()

    def _pictures(self, item: Item) -> list[Image.Image]:
        """The pictures that a prompt sees."""
        pictures = []
        for name in self._section.pictures:
            pixels = item.picture(name)
            if pixels is None:
                hint = "give the sample one, or keep it in a concept of another config"
                raise EncodeError(f"there is no {name} picture for this prompt to see", hint=hint)
            pictures.append(Image.fromarray(pixels))
        return pictures

    def _encode(self, texts: list[str], pictures: Sequence[list[Image.Image]]) -> list[dict[str, Any]]:
        """The trees of some texts, each with its pictures, which may share memory."""
        if self._pipeline is None:
            raise EncodeError("this encoder is not loaded", hint="call load(device) first")
        if not self._together:
            encode = self._pipeline.encode
            return [encode([text], seen)[0] for text, seen in zip(texts, pictures, strict=True)]
        # Twice the same where it stands alone: torch would make code of its own for one text.
        doubled = self.compiled and len(texts) == 1
        return self._pipeline.encode(2 * texts if doubled else texts)[: len(texts)]

    def _check_shapes(self, tree: Mapping[str, Any]) -> None:
        """Refuse a leaf that has another shape than for other texts: nobody could say how a batch of them looks."""
        for name, usual in self._shapes.items():
            shape = None if name not in tree else tuple(tree[name].shape)
            if shape != usual:
                message = f"{printable(self._folder)}: {name} has shape {shape} for one text and {usual} for another"
                raise EncodeError(message, hint=_UNKNOWN_FORM)


_UNKNOWN_FORM = "use transformers-text with its text encoder, as the pipeline uses it"


class PromptPipeline:
    """A pipeline with its text parts on a device, and nothing else of it: texts in, a tree for each out."""

    def __init__(self, found: PipelineFolder, section: DiffusersPrompt, device: str) -> None:
        self._torch = library("torch")
        self._folder = found.path
        self._forms = known_forms(found.kind, section.max_length)
        self._device = self._torch.device(device)
        self._pipeline = _load(found, section, device)
        models = [part for part in self._pipeline.components.values() if isinstance(part, self._torch.nn.Module)]
        self.compiled = CompiledParts(found.kind, [layer for model in models for layer in repeated_layers(model)])
        """The layers of its text encoders, which may run on compiled code."""
        call = type(self._pipeline).encode_prompt
        self._names = _returned_names(call, found)
        self._arguments = _arguments(call, section.max_length, found) | section.options
        self._absent = [name for name in self._pipeline.components if name.startswith("text_encoder")]
        self._absent = [name for name in self._absent if getattr(self._pipeline, name) is None]

    def form(self, name: str) -> LeafForm:
        """How a leaf stands in a batch."""
        return self._forms.get(name, COMMON)

    def encode(self, texts: list[str], pictures: Sequence[Image.Image] = ()) -> list[dict[str, Any]]:
        """What the pipeline makes of some texts, or of one with its pictures, taken apart; trees may share memory."""
        # A copy: some pipelines write into the list.
        arguments = {**self._arguments, "prompt": list(texts)}
        if pictures:
            arguments[IMAGE] = pictures[0] if len(pictures) == 1 else list(pictures)
        if "device" in arguments:
            arguments["device"] = self._device
        with hushed(), self._torch.inference_mode():
            try:
                returned = self.compiled.run(lambda: self._pipeline.encode_prompt(**arguments))
            except Exception as error:
                if is_out_of_memory(error) or isinstance(error, EncodeError):
                    raise
                raise self._failed(error) from error
            values = returned if isinstance(returned, tuple) else (returned,)
            if len(values) != len(self._names):
                raise self._misfit("its result", f"has {len(values)} parts, and its source names {len(self._names)}")
            named = zip(self._names, values, strict=True)
            made = {name: value for name, value in named if value is not None and "negative" not in name}
            masks = {form.mask for form in self._forms.values()}
            leaves = {
                name: self._taken_apart(name, value, made, len(texts))
                for name, value in made.items()
                if name not in masks
            }
            return [{name: parts[number].to("cpu") for name, parts in leaves.items()} for number in range(len(texts))]

    def check_shared(self, trees: Sequence[Mapping[str, Any]]) -> None:
        """Refuse a leaf that a batch would take from any of its texts, though it depends on them."""
        first = trees[0]
        for name in first:
            if self.form(name).shared and not all(self._torch.equal(first[name], tree[name]) for tree in trees):
                raise self._misfit(name, "is another one for each text")

    def _taken_apart(self, name: str, value: Any, made: Mapping[str, Any], count: int) -> Sequence[Any]:
        """The part of each text in one value of the call."""
        form = self.form(name)
        if form.listed:
            if not isinstance(value, list) or len(value) != count or not all(map(self._torch.is_tensor, value)):
                raise self._misfit(name, f"is not a list of {count} tensors")
            return value
        if not self._torch.is_tensor(value):
            raise self._misfit(name, f"is a {type(value).__name__} and not a tensor")
        if form.shared:
            return [value] * count
        if value.ndim <= form.axis or value.shape[form.axis] != count:
            raise self._misfit(name, f"has shape {tuple(value.shape)} for {count} texts")
        parts: Sequence[Any] = value.unbind(form.axis)
        if form.mask is not None:
            return self._unpadded(name, parts, made.get(form.mask), form.mask)
        if form.pad_to is None:
            return parts
        if any(part.shape[0] != form.pad_to for part in parts):
            raise self._misfit(name, f"has {parts[0].shape[0]} rows, and {form.pad_to} are expected")
        return [part[: self._rows(part)] for part in parts]

    def _unpadded(self, name: str, parts: Sequence[Any], mask: Any, mask_name: str) -> Sequence[Any]:
        """The places of each text that its mask calls real."""
        if mask is None:
            # That is how the pipelines say it where all places are.
            return parts
        lengths = mask.sum(1).tolist()
        real = self._torch.arange(mask.shape[1], device=mask.device) < mask.sum(1, keepdim=True)
        ends = [part[length:] for part, length in zip(parts, lengths, strict=True)]
        if not self._torch.equal(mask.bool(), real) or any(self._rows(end) for end in ends):
            raise self._misfit(name, f"is not filled up with zeros where {mask_name} says so")
        return [part[:length] for part, length in zip(parts, lengths, strict=True)]

    def _rows(self, part: Any) -> int:
        """Rows up to the last that has a bit: a zero with a sign is not filled in by a batch."""
        bits = part.contiguous().flatten(1).view(self._torch.uint8) if part.numel() else part.flatten(1)
        rows = bits.any(1).nonzero()
        return int(rows[-1]) + 1 if len(rows) else 0

    def _failed(self, error: Exception) -> EncodeError:
        hint = "`precook build -v` shows the traceback"
        if self._absent:
            hint = f"the pipeline's folder has no {', '.join(self._absent)}: save the whole pipeline into it"
        return EncodeError(f"{printable(self._folder)}: encode_prompt failed: {raised(error)}", hint=hint)

    def _misfit(self, name: str, what: str) -> EncodeError:
        kind = type(self._pipeline).__name__
        return EncodeError(f"{printable(self._folder)}: {name} of {kind} {what}", hint=_UNKNOWN_FORM)


def _probe_pictures(count: int) -> list[Image.Image]:
    """Pictures to try a pipeline with that sees so many."""
    return [Image.linear_gradient("L").convert("RGB") for _ in range(count)]


def _close(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two trees of a text are the same but for rounding: each row, by its length."""
    torch = library("torch")
    if one.keys() != other.keys():
        return False
    for name, left in one.items():
        right = other[name]
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        if not left.is_floating_point():
            if not torch.equal(left, right):
                return False
            continue
        # Half of the digits: what is wrong (positions, a mask) differs in the first one.
        tolerance = torch.finfo(left.dtype).eps ** 0.5
        apart = (left.float() - right.float()).norm(dim=-1)
        if bool((apart > tolerance * right.float().norm(dim=-1)).any()):
            return False
    return True


# Loading


def _load(found: PipelineFolder, section: DiffusersPrompt, device: str) -> Any:
    """The pipeline with its text parts, and None for everything else."""
    library("transformers")  # before it is hushed
    diffusers = library("diffusers")
    with hushed():
        # Imports the pipeline's module, which asks transformers for parts that nobody wants here.
        kind = getattr(diffusers, found.kind, None)
    if not (inspect.isclass(kind) and issubclass(kind, diffusers.DiffusionPipeline)):
        hint = "install the version of diffusers that the pipeline was made for, or a newer one"
        raise EncodeError(f"diffusers, as it is installed here, has no pipeline {printable(found.kind)}", hint=hint)
    dtype, torch = torch_dtype(section.dtype), library("torch")
    parts: dict[str, Any] = {}
    for name, part in text_parts(found).items():
        loaded = _load_part(name, part, dtype)
        if isinstance(loaded, torch.nn.Module):
            beside = sum(weights_size(other) for other in parts.values() if isinstance(other, torch.nn.Module))
            loaded = place_model(loaded, device, section.device_memory, beside=beside)
        parts[name] = loaded
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in parts:
            arguments[name] = parts[name]
        elif name in found.settings:
            arguments[name] = found.settings[name]
        elif name == "safety_checker" and found.kind.startswith("Cosmos"):
            # For None it would make one, from files of the hub.
            arguments[name] = _NoChecker()
        elif parameter.default is parameter.empty:
            arguments[name] = None
    with hushed():
        try:
            return kind(**arguments)
        except (AttributeError, TypeError, ValueError, ImportError) as error:
            message = f"{printable(found.path)}: {found.kind} cannot be made of its text parts alone: {raised(error)}"
            raise EncodeError(message, hint=_UNKNOWN_FORM) from error


class _NoChecker:
    """Stands where a pipeline wants something that checks its pictures."""


def _load_part(name: str, part: PipelinePart, dtype: Any) -> Any:
    """A text encoder, not yet on its device, or a tokenizer; its class is one of transformers or of diffusers."""
    torch, transformers = library("torch"), library("transformers")
    # Kolors has its text encoder in diffusers.
    modules = [transformers] if part.library == "transformers" else []
    modules += [getattr(library("diffusers").pipelines, part.library, None)]
    classes: list[Any] = [found for module in modules if inspect.isclass(found := getattr(module, part.kind, None))]
    if not classes:
        hint = "install the versions of diffusers and transformers that the pipeline was made for, or newer ones"
        message = f"{printable(part.folder)}: neither transformers nor diffusers has {printable(part.kind)}"
        raise EncodeError(message, hint=hint)
    kind = classes[0]
    if not issubclass(kind, torch.nn.Module):
        with loading(name, part.folder):
            return kind.from_pretrained(part.folder, **LOCAL, trust_remote_code=False)
    check_weights(part.folder)
    if not issubclass(kind, transformers.PreTrainedModel):
        raise EncodeError(f"{printable(part.folder)}: {part.kind} is not a model of transformers", hint=_UNKNOWN_FORM)
    with loading(name, part.folder):
        config = kind.config_class.from_pretrained(part.folder, **LOCAL)
        # The library's choice: a config file could name code from the hub.
        config._attn_implementation = None  # noqa: SLF001
        model, missing = load_weights(kind, part.folder, config, dtype)
    check_complete(part.folder, missing)
    return model


# What encode_prompt takes and returns


def _arguments(call: Callable[..., Any], max_length: int | None, found: PipelineFolder) -> dict[str, Any]:
    """What `encode_prompt` is called with; prompt and device are filled in later."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if name in ("prompt", "device"):
            arguments[name] = None
        elif name in _GIVEN:
            arguments[name] = _GIVEN[name]
        elif name == IMAGE:
            pass  # each call has its own
        elif name == "max_sequence_length" and max_length is not None:
            arguments[name] = max_length
        elif name != "self" and parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            if not name.startswith("prompt_"):
                message = f"{printable(found.path)}: encode_prompt of {found.kind} asks for {name}"
                raise EncodeError(message, hint=_UNKNOWN_FORM)
            # The prompts of further text encoders, which are the first one then.
            arguments[name] = None
    return arguments


def _returned_names(call: Callable[..., Any], found: PipelineFolder) -> tuple[str, ...]:
    """The names in the return statement of `encode_prompt`: its callers know its values by their order only."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(call)))).body
    assert isinstance(function, ast.FunctionDef)
    returned = {_names(node.value) for node in _own_nodes(function) if isinstance(node, ast.Return)}
    names = returned.pop() if len(returned) == 1 else None
    if names is None:
        message = f"{printable(found.path)}: encode_prompt of {found.kind} does not name what it returns"
        raise EncodeError(message, hint=_UNKNOWN_FORM)
    return names


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """What is inside of a function, without the functions in it."""
    nodes: list[ast.AST] = []
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            nodes += [node, *_own_nodes(node)]
    return nodes


def _names(value: ast.expr | None) -> tuple[str, ...] | None:
    items = value.elts if isinstance(value, ast.Tuple) else [value]
    plain = [item.body if isinstance(item, ast.IfExp) else item for item in items]
    names = tuple(item.id for item in plain if isinstance(item, ast.Name))
    return names if len(names) == len(plain) else None
