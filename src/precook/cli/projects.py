"""Which project a command means, and the store it works on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from precook.errors import ConfigError, ConfigProblem

if TYPE_CHECKING:
    from precook.project import Project

DEFAULT = Path("precook.yaml")


def named_config(config: Path | None) -> Path | None:
    """The config file that was named, else the one that lies here; None where there is none."""
    return config if config is not None or not DEFAULT.exists() else DEFAULT


def open_project(config: Path | None, store: Path | None) -> Project:
    """The project, on the store that was named or on its own; `ConfigError` where there is no config."""
    path = named_config(config)
    if path is None:
        hint = "`precook init FOLDER` writes one for a folder of pictures; --config FILE names one elsewhere"
        raise ConfigError(ConfigProblem("", None, f"there is no {DEFAULT} here", hint))
    from precook.project import load

    project = load(path)
    if store is not None:
        project.settings = project.settings.model_copy(update={"store": str(store.absolute())})
    return project


def place_of_store(config: Path | None, store: Path | None) -> Path | None:
    """The store that was named, else that of the config that was named or lies here; None where nobody says."""
    path = named_config(config) if store is None else None
    if path is None:
        return store
    from precook.config.yaml import read_config

    return path.parent / read_config(path)[0].store
