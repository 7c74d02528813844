"""The file that `precook init` writes: what was found, and every other setting with its meaning, ready for a change."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from precook.config.check import check
from precook.config.concept import OF_PICTURES, Concept
from precook.config.encoders import ENCODERS, EncoderSection, kind_of
from precook.config.field_types import Section
from precook.config.messages import quoted
from precook.config.remote import CacheSettings, RemoteSettings
from precook.config.schema import Settings
from precook.config.sections import ImageSettings, TextSettings, VideoSettings
from precook.errors import printable
from precook.units import format_count
from precook.values import has_surrogates

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
    "video_latent": {"uses": "diffusers-video-vae", "model": "models/video-vae"},
    "prompt": {"uses": "diffusers-prompt", "model": "models/pipeline"},
    "text": {"uses": "transformers-text", "model": "models/text"},
    "tokens": {"uses": "transformers-tokens", "model": "models/text"},
    "inputs": {"uses": "transformers-processor", "model": "models/vl"},
    "vision": {"uses": "transformers-vision", "model": "models/vision"},
    "mask": {"uses": "mask", "factor": 8},
    "pixels": {"uses": "image"},
    "mine": {"uses": "my_package.my_module:MyEncoder"},
}
"""The encoders as they stand in the file, behind a #, until somebody switches them on."""
_OF_TEXTS = ("text", "tokens", "mine")
"""Those that can make something of texts without pictures."""


@dataclass(frozen=True, slots=True)
class FoundConcept:
    """A folder of pictures, or a folder or table of texts, as `init` found it."""

    name: str
    path: str
    images: int
    """How many of them there are."""
    captions: Literal["sidecar", "filename", "none"]
    masks: str | None
    """The pattern of their masks' names."""
    min_side: int
    max_side: int
    clips: int = 0
    """How many of them are videos."""
    texts: Mapping[str, Any] | None = None
    """Where there are texts alone: `texts`, and `caption_extension` where it is needed."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further fields of the concept, and captions of another kind."""
    remarks: tuple[str, ...] = ()
    """Why it has them, and what its owner should know."""


