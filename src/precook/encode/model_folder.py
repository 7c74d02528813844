"""Model folders: which part of a pipeline an encoder means, where its tokenizer lies, and whether its files fit it.

All of it is told by names, configs and the heads of files, in a moment and before anything is loaded: torch, diffusers
and transformers are not imported here. What is refused could not be loaded, or the library would make up what is
missing: transformers makes an empty tokenizer of a folder that has none.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precook.config.encoders import (
    DiffusersPrompt,
    ModelEncoder,
    TransformersProcessor,
    TransformersText,
    TransformersTokens,
    TransformersVision,
    VaeSection,
)
from precook.encode.model_files import file_names, highest_token, token_embeddings, vocabulary_files, weight_files
from precook.encode.pipeline_folder import PipelinePart, is_pipeline, read_pipeline
from precook.encode.prompt_folder import find_pipeline, text_parts
from precook.encode.torch_tools import read_config
from precook.encode.vae_model import check_scaling, convention
from precook.errors import EncodeError, printable

TOKENIZER = (
    "tokenizer",
    "vocab",
    "merges",
    "special_tokens",
    "added_tokens",
    "spiece",
    "sentencepiece",
    "chat_template",
)
"""How the names of a tokenizer's files begin."""
TOKENIZER_ENDS = (".model", ".tiktoken", ".bpe", ".jinja")
PROCESSOR = ("preprocessor_config", "processor_config", "image_processor", "video_preprocessor", "video_processor")
"""How the names of a processor's files begin."""

_BYTES_ALONE = ("ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer")
"""Tokenizers whose tokens are bytes or characters: they have no file of a vocabulary."""
_TWO_TOWERS = (
    "CLIPModel",
    "SiglipModel",
    "Siglip2Model",
    "AltCLIPModel",
    "ChineseCLIPModel",
    "CLIPSegModel",
    "XCLIPModel",
    "AlignModel",
    "Aimv2Model",
    "MetaClip2Model",
)
"""Classes with a text encoder and a picture encoder inside."""
_LEARNED_POSITIONS = ("clip_text_model", "siglip_text_model")
"""Types of models that have no position beyond those of their config."""
_TOKENIZERS_OF = {"CLIPTokenizer": ("clip",), "T5Tokenizer": ("t5", "umt5", "mt5")}
"""Classes of tokenizers that belong to one kind of model, by the beginnings of its type."""
_DEFAULT, _TOOL_USE = "default", "tool_use"
"""The chat templates that transformers takes by itself."""
_MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
"""Where a chat template says that the assistant speaks."""
_SPARE = 100
"""A table may lack one in so many tokens: Gemma's tokenizer has one more than the model that takes texts alone."""

