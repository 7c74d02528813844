"""The layouts people use today, one small class each, and precook among them.

Each is given its best case: samples are numbered, so that a lookup by number or a file name is enough (precook looks up
a 32-byte key), blobs have a compact header, commits are as large as precook's, and whatever must be imported or opened
once is outside the clock. None may do less: what comes back equals what went in, the tuple and the caption included.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sqlite3

from bench.blobs import DiskCache, Lmdb, Sqlite
from bench.layout import InMemory, Peer, Precook
from bench.perfile import OneNpz, OnePt, OneSafetensors
from bench.shards import HfDatasets, LitData, Mds, WebDataset

PEERS: tuple[type[Peer], ...] = (
    InMemory,
    Precook,
    OnePt,
    OneNpz,
    OneSafetensors,
    Lmdb,
    Sqlite,
    DiskCache,
    HfDatasets,
    Mds,
    LitData,
    WebDataset,
)


def usable() -> tuple[list[type[Peer]], dict[str, str]]:
    """The peers that can be measured here, and those that cannot, with the reason."""
    found: list[type[Peer]] = []
    missing: dict[str, str] = {}
    for peer in PEERS:
        try:
            peer.load()
            found.append(peer)
        except importlib.metadata.PackageNotFoundError:
            missing[peer.name] = f"pip install {peer.package}"
        except Exception as error:  # noqa: BLE001 - whatever another library raises on import is its reason
            missing[peer.name] = f"{peer.package} does not import: {error}"
    return found, missing


def told(missing: dict[str, str]) -> dict[str, str]:
    """What takes part and what is missing, for the head of a report."""
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "not installed": "; ".join(f"{name} ({reason})" for name, reason in missing.items()) or "none missing",
    }


def versions() -> dict[str, str]:
    """Versions of everything that is measured."""
    names = ["torch", "numpy", "xxhash", *(peer.package for peer in PEERS if peer.package)]
    found = {"sqlite": sqlite3.sqlite_version}
    for name in dict.fromkeys(names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
