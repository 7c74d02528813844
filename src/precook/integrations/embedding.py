"""Latents and prompt embeddings under named types, by what the files hold: for image-edit trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from precook.encode.results import WrongResultsError, count_results
from precook.errors import EncodeError, PrecookError, SourceChangedError, printable
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.identify import identify
from precook.identity.recipe import Recipe
from precook.integrations.front import MISSING, Front, Place
from precook.open_store import open_store
from precook.report import SILENT, Reporter
from precook.sources.facts import remembered_digests
from precook.store.leaves import has_nan, is_finite, is_tensor, read_leaf
from precook.store.store import Store
from precook.store.tree import Tree
from precook.values import Key

KIND = "embedding-cache"
CACHE_TYPES = (
    "pixel_latent",
    "control_latent",
    "prompt_embed",
    "prompt_embeds_mask",
    "empty_prompt_embed",
    "empty_prompt_embeds_mask",
)
Keep = Literal["float16"]
Sample = Mapping[str, Any]
"""`image`, `control` and `prompt` of one training example, those that there are; pictures by their paths."""
Encode = Callable[[list[Sample]], Sequence[Tree]]
"""Makes one result for each sample; for several cache types, a tuple of results."""


class EmbeddingCacheManager(Front):
    """What the encoders of an image-edit trainer made, by cache type and hash.

    `encoders` says what makes each type: a module, a folder or plain data, whatever `precook.identify` takes. It is
    part of the key, so that a swapped encoder finds nothing of the other one's; of types it does not name, nobody can
    tell. `dtype="float16"` keeps floating-point tensors in half precision.
    """

    def __init__(
        self, place: Place, *, encoders: Mapping[str, object] | None = None, dtype: Keep | None = None, **options: Any
    ) -> None:
        for name in encoders or {}:
            _check_type(name)
        if dtype not in (None, "float16"):
            raise PrecookError(f"dtype {dtype!r} is not offered", hint="float16, or None to keep tensors as they are")
        super().__init__(place, KIND, **options)
        identities = {name: identify(encoder) for name, encoder in (encoders or {}).items()}
        self._half = dtype == "float16"
        self._recipes = {
            name: Recipe(KIND, {"type": name, "encoder": identities.get(name), "dtype": dtype}) for name in CACHE_TYPES
        }
        self._memory = self.store.memory()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> EmbeddingCacheManager | None:
        """The manager that a trainer's config asks for under `cache`; None unless `use_cache` is true there."""
        section = config.get("cache") or {}
        if section.get("use_cache") is not True:
            return None
        if not section.get("cache_dir"):
            raise PrecookError("cache: use_cache is true and cache_dir is missing", hint="name a folder in cache_dir")
        return cls(section["cache_dir"], **options)

    def get_file_hash_for_image(self, path: str | Path) -> str:
        """The digest of a picture's bytes; a file that looks as it did before is not read again."""
        return self.hashes_of([Path(path)])[0]

    def hashes_of(self, paths: Sequence[Path]) -> list[str]:
        """The same for many pictures."""
        with self._lock:
            digests = remembered_digests(paths, self._memory, trust=False, report=SILENT)
        return [content.hex for content in digests]

    def get_file_hash_for_prompt(self, path: str | Path | None, prompt: str) -> str:
        """The digest of a prompt and of the picture it is encoded with; None where it is encoded alone."""
        return self.hash_of_prompt(None if path is None else self.get_file_hash_for_image(path), prompt)

    def hash_of_prompt(self, picture: str | None, prompt: str) -> str:
        """The same, where the picture's hash is known already."""
        return digest(canonical([picture, prompt])).hex

    def save_cache(self, cache_type: str, file_hash: str, data: Tree) -> None:
        """Keep a tensor, or a tree of them; the first under a type and hash stays."""
        recipe = self._recipe(cache_type)
        tree = _checked(data, f"{cache_type} of {file_hash}", half=self._half)
        self.write(recipe.key(file_hash), tree, recipe)

    def load_cache(self, cache_type: str, file_hash: str) -> Tree:
        """What was saved, or None."""
        tree = self.read(self._key(cache_type, file_hash))
        return None if tree is MISSING else tree

    def cache_exists(self, cache_type: str, file_hash: str) -> bool:
        """Whether something was saved."""
        return self.has(self._key(cache_type, file_hash))

    def missing(self, cache_type: str, hashes: Iterable[str]) -> list[str]:
        """Those of many hashes under which nothing was saved."""
        self.flush()
        by_key = {self._key(cache_type, file_hash): file_hash for file_hash in hashes}
        return [by_key[key] for key in self.store.missing(by_key)]

    def load_or_encode(self, cache_type: str, file_hash: str, encode: Callable[[], Tree]) -> Tree:
        """What was saved; else what `encode` makes now, which is saved and given back as a later load would."""
        key = self._key(cache_type, file_hash)
        tree = self.read(key)
        if tree is MISSING:
            self.save_cache(cache_type, file_hash, encode())
            tree = self.read(key)
        return tree

    def get_cache_stats(self) -> dict[str, int]:
        """How many entries each cache type has, whichever encoder made them."""
        stats = dict.fromkeys(CACHE_TYPES, 0)
        for data, entries, _ in self.totals().values():
            stats[data["type"]] += entries
        return stats

    def clear_cache(self, cache_type: str | None = None) -> int:
        """Remove every entry of a cache type, or of all, whichever encoder made them; how many there were."""
        if cache_type is not None:
            _check_type(cache_type)
        recipes = [recipe for recipe, (data, _, _) in self.totals().items() if cache_type in (None, data["type"])]
        return self.remove(recipes=recipes)

    def close(self) -> None:
        """Flush, remember the files that were read, and close the store if this object opened it."""
        self.store.remember(self._memory)
        super().close()

    def _recipe(self, cache_type: str) -> Recipe:
        _check_type(cache_type)
        return self._recipes[cache_type]

    def _key(self, cache_type: str, file_hash: str) -> Key:
        return self._recipe(cache_type).key(file_hash)


