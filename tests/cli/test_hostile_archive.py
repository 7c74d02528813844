"""Archives and packs from somebody who knows the format: refused as they come, or the store lives with them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.store.format.build import build_pack, make_entry
from precook.store.layout import Layout
from precook.store.tree import take_apart
from tests.cli.test_hostile_store import limited
from tests.support.commands import run
from tests.support.forged import make_archive, name_of, pack_of, signed, take_archive, with_metadata

COMMANDS = (["ls"], ["status"], ["verify"], ["reindex"], ["gc"], ["clear", "--all"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created", 2**70),
        ("created", -1),
        ("created", 2**40),
        ("recipes", [5]),
        ("recipes", [["", {}]]),
        ("recipes", [["x", {}]] * 70_000),
        ("format", True),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_pack_whose_head_is_absurd_is_not_imported(twins: Path, field: str, value: Any) -> None:
    """Its checksums and digests fit, and still nothing of it is taken: the store is as it was."""
    assert run("export", "pets", "pets.tar").code == 0
    manifest, members = take_archive(Path("pets.tar").read_bytes())
    members[1] = signed(with_metadata(members[1], lambda form: {**form, field: value}))
    Path("evil.tar").write_bytes(make_archive(manifest, members))
    ended = run("import", "evil.tar", "--store", "there")
    assert ended.code == 4
    assert "cannot be accepted" in ended.err
    assert run("import", "pets.tar", "--store", "there").code == 0
    assert run("verify", "--store", "there").code == 0


@pytest.mark.parametrize("created", [2**70, -(2**70), 2**63 - 1])
def test_a_store_that_has_an_absurd_pack_is_mended_by_repair(twins: Path, created: int) -> None:
    """It counts as damaged like any other: every command works beside it, and a repair removes it."""
    content = with_metadata(pack_of({"x": "y"}), lambda form: {**form, "created": created})
    pack = Layout(Path("cache")).pack(name_of(content))
    pack.parent.mkdir(exist_ok=True)
    pack.write_bytes(content)
    for command in COMMANDS:
        assert run(*command, "--store", "cache").code in (0, 4), command
    assert run("verify", "--store", "cache", "--repair", "--yes").code == 4
    assert not pack.exists()
    assert run("verify", "--store", "cache").code == 0


def test_a_header_full_of_recipes_does_not_hold_up_a_store(twins: Path) -> None:
    """Millions of recipes fit into a header; they are counted before anything is made of them."""
    content = with_metadata(pack_of(1), lambda form: {**form, "recipes": [1] * 5_000_000})
    pack = Layout(Path("cache")).pack(name_of(content))
    pack.parent.mkdir(exist_ok=True)
    pack.write_bytes(content)
    ended = limited("verify", "--store", "cache")
    assert ended.returncode == 4
    assert "recipes" in ended.stdout + ended.stderr


def test_values_in_another_spelling_survive_a_rewriting(twins: Path) -> None:
    """Plain values that another writer has spaced in its own way stay as they are: their checksum is of their bytes."""
    stays, goes = (precook.Recipe(name, {}) for name in ("stays", "goes"))
    tree = take_apart({"x": np.arange(3), "y": [1, 2]})
    entries = [
        make_entry(recipe.key(1).bytes, dataclasses.replace(tree, values=values), recipe=recipe)
        for recipe, values in ((stays, b"[[1, 2]]"), (goes, b"[[1,  2]]"))
    ]
    image = build_pack(entries, created=1, salt="spaced")
    pack = Layout(Path("cache")).pack(image.id)
    pack.parent.mkdir(exist_ok=True)
    pack.write_bytes(b"".join([image.head, *map(bytes, image.body)]))
    assert run("clear", "--recipe", "goes", "--store", "cache", "--yes").code == 0
    assert run("compact", "--store", "cache", "--yes").code == 0
    assert not pack.exists()
    with precook.open("cache") as store:
        assert store.get(stays.key(1))["y"] == [1, 2]


def test_an_encoder_of_an_archive_cannot_name_a_file_elsewhere(twins: Path) -> None:
    """Its name becomes part of a file's name when shards are exported: one that leads out of a folder is refused."""
    assert run("export", "pets", "pets.tar").code == 0
    manifest, members = take_archive(Path("pets.tar").read_bytes())
    with precook.open("cache") as store:
        tree = store.snapshot("pets").content.tree()
    for part in ("encoders", "picture_keys"):
        tree[part]["../../elsewhere"] = tree[part].pop("pixels")
    Path("evil.tar").write_bytes(make_archive(manifest, [pack_of(tree), *members[1:]]))
    ended = run("import", "evil.tar", "--store", "there")
    assert ended.code == 4
    assert "an encoder is called '../../elsewhere'" in ended.err
