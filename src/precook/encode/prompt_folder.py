"""Pipelines that make prompts: which parts of a folder they need, and what their class takes; nothing is loaded."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from precook.encode.pipeline_folder import INDEX, PipelineFolder, PipelinePart, is_pipeline, read_pipeline
from precook.encode.prompt_leaves import CLEANED
from precook.errors import EncodeError, printable

_MAX_LENGTH = "max_sequence_length"
IMAGE = "image"
"""The argument of encode_prompt that takes pictures."""
_ONE_PICTURE = ("QwenImageEditPipeline", "QwenImageEditInpaintPipeline")
"""Pipelines whose prompts have a place for one picture alone."""
_SEVERAL_PICTURES = "QwenImageEditPlusPipeline"
_TEXT_PARTS = ("text_encoder", "tokenizer")
"""How the names of parts begin that make prompts."""
_CLEANERS = {"bs4": "beautifulsoup4", "ftfy": "ftfy"}
"""What diffusers cleans captions with: modules, and the packages that have them."""
_NO_PROMPT = "use transformers-text with the pipeline's text encoder, as the pipeline uses it"


def cleaned_by(pipeline: PipelineFolder) -> str | None:
    """The package that a pipeline or its tokenizer mends texts with where it is installed, and that is: its name."""
    if importlib.util.find_spec("ftfy") is None:
        return None
    return "ftfy" if pipeline.kind in CLEANED or _tokenizer_cleans(pipeline) else None


def _tokenizer_cleans(pipeline: PipelineFolder) -> bool:
    """Whether one of its tokenizers is CLIP's of transformers before 5, which mends texts, too."""
    try:
        old = int(importlib.metadata.version("transformers").partition(".")[0]) < 5  # noqa: PLR2004 - of 2025
    except importlib.metadata.PackageNotFoundError:
        return False
    return old and any(part.kind == "CLIPTokenizer" for part in text_parts(pipeline).values())


def text_parts(pipeline: PipelineFolder) -> dict[str, PipelinePart]:
    """The parts that make prompts: text encoders, their tokenizers and processors."""
    return {
        name: part
        for name, part in sorted(pipeline.parts.items())
        if name.startswith(_TEXT_PARTS) or name in ("text_processor", "processor")
        # What is no name in Python cannot be an argument of a class: it would only lead out of the folder.
        if name.isidentifier()
    }


def find_pipeline(
    folder: Path, max_length: int | None, options: Mapping[str, object], *, pictures: int = 0
) -> PipelineFolder:
    """The pipeline in a folder, if it is one that can make prompts, each with so many pictures; else `EncodeError`.

    Nothing is loaded.

    Where diffusers is not installed, its classes are taken on trust.
    """
    if not is_pipeline(folder):
        hint = f"name a pipeline's folder, which holds {INDEX}; a text encoder alone is for transformers-text"
        raise EncodeError(f"{printable(folder)}: no {INDEX} in there", hint=hint)
    pipeline = read_pipeline(folder)
    source = _read_class(pipeline.kind)
    place = f"{printable(folder)}: {printable(pipeline.kind)}"
    parts = text_parts(pipeline)
    if source is not None:
        _check_arguments(place, source, max_length, options, pictures=pictures > 0)
    if pictures > 1 and pipeline.kind in _ONE_PICTURE:
        hint = f"name one of them in `of`, or use {_SEVERAL_PICTURES}, which takes several"
        raise EncodeError(f"{place} takes one picture for a prompt, and `of` names {pictures}", hint=hint)
    if not any(name.startswith("text_encoder") for name in parts):
        raise EncodeError(f"{place} has no text encoder in this folder", hint="download the whole pipeline")
    absent = [] if source is None else [name for name in source.parts if name not in parts]
    if absent:
        hint = "put it there: give it to the pipeline's from_pretrained, and save all with save_pretrained"
        raise EncodeError(f"{place} needs {', '.join(absent)}, which {INDEX} does not name", hint=hint)
    for name, part in parts.items():
        if not part.folder.is_dir():
            hint = f"download the whole pipeline: {INDEX} names this folder"
            raise EncodeError(f"{printable(folder)}: there is no folder {printable(name)}", hint=hint)
    return pipeline