@dataclass(frozen=True, slots=True)
class ProposedSetting:
    """A setting that was decided for a model."""

    name: str
    """A field of `image`, or an encoder or `video` and its field with a dot between them."""
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the config is to say for a model."""

    model: str
    """Its folder."""
    pipeline: str | None
    """The class of its pipeline, where its folder is there to tell."""
    family: str | None
    title: str | None
    left_out: str
    """Why prompts are not kept, where they cannot be."""
    image: Mapping[str, Any]
    """How pictures are cut for it."""
    factor: int
    """Pixels along a side of one latent, as it is kept."""
    encoders: Mapping[str, Mapping[str, Any]]
    """Sections by name."""
    settings: tuple[ProposedSetting, ...]
    """What was decided, and why."""
    video: Mapping[str, Any]
    """Which frames of clips are taken; nothing where there are none."""
    remarks: Mapping[str, tuple[str, ...]]
    """Lines to put before an encoder, by its name."""

    @property
    def sentence(self) -> str:
        """What the model is."""
        if self.family is None:
            return f"{self.model}: a {self.pipeline}, of no family that precook knows: look at what was chosen"
        kind = "not here yet" if self.pipeline is None else f"a {self.pipeline}"
        return f"{self.model}: {kind}, of the family {self.family} ({self.title})"


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
    tokens_alone: bool = False
    """Whether that folder has a tokenizer, and no model that takes its tokens."""
    factor: int = 8
    """Pixels along a side of one latent of the VAE."""
    frames: ProposedSetting | None = None
    """How many frames of clips are taken; None where there are none."""
    proposal: Proposal | None = None
    """For the model that was named; it stands in the place of `vae`, `text`, `resolution`, `factor` and `frames`."""

    @property
    def texts_alone(self) -> bool:
        """Whether there are no pictures."""
        return all(concept.texts is not None for concept in self.concepts)

    @property
    def video(self) -> Mapping[str, Any]:
        """Which frames of clips are taken; nothing where there are none."""
        if self.proposal is not None:
            return self.proposal.video
        return {} if self.frames is None else {"frames": self.frames.value, "fps": VideoSettings().fps}


def write_config(facts: TemplateFacts) -> str:
    """The text of a config file for what was found; reading it gives exactly that back.

    A name or path that is not Unicode cannot be written: `ValueError`. What no config may hold, such as a concept's
    name with a line break, is a `ConfigError`.
    """
    settings = _settings(facts)
    _require_unicode(facts)
    check(settings)
    return "".join(
        f"{text:<{_REMARK}}  # {remark}\n" if remark else f"{text}\n" for text, remark in _file(facts, settings)
    )


def yaml_text(value: Any) -> str:
    r"""A value on one line of YAML, which every reader of YAML takes for the same.

    >>> print(yaml_text("data/cats"), yaml_text("no"), yaml_text("a: b\n"), yaml_text([1, None, {"text": ""}]))
    data/cats "no" "a: b\n" [1, null, {text: ""}]
    """
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
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


def _settings(facts: TemplateFacts) -> dict[str, Any]:
    """What the file says, comments aside."""
    if facts.texts_alone:
        # Batches of the feed are for a language model then, which is to learn where a text ends.
        tokens = {**_BLOCKS["tokens"], "model": facts.text or _BLOCKS["tokens"]["model"], "eos": "on"}
        concepts = [{"name": one.name, "path": one.path, **(one.texts or {})} for one in facts.concepts]
        return {
            "store": facts.store,
            "dataset": facts.dataset,
            "concepts": concepts,
            "encoders": {"tokens": tokens},
        }
    proposal = facts.proposal
    encoders: dict[str, Any] = {} if proposal is None else {name: dict(it) for name, it in proposal.encoders.items()}
    if facts.vae is not None or (facts.video and proposal is None):
        block = _BLOCKS["video_latent" if facts.video else "latent"]
        encoders["latent"] = {**block, "model": facts.vae or block["model"]}
    if facts.text is not None:
        kept, of = ("tokens", "tokens") if facts.tokens_alone else ("prompt", "text")
        encoders[kept] = {**_BLOCKS[of], "model": facts.text}
    controls = control_names(facts.concepts)
    if proposal is None and not facts.video:
        pictures = encoders.get("latent", _BLOCKS["pixels"])
        encoders |= {name: {**pictures, "of": name} for name in controls}
    if any(concept.masks is not None for concept in facts.concepts):
        # Without a VAE the masks go with the pixels.
        factor = facts.factor if proposal is None else proposal.factor
        encoders["mask"] = {**_BLOCKS["mask"], "factor": factor if "latent" in encoders else 1}
    if "latent" not in encoders and (proposal is not None or facts.text is None or controls):
        encoders["pixels"] = _BLOCKS["pixels"]
    concepts = [
        {
            "name": concept.name,
            "path": concept.path,
            "captions": {"text": ""} if concept.captions == "none" else concept.captions,
            **({} if concept.masks is None else {"masks": concept.masks}),
            **concept.settings,
        }
        for concept in facts.concepts
    ]
    return {
        "store": facts.store,
        "dataset": facts.dataset,
        "concepts": concepts,
        "image": {
            "resolutions": [facts.resolution],
            "step": 64 if 64 % facts.factor == 0 else facts.factor,
            "crop": "center",
            "flip": "none",
            "variations": 1,
            **({} if proposal is None else proposal.image),
        },
        "text": {"variations": "all", "empty_prompt": True},
        **({"video": dict(facts.video)} if facts.video else {}),
        "encoders": encoders,
    }


def _file(facts: TemplateFacts, settings: Mapping[str, Any]) -> Iterator[_Line]:
    fields = Settings.model_fields
    yield from _texts(*_HEAD, "")
    yield from (_setting(name, fields[name], settings) for name in ("store", "dataset"))
    yield from _heading("concepts")
    for number, (concept, given) in enumerate(zip(facts.concepts, settings["concepts"], strict=True)):
        yield from _indented("  ", _concept_lines(concept, given, every=number == 0))
    if not facts.texts_alone:
        yield from _picture_lines(facts, settings)
    yield from _heading("encoders")
    yield from _indented("  ", _texts(*_ENCODERS_HEAD))
    if facts.proposal is not None:
        yield from _indented("  ", _comments([facts.proposal.sentence]))
    used = {kind_of(given) for given in settings["encoders"].values()}
    # Those that have no place of their own among the usual ones, such as the encoder of control pictures, come first.
    blocks: dict[str, dict[str, Any]] = {name: {} for name in settings["encoders"] if name not in _BLOCKS}
    blocks |= _BLOCKS
    for name, block in blocks.items():
        switched_on = name in settings["encoders"]
        if facts.texts_alone and name not in _OF_TEXTS:
            continue
        if not switched_on and kind_of(block) in used:
            continue  # it stands there under another name
        given = settings["encoders"].get(name, block)
        if facts.proposal is not None and name in facts.proposal.encoders:
            remarks = [*facts.proposal.remarks.get(name, ()), *_reasons(facts.proposal.settings, name)]
            yield from _indented("  ", _comments(remarks))
        lines = [(f"{name}:", ""), *_indented("  ", _fields(ENCODERS[kind_of(given) or ""], given))]
        yield from _indented("  " if switched_on else "  #", lines)
    yield from _texts("")
    yield from (_setting(name, fields[name], settings) for name in ("keep", "stamps"))
    for name, section in (("cache", CacheSettings), ("remote", RemoteSettings)):
        yield from _commented(name, section)


def _picture_lines(facts: TemplateFacts, settings: Mapping[str, Any]) -> Iterator[_Line]:
    """How pictures are cut, and which of their captions are kept."""
    for name, section in (("image", ImageSettings), ("text", TextSettings)):
        yield from _heading(name)
        if facts.proposal is not None and name == "image":
            yield from _indented("  ", _comments(_reasons(facts.proposal.settings, "")))
        yield from _indented("  ", _fields(section, settings[name]))
    if facts.video:
        yield from _heading("video")
        decided = [] if facts.frames is None else [facts.frames]
        yield from _indented(
            "  ", _comments(_reasons(decided if facts.proposal is None else facts.proposal.settings, "video"))
        )
        yield from _indented("  ", _fields(VideoSettings, settings["video"]))
        return
    yield from _commented("video", VideoSettings)


def _commented(name: str, section: type[Section]) -> Iterator[_Line]:
    """A section that need not be there, with its defaults."""
    yield from _indented("#", [line for line in _heading(name) if line != ("", "")])
    defaults = {name: field.default for name, field in section.model_fields.items()}
    yield from _indented("#  ", _fields(section, defaults))


def _reasons(decided: Iterable[ProposedSetting], owner: str) -> Iterator[str]:
    """Why the settings of an encoder or of `video` are what they are, or without its name those of pictures."""
    for setting in decided:
        section, _, name = setting.name.rpartition(".")
        if section == owner:
            yield f"{name} {yaml_text(setting.value)}: {setting.reason}"


def _heading(name: str) -> Iterator[_Line]:
    yield from _texts("")
    yield f"{name}:", Settings.model_fields[name].description or ""


def _concept_lines(concept: FoundConcept, given: Mapping[str, Any], *, every: bool) -> Iterator[_Line]:
    """One concept; the first one shows every setting."""
    if concept.texts is not None:
        yield from _texts(f"# {format_count(concept.images, 'text')}")
        yield from _comments(concept.remarks)
        first, *others = (
            line
            for line in _fields(Concept, given, every=every)
            if line[0].strip("#").partition(":")[0] not in OF_PICTURES
        )
        yield from _indented("- ", [first])
        yield from _indented("  ", others)
        return
    pictures = told_count(concept)
    sides = f", sides from {concept.min_side} to {concept.max_side} pixels" if concept.max_side else ""
    yield from _texts(f"# {pictures}{sides}")
    yield from _comments(concept.remarks)
    if concept.captions == "none" and "captions" not in concept.settings:
        yield from _texts("# no captions were found: a fixed text, the empty prompt, stands for them")
    first, *others = _fields(Concept, given, every=every)
    yield from _indented("- ", [first])
    yield from _indented("  ", others)


def control_names(concepts: Iterable[FoundConcept]) -> list[str]:
    """What the further pictures of concepts are called: those of a list are numbered."""
    names: dict[str, None] = {}
    for concept in concepts:
        for name, given in concept.settings.get("images", {}).items():
            several = [f"{name}_{number}" for number in range(1, len(given) + 1)] if isinstance(given, list) else [name]
            names.update(dict.fromkeys(several))
    return list(names)


def told_count(concept: FoundConcept) -> str:
    """How many pictures and clips a concept has, in words."""
    pictures = concept.images - concept.clips
    told = [format_count(concept.clips, "clip")] if concept.clips else []
    return " and ".join([*told, *([format_count(pictures, "picture")] if pictures or not told else [])])


def _fields(section: type[Section], given: Mapping[str, Any], *, every: bool = True) -> Iterator[_Line]:
    # What all encoders share comes last, except for what tells them apart.
    shared = set(EncoderSection.model_fields) - {"uses"} if issubclass(section, EncoderSection) else set()
    for name, field in sorted(section.model_fields.items(), key=lambda item: item[0] in shared):
        if every or name in given:
            yield _setting(name, field, given)


def _setting(name: str, field: FieldInfo, given: Mapping[str, Any]) -> _Line:
    """A setting as it is given, or its default behind a #; an example where the default is to have none."""
    if name in given:
        return f"{name}: {yaml_text(given[name])}", field.description or ""
    value = field.examples[0] if field.default is None and field.examples else field.default
    return f"#{name}: {yaml_text(value)}", field.description or ""


def _indented(margin: str, lines: Iterable[_Line]) -> Iterator[_Line]:
    return ((f"{margin}{text}", remark) for text, remark in lines)


def _texts(*lines: str) -> Iterator[_Line]:
    return ((line, "") for line in lines)


def _comments(lines: Iterable[str]) -> Iterator[_Line]:
    """Lines that nobody reads as settings, whatever a folder or a class is called."""
    return ((f"# {printable(line)}", "") for line in lines)


def _require_unicode(facts: TemplateFacts) -> None:
    texts = [facts.dataset, facts.store, facts.vae, facts.text]
    if facts.proposal is not None:
        texts += [facts.proposal.model, *(section["model"] for section in facts.proposal.encoders.values())]
    for concept in facts.concepts:
        texts += [concept.name, concept.path, concept.masks]
    for text in filter(None, texts):
        if has_surrogates(text):
            message = f"{quoted(text)} is not Unicode and cannot stand in a file: rename it"
            raise ValueError(message)
