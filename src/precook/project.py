"""The project: a config and its store, from which plans are made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from precook.config.models import Settings
from precook.config.read import Origin, check, read_config
from precook.encode.catalog import encodings
from precook.encode.encoder import Encoder
from precook.errors import ConfigError
from precook.errors import Problem as ConfigProblem
from precook.plan.plan import Plan, make_plan
from precook.report import SILENT, Reporter
from precook.sources.remembered import remembered_digests
from precook.store.layout import Layout, read_marker
from precook.store.store import Store, open_store


class Project:
    """What a config file says, and the store it names; a context manager.

    From Python it takes the sections of the config file as keywords; paths are relative to `base`. An encoder may also
    be an object with the methods of `precook.Encoder`.
    """

    def __init__(self, *, base: str | os.PathLike[str] = ".", **sections: Any) -> None:
        objects = {
            name: one for name, one in dict(sections.get("encoders", {})).items() if not isinstance(one, Mapping)
        }
        for name, one in objects.items():
            if not isinstance(one, Encoder):
                raise ConfigError(ConfigProblem(f"encoders.{name}", None, f"{type(one).__name__} is not an encoder"))
        if objects:
            # A stand-in takes the object's place while the rest is checked.
            stand_in = {"uses": "precook.encode:object"}
            encoders = {name: stand_in if name in objects else one for name, one in sections["encoders"].items()}
            sections = {**sections, "encoders": encoders}
        self._start(check(sections), Path(base), Origin(None, {}), objects)

    def _start(self, settings: Settings, base: Path, origin: Origin, objects: dict[str, Encoder]) -> None:
        self.settings = settings
        self.base = base
        self._origin = origin
        self._objects = objects
        self._store: Store | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Project:
        """The project of a config file; `ConfigError` says everything that is wrong with it."""
        settings, origin = read_config(Path(path))
        project = cls.__new__(cls)
        project._start(settings, Path(path).parent, origin, {})  # noqa: SLF001 - the other way to make one
        return project

    @property
    def store_path(self) -> Path:
        """Where the store lies."""
        return self.base / self.settings.store

    @property
    def store(self) -> Store:
        """The store, opened when first asked for."""
        return self._opened(write=True)

    def _opened(self, *, write: bool) -> Store:
        """The store; whoever does not want to write gets it read-only, so that opening it changes nothing either."""
        if self._store is not None and write and self._store.asked_read_only:
            self.close()
        if self._store is None:
            absent = read_marker(Layout(self.store_path)) is None
            self._store = open_store(self.store_path, read_only=not write and not absent)
        return self._store

    def plan(self, *, encoders: list[str] | None = None, write: bool = True, report: Reporter = SILENT) -> Plan:
        """Look at the sources and say what is ready, what is missing and why.

        Nothing is encoded and no entry is written; what was learnt about the sources is remembered in the store unless
        `write` is False. `encoders` names those of interest; without it, all.
        """
        chosen = self._chosen(encoders)
        store = self._opened(write=write)
        memory = store.memory()
        digest_of = partial(remembered_digests, memory=memory, trust=self.settings.stamps == "trust", report=report)
        wanted = encodings(chosen, self.base, digest_of=digest_of, origin=self._origin)
        return make_plan(self.settings, self.base, wanted, store, memory, write=write, report=report)

    def _chosen(self, names: list[str] | None) -> dict[str, Any]:
        all_ = {name: self._objects.get(name, section) for name, section in self.settings.encoders.items()}
        unknown = [name for name in names or () if name not in all_]
        if unknown:
            raise self._origin.error(("encoders",), f"no encoder {unknown[0]!r}", hint=f"there are {', '.join(all_)}")
        return all_ if names is None else {name: all_[name] for name in names}

    def close(self) -> None:
        """Close the store."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def __enter__(self) -> Project:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Project {self.settings.dataset} in {self.store_path}>"


def load(path: str | os.PathLike[str] = "precook.yaml") -> Project:
    """The project of a config file."""
    return Project.read(path)
