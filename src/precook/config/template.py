"""The file that `precook init` writes: what was found, and every other setting with its meaning, ready for a change."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from precook.config.encoders import ENCODERS, EncoderSection, Section, kind_of
from precook.config.messages import quoted
from precook.config.schema import Concept, ImageSettings, Settings, TextSettings
from precook.config.yaml import check

_HEAD = (
    "# What precook encodes and keeps: `precook plan` shows what is missing, `precook build` encodes it.",
    "# A # with a name right behind it is a setting at its default, or an example of one: remove the # to use it.",
)
_ENCODERS_HEAD = (
    "# Removing the first # from each of an encoder's lines switches it on, putting them back switches it off;",
    "# at least one stays on. The names are yours to choose.",
)
_REMARK = 42
"""Column at which remarks begin."""
_Line = tuple[str, str]
"""Text and its remark, which may be empty."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Words that some reader of YAML takes for something else than text."""
_BLOCKS: dict[str, dict[str, Any]] = {
    "latent": {"uses": "diffusers-vae", "model": "models/vae"},
    "prompt": {"uses": "transformers-text", "model": "models/text"},
    "tokens": {"uses": "transformers-tokens", "model": "models/text"},
    "inputs": {"uses": "transformers-processor", "model": "models/vl"},
    "mask": {"uses": "mask", "factor": 8},
    "pixels": {"uses": "image"},
    "mine": {"uses": "my_package.my_module:MyEncoder"},
}
"""The encoders as they stand in the file while nobody has switched them on."""


