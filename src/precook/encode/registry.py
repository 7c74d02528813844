"""The catalog: what each encoder of the config takes, and the recipe that its settings and files give.

Nothing is loaded here. A recipe holds what decides the stored bytes: the model's files by content, the settings that
matter, the version of our own code. Where a model lies, on which device and in what batches it runs are no part of it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from precook.config.encoders import EncoderSection, ModelEncoder, TransformersText, UserSection
from precook.config.fields import decides
from precook.config.yaml import Origin
from precook.encode.encoder import Encoder
from precook.encode.hub import find_snapshot, is_unused, planned_snapshot
from precook.encode.processor import backend
from precook.encode.torch_tools import read_config
from precook.encode.worker import RunnableEncoder
from precook.errors import EncodeError, IdentityError, SourceError, printable
from precook.identity.models import identify_path
from precook.identity.recipe import Recipe
from precook.plan.wanted import Encoding, Input
from precook.report import SILENT, Reporter
from precook.sources import image as pictures
from precook.values import Digest


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders that an encoder is loaded from."""

    model: Path
    tokenizer: Path
    """The model's own, where the settings name no other."""


def find_folders(section: ModelEncoder, base: Path, report: Reporter) -> Folders:
    """Where a model lies now; one of the hub is downloaded if it is not here."""
    return _folders(section, base, lambda name, revision, folders: find_snapshot(name, revision, folders, report))


def planned_folders(section: ModelEncoder, base: Path) -> Folders:
    """Where the last plan found it; without a plan, where it lies now."""
    return _folders(
        section,
        base,
        lambda name, revision, folders: (
            planned_snapshot(name, revision) or find_snapshot(name, revision, folders, SILENT)
        ),
    )


def _folders(section: ModelEncoder, base: Path, snapshot: Callable[[str, str, Sequence[str]], Path]) -> Folders:
    root = base / section.model
    inside = section.subfolder or ""
    named = section.tokenizer if isinstance(section, TransformersText) else None
    tokenizer = None if named is None else base / named
    # A folder of that name wins: nobody's own files are passed over for the hub's.
    if section.revision is not None and not root.exists():
        elsewhere = [named] if named is not None and not (base / named).exists() else []
        # Without a subfolder the model is everything, the tokenizer's folder included.
        root = snapshot(section.model, section.revision, [inside, *elsewhere] if inside else [])
        if elsewhere:
            tokenizer = root / elsewhere[0]
    return Folders(root / inside, tokenizer or root / inside)


DigestOf = Callable[[list[Path]], list[Digest]]

_INPUTS: dict[str, Input] = {
    "diffusers-vae": "image",
    "transformers-text": "text",
    "transformers-tokens": "text",
    "transformers-processor": "image",
    "mask": "mask",
    "image": "image",
}
_VERSIONS = dict.fromkeys(_INPUTS, 1)
"""Raised when an encoder of ours would store other bytes for the same input."""
_PLACES = ("uses", "model", "revision", "subfolder", "tokenizer")
_TOKENIZER = (
    "tokenizer",
    "vocab",
    "merges",
    "special_tokens",
    "added_tokens",
    "spiece",
    "sentencepiece",
    "chat_template",
)
_TOKENIZER_ENDS = (".model", ".tiktoken", ".bpe", ".jinja")
_CHOOSING = ("model_type", "tokenizer_class", "image_processor_type", "feature_extractor_type")
_PROCESSOR = ("preprocessor_config", "processor_config", "image_processor", "video_preprocessor", "video_processor")


def encodings(
    encoders: dict[str, EncoderSection | Encoder],
    base: Path,
    *,
    digest_of: DigestOf,
    origin: Origin,
    report: Reporter = SILENT,
) -> list[Encoding]:
    """Each encoder as a plan sees it; a model of the hub that is not here yet is downloaded for it."""
    return [_encoding(name, one, base, digest_of, origin, report) for name, one in encoders.items()]


def _encoding(
    name: str, one: EncoderSection | Encoder, base: Path, digest_of: DigestOf, origin: Origin, report: Reporter
) -> Encoding:
    if isinstance(one, EncoderSection) and not isinstance(one, UserSection):
        data = _built_in(name, one, lambda section: find_folders(section, base, report), digest_of, origin)
        return Encoding(name, _INPUTS[one.uses], Recipe(one.uses, data))
    encoder = make_user_encoder(name, one, base, origin) if isinstance(one, UserSection) else one
    assert not isinstance(encoder, EncoderSection)
    kind = one.uses if isinstance(one, UserSection) else f"{type(one).__module__}:{type(one).__qualname__}"
    try:
        identity = encoder.identity()
    except Exception as error:
        raise origin.error(("encoders", name), f"identity() failed: {_told(error)}") from error
    try:
        return Encoding(name, encoder.input, Recipe(kind, {"identity": identity, **_reading(encoder.input)}))
    except IdentityError as error:
        raise origin.error(
            ("encoders", name), f"identity() is not plain data: {error.message}", hint=error.hint
        ) from error


def _built_in(
    encoder: str,
    section: EncoderSection,
    find: Callable[[ModelEncoder], Folders],
    digest_of: DigestOf,
    origin: Origin,
) -> dict[str, object]:
    settings = {
        name: _plain(getattr(section, name))
        for name, field in type(section).model_fields.items()
        if decides(field) and name not in _PLACES
    }
    data: dict[str, object] = {"version": _VERSIONS[section.uses], **settings, **_reading(_INPUTS[section.uses])}
    if isinstance(section, ModelEncoder):
        where = ("encoders", encoder, "model")
        try:
            folders = find(section)
        except EncodeError as error:
            raise origin.error(where, error.message, hint=error.hint) from error
        data["model"] = _files(where, folders.model, section.uses, digest_of, origin)
        if isinstance(section, TransformersText) and section.tokenizer is not None:
            where = ("encoders", encoder, "tokenizer")
            data["tokenizer"] = _files(where, folders.tokenizer, "transformers-tokens", digest_of, origin)
    if section.uses == "transformers-processor":
        data["backend"] = backend()
    return data


