"""precook: encode once, train from the cache.

Frozen encoders give the same result in every epoch; precook keeps those results in a content-addressed store on disk.
Names are loaded when first used: `import precook` itself costs nothing and never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precook.encode.encoder import Encoder, Item
    from precook.errors import (
        BundleError,
        ClosedStoreError,
        ConfigError,
        DamagedEntryError,
        DamagedPackError,
        EncodeError,
        FeedError,
        IdentityError,
        IncompleteError,
        LockedError,
        LostLeaseError,
        MissingEntryError,
        MissingTorchError,
        NewerFormatError,
        NoLeaseError,
        NoSnapshotError,
        NoSpaceError,
        NoStoreError,
        NotAStoreError,
        PinnedError,
        PrecookError,
        ReadOnlyError,
        SnapshotEntriesError,
        SourceChangedError,
        SourceError,
        StoppedError,
        StoreError,
        StoreFullError,
        StoreReadError,
        StoreWriteError,
        TreeError,
    )
    from precook.feed.feed import Feed, FeedOptions
    from precook.identity.digest import digest
    from precook.identity.identify import identify
    from precook.identity.recipe import Recipe
    from precook.maintain.bundle import export_bundle, import_bundle
    from precook.maintain.shards import export_shards
    from precook.maintain.verify import Damage, Verification
    from precook.open_store import open_store as open  # noqa: A004 - the public name
    from precook.plan.entries import Failure, PlannedEntry
    from precook.plan.explain import Explanation
    from precook.plan.plan import Plan
    from precook.project import Project, load
    from precook.store.cached import Cached
    from precook.store.reader import LazyTensor
    from precook.store.snapshot import Snapshot
    from precook.store.stats import Stats
    from precook.store.store import Store
    from precook.store.writer import Writer
    from precook.values import Digest, Key

__version__ = "0.1.0"

_HOMES = {
    "precook.errors": (
        "BundleError",
        "ClosedStoreError",
        "ConfigError",
        "DamagedEntryError",
        "DamagedPackError",
        "EncodeError",
        "FeedError",
        "IdentityError",
        "IncompleteError",
        "LockedError",
        "LostLeaseError",
        "MissingEntryError",
        "MissingTorchError",
        "NewerFormatError",
        "NoLeaseError",
        "NoSnapshotError",
        "NoSpaceError",
        "NoStoreError",
        "NotAStoreError",
        "PinnedError",
        "PrecookError",
        "ReadOnlyError",
        "SnapshotEntriesError",
        "SourceChangedError",
        "SourceError",
        "StoppedError",
        "StoreError",
        "StoreFullError",
        "StoreReadError",
        "StoreWriteError",
        "TreeError",
    ),
    "precook.encode.encoder": ("Encoder", "Item"),
    "precook.feed.feed": ("Feed", "FeedOptions"),
    "precook.identity.digest": ("digest",),
    "precook.identity.identify": ("identify",),
    "precook.identity.recipe": ("Recipe",),
    "precook.maintain.bundle": ("export_bundle", "import_bundle"),
    "precook.maintain.shards": ("export_shards",),
    "precook.plan.entries": ("Failure", "PlannedEntry"),
    "precook.plan.explain": ("Explanation",),
    "precook.plan.plan": ("Plan",),
    "precook.project": ("Project", "load"),
    "precook.store.cached": ("Cached",),
    "precook.store.reader": ("LazyTensor",),
    "precook.store.snapshot": ("Snapshot",),
    "precook.store.stats": ("Stats",),
    "precook.open_store": ("open",),
    "precook.store.store": ("Store",),
    "precook.maintain.verify": ("Damage", "Verification"),
    "precook.store.writer": ("Writer",),
    "precook.values": ("Digest", "Key"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_OTHER_NAMES = {"open": "open_store"}

__all__ = [
    "BundleError",
    "Cached",
    "ClosedStoreError",
    "ConfigError",
    "Damage",
    "DamagedEntryError",
    "DamagedPackError",
    "Digest",
    "EncodeError",
    "Encoder",
    "Explanation",
    "Failure",
    "Feed",
    "FeedError",
    "FeedOptions",
    "IdentityError",
    "IncompleteError",
    "Item",
    "Key",
    "LazyTensor",
    "LockedError",
    "LostLeaseError",
    "MissingEntryError",
    "MissingTorchError",
    "NewerFormatError",
    "NoLeaseError",
    "NoSnapshotError",
    "NoSpaceError",
    "NoStoreError",
    "NotAStoreError",
    "PinnedError",
    "Plan",
    "PlannedEntry",
    "PrecookError",
    "Project",
    "ReadOnlyError",
    "Recipe",
    "Snapshot",
    "SnapshotEntriesError",
    "SourceChangedError",
    "SourceError",
    "Stats",
    "StoppedError",
    "Store",
    "StoreError",
    "StoreFullError",
    "StoreReadError",
    "StoreWriteError",
    "TreeError",
    "Verification",
    "Writer",
    "digest",
    "export_bundle",
    "export_shards",
    "identify",
    "import_bundle",
    "load",
    "open",
]


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
