"""Versions: what entries were made with, recorded beside their recipe and never part of a key.

The versions of the libraries that an encoder involves and, for an encoder of one's own, the digests of its source
files. A library that changes a result does not make old entries missing, and neither does an edit of one's own code:
a plan compares what is recorded with what is here today, and says where they differ.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import inspect
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from precook.identity.canonical import JsonValue, dump_json
from precook.identity.digest import digest

MAX_VERSIONS = 64
"""Most names that are recorded for one recipe."""
MAX_VERSION_TEXT = 200
"""Most characters of a name and of what is recorded under it."""
OURS = "precook"
"""Recorded, and no reason to make anything anew: what our own code decides has a version in the key."""
COMPILED = "compiled"
"""The name under which stands by which compiler a model's code was made, where it was not run as it is."""
_CODE = "code:"
"""What names of modules begin with, to tell them from libraries."""
_CODE_DIGITS = 32
_MAX_MODULES = 32
_MODULES = {
    "Pillow": "PIL",
    "pillow-heif": "pillow_heif",
    "diffusers": "diffusers",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "torchvision": "torchvision",
    "transformers": "transformers",
}
"""Libraries that can decide a result, by the name under which they are installed, with that of their module."""
_BESIDE = ("pillow-heif", "pillow-jxl-plugin")
"""Recorded only with entries that were made when it had decoded something; today's is the one that is installed."""
_INSTALLED = ("site-packages", "dist-packages")
"""Folders in which everybody's packages lie side by side."""

_code_seen: weakref.WeakKeyDictionary[type, tuple[dict[str, str], tuple[str, ...]]] = weakref.WeakKeyDictionary()
"""What was found in the source of a class when it was first asked for: later edits are not what is loaded."""


@dataclass(frozen=True, slots=True)
class VersionChange:
    """A library or a module of one's own that is another one today than when entries were made."""

    name: str
    made: tuple[str, ...]
    """The versions that entries were made with; empty for a module that had no part in it then."""
    today: str | None
    """None for a module that has no part in it any more."""

    @property
    def is_code(self) -> bool:
        """Whether it is a module of an encoder of one's own."""
        return self.name.startswith(_CODE)

    @property
    def module(self) -> str:
        """The module's name."""
        return self.name.removeprefix(_CODE)


def library_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of precook and of some libraries; one that is not installed is left out.

    Of a library that is loaded its own word counts, of any other that of its package: nothing is imported to know it.
    """
    versions = {}
    for name in (OURS, *names):
        loaded = getattr(sys.modules.get(_MODULES.get(name, name)), "__version__", None)
        version = str(loaded) if isinstance(loaded, str) else _installed(name)
        if version and len(version) <= MAX_VERSION_TEXT:
            versions[name] = version
    return versions


@functools.cache
def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def code_versions(kind: type) -> tuple[dict[str, str], tuple[str, ...]]:
    """The digests of the source files of a class, by module, and the libraries that they import.

    Its own module and whatever of its package, or of the folder beside it, that one leads to by its imports. They are
    read once, when the class is first asked for; without a source there is nothing to say.
    """
    if kind not in _code_seen:
        _code_seen[kind] = _read_code(kind)
    return _code_seen[kind]


def _read_code(kind: type) -> tuple[dict[str, str], tuple[str, ...]]:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    versions: dict[str, str] = {}
    imported: set[str] = set()
    if file is None:
        # A notebook has no file, and keeps what was typed.
        try:
            source = inspect.getsource(kind).encode("utf-8", "surrogatepass")
        except (OSError, TypeError):
            return {}, ()
        versions[_CODE + kind.__module__] = digest(source).hex[:_CODE_DIGITS]
        imported.update(_imports(source, kind.__module__, is_package=False))
    else:
        start = Path(file)
        depth = kind.__module__.count(".") + (start.stem == "__init__")
        root = start.parents[min(depth, len(start.parents) - 1)]
        # Among installed packages, others than its own are libraries.
        own = kind.__module__.partition(".")[0] if root.name in _INSTALLED else None
        waiting = {kind.__module__: start}
        while waiting and len(versions) < _MAX_MODULES:
            name = next(iter(waiting))
            path = waiting.pop(name)
            try:
                source = path.read_bytes()
            except OSError:
                continue
            if len(name) + len(_CODE) <= MAX_VERSION_TEXT:
                versions[_CODE + name] = digest(source).hex[:_CODE_DIGITS]
            for other in sorted(_imports(source, name, is_package=path.stem == "__init__")):
                imported.add(other)
                found = _find_source(root, other) if own in (None, other.partition(".")[0]) else None
                if found is not None and _CODE + other not in versions:
                    waiting[other] = found
    tops = {name.partition(".")[0] for name in imported}
    return versions, tuple(library for library, name in _MODULES.items() if name in tops)


def _imports(source: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """The names that a module may import, wherever in it: of `from a import b` both a and a.b, which may be one."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # no Python source: an extension, or one for another version
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")
            if node.level:
                package = package[: len(package) - node.level + is_package]
            base = ".".join(filter(None, [*(package if node.level else ()), node.module]))
            yield from filter(None, (base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)))