Fact = Callable[[str, Path, Callable[[Path], "int | None"]], "int | None"]
"""Recalls a number that was read of a file before, or reads it: by the fact's name, the file, and how it is read."""


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """Where the model of an encoder lies, and its tokenizer, as the config names them."""

    section: ModelEncoder
    base: Path
    """What the paths of the config start at."""
    root: Path
    """The folder that `model` names, here or in the hub's cache."""
    model: Path
    tokenizer: Path
    """The same, where the model has its own tokenizer or needs none."""

    def line(self, folder: Path, field: str = "model") -> str:
        """What to write in the config to name another folder."""
        if field == "model" and folder != self.root and folder.is_relative_to(self.root):
            return f"`subfolder: {printable(folder.relative_to(self.root).as_posix())}`"
        shown = folder.relative_to(self.base) if folder.is_relative_to(self.base) else folder
        return f"`{field}: {printable(shown.as_posix())}`"

    def check(self, fact: Fact) -> None:
        """Refuse what cannot be this encoder's: `EncodeError` says what lacks and what to write."""
        section = self.section
        if self.model.is_file() and not isinstance(section, VaeSection):
            hint = self.instead("name the folder that save_pretrained wrote, with its config.json")
            raise EncodeError(f"{printable(self.model)}: a single file, not the folder of a model", hint=hint)
        weights: list[Path] = []
        if isinstance(section, VaeSection):
            _check_vae(self, self.model if section.config is None else self.base / section.config)
            single = self.model.is_file()
            weights = [self.model] if single else weight_files(self.model, "diffusion_pytorch_model")
        elif isinstance(section, TransformersText):
            _check_settings(self, _check_text_class(self), section)
            weights = weight_files(self.model, "model")
        elif isinstance(section, DiffusersPrompt):
            weights = _check_pipeline(self.model, section, fact)
        elif isinstance(section, TransformersVision):
            weights = weight_files(self.model, "model")
        if isinstance(section, TransformersProcessor | TransformersVision) and not any(
            name.startswith(PROCESSOR) for name in file_names(self.model)
        ):
            hint = self.instead("name the folder that has a preprocessor_config.json")
            raise EncodeError(f"{printable(self.model)}: no processor in there", hint=hint)
        for file in weights:
            fact("embedding", file, token_embeddings)  # refuses one that is not whole

    def check_tokenizer(self, fact: Fact) -> None:
        """Refuse a tokenizer that is not there, or that belongs to another model."""
        section = self.section
        if not isinstance(section, TransformersText | TransformersTokens):
            return
        check_tokenizer(self.tokenizer, hint=self._tokenizer_hint())
        highest = _highest(self.tokenizer, fact)
        if not isinstance(section, TransformersText):
            return
        _check_belonging(self.model, self.tokenizer, highest, fact, self._tokenizer_hint())
        if section.chat_template:
            self.check_template("remove chat_template, or name a tokenizer that has one")

    def check_template(self, hint: str) -> None:
        """Refuse a tokenizer without a chat template, and one with a template that is not written right."""
        settings, names = _settings_of(self.tokenizer), file_names(self.tokenizer)
        if "chat_template" not in settings and not any(name.startswith("chat_template") for name in names):
            raise EncodeError(f"{printable(self.tokenizer)}: the tokenizer has no chat template", hint=hint)
        for name, template in read_templates(self.tokenizer).items():
            if flaw := template_flaw(template):
                which = "the chat template" if name == _DEFAULT else f"the chat template {printable(name)}"
                message = f"{printable(self.tokenizer)}: {which} is not written right, {flaw}"
                raise EncodeError(message, hint="mend it, or name another tokenizer")

    def check_marks(self, *, tools: bool) -> None:
        """Refuse a chat template that does not tell what the assistant says, where labels are made by that."""
        templates = read_templates(self.tokenizer)
        # As transformers chooses: conversations with tools have a template of their own where there is one.
        used = {name: text for name, text in templates.items() if name == _DEFAULT or (tools and name == _TOOL_USE)}
        for name, template in (used or templates).items():
            if not _MARK.search(template):
                which = "the chat template" if name == _DEFAULT else f"the chat template {printable(name)}"
                message = f"{printable(self.tokenizer)}: {which} does not tell what the assistant says"
                hint = "mark it with {% generation %} and {% endgeneration %}, or write labels: all"
                raise EncodeError(message, hint=hint)

    def instead(self, otherwise: str, folder: Path | None = None) -> str:
        """A hint to what fits this encoder in the pipeline that a folder is part of; else another hint.

        Without a folder, the model's; another one is named by `config`.
        """
        around, field = (self.model.parent, "model") if folder in (None, self.model) else (folder.parent, "config")
        fitting = fitting_parts(around, self.section.uses) if is_pipeline(around) else []
        return f"write {' or '.join(self.line(part, field) for part in fitting)}" if fitting else otherwise

    def _tokenizer_hint(self) -> str:
        """What to write, or to do, for another tokenizer."""
        field = "model" if isinstance(self.section, TransformersTokens) else "tokenizer"
        around, beside = self.model.parent, tokenizer_beside(self.model)
        if beside is not None and is_pipeline(around) and not has_tokenizer(beside):
            return f"download the folder {printable(beside.name)} of this pipeline, too"
        near = fitting_parts(around, "transformers-tokens") if beside is None and is_pipeline(around) else [beside]
        found = [self.line(one, field) for one in near if one not in (None, self.tokenizer) and has_tokenizer(one)]
        return (
            f"write {' or '.join(found)}" if found else f"name the folder of this model's tokenizer: `{field}: FOLDER`"
        )


