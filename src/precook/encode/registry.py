"""The encoders of a config: what each takes, the recipe that its settings and files give, and the object that encodes.

A recipe holds what decides the stored bytes: the model's files by content, the settings that matter, the version of our
own code. Where a model lies, on which device and in what batches it runs are no part of it. Nothing is loaded to make
one.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from precook.config.concept import Concept
from precook.config.encoders import (
    Compile,
    DiffusersPrompt,
    DiffusersVideoVae,
    EncoderSection,
    ModelEncoder,
    PictureEncoder,
    TransformersText,
    TransformersTokens,
    UserSection,
    VaeSection,
    own_class,
)
from precook.config.field_types import is_in_key
from precook.config.further_pictures import OWN, VIDEO
from precook.config.schema import Settings
from precook.config.texts import CompletionColumns, MessagesColumn
from precook.config.yaml import Origin
from precook.encode.encoder import BaseEncoder, Encoder, as_base, read_inputs, why_no_encoder_class
from precook.encode.hub import HubSnapshots, is_unused
from precook.encode.model_folder import (
    PROCESSOR,
    ModelFolders,
    find_part,
    find_tokenizer,
    has_tokenizer,
    is_tokenizer_file,
    tokenizer_beside,
)
from precook.encode.pipeline_folder import INDEX, read_pipeline
from precook.encode.processor import backend
from precook.encode.prompt_folder import cleaned_by, find_pipeline, text_parts
from precook.encode.prompt_leaves import known_forms
from precook.encode.torch_tools import named_shards, raised, read_config
from precook.encode.vae_model import Convention, class_name, convention, frames_per_latent
from precook.errors import ConfigError, EncodeError, IdentityError, SourceError, printable
from precook.fs.stamps import read_stamps, stamp_keys
from precook.identity.models import identify_path
from precook.identity.recipe import Recipe
from precook.identity.versions import COMPILED, code_versions, dump_versions, library_versions
from precook.memo.memo import Memory
from precook.plan.freeze import TOKENS, SpecialTokens
from precook.plan.wanted import TEXT, Encoding, Input
from precook.report import SILENT, Reporter
from precook.sources import pictures
from precook.sources.facts import remembered_digests
from precook.store.snapshot_content import FrozenEos, as_plain

AUTO = "auto"
"""The device that is chosen when an encoder is loaded: until then nobody needs to know."""

_INPUTS: dict[str, Input] = {
    "diffusers-vae": "image",
    "diffusers-video-vae": "video",
    "diffusers-prompt": "text",
    "transformers-text": "text",
    "transformers-tokens": "text",
    "transformers-processor": "image",
    "transformers-vision": "image",
    "mask": "mask",
    "image": "image",
}
_CLASSES = {
    "diffusers-vae": "precook.encode.vae:VaeEncoder",
    "diffusers-video-vae": "precook.encode.video_vae:VideoVaeEncoder",
    "diffusers-prompt": "precook.encode.prompt:PromptEncoder",
    "transformers-text": "precook.encode.text:TextEncoder",
    "transformers-tokens": "precook.encode.tokens:TokensEncoder",
    "transformers-processor": "precook.encode.processor:ProcessorEncoder",
    "transformers-vision": "precook.encode.vision:VisionEncoder",
    "mask": "precook.encode.pixels:MaskEncoder",
    "image": "precook.encode.pixels:ImageEncoder",
}
"""By name, because each is imported when it is made: none of them is needed to plan."""
_VERSIONS = dict.fromkeys(_INPUTS, 1)
"""Raised when an encoder of ours would store other bytes for the same input."""
_DOCUMENTS = ("transformers-tokens",)
"""Encoders that take texts in parts, too."""
_LIBRARIES: dict[str, tuple[str, ...]] = {
    "diffusers-vae": ("Pillow", "torch", "diffusers"),
    "diffusers-video-vae": ("Pillow", "av", "torch", "diffusers"),
    "diffusers-prompt": ("torch", "diffusers", "transformers", "tokenizers", "ftfy"),
    "transformers-text": ("torch", "transformers", "tokenizers"),
    "transformers-tokens": ("transformers", "tokenizers"),
    "transformers-processor": ("Pillow", "torch", "torchvision", "transformers"),
    "transformers-vision": ("Pillow", "torch", "torchvision", "transformers"),
    "mask": ("Pillow",),
    "image": ("Pillow",),
}
"""The libraries that may decide what an encoder makes: recorded with its entries, and no part of their keys."""
_PLACES = ("uses", "model", "revision", "subfolder", "tokenizer", "config", "of")
"""Settings that say where a model lies, or a picture: their content is in the recipe, and in keys, instead."""
_CHOOSING = ("model_type", "tokenizer_class", "image_processor_type", "feature_extractor_type")
"""Fields of a model's config that choose the class of a tokenizer or a processor."""
_WANTED = "name a class with input (image, text or mask), identity, load, encode and unload"
_COMPARE = "`precook verify --recompute 20%` compares"
_LONG = 10
"""Digits of a version that is no count."""
_ELSEWHERE = "relative paths start at the config file's folder; for a model of the hub set revision, such as main"
_SPECIAL = "special"
"""The kind of notes that hold special tokens, by recipe."""


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """One encoder of a config: how its recipe is made, how it is made itself, and where it runs."""

    name: str
    """Its name in the config."""
    definition: EncoderSection | Encoder
    """Its section of the config or, from Python, the encoder itself."""
    base: Path = Path()
    """What relative paths start at."""
    origin: Origin = field(default_factory=Origin)
    devices: tuple[str, ...] = (AUTO,)
    batch_size: int | None = None
    """None: found by trying."""
    compile: Compile = "auto"
    """Whether it runs on compiled code, if it can."""
    trust: bool = False
    """Whether stamps of files are believed on every file system."""
    snapshots: HubSnapshots = field(default_factory=HubSnapshots)

    @property
    def built_in(self) -> bool:
        """Whether it is one of ours: what a class of the user's makes is the user's matter."""
        return isinstance(self.definition, EncoderSection) and not isinstance(self.definition, UserSection)

    def on(self, devices: Sequence[str]) -> EncoderSpec:
        """The same on other devices, unless the config names one."""
        if self.devices != (AUTO,) or not devices:
            return self
        # An object is one encoder and cannot be loaded twice.
        several = isinstance(self.definition, EncoderSection)
        return replace(self, devices=tuple(devices) if several else (devices[0],))

    def check(self, memory: Memory, report: Reporter = SILENT) -> None:
        """Refuse a model that cannot be this encoder's; only names, configs and the heads of files are read for it.

        A model of the hub that is not here yet is downloaded for it. What was read of a file is remembered.
        """
        folders = self._folders(partial(self.snapshots.find, report=report))
        if folders is None:
            return
        named = isinstance(folders.section, TransformersText) and folders.section.tokenizer is not None
        for setting, folder, check in (
            ("model", folders.model, folders.check),
            ("tokenizer" if named else "model", folders.tokenizer, folders.check_tokenizer),
        ):
            where = ("encoders", self.name, setting)
            try:
                if not folder.exists():
                    raise self.origin.error(where, f"no such model: {folder}", hint=_ELSEWHERE)
                if isinstance(folders.section, VaeSection):
                    self._vae(folders.section, folder)
                check(partial(_recalled, memory))
            except (EncodeError, OSError) as error:
                raise self._refusal(setting, error) from error

    def encoding(self, memory: Memory, report: Reporter = SILENT) -> Encoding:
        """The encoder as a plan sees it; `check` has looked at its files before."""
        section = self.definition
        if isinstance(section, EncoderSection) and not isinstance(section, UserSection):
            folders = self._folders(self.snapshots.planned)
            of = section.of if isinstance(section, PictureEncoder) else OWN
            recipe = self._recipe(section, folders, memory, report)
            return self._encoding(self._inputs(section), recipe, of, documents=section.uses in _DOCUMENTS)
        encoder = self._make_user_encoder(section) if isinstance(section, UserSection) else section
        # An object is known by its class: two of one class differ in their identity.
        by_class = f"{type(encoder).__module__}:{type(encoder).__qualname__}"
        kind = section.uses if isinstance(section, UserSection) else by_class
        where: tuple[str, ...] = ("encoders", self.name)
        try:
            inputs = read_inputs(encoder)
        except EncodeError as error:
            named = (*where, "uses") if isinstance(section, UserSection) else where
            raise self.origin.error(named, f"{kind}: {error.message}", hint=error.hint) from error
        try:
            identity = encoder.identity()
        except (Exception, SystemExit) as error:
            raise self.origin.error(where, f"identity() failed: {raised(error)}") from error
        try:
            # By their names an encoder tells several inputs apart; one is what it is, whatever its name. But a clip of
            # one frame is no picture, although the same bytes go in.
            several = {"inputs": list(inputs)} if len(inputs) > 1 or VIDEO in inputs else {}
            recipe = Recipe(kind, {"identity": identity, **several, **self._given_version(), **_reading(inputs)})
        except IdentityError as error:
            message = f"identity() is not plain data: {error.message}"
            raise self.origin.error(where, message, hint=error.hint) from error
        of = section.of if isinstance(section, UserSection) else OWN
        if of != OWN and (OWN not in inputs or of in inputs):
            message = f"{kind} takes {', '.join(inputs)}: `of` names what it gets as its image"
            raise self.origin.error((*where, "of"), message, hint="leave it out")
        takes = tuple(of if name == OWN else name for name in inputs)
        return self._encoding(takes, recipe, of, documents=getattr(encoder, "documents", False) is True)

    def _inputs(self, section: EncoderSection) -> tuple[str, ...]:
        """What an encoder of ours takes."""
        if isinstance(section, DiffusersPrompt):
            return (TEXT, *section.pictures)
        return (section.of if isinstance(section, PictureEncoder) else _INPUTS[section.uses],)

    def _encoding(self, inputs: tuple[str, ...], recipe: Recipe, of: str, *, documents: bool) -> Encoding:
        advice = f"{_COMPARE}, {self._renewal()} makes them anew"
        return Encoding(self.name, inputs, recipe, self.versions(inputs), advice, documents, of)

    def check_texts(self, encoding: Encoding, concepts: Sequence[Concept]) -> None:
        """Refuse an encoder that can make nothing of a concept of texts alone, or nothing that goes into one batch."""
        where = ("encoders", self.name)
        section = self.definition
        in_parts = [isinstance(concept.texts, MessagesColumn | CompletionColumns) for concept in concepts]
        if isinstance(section, TransformersTokens) and section.labels == "auto" and any(in_parts) > all(in_parts):
            message = "some concepts have texts with labels and others without, which go into no batch together"
            raise self.origin.error((*where, "labels"), message, hint="set labels: completion, so that all have them")
        for concept in concepts:
            if concept.texts is None:
                continue
            if encoding.per != "line":
                message = f"it takes pictures, and the concept {printable(concept.name)} has texts alone"
                raise self.origin.error(
                    where, message, hint="keep them in a config of their own, or remove one of them"
                )
            if not encoding.documents and isinstance(concept.texts, MessagesColumn | CompletionColumns):
                kind = "conversations" if isinstance(concept.texts, MessagesColumn) else "prompts with completions"
                message = f"it takes texts in one piece, and the concept {printable(concept.name)} has {kind}"
                hint = "transformers-tokens takes them; a class of yours says documents = True"
                raise self.origin.error(where, message, hint=hint)
            if isinstance(concept.texts, MessagesColumn):
                self._check_template(concept.texts)

    def _check_template(self, texts: MessagesColumn) -> None:
        """Refuse a tokenizer whose chat template can make nothing of conversations, or not what is asked for."""
        folders, section, setting = self._folders(self.snapshots.planned), self.definition, "model"
        if folders is None:
            return
        try:
            folders.check_template("put it into the folder, as chat_template.jinja, or name another tokenizer")
            if isinstance(section, TransformersTokens) and section.labels == "assistant":
                setting = "labels"
                folders.check_marks(tools=texts.tools is not None)
        except EncodeError as error:
            raise self._refusal(setting, error) from error

    def check_clips(self, settings: Settings) -> None:
        """Refuse numbers of frames that the model of an encoder of clips would cut, where its config tells them."""
        section = self.definition
        folders = self._folders(self.snapshots.planned) if isinstance(section, DiffusersVideoVae) else None
        if folders is None or not isinstance(section, DiffusersVideoVae):
            return
        try:
            config = read_config(folders.model if section.config is None else self.base / section.config)
        except EncodeError as error:
            raise self._refusal("model", error) from error
        step = frames_per_latent(config) or 1
        problems = {}
        for number, concept in enumerate(settings.concepts):
            if not concept.enabled:
                continue
            own = concept.video is not None and "frames" in concept.video.model_fields_set
            where = ("concepts", number, "video", "frames") if own else ("video", "frames")
            for count in settings.video_of(concept).frames:
                if (count - 1) % step:
                    below = (count - 1) // step * step + 1
                    message = f"{count} frames: {config['_class_name']} takes one and multiples of {step} more"
                    hint = f"write {below} or {below + step}"
                    problems[where, count] = self.origin.problem(where, message, hint)
        if problems:
            raise ConfigError(*problems.values(), file=self.origin.file)

    def _renewal(self) -> str:
        """What to write so that all entries of this encoder have other keys."""
        if not isinstance(self.definition, EncoderSection):
            return "another value in its identity()"
        given = str(self.definition.version or 1)
        counts = given.isdecimal() and given.isascii() and len(given) < _LONG
        another = f"`version: {int(given) + 1}`" if counts else "another `version:`"
        return f"{another} in encoders.{self.name}"

    def versions(self, inputs: Sequence[str]) -> dict[str, str]:
        """What it makes entries with: libraries as they are loaded or else installed, and source files of one's own."""
        section = self.definition
        if isinstance(section, EncoderSection) and not isinstance(section, UserSection):
            seen = isinstance(section, DiffusersPrompt) and section.pictures
            return library_versions((*_LIBRARIES[section.uses], *(("Pillow", "torchvision") if seen else ())))
        if isinstance(section, EncoderSection) and not own_class(section):
            return {}  # adopted: nobody knows
        kind = self._user_class(section) if isinstance(section, UserSection) else type(section)
        code, libraries = code_versions(kind)
        pictures = () if tuple(inputs) == (TEXT,) else ("Pillow", "av") if VIDEO in inputs else ("Pillow",)
        return {**library_versions(dict.fromkeys((*pictures, *libraries))), **code}

    def made(self, inputs: Sequence[str], *, compiled: bool = False) -> bytes:
        """The same as it is recorded with entries; to be asked once the encoder is loaded.

        Of `compiled` code it says so, for people: a plan, which does not know what a build will do, compares no such
        thing with today's versions.
        """
        versions = self.versions(inputs)
        if "Pillow" in versions:
            versions = {**versions, **library_versions(pictures.used_decoders())}
        return dump_versions({**versions, **({COMPILED: "inductor"} if compiled else {})})

    def _given_version(self) -> dict[str, str]:
        """The config's `version` as part of the key, where it has one."""
        section = self.definition
        given = section.version if isinstance(section, EncoderSection) else None
        return {} if given is None else {"user_version": str(given)}

    def make(self) -> BaseEncoder:
        """The encoder itself, not loaded yet; each device gets one of its own."""
        section = self.definition
        if isinstance(section, UserSection):
            return as_base(self._make_user_encoder(section))
        if not isinstance(section, EncoderSection):
            return as_base(section)
        module, _, name = _CLASSES[section.uses].partition(":")
        kind: Callable[..., BaseEncoder] = getattr(importlib.import_module(module), name)
        folders = self._folders(self.snapshots.planned)
        if folders is None:
            return kind(section)
        if isinstance(section, TransformersText):
            return kind(section, folders.model, folders.tokenizer)
        if isinstance(section, VaeSection) and section.config is not None:
            return kind(section, folders.model, self.base / section.config)
        return kind(section, folders.model)

    def check_files(self, recipe: Recipe, memory: Memory) -> None:
        """Refuse a model whose files are others than those of a recipe, such as one that was swapped after the plan."""
        section = self.definition
        if not isinstance(section, ModelEncoder):
            return
        now = self._recipe(section, self._folders(self.snapshots.planned), memory, SILENT)
        if now.digest != recipe.digest:
            place = printable(section.model)
            hint = "what was encoded before is kept; build again when nothing writes to it"
            raise EncodeError(f"the files of {place} are others than when the build was planned", hint=hint)

    def _folders(self, snapshot: Callable[[str, str, Sequence[str]], Path]) -> ModelFolders | None:
        """Where the model and its tokenizer lie, which is mostly the same folder; None for an encoder without."""
        section = self.definition
        if not isinstance(section, ModelEncoder):
            return None
        base, root = self.base, self.base / section.model
        inside = section.subfolder or ""
        named = section.tokenizer if isinstance(section, TransformersText) else None
        tokenizer = None if named is None else base / named
        try:
            # A folder of that name wins: nobody's own files are passed over for the hub's.
            if section.revision is not None and not root.exists():
                elsewhere = [named] if named is not None and not (base / named).exists() else []
                fetch = partial(snapshot, section.model, section.revision)
                # Without a subfolder the model is everything, the tokenizer's folder included.
                needed = [inside, *elsewhere] if inside else []
                if isinstance(section, DiffusersPrompt):
                    # Its index names the parts that make prompts: the whole pipeline is many times larger.
                    needed = [(Path(inside) / INDEX).as_posix()]
                    needed += [
                        (Path(inside) / name).as_posix() for name in text_parts(read_pipeline(fetch(needed) / inside))
                    ]
                base = root = fetch(needed)
                if elsewhere:
                    tokenizer = root / elsewhere[0]
                beside = tokenizer_beside(root / inside) if inside and tokenizer is None else None
                if beside is not None and not has_tokenizer(root / inside):
                    base = root = fetch([inside, beside.relative_to(root).as_posix()])
            model = find_part(root / inside, section.uses)
            if isinstance(section, TransformersTokens):
                model = find_tokenizer(model)
            if tokenizer is None:
                tokenizer = find_tokenizer(model) if isinstance(section, TransformersText) else model
        except (EncodeError, OSError) as error:
            raise self._refusal("model", error) from error
        return ModelFolders(section, base, root, model, tokenizer)

    def _refusal(self, setting: str, error: EncodeError | OSError) -> ConfigError:
        """What is wrong with a model, as an error of the config."""
        where = ("encoders", self.name, setting)
        if isinstance(error, EncodeError):
            return self.origin.error(where, error.message, hint=error.hint)
        return self.origin.error(where, f"{printable(error.filename)}: {error.strerror or error}", hint=_ELSEWHERE)

    def _recipe(
        self, section: EncoderSection, folders: ModelFolders | None, memory: Memory, report: Reporter
    ) -> Recipe:
        """The recipe of an encoder of ours, by the files in these folders."""
        data: dict[str, object] = {"version": _VERSIONS[section.uses]}
        for name, info in type(section).model_fields.items():
            value = getattr(section, name)
            if is_in_key(info, value) and name not in _PLACES and name != "version":
                data[name] = list(value) if isinstance(value, tuple) else value
        data |= self._given_version()
        data |= _reading(self._inputs(section))
        if isinstance(section, DiffusersPrompt):
            assert folders is not None, "it has a model"
            data |= self._pipeline(section, folders.model, memory, report)
        elif folders is not None:
            data["model"] = self._files("model", folders.model, section.uses, memory, report)
            if isinstance(section, VaeSection):
                data |= self._vae(section, folders.model)
            named = isinstance(section, TransformersText) and section.tokenizer is not None
            if named or folders.tokenizer != folders.model:
                data["tokenizer"] = self._files("tokenizer", folders.tokenizer, "transformers-tokens", memory, report)
        if section.uses in ("transformers-processor", "transformers-vision"):
            # The same config makes other pixels where torchvision is installed; see `processor`.
            data["backend"] = backend()
        return Recipe(section.uses, data)

    def _vae(self, section: VaeSection, place: Path) -> dict[str, object]:
        """What decides latents beside a model's own files: the config of a single file, and pixels in another range."""
        data: dict[str, object] = {}
        where = ("encoders", self.name, "config")
        if section.config is not None and place.is_dir():
            raise self.origin.error(where, "only a model that is one file needs it", hint="leave it out")
        if place.is_file():
            hint = "set config to a folder with the config.json of the VAE, in the format of diffusers"
            if section.config is None:
                message = f"{printable(place)}: a single file does not say what it holds without config.json"
                raise self.origin.error(("encoders", self.name, "model"), message, hint=hint)
            place = self.base / section.config
            if not (place / "config.json").is_file():
                raise self.origin.error(where, f"no config.json in {printable(place)}", hint=hint)
            try:
                data["config"] = identify_path(place, counts=lambda name: name == "config.json")
            except (IdentityError, SourceError) as error:
                raise self.origin.error(where, error.message, hint=error.hint) from error
        # As long as nobody has said otherwise, pixels go from -1 to 1: most keys do not say it.
        pixels = convention(class_name(place)).pixels
        return data if pixels == Convention().pixels else {**data, "pixels": pixels}

    def _pipeline(self, section: DiffusersPrompt, folder: Path, memory: Memory, report: Reporter) -> dict[str, object]:
        """A pipeline by the parts that make prompts: what draws, or decodes, or says when to stop decides nothing."""
        try:
            found = find_pipeline(folder, section.max_length, section.options, pictures=len(section.pictures))
        except EncodeError as error:
            raise self.origin.error(("encoders", self.name, "model"), error.message, hint=error.hint) from error
        parts = {
            name: {
                "class": f"{part.library}.{part.kind}",
                "model": self._files("model", part.folder, section.uses, memory, report),
            }
            for name, part in text_parts(found).items()
        }
        forms = known_forms(found.kind, section.max_length)
        cleaner = cleaned_by(found)
        return {
            "pipeline": found.kind,
            "settings": {name: value for name, value in found.settings.items() if value is not None},
            "parts": parts,
            "leaves": {name: form.plain() for name, form in forms.items()},
            # Two machines make different prompts of one text where it is installed on one of them.
            **({} if cleaner is None else {"cleaned_by": cleaner}),
            # The same processor makes other pixels where torchvision is installed; see `processor`.
            **({"backend": backend()} if section.pictures else {}),
        }

    def _files(self, setting: str, folder: Path, uses: str, memory: Memory, report: Reporter) -> object:
        """A model's files by content, those that the encoder uses."""
        where = ("encoders", self.name, setting)
        digest_of = partial(remembered_digests, memory=memory, trust=self.trust, report=report)
        try:
            files = identify_path(folder, digest_of=digest_of, counts=_COUNTS.get(uses) or _loadable(folder))
            if uses not in _COUNTS or not isinstance(files, dict):
                return files
            # Where its own files do not name a class, transformers takes the one that belongs to the model's config.
            config = read_config(folder) if (folder / "config.json").is_file() else {}
            return {**files, "chosen_by": {field: config[field] for field in _CHOOSING if field in config}}
        except (EncodeError, IdentityError, SourceError) as error:
            raise self.origin.error(where, error.message, hint=error.hint) from error

    def _make_user_encoder(self, section: UserSection) -> Encoder:
        """An object of a user's class, made with the other fields of its section."""
        kind = self._user_class(section)
        arguments = section.arguments
        if section.version is not None and _asks_for_version(kind):
            arguments["version"] = section.version
        try:
            encoder: Encoder = kind(**arguments)
        except (Exception, SystemExit) as error:
            hint = "its other fields go to the constructor"
            message = f"{kind.__name__} cannot be made of these fields: {raised(error)}"
            raise self.origin.error(("encoders", self.name), message, hint=hint) from error
        return encoder

    def _user_class(self, section: UserSection) -> type:
        """A user's class.

        Its module is imported, which runs that module. Nothing else is called before it is known to be a class with an
        encoder's methods: a config may name anything that is installed, and the fields beside it are up to the config.
        """
        where = ("encoders", self.name, "uses")
        module_name, _, class_name = section.uses.partition(":")
        try:
            with _importable(self.base) if own_class(section) else nullcontext():
                module = importlib.import_module(module_name)
            kind = getattr(module, class_name, None)
        except (Exception, SystemExit) as error:
            hint = "it is looked for beside the config file and among the installed packages"
            raise self.origin.error(where, f"{module_name} cannot be imported: {raised(error)}", hint=hint) from error
        if kind is None:
            raise self.origin.error(where, f"{module_name} has no {class_name}")
        reason = why_no_encoder_class(kind)
        if reason is not None:
            raise self.origin.error(where, f"{section.uses} {reason}", hint=_WANTED)
        found: type = kind
        return found