def _find_source(root: Path, module: str) -> Path | None:
    """The source file of a module below a folder."""
    place = root.joinpath(*module.split("."))
    for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if path.is_file():
            return path
    return None


def dump_versions(versions: Mapping[str, str]) -> bytes:
    """Versions as they are recorded: JSON in the order of the names."""
    return dump_json(dict(sorted(versions.items())[:MAX_VERSIONS])) if versions else b""


def check_versions(form: JsonValue) -> dict[str, str]:
    """Versions that were recorded, from anybody; `ValueError` where they are none."""
    if not isinstance(form, dict) or not 1 <= len(form) <= MAX_VERSIONS:
        raise ValueError(f"versions are 1 to {MAX_VERSIONS} names")
    for text in (*form, *form.values()):
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_VERSION_TEXT:
            raise ValueError(f"versions are texts of 1 to {MAX_VERSION_TEXT} characters")
    return form


def compare_versions(made: Mapping[str, str], today: Mapping[str, str]) -> list[VersionChange]:
    """What differs today from what entries were made with.

    A library that is not there today, or of which nothing was recorded, is no difference: nobody knows of one. Nor is
    another build of the same version, such as one for another device.
    """
    today = {**{name: version for name in _BESIDE if name in made and (version := _installed(name))}, **today}
    changes = [
        VersionChange(name, (version,), today[name])
        for name, version in made.items()
        if name != OURS and not name.startswith(_CODE) and name in today and _public(version) != _public(today[name])
    ]
    then, now = ({name: part[name] for name in part if name.startswith(_CODE)} for part in (made, today))
    if then and now:
        changes += [
            VersionChange(name, (then[name],) if name in then else (), now.get(name))
            for name in sorted({*then, *now})
            if then.get(name) != now.get(name)
        ]
    return changes


def _public(version: str) -> str:
    return version.partition("+")[0]


def join_changes(changes: Iterable[VersionChange]) -> tuple[VersionChange, ...]:
    """The changes of many entries, each library and module once."""
    joined: dict[str, VersionChange] = {}
    for change in changes:
        known = joined.get(change.name)
        made = change.made if known is None else tuple(sorted({*known.made, *change.made}))
        joined[change.name] = VersionChange(change.name, made, change.today)
    return tuple(joined.values())


def describe_changes(changes: Iterable[VersionChange]) -> str:
    """What differs, as people read it.

    >>> describe_changes([VersionChange("Pillow", ("12.2.0", "12.3.0"), "13.0.0"), VersionChange("code:mine", (), "a")])
    'made with Pillow 12.2.0 or 12.3.0, today 13.0.0; its code has changed since: mine'
    """
    changes = list(changes)
    parts = []
    libraries = [change for change in changes if not change.is_code]
    if libraries:
        each = (f"{change.name} {' or '.join(change.made)}, today {change.today}" for change in libraries)
        parts.append(f"made with {', '.join(each)}")
    modules = [change.module for change in changes if change.is_code]
    if modules:
        parts.append(f"its code has changed since: {', '.join(modules)}")
    return "; ".join(parts)