# Finding


def find_part(folder: Path, uses: str) -> Path:
    """The folder of what an encoder takes: of a pipeline's root the one part that fits, of any other folder itself."""
    is_model = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    if is_model or uses not in _FITTING or not is_pipeline(folder):
        return folder
    fitting = fitting_parts(folder, uses)
    names = [part.name for part in fitting]
    if len(fitting) == 1 or "vae" in names[:1]:
        return fitting[0]
    kind = printable(read_pipeline(folder).kind)
    if not fitting:
        hint = f"name the folder of a model for {uses}"
        raise EncodeError(f"{printable(folder)}: a whole pipeline ({kind}), and no part of it is for {uses}", hint=hint)
    hint = f"write {' or '.join(f'`subfolder: {printable(name)}`' for name in names)}"
    raise EncodeError(f"{printable(folder)}: a whole pipeline ({kind}), with {' and '.join(names)}", hint=hint)


def fitting_parts(pipeline: Path, uses: str) -> list[Path]:
    """The folders of the parts of a pipeline that an encoder can be, the usual one first."""
    fits, parts = _FITTING[uses], read_pipeline(pipeline).parts
    # A name is that of a folder in here, whatever the file says.
    names = [name for name, part in parts.items() if fits(name, part) and name.isidentifier() and part.folder.is_dir()]
    return [parts[name].folder for name in sorted(names, key=lambda name: (name != "vae", name))]


def tokenizer_beside(folder: Path) -> Path | None:
    """Where pipelines keep the tokenizer of a text encoder: text_encoder_2 has tokenizer_2 beside it."""
    if "text_encoder" not in folder.name:
        return None
    return folder.with_name(folder.name.replace("text_encoder", "tokenizer"))


def find_tokenizer(folder: Path) -> Path:
    """The folder of a model's tokenizer: its own, or the one beside it where it has none."""
    beside = tokenizer_beside(folder)
    return beside if beside is not None and not has_tokenizer(folder) and has_tokenizer(beside) else folder


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has all that tells tokens: settings alone do not."""
    return bool(vocabulary_files(folder)) or _settings_of(folder).get("tokenizer_class") in _BYTES_ALONE


def check_tokenizer(folder: Path, *, hint: str = "name the folder that has a tokenizer.json or a vocabulary") -> None:
    """Refuse a folder without a tokenizer: of nothing, transformers makes one that knows no word."""
    if not has_tokenizer(folder):
        raise EncodeError(f"{printable(folder)}: no tokenizer in there", hint=hint)


def read_templates(folder: Path) -> dict[str, str]:
    """The chat templates of a tokenizer by name; the one that is usually taken is called default."""
    given = _settings_of(folder).get("chat_template")
    if isinstance(given, list):
        given = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
    named = given if isinstance(given, dict) else {_DEFAULT: given}
    templates = {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}
    files = {_DEFAULT: folder / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    for name, file in files.items():
        if file.is_file():
            try:
                templates[name] = file.read_text("utf-8")
            except UnicodeDecodeError as error:
                raise EncodeError(f"{printable(file)}: not UTF-8", hint="save it as UTF-8") from error
    return templates


def template_flaw(template: str) -> str | None:
    """What is not written right in a chat template, by its syntax alone; None where that is right, or nobody can tell.

    Nothing of it is run.
    """
    if importlib.util.find_spec("jinja2") is None:
        return None
    from jinja2 import Environment, TemplateSyntaxError, ext, nodes  # noqa: PLC0415 - only for chat templates

    class Generation(ext.Extension):
        """The block by which a template marks what the assistant says: transformers', not Jinja's."""

        tags = {"generation"}  # noqa: RUF012 - as the class above has it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            inside = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(inside).set_lineno(line)

    environment = Environment(  # noqa: S701 - nothing is rendered
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    try:
        environment.parse(template)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {printable(error.message or 'it cannot be read')}"
    except RecursionError:
        return "it is nested too deeply"
    return None


def is_tokenizer_file(name: str) -> bool:
    """Whether a file of this name may be a tokenizer's."""
    return name.startswith(TOKENIZER) or name.endswith(TOKENIZER_ENDS)


