"""Code by name: classes, and functions with the version their author gives them.

Code has no content we could hash and mean: a comment changes its source, a helper elsewhere changes what it does. So a
class is its name (the library's settings and weights say the rest), and a function is its name and a version.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path

from precook.errors import IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import digest, digest_files

DOWNLOADED = ("transformers_modules.", "diffusers_modules.")
"""Packages made up for code that came with a model: their names hold folder names and commits."""


def is_function(obj: object) -> bool:
    """Whether `obj` is a function, a method or a partial of one; a callable object of another class is not."""
    return isinstance(obj, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial))


def class_identity(obj: object) -> object:
    """The full name of the class that `obj` really has; for code that came with a model, its name and its content."""
    kind = type(obj)
    module = kind.__module__
    if not module.startswith(DOWNLOADED):
        return f"{_module(module)}.{kind.__qualname__}"
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        message = f"the code of {module}.{kind.__qualname__} cannot be found"
        raise IdentityError("", message, hint="load the model again")
    sources = sorted(Path(file).parent.glob("*.py"))
    code = {path.name: content for path, content in zip(sources, digest_files(sources), strict=True)}
    return {"name": f"{module.rpartition('.')[2]}.{kind.__qualname__}", "code": digest(canonical(code))}


def identify_function(
    function: object,
    *,
    version: str | int | None,
    identify_owner: Callable[[object, str], object],
    where: str = "",
) -> dict[str, object]:
    """A function as its module, its name and the version given; a method also as what it is bound to."""
    if isinstance(function, functools.partial):
        hint = "give identify(function, version=...) and the arguments beside it, as plain data"
        raise IdentityError(where, "a functools.partial does not say what it will do", hint=hint)
    name = str(getattr(function, "__qualname__", function))
    if "<lambda>" in name:
        raise IdentityError(where, f"{name} has no name to know it by", hint="write a named function in a module")
    if "<locals>" in name:
        hint = "move it to the top of a module, and give what it closes over as plain data"
        raise IdentityError(where, f"{name} is made anew at each call of the function around it", hint=hint)
    if type(version) not in (str, int) or version == "":
        hint = "give identify(function, version=1), and another version whenever its results change"
        raise IdentityError(where, f"the function {name} needs a version, a str or an int, not {version!r}", hint=hint)
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):
        kind = type(owner)
        bound = {"module": _module(kind.__module__), "qualname": f"{kind.__qualname__}.{name.rpartition('.')[2]}"}
        return {"kind": "method", **bound, "version": version, "object": identify_owner(owner, f"{where}.__self__")}
    module = getattr(function, "__module__", None)
    if not isinstance(module, str) or _lookup(module, name) is not function:
        hint = "give the function that its module shows under this name"
        raise IdentityError(where, f"{module}.{name} is not where its name says", hint=hint)
    return {"kind": "function", "module": _module(module), "qualname": name, "version": version}


def _lookup(module: str, qualname: str) -> object:
    """What stands under this name: a decorator can give any closure the name of the function it wraps."""
    value: object = sys.modules.get(module)
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


def _module(name: str) -> str:
    # In a spawned worker the main script is called __mp_main__: the same script, the same code.
    return "__main__" if name == "__mp_main__" else name
