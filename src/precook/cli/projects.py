"""Which project a command means."""

from __future__ import annotations

from pathlib import Path

from precook.errors import ConfigError, Problem

DEFAULT = Path("precook.yaml")


def find_config(given: Path | None) -> Path:
    """The config file that was named, else the one here; `ConfigError` where there is none."""
    path = given or DEFAULT
    if given is None and not path.is_file():
        hint = "`precook init FOLDER` writes one; --config FILE names another"
        raise ConfigError(Problem("", None, "there is no precook.yaml here", hint))
    return path


def place_of_store(store: Path | None, config: Path | None) -> Path | None:
    """The store that was named, else that of the config that was named or lies here; None where nobody says."""
    if store is not None or (config is None and not DEFAULT.is_file()):
        return store
    from precook.config.read import read_config  # noqa: PLC0415 - only where there is a config

    path = config or DEFAULT
    return path.parent / read_config(path)[0].store
