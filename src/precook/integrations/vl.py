"""Tensors that vision-language processors make of pictures: by picture, processor and target size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precook.errors import MissingEntryError
from precook.fs.old_caches import DLM_PICTURES
from precook.identity.recipe import Recipe
from precook.integrations.front import MISSING, CountingFront, Place
from precook.integrations.processor import processor_digest
from precook.store.tree import Tree
from precook.values import Key

KIND = "vl-pixels"


@dataclass(frozen=True, slots=True)
class VlCacheKey:
    """What decides a processed picture."""

    blob_sha: str
    """Digest of the picture's bytes, such as `precook.digest(path).hex`."""
    processor_sha: str
    """`processor_identity` of the processor."""
    target_height: int
    target_width: int

    def as_filename(self) -> str:
        """What dlm's own cache calls the picture's file, as `precook adopt` finds it. Here no file has this name."""
        return f"{self.blob_sha}.{self.processor_sha[:12]}.{self.target_height}x{self.target_width}.npz"

    def shard(self) -> str:
        """The folder in which dlm's own cache has it."""
        return self.blob_sha[:2]


def processor_identity(processor: object) -> str:
    """A digest of the class that runs, its backend and every setting, as they are now; of an own class, its code too.

    It is worked out anew at each call: a setting that is changed on a living processor changes it. What cannot be
    identified raises `IdentityError`.
    """
    return processor_digest(processor)


processor_sha256 = processor_identity
"""The same under the name that dlm imports."""


class VlCache(CountingFront):
    """Processed pictures, as arrays, tensors or trees of them. Nothing is created before the first `put`.

    >>> import tempfile, numpy
    >>> with VlCache(tempfile.mkdtemp() + "/cache") as cache:
    ...     key = VlCacheKey("picture", "processor", 224, 224)
    ...     folder = cache.put(key, numpy.zeros((3, 2, 2)))
    ...     cache.exists(key), cache.get(key).shape, cache.path_for(key).suffix
    (True, (3, 2, 2), '.safetensors')
    """

    def __init__(self, root: Place, **options: Any) -> None:
        super().__init__(root, KIND, old=DLM_PICTURES, **options)

    def get(self, key: VlCacheKey) -> Tree:
        """What was put under a key, in memory of the caller's own, or None."""
        tree = self.read(_key(key))
        return None if tree is MISSING else tree

    def put(self, key: VlCacheKey, tensor: Tree) -> Path:
        """Keep what the processor returned; the first under a key stays. Returns the folder of the store.

        Pictures that are put one after the other lie in one file, which is written when there are enough of them:
        `path_for` says which it is, and has it written at once.
        """
        self.write(_key(key), tensor, _recipe(key))
        return self.store.internals().layout.root  # which is there from here on

    def exists(self, key: VlCacheKey) -> bool:
        """Whether there is something under a key."""
        return self.has(_key(key))

    def path_for(self, key: VlCacheKey) -> Path:
        """The file that holds what is under a key, among others; without that, a path at which there is nothing."""
        stored = _key(key)
        if self.has(stored):
            try:
                return self.store.locate(stored).pack
            except MissingEntryError:
                pass  # removed meanwhile
        return self.root / key.shard() / key.as_filename()

    def clear(self) -> int:
        """Remove every processed picture; how many there were. The store stays: others may be at work in it."""
        return self.remove()


def _recipe(key: VlCacheKey) -> Recipe:
    return Recipe(KIND, {"processor": key.processor_sha})


def _key(key: VlCacheKey) -> Key:
    return _recipe(key).key(key.blob_sha, height=key.target_height, width=key.target_width)