def _is_vae(kind: str) -> bool:
    return any(word in kind.lower() for word in ("autoencoder", "vae", "vqmodel"))


_FITTING: dict[str, Callable[[str, PipelinePart], bool]] = {
    "diffusers-vae": lambda name, part: _is_vae(part.kind) or name == "vae",
    "diffusers-video-vae": lambda name, part: _is_vae(part.kind) or name == "vae",
    "transformers-text": lambda name, _: "text_encoder" in name,
    "transformers-tokens": lambda name, _: "tokenizer" in name,
    "transformers-processor": lambda name, _: name in ("feature_extractor", "image_processor", "processor"),
    "transformers-vision": lambda name, _: name == "image_encoder",
}
"""Which parts of a pipeline each encoder can be."""


def _settings_of(tokenizer: Path) -> dict[str, Any]:
    file = "tokenizer_config.json"
    return read_config(tokenizer, file) if (tokenizer / file).is_file() else {}


# Classes


def _check_pipeline(folder: Path, section: DiffusersPrompt, fact: Fact) -> list[Path]:
    """Refuse a pipeline that cannot make prompts of what is in its folder; the files of its text encoders' weights."""
    weights = []
    parts = text_parts(find_pipeline(folder, section.max_length, section.options, pictures=len(section.pictures)))
    for name, part in parts.items():
        if name.startswith("tokenizer"):
            check_tokenizer(part.folder, hint="download the whole pipeline")
            model = parts.get(name.replace("tokenizer", "text_encoder"))
            if model is not None:
                highest, hint = _highest(part.folder, fact), "download the whole pipeline again"
                _check_belonging(model.folder, part.folder, highest, fact, hint)
        elif name.startswith("text_encoder"):
            weights += weight_files(part.folder, "model")
    return weights


def _check_vae(folders: ModelFolders, folder: Path) -> None:
    """Refuse a folder whose config is not that of a VAE for pictures."""
    config = read_config(folder)
    kind = config.get("_class_name")
    place = printable(folder)
    if isinstance(kind, str) and (why := convention(kind).refused):
        hint = folders.instead("name the folder of a VAE for pictures", folder)
        raise EncodeError(f"{place}: {kind} does not encode a picture: {why}", hint=hint)
    if isinstance(kind, str) and _is_vae(kind):
        if isinstance(folders.section, VaeSection) and folders.section.scaled:
            check_scaling(kind, config, folder)
        return
    if isinstance(kind, str):
        hint = folders.instead("name the folder of one, such as AutoencoderKL", folder)
        raise EncodeError(f"{place}: {printable(kind)} is not a VAE", hint=hint)
    named = _class_of(config)
    hint = folders.instead("name the folder of a VAE in the format of diffusers", folder)
    if named is not None:
        raise EncodeError(f"{place}: {printable(named)} is a model of transformers, not a VAE", hint=hint)
    raise EncodeError(f"{printable(folder / 'config.json')}: no _class_name", hint=hint)


