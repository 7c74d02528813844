"""Files and model folders as their content."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from precook import Digest, IdentityError, SourceError, digest, identify
from precook.identity import models
from precook.identity.digest import digest_files
from precook.identity.models import identify_path
from tests.support.identities import form, same

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