def _asks_for_version(kind: type) -> bool:
    """Whether the constructor of a user's class takes a parameter of that name."""
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return False
    return "version" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def special_tokens(
    specs: Iterable[EncoderSpec], recipes: dict[str, Recipe], memory: Memory
) -> dict[str, SpecialTokens]:
    """What each encoder that keeps token ids pads texts with and ends them with, where its tokenizer says it.

    Remembered by recipe: a tokenizer is loaded for it once, and a dataset without tokens never loads one. Where
    transformers is not installed nobody knows it, and a feed that needs it says so.
    """
    special: dict[str, SpecialTokens] = {}
    for spec in specs:
        recipe = recipes[spec.name]
        if recipe.kind != TOKENS:
            continue
        note = memory.note(_SPECIAL, recipe.digest.bytes)
        if note is None and importlib.util.find_spec("transformers") is not None:
            from precook.encode.tokens import TokensEncoder  # noqa: PLC0415 - none of the encoders is needed to plan

            encoder = spec.make()
            assert isinstance(encoder, TokensEncoder)
            found = encoder.find_special_tokens()
            note = json.dumps({"pad": found.pad, "eos": None if found.eos is None else as_plain(found.eos)})
            memory.write_note(_SPECIAL, recipe.digest.bytes, note)
        if note is not None:
            known = json.loads(note)
            eos = None if known["eos"] is None else FrozenEos(**known["eos"])
            special[spec.name] = SpecialTokens(known["pad"], eos)
    return special


