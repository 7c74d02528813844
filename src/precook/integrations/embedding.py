"""Latents and prompt embeddings under named types, by what the files hold: for image-edit trainers."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from blake3 import blake3
from PIL import Image

from precook.errors import EncodeError, PrecookError, SourceError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.identify import identify
from precook.identity.recipe import Recipe
from precook.integrations.embedding_config import read_cache_section
from precook.integrations.embedding_dataset import Encode, Sample, cache_dataset
from precook.integrations.front import MISSING, Front, Place
from precook.open_store import open_store
from precook.report import SILENT
from precook.sources.facts import remembered_digests
from precook.store.leaves import has_nan, is_finite, is_tensor, read_leaf
from precook.store.store import Store
from precook.store.tree import Tree, take_apart
from precook.values import Digest, Key

__all__ = [
    "CACHE_TYPES",
    "EmbeddingCacheManager",
    "Encode",
    "Sample",
    "Uncached",
    "cache_dataset",
    "check_cache_exists",
]

KIND = "embedding-cache"
CACHE_TYPES = (
    "pixel_latent",
    "control_latent",
    "prompt_embed",
    "prompt_embeds_mask",
    "empty_prompt_embed",
    "empty_prompt_embeds_mask",
)
"""The types that are always counted; any other name is a type too."""
Keep = Literal["float16"]
_WINDOW = 8
"""Results of one hash that are looked for at a time; nearly all have one."""
_CHUNK = 1 << 20
_ORIENTATION = 0x0112
_DERIVED = re.compile(r"(image|control|prompt|empty_prompt|control_prompt|control_empty_prompt|control_[0-9]+)_hash")
"""Hashes of a sample that its main hash and the sum of its controls' say already."""
_log = logging.getLogger("precook")