def _reading(input_: Input) -> dict[str, object]:
    """How pictures and masks become pixels, for encoders that take them."""
    return {} if input_ == "text" else {"pictures": pictures.VERSION}


def _files(where: tuple[str, ...], folder: Path, uses: str, digest_of: DigestOf, origin: Origin) -> object:
    """A model's files by content, those that the encoder uses."""
    if not folder.exists():
        hint = "relative paths start at the config file's folder; for a model of the hub set revision, such as main"
        raise origin.error(where, f"no such model: {folder}", hint=hint)
    try:
        found = identify_path(folder, digest_of=digest_of, counts=_COUNTS.get(uses) or _loadable(folder))
        if uses not in _COUNTS or not isinstance(found, dict):
            return found
        # Where its own files do not name a class, transformers takes the one that belongs to the model's config.
        config = read_config(folder) if (folder / "config.json").is_file() else {}
        return {**found, "chosen_by": {field: config[field] for field in _CHOOSING if field in config}}
    except (EncodeError, IdentityError, SourceError) as error:
        raise origin.error(where, error.message, hint=error.hint) from error


def _loadable(folder: Path) -> Callable[[str], bool]:
    """Which files of a model may be loaded: those in a form that we load, and whatever an index names as a shard."""
    shards: set[object] = set()
    for index in folder.glob("*.safetensors.index.json"):
        try:
            shards |= set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError):
            continue  # not an index: whoever loads the model says so
    return lambda name: name in shards or not is_unused(name)


def check_files(
    encoder: str, one: EncoderSection | Encoder, base: Path, recipe: Recipe, *, digest_of: DigestOf, origin: Origin
) -> None:
    """Refuse a model whose files are others than those of a recipe, such as one that was swapped after the plan."""
    if not isinstance(one, ModelEncoder):
        return
    data = _built_in(encoder, one, lambda section: planned_folders(section, base), digest_of, origin)
    if Recipe(one.uses, data).digest != recipe.digest:
        hint = "what was encoded before is kept; build again when nothing writes to it"
        raise EncodeError(f"the files of {printable(one.model)} are others than when the build was planned", hint=hint)


def make_worker(encoder: str, one: EncoderSection | Encoder, base: Path, origin: Origin) -> RunnableEncoder:
    """What does an encoder's work, not loaded yet; each device gets one of its own."""
    if isinstance(one, UserSection):
        return make_user_encoder(encoder, one, base, origin)
    if not isinstance(one, EncoderSection):
        return one
    # Imported when it is made: none of them is needed to plan.
    home, name = _WORKERS[one.uses].split(":")
    kind = getattr(importlib.import_module(home), name)
    worker: RunnableEncoder
    if isinstance(one, ModelEncoder):
        folders = planned_folders(one, base)
        tokenizer = (folders.tokenizer,) if isinstance(one, TransformersText) else ()
        worker = kind(one, folders.model, *tokenizer)
    else:
        worker = kind(one)
    return worker


_WORKERS = {
    "diffusers-vae": "precook.encode.vae:VaeEncoder",
    "transformers-text": "precook.encode.text:TextEncoder",
    "transformers-tokens": "precook.encode.tokens:TokensEncoder",
    "transformers-processor": "precook.encode.processor:ProcessorEncoder",
    "mask": "precook.encode.pixels:MaskEncoder",
    "image": "precook.encode.pixels:ImageEncoder",
}


def _is_tokenizer(name: str) -> bool:
    return name.startswith(_TOKENIZER) or name.endswith(_TOKENIZER_ENDS)


_COUNTS: dict[str, Callable[[str], bool]] = {
    "transformers-tokens": _is_tokenizer,
    "transformers-processor": lambda name: name.startswith(_PROCESSOR) or _is_tokenizer(name),
}


def make_user_encoder(name: str, section: UserSection, base: Path, origin: Origin) -> Encoder:
    """An object of a user's class, made with the other fields of its section."""
    where = ("encoders", name, "uses")
    module_name, _, class_name = section.uses.partition(":")
    try:
        with _importable(base):
            module = importlib.import_module(module_name)
    except Exception as error:
        hint = "it is looked for beside the config file and among the installed packages"
        raise origin.error(where, f"{module_name} cannot be imported: {_told(error)}", hint=hint) from error
    kind = getattr(module, class_name, None)
    if kind is None:
        raise origin.error(where, f"{module_name} has no {class_name}")
    try:
        encoder = kind(**section.arguments)
    except Exception as error:
        hint = "its other fields go to the constructor"
        message = f"{class_name} cannot be made of these fields: {_told(error)}"
        raise origin.error(("encoders", name), message, hint=hint) from error
    if not isinstance(encoder, Encoder) or encoder.input not in ("image", "text", "mask"):
        hint = "it needs input (image, text or mask), identity, load, encode and unload"
        raise origin.error(where, f"{class_name} is not an encoder", hint=hint)
    return encoder


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules beside the config file can be imported, after everything that is installed."""
    place = str(folder.absolute())
    sys.path.append(place)
    try:
        yield
    finally:
        sys.path.remove(place)


def _told(error: Exception) -> str:
    """What a user's code raised."""
    return f"{type(error).__name__}: {error}"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
