"""What many commands take: their options, and the project and the store that these name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from precook.errors import ConfigError, ConfigProblem, NoStoreError, NotAStoreError, ReadOnlyError
from precook.units import parse_duration, parse_size

if TYPE_CHECKING:
    from precook.project import Project
    from precook.store.remote.url import StoreUrl
    from precook.store.store import Store

DEFAULT_CONFIG = Path("precook.yaml")
_DEFAULT_STORE = Path("cache")
"""Where a store is made when none is named and none is found."""
_STORE_MARKER = "store.toml"
_NAME_ONE = "name a store with --store DIR"

_Value = TypeVar("_Value")


def _place(text: str) -> Path | StoreUrl:
    """A store by its folder or its URL."""
    if "://" not in text:
        return Path(text)
    from precook.store.remote.url import parse_url

    try:
        return parse_url(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


StoreOption = Annotated[
    Any,  # a Path or a StoreUrl, or None: typer knows no such choice
    typer.Option(
        "--store",
        metavar="DIR",
        parser=_place,
        help="The store, a folder or a URL; without it, the config's, or the one here or in ./cache.",
    ),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The config file; without it, precook.yaml here.")
]
NoWriteOption = Annotated[
    bool, typer.Option("--no-write", help="Write nothing at all, not even what was learnt about the sources.")
]
NoCodeOption = Annotated[
    bool,
    typer.Option("--no-code", help="Import nothing that the config names: for a config that you have not read yet."),
]
EncoderOption = Annotated[
    list[str] | None, typer.Option("--encoder", metavar="NAME", help="Only this encoder; may be given again.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without it, only show what would be done.")]


def size_option(help_text: str) -> Any:
    """An option that takes a size with its unit, as bytes."""
    return typer.Option(parser=_option_parser(parse_size), metavar="SIZE", help=help_text)


def duration_option(help_text: str) -> Any:
    """An option that takes a duration with its unit, as seconds."""
    return typer.Option(parser=_option_parser(parse_duration), metavar="TIME", help=help_text)


def _option_parser(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """A parser whose complaints are errors of usage."""

    def parse_or_refuse(text: str) -> _Value:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parse_or_refuse


def key_digits(text: str) -> str:
    """Parses the first digits of a key."""
    if re.fullmatch(r"[0-9a-f]{4,64}", text.lower()) is None:
        message = f"{text[:80]!a} is not a key: write its 64 hexadecimal digits, or at least the first 4"
        raise typer.BadParameter(message)
    return text.lower()


def usage_error(message: str, hint: str) -> ConfigError:
    """An error of usage that names no line of a config."""
    return ConfigError(ConfigProblem("", None, message, hint))


def named_config(config: Path | None) -> Path | None:
    """The config file that was named, else precook.yaml in the working directory; None where neither is there."""
    return config if config is not None or not DEFAULT_CONFIG.exists() else DEFAULT_CONFIG


def open_project(config: Path | None, store: Path | StoreUrl | None, *, code: bool = True) -> Project:
    """The project, on the store that was named or on its own; `ConfigError` where there is no config.

    Without `code`, classes of the config's own are never loaded.
    """
    path = named_config(config)
    if path is None:
        hint = "`precook init FOLDER` writes one for a folder of pictures; --config FILE names one elsewhere"
        raise usage_error(f"there is no {DEFAULT_CONFIG} here", hint)
    from precook.project import load

    project = load(path, code=code)
    if store is not None:
        place = str(store.absolute()) if isinstance(store, Path) else str(store)
        project.settings = project.settings.model_copy(update={"store": place})
    return project


def find_store(config: Path | None, store: Path | StoreUrl | None) -> Path | StoreUrl:
    """The store that was named, else the config's, else the one here or in ./cache; `NoStoreError` without any."""
    if store is not None:
        return store
    config = named_config(config)
    if config is not None:
        from precook.config.check import read_config
        from precook.store.remote.url import find_place

        return find_place(read_config(config)[0], config.parent)
    for place in (Path(), _DEFAULT_STORE):
        if (place / _STORE_MARKER).is_file():
            return place
    error = NoStoreError(Path.cwd())
    error.hint = f"{_NAME_ONE}; without it, this directory and ./cache are tried"
    raise error


def find_or_new_store(config: Path | None, store: Path | StoreUrl | None) -> Path | StoreUrl:
    """The same for a command that makes a store or can do without: where there is none yet, the place for one."""
    try:
        return find_store(config, store)
    except NoStoreError:
        return _DEFAULT_STORE


def find_folder(config: Path | None, store: Path | StoreUrl | None, doing: str) -> Path:
    """The same for a command that is for a store in a folder alone."""
    place = find_or_new_store(config, store)
    if not isinstance(place, Path):
        hint = "name a folder with --store DIR; `precook push` then brings it to the bucket"
        raise usage_error(f"{doing} is not for a store in a bucket", hint)
    return place


def find_remote(config: Path | None, url: str) -> StoreUrl:
    """A store in a bucket, reached as the config says if there is one."""
    from precook.store.remote.url import find_place, parse_url

    config = named_config(config)
    if config is not None:
        from precook.config.check import read_config

        settings = read_config(config)[0].model_copy(update={"store": url})
        place = find_place(settings, config.parent)
        if not isinstance(place, Path):
            return place
    return parse_url(url)


def open_to_read(config: Path | None, store: Path | StoreUrl | None) -> Store:
    """The store, read-only: nothing that a command does with it can change it."""
    return _open(find_store(config, store), read_only=True)


def open_to_write(config: Path | None, store: Path | StoreUrl | None) -> Store:
    """The store, for a command that changes it; `ReadOnlyError` where that is not allowed."""
    opened = _open(find_store(config, store), read_only=False)
    if opened.read_only:
        opened.close()
        raise ReadOnlyError(opened.location, "this directory cannot be written to")
    return opened


def open_to_use(config: Path | None, store: Path | StoreUrl | None) -> Store:
    """The store, for a command that reads it and holds a lease meanwhile where it may write."""
    return _open(find_store(config, store), read_only=False, create=False)


def _open(path: Path | StoreUrl, *, read_only: bool, create: bool = True) -> Store:
    from precook.open_store import open_store
    from precook.store.layout import Layout, read_marker

    try:
        # Opened for writing, a store that is not there is no error: the first write makes it. Read-only it is one.
        absent = not create and isinstance(path, Path) and read_marker(Layout(path)) is None
        return open_store(path, read_only=read_only or absent)
    except NoStoreError as error:
        error.hint = "check the path; a store is made by its first build"
        raise
    except NotAStoreError as error:
        if error.hint == NotAStoreError.hint:
            error.hint = _NAME_ONE  # its own advice is for whoever makes a store
        raise