class Uncached(dict[str, Any]):
    """A sample that is not in the cache: it stays marked so, and whoever asks it for an embedding is told.

    The dataset that asked for it marks every sample as cached afterwards; this one is encoded live, or refused.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, False if name == "cached" else value)

    def __missing__(self, name: str) -> Any:
        hashes = self.get("file_hashes", {})
        message = f"the sample with main hash {hashes.get('main_hash')} has no {name!r}: it is not in the cache"
        raise PrecookError(message, hint="run the trainer's --cache step again")


class EmbeddingCacheManager(Front):
    """What the encoders of an image-edit trainer made: by sample, or by cache type and hash.

    `encoders` says what makes each type: a module, a folder or plain data, whatever `precook.identify` takes. It is
    part of the key, so that a swapped encoder finds nothing of the other one's; of types it does not name, nobody can
    tell. `settings` says in the same way how pictures are prepared: samples cached with others are not found, and the
    hash of a picture's file is another one.
    Floating-point tensors are kept in half precision; `dtype=None` keeps them as they are.

    A result that is saved again takes the place of the one before, if it differs.
    """

    CACHE_VERSION = "2.0"
    """Of the trainer's own manager: the calls are those of this version."""

    def __init__(
        self,
        place: Place,
        *,
        encoders: Mapping[str, object] | None = None,
        settings: object = None,
        dtype: Keep | None = "float16",
        **options: Any,
    ) -> None:
        for name in encoders or {}:
            _check_type(name)
        if dtype not in (None, "float16"):
            raise PrecookError(f"dtype {dtype!r} is not offered", hint="float16, or None to keep tensors as they are")
        super().__init__(place, KIND, **options)
        self._identities = {name: identify(encoder) for name, encoder in (encoders or {}).items()}
        self._encoders = {name: digest(canonical(identity)).hex for name, identity in self._identities.items()}
        self._settings = identify(settings.model_dump() if hasattr(settings, "model_dump") else settings)
        self._dtype = dtype
        self._memory = self.store.memory()
        self._told = False
        self.devices: dict[str, str] = {}
        """Where a config wants each encoder to run; for whoever loads them."""

    def __reduce__(self) -> tuple[Callable[..., EmbeddingCacheManager], tuple[Any, ...]]:
        # A data loader's workers get the dataset, and with it the manager, as a pickle.
        self.flush()
        names = ("_owned", "_identities", "_encoders", "_settings", "_dtype", "devices")
        state = {name: vars(self)[name] for name in names}
        return _reopen, (type(self), self.store, state)

    @property
    def cache_root(self) -> Path:
        """Where the cache lies."""
        return self.store.path

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | str | os.PathLike[str], **options: Any
    ) -> EmbeddingCacheManager | None:
        """The manager that a trainer's config asks for; None where it wants no cache.

        The config may be its file, what stands in it, or the trainer's own object for it.
        """
        section = read_cache_section(config)
        if section is None:
            return None
        manager = cls(section.cache_dir, **options)
        manager.devices = dict(section.devices)
        return manager

    @classmethod
    def exist(cls, cache_root: Place) -> bool:
        """Whether samples were cached in a folder or store."""
        return any("samples" in data for data in _recipe_data(cache_root))

    # Hashes

    def get_hash(self, file_path: str | Path | Image.Image, prompt: str = "") -> str:
        """The MD5 of a picture's bytes, or of an open picture's pixels, and behind it that of a prompt, if given.

        It is the trainer's own hash, so that what the trainer cached itself is found once it is adopted; but of an open
        picture, of which the trainer takes one that similar pictures share.
        """
        content = _picture_md5(file_path) if isinstance(file_path, Image.Image) else _file_md5(Path(file_path))
        return content + _md5(prompt.encode()).hexdigest() if prompt else content

    def get_file_hash_for_image(self, path: str | Path) -> str:
        """The digest of a picture's bytes and of the manager's `settings`, if it has any.

        A file that looks as it did before is not read again.
        """
        return self.hashes_of([Path(path)])[0]

    def hashes_of(self, paths: Sequence[Path]) -> list[str]:
        """The same for many pictures."""
        with self._lock:
            digests = remembered_digests(paths, self._memory, trust=False, report=SILENT)
        if self._settings is None:
            return [content.hex for content in digests]
        return [digest(canonical([content.hex, self._settings])).hex for content in digests]

    def get_file_hash_for_prompt(self, path: str | Path | None, prompt: str) -> str:
        """The digest of a prompt and of the picture it is encoded with; None where it is encoded alone."""
        return self.hash_of_prompt(None if path is None else self.get_file_hash_for_image(path), prompt)

    def hash_of_prompt(self, picture: str | None, prompt: str) -> str:
        """The same, where the picture's hash is known already."""
        return digest(canonical([picture, prompt])).hex

    # Samples

    def save_cache_embedding(
        self,
        data: Mapping[str, Any],
        hash_maps: Mapping[str, str],
        file_hashes: Mapping[str, Any],
        img_shapes: object = None,  # noqa: ARG002 - the trainer does not read it either
    ) -> None:
        """Keep the embeddings of one sample, whatever their names are.

        They are found by the hashes of everything the sample has, not by those in `hash_maps` alone: a prompt that is
        encoded together with a picture would be another sample's. Equal ones are stored once.
        """
        hashes = _flat(file_hashes)
        if set(hash_maps) != set(data) or not set(hash_maps.values()) <= set(hashes):
            message = f"embeddings {sorted(data)} with hashes {dict(hash_maps)} of {sorted(hashes)}"
            raise PrecookError(message, hint="name one of the sample's hashes for each embedding")
        where = hashes["main_hash"]
        keys = {name: self.save_tensor(name, tensor, f"{name} of {where}") for name, tensor in data.items()}
        self.save_sample(hashes, keys)

    def save_tensor(self, cache_type: str, tensor: Any, where: str) -> Key:
        """Keep an embedding under what it holds, and say under which key; `where` is told if it cannot be kept."""
        recipe = self._recipe(cache_type)
        tree = _checked(tensor, where, half=self._dtype is not None, every=True)
        key = recipe.key(content=_content(tree))
        self.write(key, tree, recipe)
        return key

    def has_sample(self, file_hashes: Mapping[str, Any]) -> bool:
        """Whether a sample was cached."""
        return self._record(_identity(_flat(file_hashes))) is not None

    def save_sample(self, file_hashes: Mapping[str, Any], keys: Mapping[str, Key]) -> None:
        """Keep which entries are the embeddings of a sample: these, and no others that it had before."""
        record = {name: {"key": key.hex, "encoder": self._encoders.get(name)} for name, key in keys.items()}
        self._save(self._samples, [_identity(_flat(file_hashes))], record)

    def _record(self, identity: object) -> dict[str, dict[str, str | None]] | None:
        newest, _ = self._newest(self._samples, [identity])
        record = MISSING if newest is None else self.read(newest)
        return None if record is MISSING else record

    def _load_sample(self, data: dict[str, Any], *, dropped: Sequence[str]) -> dict[str, Any]:
        """The sample with its embeddings, those of `dropped` names from the empty prompt."""
        record = self._record(_identity(_flat(data["file_hashes"]))) or {}
        wanted = {name: name for name in record if not name.startswith("empty_")}
        for name in (name.removeprefix("empty_") for name in dropped if record):
            if f"empty_{name}" not in record:
                message = f"prompt_empty_drop_keys has {name!r}, and nothing of an empty prompt is cached for it"
                raise PrecookError(message, hint=f"there are {', '.join(sorted(record))}")
            wanted[name] = f"empty_{name}"
        # What another encoder made is no more use than what is not there; of types nobody names, nobody can tell.
        ours = all(self._encoders.get(name) in (None, record[name]["encoder"]) for name in wanted.values())
        keys = [Key(bytes.fromhex(str(record[name]["key"]))) for name in wanted.values()] if ours else []
        trees = self.store.get_many(keys, MISSING)
        if trees and all(tree is not MISSING for tree in trees):
            data.update(zip(wanted, trees, strict=True))
            return data
        if not self._told:
            # Once: where the cache is being made, no sample is in it yet.
            _log.warning("%s: a sample is not cached; training needs the trainer's --cache step first", self.store.path)
            self._told = True
        return Uncached(data)

    # Types

    def save_cache(self, cache_type: str, file_hash: str, data: Tree) -> None:
        """Keep a tensor, or a tree of them; what was there before under a type and hash is found no more."""
        tree = _checked(data, f"{cache_type} of {file_hash}", half=self._dtype is not None)
        self._save(self._recipe(cache_type), [file_hash], tree)

    @overload
    def load_cache(self, data: str, replace_empty_embeddings: str) -> Tree: ...
    @overload
    def load_cache(
        self,
        data: dict[str, Any],
        replace_empty_embeddings: bool = ...,  # noqa: FBT001 - the trainer's own call
        prompt_empty_drop_keys: Sequence[str] | None = ...,
    ) -> dict[str, Any]: ...
    def load_cache(
        self,
        data: str | dict[str, Any],
        replace_empty_embeddings: str | bool = False,  # noqa: FBT001, FBT002 - likewise
        prompt_empty_drop_keys: Sequence[str] | None = None,
    ) -> Tree:
        """What was saved under a type and hash, or None; or a sample with all its embeddings.

        Of a sample that is not cached, an `Uncached` comes back.
        """
        if isinstance(data, dict):
            dropped = (prompt_empty_drop_keys or ()) if replace_empty_embeddings else ()
            return self._load_sample(data, dropped=dropped)
        newest, _ = self._newest(self._recipe(data), [replace_empty_embeddings])
        tree = MISSING if newest is None else self.read(newest)
        return None if tree is MISSING else tree

    def cache_exists(self, cache_type: str, file_hash: str) -> bool:
        """Whether something was saved."""
        return self.key_of(cache_type, file_hash) is not None

    def key_of(self, cache_type: str, file_hash: str) -> Key | None:
        """Under which key it was saved; None where nothing was."""
        return self._newest(self._recipe(cache_type), [file_hash])[0]

    def missing(self, cache_type: str, hashes: Iterable[str]) -> list[str]:
        """Those of many hashes under which nothing was saved."""
        self.flush()
        recipe = self._recipe(cache_type)
        by_key = {recipe.key(file_hash): file_hash for file_hash in hashes}
        lacking = [by_key[key] for key in self.store.missing(by_key)]
        return [file_hash for file_hash in lacking if self.key_of(cache_type, file_hash) is None]

    def load_or_encode(self, cache_type: str, file_hash: str, encode: Callable[[], Tree]) -> Tree:
        """What was saved; else what `encode` makes now, which is saved and given back as a later load would."""
        newest = self.key_of(cache_type, file_hash)
        tree = MISSING if newest is None else self.read(newest)
        if tree is MISSING:
            self.save_cache(cache_type, file_hash, encode())
            tree = self.load_cache(cache_type, file_hash)
        return tree

    def get_cache_stats(self) -> dict[str, int]:
        """How many entries each cache type has, whichever encoder made them."""
        stats = dict.fromkeys(CACHE_TYPES, 0)
        for data, entries, _ in self.totals().values():
            if "type" in data:
                stats[data["type"]] = stats.get(data["type"], 0) + entries
        return stats

    def clear_cache(self, cache_type: str | None = None) -> int:
        """Remove every entry of a cache type, or of all, whichever encoder made them; how many there were."""
        totals = self.totals()
        types = {*CACHE_TYPES, *(data["type"] for data, _, _ in totals.values() if "type" in data)}
        if cache_type is not None and cache_type not in types:
            raise PrecookError(f"no cache type {cache_type!r} here", hint=f"there are {', '.join(sorted(types))}")
        removed = 0
        for recipe, (data, _, _) in totals.items():
            if cache_type in (None, data.get("type")):
                entries = self.remove(recipes=[recipe])
                removed += entries if "type" in data else 0
        return removed

    def close(self) -> None:
        """Flush, remember the files that were read, and close the store if this object opened it."""
        self.store.remember(self._memory)
        super().close()

    @property
    def _samples(self) -> Recipe:
        return Recipe(KIND, {"samples": self._settings, "dtype": self._dtype})

    def _recipe(self, cache_type: str) -> Recipe:
        _check_type(cache_type)
        return Recipe(KIND, {"type": cache_type, "encoder": self._identities.get(cache_type), "dtype": self._dtype})

    def _save(self, recipe: Recipe, inputs: list[object], tree: Tree) -> None:
        """Put a result, unless the newest of the same inputs is equal.

        The store never changes an entry, so each further result has a number; the one with the highest counts.
        """
        with self._lock:
            newest, number = self._newest(recipe, inputs)
            if newest is not None and _content(self.read(newest)) == _content(tree):
                return
            if newest is not None:
                # Whoever makes room takes the older one first: it must never be found because the newer one is gone.
                self.store.forget_use(newest)
            self.write(_numbered(recipe, inputs, number), tree, recipe)

    def _newest(self, recipe: Recipe, inputs: list[object]) -> tuple[Key | None, int]:
        """The key of the newest result of some inputs, and the number of the next one."""
        newest, following = None, 0
        for start in itertools.count(step=_WINDOW):
            keys = [_numbered(recipe, inputs, number) for number in range(start, start + _WINDOW)]
            for key in keys:
                self._commit_pending(key)
            missing = set(self.store.missing(keys))
            for number, key in enumerate(keys, start):
                if key not in missing:
                    newest, following = key, number + 1
            if keys[-1] in missing:
                break
        return newest, following