def check_cache_exists(place: Place) -> bool:
    """Whether there is anything of this kind in a folder or store."""
    if not isinstance(place, Store) and not (Path(place) / "store.toml").is_file():
        return False
    store = place if isinstance(place, Store) else open_store(place, read_only=True)
    try:
        return any(EmbeddingCacheManager(store).get_cache_stats().values())
    finally:
        if store is not place:
            store.close()


def _check_type(name: str) -> None:
    if name not in CACHE_TYPES:
        raise PrecookError(f"no cache type {name!r}", hint=f"there are {', '.join(CACHE_TYPES)}")


def _checked(node: Tree, where: str, *, half: bool) -> Tree:
    """The tree as it is kept, in half precision if asked for; NaN, and what float16 cannot hold, are refused."""
    kind = type(node)
    if kind is dict:
        return {name: _checked(item, where, half=half) for name, item in node.items()}
    if kind in (list, tuple):
        return kind(_checked(item, where, half=half) for item in node)
    if not is_tensor(node):
        return node
    tensor = node.detach() if hasattr(node, "detach") else node
    if has_nan(read_leaf(tensor, where, copy=False)):
        raise EncodeError(f"{where} holds NaN; it was not saved", hint="look at the encoder, or at its picture")
    return _halved(tensor, where) if half else tensor


def _halved(tensor: Any, where: str) -> Any:
    """A tensor in half precision, if it has floating-point numbers."""
    if isinstance(tensor, np.ndarray):
        if tensor.dtype.kind != "f":
            return tensor
        with np.errstate(over="ignore"):  # looked at below
            half: Any = tensor.astype("float16")
    elif tensor.is_floating_point():
        half = tensor.half()
    else:
        return tensor
    before, after = (is_finite(read_leaf(each, where, copy=False)) for each in (tensor, half))
    if before and not after:
        raise EncodeError(f"{where} has numbers beyond float16's; it was not saved", hint="keep it without dtype")
    return half


