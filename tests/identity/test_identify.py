"""`identify` for everything that needs no torch: plain data, dataclasses, arrays, functions, files and folders."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import json
import math
import subprocess
import sys
import types
from pathlib import Path, PurePosixPath

import pytest

from precook import Digest, IdentityError, Recipe, SourceError, digest, identify
from precook.identity import models
from precook.identity.canonical import canonical
from precook.identity.digest import digest_files
from precook.identity.models import identify_path


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


def form(obj: object) -> bytes:
    return canonical(identify(obj))


def same(one: object, other: object) -> bool:
    return form(one) == form(other)


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


# Files and folders


def write(path: Path, content: bytes | str | dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as `save_pretrained` leaves one."""
    folder = tmp_path / "model"
    write(folder / "config.json", {"hidden_size": 8, "_name_or_path": "/old", "transformers_version": "5.0"})
    write(folder / "model.safetensors", b"weights")
    write(folder / "tokenizer.json", {"model": {}})
    write(folder / "text" / "config.json", {"layers": 2})
    return folder


def test_a_file_is_its_content(tmp_path: Path) -> None:
    """A Path to a file is the digest of its bytes, JSON or not."""
    assert identify(write(tmp_path / "a.safetensors", b"weights")) == digest(b"weights")
    assert identify(write(tmp_path / "a.json", b'{"a": 1}')) == digest(b'{"a": 1}')


def test_a_model_folder_is_its_files(model: Path) -> None:
    """A folder is its files by name: configs that can be read, and digests."""
    assert identify(model) == {
        "kind": "model-folder",
        "files": {
            "config.json": {"hidden_size": 8},
            "model.safetensors": digest(b"weights"),
            "text/config.json": {"layers": 2},
            "tokenizer.json": digest(b'{"model": {}}'),
        },
    }


