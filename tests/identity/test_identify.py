"""What an object is, as plain data: the same in every process."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import subprocess
import sys
import types
from pathlib import Path, PurePosixPath

import pytest

from precook import IdentityError, Recipe, digest, identify
from precook.identity.canonical import canonical
from tests.support.identities import form, same


class Mode(enum.Enum):
    """A choice."""

    MEAN = "mean"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings that say what they are."""

    layers: tuple[int, ...]
    model: object = None

    def encode(self) -> None:
        """A method to bind."""

    @classmethod
    def default(cls) -> None:
        """A method of the class."""


@dataclasses.dataclass(frozen=True)
class OtherSettings:
    """Another class with the same fields."""

    layers: tuple[int, ...]
    model: object = None


class Opaque:
    """Something that does not say what it is."""

    def encode(self) -> None:
        """A method to bind."""


def encode_text() -> None:
    """A function to name."""


def make_encoder() -> object:
    @functools.wraps(encode_text)
    def encoder() -> None:
        """Something else under the name of `encode_text`."""

    return encoder


# Plain data


def test_plain_data_stays_plain_data() -> None:
    """Plain data comes back as the same plain data."""
    data = {"a": [1, 2.0, None, True], "b": b"x", 3: {"deep": "text"}, "mode": Mode.MEAN, "digest": digest(b"")}
    assert identify(data) == data
    assert form((1, 2)) == canonical((1, 2))


def test_text_is_never_a_path(tmp_path: Path) -> None:
    """A str is text, even where a file has that name."""
    assert identify(str(tmp_path)) == str(tmp_path)


def test_what_is_identified_may_stand_inside_plain_data(tmp_path: Path) -> None:
    """Inside dicts and lists, each part is identified."""
    file = tmp_path / "vae.safetensors"
    file.write_bytes(b"weights")
    assert identify({"models": [file], "dtype": "float16"}) == {"models": [digest(b"weights")], "dtype": "float16"}


def test_a_recipe_is_known_by_its_kind_and_data() -> None:
    """Recipes are told apart by kind and data, and equal ones are the same."""
    recipe = Recipe("vae", {"dtype": "float16"})
    assert same(recipe, Recipe("vae", {"dtype": "float16"}))
    assert not same(recipe, Recipe("vae", {"dtype": "bfloat16"}))
    assert not same(recipe, Recipe("text", {"dtype": "float16"}))


def test_a_dataclass_is_its_class_and_fields(tmp_path: Path) -> None:
    """A dataclass is told apart by its class and its fields, which are identified in turn."""
    (tmp_path / "weights.bin").write_bytes(b"w")
    identity = identify(Settings((1, 2), model=tmp_path))
    assert identity == {
        "kind": "dataclass",
        "class": f"{__name__}.Settings",
        "fields": {"layers": [1, 2], "model": {"kind": "model-folder", "files": {"weights.bin": digest(b"w")}}},
    }
    assert not same(Settings((1, 2)), Settings((1, 3)))
    assert not same(Settings((1, 2)), OtherSettings((1, 2)))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({1, 2}, "builtins.set"),
        (object(), "builtins.object"),
        (Opaque(), f"{__name__}.Opaque"),
        (Settings, f"{__name__}.Settings"),
        (Mode, f"{__name__}.Mode"),
        (PurePosixPath("a"), "PurePosixPath"),
        (iter([]), "list_iterator"),
    ],
    ids=["set", "object", "opaque", "class", "enum class", "pure path", "iterator"],
)
def test_what_cannot_be_identified_is_refused_by_name(value: object, named: str) -> None:
    """A refusal names the place, the type and the next step."""
    with pytest.raises(IdentityError, match="cannot be identified") as caught:
        identify({"encoder": [0, value]})
    assert named in caught.value.message
    assert caught.value.where == "['encoder'][1]"
    assert caught.value.hint