@dataclass(frozen=True, slots=True)
class FoundConcept:
    """A folder or table of pictures, as `init` found it."""

    name: str
    path: str
    images: int
    captions: Literal["sidecar", "filename", "none"]
    masks: str | None
    """The pattern of their masks' names."""
    min_side: int
    max_side: int


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What `init` found, and what it was told."""

    dataset: str
    concepts: tuple[FoundConcept, ...]
    store: str
    vae: str | None
    """Model folder of the VAE."""
    text: str | None
    """Model folder of the text encoder."""
    resolution: int


def write_config(found: TemplateFacts) -> str:
    """The text of a config file for what was found; reading it gives exactly that back.

    A name or path that is not Unicode cannot be written: `ValueError`. What no config may hold, such as a concept's
    name with a line break, is a `ConfigError`.
    """
    settings = _settings(found)
    _require_unicode(found)
    check(settings)
    return "".join(
        f"{text:<{_REMARK}}  # {remark}\n" if remark else f"{text}\n" for text, remark in _file(found, settings)
    )


def yaml_text(value: Any) -> str:
    r"""A value on one line of YAML, which every reader of YAML takes for the same.

    >>> print(yaml_text("data/cats"), yaml_text("no"), yaml_text("a: b\n"), yaml_text([1, None, {"text": ""}]))
    data/cats "no" "a: b\n" [1, null, {text: ""}]
    """
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{yaml_text(name)}: {yaml_text(item)}' for name, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(yaml_text, value))}]"
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return str(value)
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    # Everything else would be folded, refused, or seen by nobody.
    return char if char.isprintable() else {"\n": r"\n", "\t": r"\t"}.get(char, f"\\U{ord(char):08x}")


def _settings(found: TemplateFacts) -> dict[str, Any]:
    """What the file says, comments aside."""
    encoders: dict[str, Any] = {}
    if found.vae is not None:
        encoders["latent"] = {**_BLOCKS["latent"], "model": found.vae}
    if found.text is not None:
        encoders["prompt"] = {**_BLOCKS["prompt"], "model": found.text}
    if any(concept.masks is not None for concept in found.concepts):
        # Without a VAE the masks go with the pixels.
        encoders["mask"] = {**_BLOCKS["mask"], "factor": 8 if found.vae is not None else 1}
    if found.vae is None and found.text is None:
        encoders["pixels"] = _BLOCKS["pixels"]
    return {
        "store": found.store,
        "dataset": found.dataset,
        "concepts": [_concept(concept) for concept in found.concepts],
        "image": {"resolutions": [found.resolution], "step": 64, "crop": "center", "flip": "none", "variations": 1},
        "text": {"variations": "all", "empty_prompt": True},
        "encoders": encoders,
    }


def _concept(concept: FoundConcept) -> dict[str, Any]:
    captions = {"text": ""} if concept.captions == "none" else concept.captions
    masks = {} if concept.masks is None else {"masks": concept.masks}
    return {"name": concept.name, "path": concept.path, "captions": captions, **masks}


def _file(found: TemplateFacts, settings: Mapping[str, Any]) -> Iterator[_Line]:
    fields = Settings.model_fields
    yield from _prose(*_HEAD, "")
    yield from (_setting(name, fields[name], settings) for name in ("store", "dataset"))
    yield from _heading("concepts")
    for number, (concept, told) in enumerate(zip(found.concepts, settings["concepts"], strict=True)):
        yield from _inside("  ", _concept_lines(concept, told, every=number == 0))
    for name, section in (("image", ImageSettings), ("text", TextSettings)):
        yield from _heading(name)
        yield from _inside("  ", _fields(section, settings[name]))
    yield from _heading("encoders")
    yield from _inside("  ", _prose(*_ENCODERS_HEAD))
    for name, block in _BLOCKS.items():
        told = settings["encoders"].get(name)
        yield from _inside("  " if told else "  #", _encoder(name, told or block))
    yield from _prose("")
    yield from (_setting(name, fields[name], settings) for name in ("keep", "stamps"))


def _heading(name: str) -> Iterator[_Line]:
    yield from _prose("")
    yield f"{name}:", Settings.model_fields[name].description or ""


def _concept_lines(concept: FoundConcept, told: Mapping[str, Any], *, every: bool) -> Iterator[_Line]:
    """One concept; the first one shows every setting."""
    pictures = "1 picture" if concept.images == 1 else f"{concept.images:,} pictures"
    sides = f", sides from {concept.min_side} to {concept.max_side} pixels" if concept.max_side else ""
    yield from _prose(f"# {pictures}{sides}")
    if concept.captions == "none":
        yield from _prose("# no captions were found: a fixed text, the empty prompt, stands for them")
    first, *others = _fields(Concept, told, every=every)
    yield from _inside("- ", [first])
    yield from _inside("  ", others)


def _encoder(name: str, told: Mapping[str, Any]) -> Iterator[_Line]:
    yield f"{name}:", ""
    yield from _inside("  ", _fields(ENCODERS[kind_of(told) or ""], told))


def _fields(section: type[Section], told: Mapping[str, Any], *, every: bool = True) -> Iterator[_Line]:
    # What all encoders share comes last, except for what tells them apart.
    shared = set(EncoderSection.model_fields) - {"uses"} if issubclass(section, EncoderSection) else set()
    for name, field in sorted(section.model_fields.items(), key=lambda item: item[0] in shared):
        if every or name in told:
            yield _setting(name, field, told)


def _setting(name: str, field: FieldInfo, told: Mapping[str, Any]) -> _Line:
    """A setting as it was told, or its default behind a #; an example where the default is to have none."""
    if name in told:
        return f"{name}: {yaml_text(told[name])}", field.description or ""
    value = field.examples[0] if field.default is None and field.examples else field.default
    return f"#{name}: {yaml_text(value)}", field.description or ""


def _inside(margin: str, lines: Iterable[_Line]) -> Iterator[_Line]:
    return ((f"{margin}{text}", remark) for text, remark in lines)


def _prose(*lines: str) -> Iterator[_Line]:
    return ((line, "") for line in lines)


def _require_unicode(found: TemplateFacts) -> None:
    texts = [found.dataset, found.store, found.vae, found.text]
    for concept in found.concepts:
        texts += [concept.name, concept.path, concept.masks]
    for text in filter(None, texts):
        if any("\ud800" <= char <= "\udfff" for char in text):
            message = f"{quoted(text)} is not Unicode and cannot stand in a file: rename it"
            raise ValueError(message)