def test_where_a_folder_lies_does_not_matter(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving, renaming or naming a folder otherwise changes nothing."""
    before = identify(model)
    moved = model.rename(model.parent / "renamed")
    assert identify(moved) == before
    monkeypatch.chdir(moved.parent)
    assert identify(Path("renamed")) == before
    (moved.parent / "link").symlink_to(moved)
    assert identify(moved.parent / "link") == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("README.md", "notes"),
        ("LICENSE", "terms"),
        ("LICENSE.txt", "terms"),
        ("preview.PNG", b"picture"),
        (".gitattributes", "hidden"),
        (".cache/huggingface/state.json", "hidden"),
        ("text/__pycache__/code.cpython-311.pyc", b"made by use"),
        ("config.json", {"transformers_version": "5.22", "_commit_hash": "abc", "hidden_size": 8}),
        ("config.json", '{\n  "hidden_size": 8\n}\n'),
    ],
)
def test_what_decides_nothing_does_not_count(model: Path, name: str, content: bytes | str | dict[str, object]) -> None:
    """Notes, licences, pictures, hidden files, caches of use, and what saving writes about itself do not count."""
    before = form(model)
    write(model / name, content)
    assert form(model) == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", {"hidden_size": 9}),
        ("config.json", {"hidden_size": 8.0}),
        ("config.json", {"hidden_size": 8, "architectures": ["Other"]}),
        ("model.safetensors", b"weightz"),
        ("tokenizer.json", '{"model":{}}'),
        ("text/config.json", {"layers": 3}),
        ("model-2.safetensors", b""),
        ("license_plates.safetensors", b"weights"),
        ("LICENSES/model.bin", b"weights"),
        ("photos.png/model.bin", b"weights"),
    ],
)
def test_every_other_change_is_seen(model: Path, name: str, content: bytes | str | dict[str, object]) -> None:
    """A changed setting, a changed byte or a new file is another model."""
    before = form(model)
    write(model / name, content)
    assert form(model) != before


def test_a_renamed_or_removed_file_is_seen(model: Path) -> None:
    """The names of the files are part of a folder."""
    before = form(model)
    weights = (model / "model.safetensors").rename(model / "model.bin")
    renamed = form(model)
    weights.unlink()
    assert len({before, renamed, form(model)}) == 3


def test_a_hub_cache_is_the_model_it_holds(model: Path, tmp_path: Path) -> None:
    """Links to files count as the files, as in the cache of the hub."""
    snapshot = tmp_path / "hub" / "snapshots" / "abc"
    for number, file in enumerate(sorted(path for path in model.rglob("*") if path.is_file())):
        blob = write(tmp_path / "hub" / "blobs" / str(number), file.read_bytes())
        link = snapshot / file.relative_to(model)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    assert same(snapshot, model)


def test_links_that_lead_back_are_not_followed(model: Path) -> None:
    """Folders that link to one another end, and add nothing that is not there."""
    before = identify(model)
    (model / "loop").symlink_to(model)
    (model / "text" / "up").symlink_to(model)
    assert identify(model) == before


def test_a_folder_reached_twice_counts_under_both_names(model: Path) -> None:
    """A linked folder is the same as a copy of it."""
    (model / "text-2").symlink_to(model / "text")
    assert identify(model)["files"]["text-2/config.json"] == {"layers": 2}  # type: ignore[index]


def test_links_that_multiply_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that double at every level end in an error that names the folder, not in a hang."""
    monkeypatch.setattr(models, "MAX_ENTRIES", 500)
    levels = [tmp_path / f"level-{number}" for number in range(40)]
    for folder, deeper in itertools.pairwise(levels):
        folder.mkdir()
        (folder / "left").symlink_to(deeper)
        (folder / "right").symlink_to(deeper)
    write(levels[-1] / "model.bin", b"w")
    with pytest.raises(IdentityError, match="level-0: more than 500"):
        identify(levels[0])


@pytest.mark.parametrize("target", ["nothing", "model.bin"])
def test_a_link_to_nothing_is_an_error(model: Path, target: str) -> None:
    """A link that leads nowhere, or to itself, is named: a missing weight is not a smaller model."""
    (model / "model.bin").symlink_to(model / target)
    with pytest.raises(SourceError, match=r"model\.bin"):
        identify(model)


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    """A folder in which nothing counts is a wrong path, not an empty model."""
    write(tmp_path / "README.md", "notes")
    (tmp_path / "empty").mkdir()
    with pytest.raises(IdentityError, match="no file in there"):
        identify(tmp_path)


def test_a_path_to_nothing_is_an_error(tmp_path: Path) -> None:
    """A path at which nothing lies is named in the error."""
    with pytest.raises(SourceError, match="gone"):
        identify(tmp_path / "gone")


@pytest.mark.parametrize(
    "content",
    [
        b"not json",
        b"[1, 2]",
        b"\xff{}",
        b"[" * 100_000,
        b'{"a":' * 100 + b"1" + b"}" * 100,
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=["text", "list", "bytes", "endless", "deep", "huge number"],
)
def test_json_that_is_no_config_counts_by_its_bytes(tmp_path: Path, content: bytes) -> None:
    """A .json file that holds no config is content like any other."""
    write(tmp_path / "config.json", content)
    assert identify(tmp_path) == {"kind": "model-folder", "files": {"config.json": digest(content)}}


def test_a_long_config_is_shown_as_a_digest(tmp_path: Path) -> None:
    """A config too long to read is a digest of what it says, still without what saving writes about itself."""
    labels = {str(number): f"label {number}" for number in range(1000)}
    write(tmp_path / "config.json", {"id2label": labels, "transformers_version": "4"})
    before = identify(tmp_path)
    assert isinstance(before["files"]["config.json"], Digest)  # type: ignore[index]
    write(tmp_path / "config.json", {"transformers_version": "5", "id2label": labels})
    assert identify(tmp_path) == before
    write(tmp_path / "config.json", {"id2label": {**labels, "0": "other"}})
    assert identify(tmp_path) != before


def test_json_above_the_limit_counts_by_its_bytes(tmp_path: Path) -> None:
    """A vocabulary of many megabytes is not parsed to be identified."""
    content = json.dumps({f"token {number}": number for number in range(20_000)}).encode()
    assert len(content) > models.MAX_JSON_BYTES
    write(tmp_path / "vocab.json", content)
    assert identify(tmp_path) == {"kind": "model-folder", "files": {"vocab.json": digest(content)}}


def test_digests_of_files_can_be_remembered(model: Path) -> None:
    """Whoever remembers digests is asked for all files at once, and nothing else is hashed."""
    asked: list[list[str]] = []

    def remember(paths: list[Path]) -> list[Digest]:
        asked.append([path.relative_to(model).as_posix() for path in paths])
        return digest_files(paths)

    assert identify_path(model, digest_of=remember) == identify(model)
    assert asked == [["model.safetensors", "tokenizer.json"]]
    known = identify_path(model / "model.safetensors", digest_of=lambda _: [digest(b"remembered")])
    assert known == digest(b"remembered")


@pytest.mark.skipif(sys.platform != "linux", reason="file names that are not UTF-8")
def test_names_that_are_not_text_count(tmp_path: Path) -> None:
    """A file name that is not UTF-8 is told apart like any other."""
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "model-\udcff.bin", b"w")
    (tmp_path / "b").mkdir()
    write(tmp_path / "b" / "model-\udcfe.bin", b"w")
    assert not same(tmp_path / "a", tmp_path / "b")