def _recalled(memory: Memory, fact: str, file: Path, read: Callable[[Path], int | None]) -> int | None:
    """A number that was read of a file with this stamp before, or is read now and remembered."""
    key = stamp_keys(read_stamps([file])).tobytes()
    note = memory.note(fact, key)
    if note is None:
        note = json.dumps(read(file))
        memory.write_note(fact, key, note)
    number: int | None = json.loads(note)
    return number


def _reading(inputs: Sequence[str]) -> dict[str, object]:
    """How pictures and masks become pixels, for encoders that take them."""
    return {} if tuple(inputs) == (TEXT,) else {"pictures": pictures.VERSION}


def _loadable(folder: Path) -> Callable[[str], bool]:
    """Which files of a model may be loaded: those in a form that we load, and whatever an index names as a shard."""
    shards: set[str] = set()
    for index in folder.glob("*.safetensors.index.json"):
        shards |= named_shards(index)
    return lambda name: name in shards or not is_unused(name)


class MadeWith:
    """What the entries of a run are made with, as it is recorded with them; from any thread."""

    def __init__(self, spec: EncoderSpec, inputs: Sequence[str]) -> None:
        self._spec = spec
        self._inputs = inputs
        self._forms: dict[tuple[bool, tuple[str, ...]], bytes] = {}

    def form(self, *, compiled: bool) -> bytes:
        """The record, for what `compiled` code has made or not; another one once a further decoder was needed."""
        made_by = compiled, pictures.used_decoders()
        if made_by not in self._forms:
            self._forms[made_by] = self._spec.made(self._inputs, compiled=compiled)
        return self._forms[made_by]


_COUNTS: dict[str, Callable[[str], bool]] = {
    "transformers-tokens": is_tokenizer_file,
    "transformers-processor": lambda name: name.startswith(PROCESSOR) or is_tokenizer_file(name),
}
"""Which files of a folder count, for encoders that load no weights."""


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules beside the config file can be imported in here, after everything that is installed."""
    place = str(folder.absolute())
    sys.path.append(place)
    try:
        yield
    finally:
        # The last one: it may be on the path for other reasons, and what was imported may have changed the path.
        for number in reversed(range(len(sys.path))):
            if sys.path[number] == place:
                del sys.path[number]
                break
