"""Tensors that vision-language processors make of pictures: by picture, processor and target size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.identify import identify
from precook.identity.recipe import Recipe
from precook.integrations.front import MISSING, Front, Place
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


def processor_identity(processor: object) -> str:
    """A digest of the class that runs, its backend and every setting, as they are now.

    It is worked out anew at each call: a setting that is changed on a living processor changes it. Ask once per run.
    """
    return digest(canonical(identify(processor))).hex


class VlCache(Front):
    """Processed pictures, as arrays, tensors or trees of them. Nothing is created before the first `put`.

    >>> import tempfile, numpy
    >>> with VlCache(tempfile.mkdtemp() + "/cache") as cache:
    ...     key = VlCacheKey("picture", "processor", 224, 224)
    ...     cache.put(key, numpy.zeros((3, 2, 2)))
    ...     cache.exists(key), cache.get(key).shape
    (True, (3, 2, 2))
    """

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(place, KIND, **options)

    def get(self, key: VlCacheKey) -> Tree:
        """What was put under a key, in memory of the caller's own, or None."""
        tree = self.read(_key(key))
        return None if tree is MISSING else tree

    def put(self, key: VlCacheKey, tensor: Tree) -> None:
        """Keep what the processor returned; the first under a key stays."""
        self.write(_key(key), tensor, _recipe(key))

    def exists(self, key: VlCacheKey) -> bool:
        """Whether there is something under a key."""
        return self.has(_key(key))

    def clear(self) -> int:
        """Remove every processed picture; how many there were."""
        return self.remove()


def _recipe(key: VlCacheKey) -> Recipe:
    return Recipe(KIND, {"processor": key.processor_sha})


def _key(key: VlCacheKey) -> Key:
    return _recipe(key).key(key.blob_sha, height=key.target_height, width=key.target_width)
