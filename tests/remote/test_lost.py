"""What is lost, left over or damaged around a bucket is told and mended, and never taken for what is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from pydantic_core import PydanticCustomError

import precook
from precook.config.remote import RemoteSettings, no_secrets
from precook.errors import ConfigError, StoreError
from precook.store.format.build import PackImage
from precook.store.remote.courier.client import CourierClient
from precook.store.remote.url import RemoteOptions, courier_name, find_endpoint, near_name, parse_url
from precook.store.snapshot import copy_snapshot
from tests.remote.test_transfer import built
from tests.support.buckets import Buckets, fresh
from tests.support.commands import run

RECIPE = precook.Recipe("test", {"version": 1})


def far_packs(folder: Buckets, name: str) -> list[Path]:
    return sorted((folder.root / "far" / name / "packs").rglob("*.safetensors"))


def test_packs_that_are_gone_are_told_and_pushed_again(folder: Buckets, tmp_path: Path) -> None:
    """A leaf whose pack is gone does not stand for its entries."""
    name = fresh()
    with built(tmp_path / "a") as made:
        made.store.push(folder.url(name), cache=folder.cache)
        before = far_packs(folder, name)
        with folder.open(name) as far:
            for path in before:
                path.unlink()
            found = far.verify()
            assert len(found.lost) == len(made.store)
            assert not far.verify().clean, "a look at the leaves has brought it back"
        told = run("verify", "--store", folder.url(name))
        assert told.code == 4, told.out + told.err
        again = made.store.push(folder.url(name), cache=folder.cache)
        assert again.new == len(made.store)
        assert far_packs(folder, name) == before
        with folder.open(name) as far:
            assert far.verify().clean
            assert len(far) == len(made.store)


def test_a_store_that_saw_the_loss_sees_the_packs_again(folder: Buckets, tmp_path: Path) -> None:
    """What was sent again by somebody else is there again for whoever has it open."""
    name = fresh()
    with built(tmp_path / "a") as made:
        made.store.push(folder.url(name), cache=folder.cache)
        with folder.open(name, cache=tmp_path / "other") as far:
            for path in far_packs(folder, name):
                path.unlink()
            assert far.verify().lost
            assert far.reindex() == 0
            made.store.push(folder.url(name), cache=folder.cache)
            assert far.reindex() == len(made.store)
            assert far.verify().clean


def test_a_pull_names_a_pack_that_is_gone(folder: Buckets, tmp_path: Path) -> None:
    """Nobody sees the error of a missing file."""
    name = fresh()
    with precook.open(tmp_path / "a") as store:
        store.put(RECIPE.key(1), np.arange(100), recipe=RECIPE)
        store.push(folder.url(name), cache=folder.cache)
    for path in far_packs(folder, name):
        path.unlink()
    with precook.open(tmp_path / "b") as clone, pytest.raises(precook.PrecookError):
        clone.pull(folder.url(name))


def test_a_foreign_number_leaves_room_for_later_snapshots(tmp_path: Path) -> None:
    """A snapshot that is brought from elsewhere gets the next number here, and a last number is refused."""
    with built(tmp_path / "a") as made, precook.open(tmp_path / "b") as other:
        snapshot = made.store.snapshot("test")
        last = snapshot.file.path.with_name(f"99999999-{snapshot.file.id}.safetensors")
        shutil.copyfile(snapshot.file.path, last)
        foreign = made.store.snapshot("test")
        assert foreign.file.number == 99_999_999
        other.put(RECIPE.key(1), np.arange(3), recipe=RECIPE)
        internals = other.internals()
        copied = copy_snapshot(internals.layout, other._directories, foreign)
        assert copied.file.number == 1
        (other.path / "snapshots" / "test" / last.name).write_bytes(b"")
        with pytest.raises(StoreError, match="none can come after it"):
            copy_snapshot(internals.layout, other._directories, foreign)


def pushed(folder: Buckets, tmp_path: Path) -> str:
    """The name of a store that a dataset was pushed to."""
    name = fresh()
    with built(tmp_path / "a") as made:
        made.store.push(folder.url(name), cache=folder.cache)
    return name


def test_a_pack_that_a_dead_push_left_is_no_obstacle(folder: Buckets, tmp_path: Path) -> None:
    """Equal entries make an equal pack, whose file in the outbox belongs to whoever made it."""
    name = fresh()
    with folder.open(name) as far:
        far.put(RECIPE.key(0), np.arange(3), recipe=RECIPE)
        internals = far.internals()
        left = []

        def leave(image: PackImage) -> None:
            path = internals.layout.root / "outbox" / f"{image.id}.safetensors"
            path.write_bytes(b"left")
            left.append(path)
            send(image)

        send, internals.send = internals.send, leave
        assert send is not None
        far.put(RECIPE.key(1), np.arange(3), recipe=RECIPE)
        assert [path.read_bytes() for path in left] == [b"left"]
        np.testing.assert_array_equal(far.get(RECIPE.key(1)), np.arange(3))


def test_a_copy_of_a_snapshot_that_is_damaged_is_fetched_again(folder: Buckets, tmp_path: Path) -> None:
    """The bucket is the truth; where it is damaged there, too, that is told."""
    name = pushed(folder, tmp_path)
    with folder.open(name, cache=tmp_path / "other") as far:
        path = far.snapshot("test").file.path
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        far.snapshot("test")
        assert path.read_bytes() == whole
        for damaged in (path, folder.root / "far" / name / "snapshots" / "test" / path.name):
            damaged.unlink()
            damaged.write_bytes(whole[:50])
        with pytest.raises(precook.PrecookError):
            far.snapshot("test")


def test_a_snapshot_on_its_way_is_not_taken_for_one_that_is_gone(folder: Buckets, tmp_path: Path) -> None:
    """Another process sends it after it has let go of the lock; what the bucket had and has no more goes."""
    name = pushed(folder, tmp_path)
    with folder.open(name, cache=tmp_path / "other") as far:
        (known,) = far.snapshots()
        young = known.path.with_name(f"00000002-{known.id}.safetensors")
        shutil.copyfile(known.path, young)
        assert [file.number for file in far.snapshots()] == [1, 2]
        (folder.root / "far" / name / "snapshots" / "test" / known.path.name).unlink()
        assert [file.number for file in far.snapshots()] == [2]


def test_a_marker_that_is_too_large_or_never_the_same_is_refused(
    folder: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made of a store.toml of which no two reads agree."""
    name = pushed(folder, tmp_path)
    reads = iter(range(100))
    with monkeypatch.context() as patch:
        patch.setattr(CourierClient, "range", lambda *_: b"%d" % next(reads))
        with pytest.raises(StoreError, match="another one each time"), folder.open(name) as far:
            len(far)
    marker = folder.root / "far" / name / "store.toml"
    with marker.open("r+b") as file:
        file.truncate(1 << 22)
    with pytest.raises(StoreError, match="too large"), folder.open(name) as far:
        len(far)