def _reopen(kind: type[EmbeddingCacheManager], store: Store, state: dict[str, Any]) -> EmbeddingCacheManager:
    manager = kind(store)
    vars(manager).update(state)
    return manager


def check_cache_exists(place: Place, types: Iterable[str] | None = None) -> bool:
    """Whether a folder or store has something of every type: of those given, else of what the trainer needs.

    That is samples with all their embeddings, or each of `CACHE_TYPES`.
    """
    found = _recipe_data(place)
    if types is None and any("samples" in data for data in found):
        return True
    return {data.get("type") for data in found} >= set(CACHE_TYPES if types is None else types)


def _recipe_data(place: Place) -> list[dict[str, Any]]:
    """What the recipes of this kind say that have entries in a folder or store."""
    if not isinstance(place, Store) and not (Path(place) / "store.toml").is_file():
        return []
    store = place if isinstance(place, Store) else open_store(place, read_only=True)
    try:
        return [data for data, entries, _ in Front(store, KIND).totals().values() if entries]
    finally:
        if store is not place:
            store.close()


def _numbered(recipe: Recipe, inputs: list[object], number: int) -> Key:
    return recipe.key(*inputs, again=number) if number else recipe.key(*inputs)


def _check_type(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise PrecookError(f"a cache type is a name, not {name!r}", hint="such as image_latents")


def _flat(file_hashes: Mapping[str, Any]) -> dict[str, str]:
    """The hashes of one sample; a data loader makes lists of them."""
    flat = {}
    for name, value in file_hashes.items():
        values = value if isinstance(value, list) else [value]
        if len(values) != 1:
            raise PrecookError(f"{name}: hashes of {len(values)} samples", hint="cache one sample at a time")
        flat[name] = values[0]
    if "main_hash" not in flat:
        raise PrecookError("the sample has no main_hash", hint=f"it has {', '.join(sorted(flat))}")
    return flat


def _identity(hashes: Mapping[str, str]) -> object:
    """What tells a sample from every other: the main hash leaves out all controls but the first."""
    names = [name for name in hashes if name not in ("main_hash", "controls_sum_hash") and not _DERIVED.fullmatch(name)]
    return [hashes["main_hash"], hashes.get("controls_sum_hash"), {name: hashes[name] for name in names}]


def _md5(content: bytes = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)


def _file_md5(path: Path) -> str:
    hasher = _md5()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
    except OSError as error:
        raise SourceError(path, error.strerror or str(error)) from error
    return str(hasher.hexdigest())


def _picture_md5(picture: Image.Image) -> str:
    """Of an open picture: what it is decoded to, and how it is to be turned."""
    turned = picture.getexif().get(_ORIENTATION)
    hasher = _md5(canonical([picture.mode, list(picture.size), picture.getpalette(), turned]))
    hasher.update(picture.tobytes())
    return str(hasher.hexdigest())


def _content(tree: Tree) -> Digest | None:
    """The digest of all that a tree holds; None of one that is missing."""
    if tree is MISSING:
        return None
    parts = take_apart(tree)
    hasher = blake3(canonical([parts.skeleton, parts.values, [list(leaf.shape) for leaf in parts.leaves]]))
    for leaf in parts.leaves:
        hasher.update(leaf.data.data)
    return Digest(hasher.digest())


def _checked(node: Tree, where: str, *, half: bool, every: bool = False) -> Tree:
    """The tree as it is kept, in half precision if asked for; NaN, and what float16 cannot hold, are refused.

    With `every`, whole numbers are halved too, as long as they stay the same: the trainer's masks are.
    """
    kind = type(node)
    if kind is dict:
        return {name: _checked(item, where, half=half, every=every) for name, item in node.items()}
    if kind in (list, tuple):
        return kind(_checked(item, where, half=half, every=every) for item in node)
    if not is_tensor(node):
        return node
    tensor = node.detach() if hasattr(node, "detach") else node
    if has_nan(read_leaf(tensor, where, copy=False)):
        raise EncodeError(f"{where} holds NaN; it was not saved", hint="look at the encoder, or at its picture")
    return _halved(tensor, where, every=every) if half else tensor


def _halved(tensor: Any, where: str, *, every: bool) -> Any:
    """A tensor in half precision, if it has floating-point numbers, or whole ones that stay the same."""
    numpy = isinstance(tensor, np.ndarray)
    floating = tensor.dtype.kind == "f" if numpy else tensor.is_floating_point()
    if not floating and not every:
        return tensor
    with np.errstate(over="ignore"):  # looked at below
        half: Any = tensor.astype("float16") if numpy else tensor.half()
    if not floating:
        return half if bool((half == tensor).all()) else tensor
    before, after = (is_finite(read_leaf(each, where, copy=False)) for each in (tensor, half))
    if before and not after:
        hint = "pass dtype=None to EmbeddingCacheManager to keep tensors as they are"
        raise EncodeError(f"{where} has numbers beyond float16's; it was not saved", hint=hint)
    return half