def _check_text_class(folders: ModelFolders) -> dict[str, Any]:
    config = read_config(folders.model)
    place, kind = printable(folders.model), _class_of(config)
    otherwise = "name the folder of the text encoder; `subfolder` names one inside it"
    if kind is None and isinstance(config.get("_class_name"), str):
        name = printable(config["_class_name"])
        raise EncodeError(
            f"{place}: {name} is a model of diffusers, not a text encoder", hint=folders.instead(otherwise)
        )
    if kind in _TWO_TOWERS:
        raise two_towers(folders.model, kind)
    if kind is not None and "vision" in kind.lower() and "text" not in kind.lower() and "For" not in kind:
        raise EncodeError(f"{place}: {printable(kind)} takes no text", hint=folders.instead(otherwise))
    return config


def _highest(tokenizer: Path, fact: Fact) -> int | None:
    """The highest token that a tokenizer knows, if its form is known."""
    return next((fact("vocabulary", file, highest_token) for file in vocabulary_files(tokenizer)), None)


def _check_belonging(model: Path, tokenizer: Path, highest: int | None, fact: Fact, hint: str) -> None:
    """Refuse a tokenizer of another family than the model, or with more tokens than the model has embeddings for."""
    config = read_config(model)
    kind, of = str(_settings_of(tokenizer).get("tokenizer_class")).removesuffix("Fast"), str(config.get("model_type"))
    others = (types for name, types in _TOKENIZERS_OF.items() if name != kind)
    if kind in _TOKENIZERS_OF and any(map(of.startswith, others)):
        message = f"{printable(tokenizer)}: a {kind}, and {printable(model)} is a model of type {printable(of)}"
        raise EncodeError(message, hint=hint)
    rows = _vocabulary_size(config)
    if rows is None:
        weights = weight_files(model, "model")
        rows = next((found for file in weights if (found := fact("embedding", file, token_embeddings))), None)
    if highest is not None and rows is not None and highest >= rows + rows // _SPARE:
        known = f"the tokenizer knows tokens up to {highest}, and {printable(model)} has embeddings for {rows}"
        raise EncodeError(f"{printable(tokenizer)}: {known}", hint=hint)


def two_towers(folder: Path, kind: str) -> EncodeError:
    """The refusal of a model that has a text encoder inside: with or without projection, we cannot know."""
    hint = f"save its text part alone: {kind.removesuffix('Model')}TextModel.from_pretrained(…).save_pretrained(…)"
    return EncodeError(f"{printable(folder)}: {printable(kind)} encodes texts and pictures", hint=hint)


def _class_of(config: dict[str, Any]) -> str | None:
    """The class of transformers that a config names, or the type of its model; None where it is not one's."""
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        return architectures[0]
    kind = config.get("model_type")
    return kind if isinstance(kind, str) else None


def _check_settings(folders: ModelFolders, config: dict[str, Any], section: TransformersText) -> None:
    """Refuse settings that ask for more than the model has."""
    place, text = printable(folders.model), _text_config(config)
    positions = text.get("max_position_embeddings") if config.get("model_type") in _LEARNED_POSITIONS else None
    if isinstance(positions, int) and section.max_length is not None and section.max_length > positions:
        message = f"{place}: max_length is {section.max_length}, and the model has {positions} positions"
        raise EncodeError(message, hint=f"set max_length to {positions} or less")
    layers = next((text[name] for name in ("num_layers", "num_hidden_layers") if isinstance(text.get(name), int)), None)
    if layers is not None and section.layers != "all":
        for layer in section.layers:
            if not -layers - 1 <= layer <= layers:
                hint = f"layers go from 0 (the embeddings) to {layers}, or from -{layers + 1} to -1"
                raise EncodeError(f"{place}: there is no layer {layer}", hint=hint)


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _vocabulary_size(config: dict[str, Any]) -> int | None:
    size = _text_config(config).get("vocab_size", config.get("vocab_size"))
    return size if isinstance(size, int) else None