def cache_dataset(
    manager: EmbeddingCacheManager,
    samples: Iterable[Sample],
    encode: Mapping[str | tuple[str, ...], Encode],
    *,
    batch_size: int = 16,
    report: Reporter = SILENT,
) -> dict[str, int]:
    """Encode what is missing of a dataset, and nothing else; how many results of each cache type that took.

    `encode` has a function for each cache type, or for several types that are made together. Everything is durable when
    this returns; after an interruption the next call goes on where it stopped.
    """
    samples = list(samples)
    counts = {}
    for name, function in encode.items():
        types = name if isinstance(name, tuple) else (name,)
        hashes = _hashes(manager, types[0], samples)
        by_hash = {
            file_hash: sample for file_hash, sample in zip(hashes, samples, strict=True) if file_hash is not None
        }
        lacking = {file_hash for cache_type in types for file_hash in manager.missing(cache_type, by_hash)}
        missing = [file_hash for file_hash in by_hash if file_hash in lacking]
        with report.task(", ".join(types), total=len(missing), unit="entries") as task:
            for start in range(0, len(missing), batch_size):
                batch = {file_hash: by_hash[file_hash] for file_hash in missing[start : start + batch_size]}
                _encode_batch(manager, types, function, batch)
                task.advance(len(batch))
        counts.update(dict.fromkeys(types, len(missing)))
    manager.flush()
    return counts


def _encode_batch(
    manager: EmbeddingCacheManager, types: tuple[str, ...], function: Encode, batch: Mapping[str, Sample]
) -> None:
    """Encode samples, by their hashes, and save the results, if there is one for each and no picture has changed."""
    samples = list(batch.values())
    encoder = f"the encoder of {', '.join(types)}"
    try:
        results = count_results(function(samples), len(samples))
    except WrongResultsError as wrong:
        raise EncodeError(f"{encoder} returned {wrong.returned} for {len(samples)} samples") from None
    # A picture that was edited between its hash and its encoding must not be found under the old hash.
    for before, now, sample in zip(batch, _hashes(manager, types[0], samples), samples, strict=True):
        if before != now:
            raise SourceChangedError(_picture(types[0], sample) or Path())
    for file_hash, result in zip(batch, results, strict=True):
        parts = (result,) if len(types) == 1 else result
        if type(parts) is not tuple or len(parts) != len(types):
            raise EncodeError(f"{encoder} must return a tuple of {len(types)} for each sample")
        for cache_type, part in zip(types, parts, strict=True):
            manager.save_cache(cache_type, file_hash, part)


def _hashes(manager: EmbeddingCacheManager, cache_type: str, samples: Sequence[Sample]) -> list[str | None]:
    """For each sample the hash that its result of this type has; None where it has no such part."""
    _check_type(cache_type)
    pictures = [_picture(cache_type, sample) for sample in samples]
    paths = [path for path in pictures if path is not None]
    by_path = dict(zip(paths, manager.hashes_of(paths), strict=True))
    hashes = [None if path is None else by_path[path] for path in pictures]
    if cache_type in ("pixel_latent", "control_latent"):
        return hashes
    prompts = ["" if cache_type.startswith("empty") else _prompt(sample) for sample in samples]
    return [manager.hash_of_prompt(picture, prompt) for picture, prompt in zip(hashes, prompts, strict=True)]


def _prompt(sample: Sample) -> str:
    prompt = sample.get("prompt")
    if not isinstance(prompt, str):
        # Not as the text 'None': that is a prompt, and another one than the empty one.
        given = f"a {type(prompt).__name__} as its prompt" if prompt is not None else "no prompt"
        hint = "write '' where it is empty"
        raise PrecookError(f"the sample of {printable(sample.get('image'))} has {given}", hint=hint)
    return prompt


def _picture(cache_type: str, sample: Sample) -> Path | None:
    """The picture that decides a type: prompts of an image-edit model are encoded with the control picture."""
    name = "image" if cache_type == "pixel_latent" else "control"
    return Path(sample[name]) if sample.get(name) is not None else None