@dataclass(frozen=True, slots=True)
class _PromptClass:
    """What the source of a class says."""

    arguments: tuple[str, ...]
    """What encode_prompt takes."""
    required: tuple[str, ...]
    """Those that have to be given."""
    parts: tuple[str, ...]
    """The text encoders and tokenizers that it cannot do without."""


def _check_arguments(
    place: str, source: _PromptClass, max_length: int | None, options: Mapping[str, object], *, pictures: bool
) -> None:
    """Refuse a class whose encode_prompt needs something else than it gets, and settings that it does not take."""
    arguments = source.arguments
    if pictures != (IMAGE in arguments):
        if pictures:
            raise EncodeError(f"{place} takes no picture for its prompts", hint="leave `of` out")
        hint = "name it, such as `of: control`, or use a pipeline of that model that makes pictures from texts alone"
        message = f"{place} takes a picture for its prompts: give the concept `images`, and name one in `of`"
        raise EncodeError(message, hint=hint)
    others = [name for name in source.required if not _is_ours(name)]
    if "prompt" not in arguments or others:
        asked = f", and of {others[0]}" if others else ""
        raise EncodeError(f"{place} makes its prompts of something else than one text{asked}", hint=_NO_PROMPT)
    if max_length is not None and _MAX_LENGTH not in arguments:
        hint = "leave max_length out: its tokenizers state how long a text may be"
        raise EncodeError(f"{place} takes no {_MAX_LENGTH}, and max_length is {max_length}", hint=hint)
    free = [name for name in arguments if not _is_ours(name)]
    for name in options:
        if name not in free:
            hint = f"it may be told: {', '.join(free) or 'nothing'}"
            raise EncodeError(f"{place} cannot be told {printable(name)} in options", hint=hint)
    absent = [name for name in _CLEANERS if importlib.util.find_spec(name) is None]
    if options.get("clean_caption") and absent:
        # diffusers would leave texts as they are, and only warn.
        hint = f"pip install {' '.join(_CLEANERS.values())}, or leave clean_caption out"
        raise EncodeError(f"clean_caption needs {' and '.join(absent)}, not installed here", hint=hint)


def _is_ours(name: str) -> bool:
    """Whether an argument of encode_prompt is none of the settings: what it makes, or what this encoder tells it."""
    return (
        name in ("self", "device", "dtype", "do_classifier_free_guidance", "lora_scale", _MAX_LENGTH, IMAGE)
        or name.endswith("_per_prompt")
        or any(part in name for part in ("negative", "embeds", "mask"))
        or name.rstrip("_0123456789") == "prompt"
    )


@lru_cache(maxsize=64)
def _read_class(kind: str) -> _PromptClass | None:
    """A class of diffusers, by its source; None where diffusers is not installed.

    Read and not imported: that takes seconds, and a plan needs nothing else of it.
    """
    spec = importlib.util.find_spec("diffusers")
    if spec is None or spec.origin is None:
        return None
    for file in sorted((Path(spec.origin).parent / "pipelines").rglob("*.py")):
        text = file.read_text("utf-8")
        if f"\nclass {kind}(" in text:
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and node.name == kind:
                    return _prompt_class(node)
    hint = "install the version of diffusers that the pipeline was made for, or a newer one"
    raise EncodeError(f"diffusers, as it is installed here, has no {printable(kind)}", hint=hint)


def _prompt_class(node: ast.ClassDef) -> _PromptClass:
    methods = {part.name: part.args for part in node.body if isinstance(part, ast.FunctionDef)}
    call = methods.get("encode_prompt")
    if call is None:
        raise EncodeError(f"{printable(node.name)} of diffusers has no encode_prompt", hint=_NO_PROMPT)
    optional = {
        item.value
        for part in node.body
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "_optional_components"
        for item in ast.walk(part.value)
        if isinstance(item, ast.Constant)
    }
    needed = _required(methods["__init__"]) if "__init__" in methods else ()
    return _PromptClass(
        arguments=tuple(argument.arg for argument in (*call.args, *call.kwonlyargs)),
        required=_required(call),
        parts=tuple(name for name in needed if name.startswith(_TEXT_PARTS) and name not in optional),
    )


def _required(arguments: ast.arguments) -> tuple[str, ...]:
    """The arguments without a default."""
    given = len(arguments.args) - len(arguments.defaults)
    alone = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return tuple(
        argument.arg
        for argument in (*arguments.args[:given], *(argument for argument, default in alone if default is None))
    )