def test_data_that_holds_itself_is_refused() -> None:
    """A list inside itself ends in an error, not in a crash."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(IdentityError, match="nested"):
        identify(endless)


def test_the_result_always_fits_into_a_recipe() -> None:
    """A dict key that a recipe would refuse is refused here already."""
    with pytest.raises(IdentityError, match="dict key"):
        identify({1.5: "x"})


def test_importing_it_imports_no_framework() -> None:
    """Identity knows torch, transformers and tokenizers without importing any of them."""
    code = (
        "import sys, precook.identity.identify as i; i.identify({'a': 1});"
        "print(sorted({'torch', 'transformers', 'diffusers', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Numpy


def test_an_array_is_its_dtype_shape_and_content() -> None:
    """Arrays are told apart by dtype, shape and content, whatever their layout in memory."""
    np = pytest.importorskip("numpy", reason="numpy arrays")
    array = np.arange(6, dtype="float32").reshape(2, 3)
    assert identify(array) == {
        "kind": "array",
        "dtype": "float32",
        "shape": [2, 3],
        "content": digest(array.tobytes()),
    }
    assert same(array, np.asfortranarray(array))
    assert same(array, array.astype(">f4"))
    assert same(array, np.repeat(array, 2, axis=1)[:, ::2])
    assert not same(array, array.reshape(3, 2))
    assert not same(array, array.view("int32"))
    assert not same(array, array + 1)
    assert not same(np.zeros(0), np.zeros((0, 2)))


def test_a_numpy_scalar_is_a_number() -> None:
    """A numpy scalar is the Python number it stands for."""
    np = pytest.importorskip("numpy", reason="numpy scalars")
    assert form([np.int64(3), np.float64(0.5), np.bool_(1)]) == canonical([3, 0.5, True])


def test_an_array_of_objects_is_refused() -> None:
    """An array that holds pointers has no content of its own."""
    np = pytest.importorskip("numpy", reason="numpy arrays")
    with pytest.raises(IdentityError, match="object"):
        identify(np.array([object()]))


# Functions


def test_a_function_is_its_name_and_version() -> None:
    """A function is known by module, name and version."""
    assert identify(encode_text, version=2) == {
        "kind": "function",
        "module": __name__,
        "qualname": "encode_text",
        "version": 2,
    }
    assert identify(encode_text, version="2") != identify(encode_text, version=2)
    assert identify(math.sqrt, version=1)


@pytest.mark.parametrize("version", [None, True, 1.0, "", ["1"]])
def test_a_function_needs_a_version(version: object) -> None:
    """Without a version that is a str or an int, a function is refused with a hint."""
    with pytest.raises(IdentityError, match="needs a version") as caught:
        identify(encode_text, version=version)  # type: ignore[arg-type]
    assert "version=1" in caught.value.hint


def test_a_function_inside_data_is_refused() -> None:
    """A function that stands among data has no version, and the error says where it stands."""
    with pytest.raises(IdentityError, match="needs a version") as caught:
        identify({"encode": encode_text})
    assert caught.value.where == "['encode']"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: None, "no name to know it by"),
        (functools.partial(encode_text), "does not say what it will do"),
        (make_encoder(), "not where its name says"),
        (Opaque().encode, "Opaque cannot be identified"),
        (Settings.default, "the class .*Settings cannot be identified"),
    ],
    ids=["lambda", "partial", "wrapped", "method", "classmethod"],
)
def test_code_without_a_name_of_its_own_is_refused(function: object, reason: str) -> None:
    """Lambdas, partials, closures under another's name and methods of opaque objects are refused, version or not."""
    with pytest.raises(IdentityError, match=reason) as caught:
        identify(function, version=1)
    assert caught.value.hint


def test_a_nested_function_is_refused() -> None:
    """A function made inside another closes over what nobody can see."""

    def nested() -> None: ...

    with pytest.raises(IdentityError, match="made anew"):
        identify(nested, version=1)


def test_a_method_is_its_name_and_its_object() -> None:
    """A method is known by its name, its version and what it is bound to."""
    one, other = Settings((1,)), Settings((2,))
    identity = identify(one.encode, version=1)
    assert identity == {
        "kind": "method",
        "module": __name__,
        "qualname": "Settings.encode",
        "version": 1,
        "object": identify(one),
    }
    assert identify(other.encode, version=1) != identity


def test_the_main_script_is_the_same_in_a_spawned_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main script, which spawned workers know under another name, is one module."""

    def seen_in(name: str) -> object:
        script = types.ModuleType(name)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, script)
            code = "import dataclasses\n@dataclasses.dataclass\nclass Size: side: int\ndef encode(): pass"
            exec(code, script.__dict__)
            return identify(script.encode, version=1), identify(script.Size(8))

    assert seen_in("__mp_main__") == seen_in("__main__")


def test_a_version_is_only_for_functions() -> None:
    """A version beside anything but a function is an error, not ignored."""
    with pytest.raises(IdentityError, match="version"):
        identify({"a": 1}, version=1)
