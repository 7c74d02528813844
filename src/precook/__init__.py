"""precook: encode once, train from the cache.

Frozen encoders give the same result in every epoch; precook keeps those results in a content-addressed store on disk.
Names are loaded when first used: `import precook` itself costs nothing and never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precook.errors import ClosedStoreError as ClosedStoreError
    from precook.errors import DamagedEntryError as DamagedEntryError
    from precook.errors import DamagedPackError as DamagedPackError
    from precook.errors import EncodeError as EncodeError
    from precook.errors import IdentityError as IdentityError
    from precook.errors import LockedError as LockedError
    from precook.errors import MissingEntryError as MissingEntryError
    from precook.errors import MissingTorchError as MissingTorchError
    from precook.errors import NewerFormatError as NewerFormatError
    from precook.errors import NoSpaceError as NoSpaceError
    from precook.errors import NoStoreError as NoStoreError
    from precook.errors import NotAStoreError as NotAStoreError
    from precook.errors import PrecookError as PrecookError
    from precook.errors import ReadOnlyError as ReadOnlyError
    from precook.errors import SourceChangedError as SourceChangedError
    from precook.errors import SourceError as SourceError
    from precook.errors import StoreError as StoreError
    from precook.errors import StoreWriteError as StoreWriteError
    from precook.errors import TreeError as TreeError
    from precook.identity.digests import digest as digest
    from precook.identity.identify import identify as identify
    from precook.identity.recipe import Recipe as Recipe
    from precook.store.cached import Cached as Cached
    from precook.store.lazy import LazyTensor as LazyTensor
    from precook.store.stats import Stats as Stats
    from precook.store.store import Store as Store
    from precook.store.store import open_store as open  # noqa: A004, F401 - the public name
    from precook.store.verify import Damage as Damage
    from precook.store.verify import Verification as Verification
    from precook.store.writer import Writer as Writer
    from precook.values import Digest as Digest
    from precook.values import Key as Key

__version__ = "0.1.0"

_HOMES = {
    "precook.errors": (
        "ClosedStoreError",
        "DamagedEntryError",
        "DamagedPackError",
        "EncodeError",
        "IdentityError",
        "LockedError",
        "MissingEntryError",
        "MissingTorchError",
        "NewerFormatError",
        "NoSpaceError",
        "NoStoreError",
        "NotAStoreError",
        "PrecookError",
        "ReadOnlyError",
        "SourceChangedError",
        "SourceError",
        "StoreError",
        "StoreWriteError",
        "TreeError",
    ),
    "precook.identity.digests": ("digest",),
    "precook.identity.identify": ("identify",),
    "precook.identity.recipe": ("Recipe",),
    "precook.store.cached": ("Cached",),
    "precook.store.lazy": ("LazyTensor",),
    "precook.store.stats": ("Stats",),
    "precook.store.store": ("Store", "open"),
    "precook.store.verify": ("Damage", "Verification"),
    "precook.store.writer": ("Writer",),
    "precook.values": ("Digest", "Key"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_OTHER_NAMES = {"open": "open_store"}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - a test compares it with the names above


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        message = f"module 'precook' has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(importlib.import_module(home), _OTHER_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
