"""precook: encode once, train from the cache.

Frozen encoders give the same result in every epoch; precook keeps those results in a content-addressed store on disk.
Names are loaded when first used: `import precook` itself costs nothing and never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_PUBLIC = {
    "AccessError": "precook.errors",
    "BundleError": "precook.errors",
    "Cached": "precook.encode.cached",
    "ClosedStoreError": "precook.errors",
    "ConfigError": "precook.errors",
    "Damage": "precook.maintain.verify",
    "DamagedEntryError": "precook.errors",
    "DamagedPackError": "precook.errors",
    "Digest": "precook.values",
    "EncodeError": "precook.errors",
    "Encoder": "precook.encode.encoder",
    "Explanation": "precook.plan.explain",
    "Failure": "precook.plan.entries",
    "Feed": "precook.feed.feed",
    "FeedError": "precook.errors",
    "FeedOptions": "precook.feed.options",
    "IdentityError": "precook.errors",
    "IncompleteError": "precook.errors",
    "Item": "precook.encode.encoder",
    "Key": "precook.values",
    "LazyTensor": "precook.store.lazy",
    "LockedError": "precook.errors",
    "LostLeaseError": "precook.errors",
    "MissingEntryError": "precook.errors",
    "MissingTorchError": "precook.errors",
    "NewerFormatError": "precook.errors",
    "NoLeaseError": "precook.errors",
    "NoSnapshotError": "precook.errors",
    "NoSpaceError": "precook.errors",
    "NoStoreError": "precook.errors",
    "NotAStoreError": "precook.errors",
    "PinnedError": "precook.errors",
    "Plan": "precook.encode.build:BuildPlan",
    "PlannedEntry": "precook.plan.entries",
    "PrecookError": "precook.errors",
    "Project": "precook.project",
    "ReadOnlyError": "precook.errors",
    "Recipe": "precook.identity.recipe",
    "Snapshot": "precook.open_store:FeedSnapshot",
    "SnapshotEntriesError": "precook.errors",
    "SourceChangedError": "precook.errors",
    "SourceError": "precook.errors",
    "Stats": "precook.store.internals",
    "StoppedError": "precook.errors",
    "Store": "precook.open_store:LocalStore",
    "StoreError": "precook.errors",
    "StoreFullError": "precook.errors",
    "StoreReadError": "precook.errors",
    "StoreWriteError": "precook.errors",
    "Transferred": "precook.maintain.transfer",
    "TreeError": "precook.errors",
    "UnreachableError": "precook.errors",
    "Verification": "precook.maintain.verify",
    "Writer": "precook.store.writer",
    "digest": "precook.identity.digest",
    "export_bundle": "precook.maintain.bundle",
    "export_shards": "precook.maintain.shards",
    "identify": "precook.identity.identify",
    "import_bundle": "precook.maintain.bundle",
    "load": "precook.project",
    "open": "precook.open_store:open_store",
}
"""Each public name and its module, with the name there where it is another one."""

__all__ = list(_PUBLIC)

if TYPE_CHECKING:
    # The same names once more: type checkers do not run `__getattr__`. A test keeps the two equal.
    from precook.encode.build import BuildPlan
    from precook.encode.cached import Cached as Cached
    from precook.encode.encoder import Encoder as Encoder
    from precook.encode.encoder import Item as Item
    from precook.errors import AccessError as AccessError
    from precook.errors import BundleError as BundleError
    from precook.errors import ClosedStoreError as ClosedStoreError
    from precook.errors import ConfigError as ConfigError
    from precook.errors import DamagedEntryError as DamagedEntryError
    from precook.errors import DamagedPackError as DamagedPackError
    from precook.errors import EncodeError as EncodeError
    from precook.errors import FeedError as FeedError
    from precook.errors import IdentityError as IdentityError
    from precook.errors import IncompleteError as IncompleteError
    from precook.errors import LockedError as LockedError
    from precook.errors import LostLeaseError as LostLeaseError
    from precook.errors import MissingEntryError as MissingEntryError
    from precook.errors import MissingTorchError as MissingTorchError
    from precook.errors import NewerFormatError as NewerFormatError
    from precook.errors import NoLeaseError as NoLeaseError
    from precook.errors import NoSnapshotError as NoSnapshotError
    from precook.errors import NoSpaceError as NoSpaceError
    from precook.errors import NoStoreError as NoStoreError
    from precook.errors import NotAStoreError as NotAStoreError
    from precook.errors import PinnedError as PinnedError
    from precook.errors import PrecookError as PrecookError
    from precook.errors import ReadOnlyError as ReadOnlyError
    from precook.errors import SnapshotEntriesError as SnapshotEntriesError
    from precook.errors import SourceChangedError as SourceChangedError
    from precook.errors import SourceError as SourceError
    from precook.errors import StoppedError as StoppedError
    from precook.errors import StoreError as StoreError
    from precook.errors import StoreFullError as StoreFullError
    from precook.errors import StoreReadError as StoreReadError
    from precook.errors import StoreWriteError as StoreWriteError
    from precook.errors import TreeError as TreeError
    from precook.errors import UnreachableError as UnreachableError
    from precook.feed.feed import Feed as Feed
    from precook.feed.options import FeedOptions as FeedOptions
    from precook.identity.digest import digest as digest
    from precook.identity.identify import identify as identify
    from precook.identity.recipe import Recipe as Recipe
    from precook.maintain.bundle import export_bundle as export_bundle
    from precook.maintain.bundle import import_bundle as import_bundle
    from precook.maintain.shards import export_shards as export_shards
    from precook.maintain.transfer import Transferred as Transferred
    from precook.maintain.verify import Damage as Damage
    from precook.maintain.verify import Verification as Verification
    from precook.open_store import FeedSnapshot, LocalStore, open_store
    from precook.plan.entries import Failure as Failure
    from precook.plan.entries import PlannedEntry as PlannedEntry
    from precook.plan.explain import Explanation as Explanation
    from precook.project import Project as Project
    from precook.project import load as load
    from precook.store.internals import Stats as Stats
    from precook.store.lazy import LazyTensor as LazyTensor
    from precook.store.writer import Writer as Writer
    from precook.values import Digest as Digest
    from precook.values import Key as Key

    # An import under another name would not count as public.
    Plan = BuildPlan
    Snapshot = FeedSnapshot
    Store = LocalStore
    open = open_store  # noqa: A001


def __getattr__(name: str) -> object:
    if name == "testing":
        # A package, not a name of the table: `precook.testing.StoreTests` can be had without an import of its own.
        return importlib.import_module("precook.testing")
    if name not in _PUBLIC:
        message = f"module 'precook' has no attribute {name!r}"
        raise AttributeError(message)
    module, _, other = _PUBLIC[name].partition(":")
    value = getattr(importlib.import_module(module), other or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__", "testing"]