def test_no_more_of_a_snapshot_is_fetched_than_belongs_to_it(folder: Buckets, tmp_path: Path) -> None:
    """An object that has grown fills no disk, and is told as damaged."""
    name = pushed(folder, tmp_path)
    (far_path,) = (folder.root / "far" / name / "snapshots").rglob("*.safetensors")
    whole = far_path.stat().st_size
    with far_path.open("r+b") as file:
        file.truncate(1 << 33)
    with folder.open(name, cache=tmp_path / "other") as far:
        (near,) = far.snapshots()
        assert near.path.stat().st_size == whole + 1
        with pytest.raises(precook.PrecookError):
            far.snapshot("test")


@pytest.mark.parametrize("text", ["s3://user:hunter2@[bucket/prefix", "s3://user:hunter2@[::1/x"])
def test_a_url_that_cannot_be_read_is_not_repeated(text: str) -> None:
    """A password may be part of it."""
    with pytest.raises(ConfigError) as refused:
        parse_url(text)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    url = parse_url("s3://bucket/x", RemoteOptions(endpoint="https://user:hunter2@[host"))
    with pytest.raises(ConfigError) as refused:
        find_endpoint(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "variable", ["AZURE_STORAGE_SAS_KEY", "AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_SERVICE_ACCOUNT_KEY"]
)
def test_whoever_asks_as_another_has_another_courier(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gets what another's credentials may read."""
    url = parse_url("s3://bucket/x")
    names = set()
    for value in ("", "one", "two"):
        monkeypatch.setenv(variable, value)
        names.add(courier_name(url, Path("cache"), "1"))
    assert len(names) == 3


def test_containers_of_two_accounts_are_two_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is no part of an az:// URL."""
    names = set()
    for account in ("one", "two"):
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", account)
        names.add(near_name(parse_url("az://container/x")))
    assert len(names) == 2


@pytest.mark.parametrize(
    "name", ["secret", "AWS_SECRET_ACCESS_KEY", "Aws_Session_Token", "azure_storage_account_key", "google_token"]
)
def test_credentials_in_a_config_are_refused_by_any_name(name: str) -> None:
    """Whoever's they are, and however they are written."""
    with pytest.raises(PydanticCustomError) as refused:
        no_secrets({name: "hunter2"})
    assert "in the environment instead" in str(refused.value.context)
    assert "hunter2" not in str(refused.value.context)


@pytest.mark.parametrize("patience", [float("inf"), float("nan"), 0, -1])
def test_patience_has_an_end(patience: float) -> None:
    """In the config as in Python."""
    with pytest.raises(ValueError, match="refused"):
        RemoteSettings(patience=patience)
    with pytest.raises(ValueError, match="finite"):
        RemoteOptions(patience=patience)
