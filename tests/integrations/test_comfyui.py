"""Streamable training datasets: lists of latents and conditionings, as ComfyUI's training nodes hand them around."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.integrations.comfyui import append_dataset, load_dataset, save_dataset
from precook.integrations.embedding import EmbeddingCacheManager
from precook.maintain.gc import plan_gc
from tests.support.trees import same, trees

torch = pytest.importorskip("torch", reason="torch is not installed")


def latent(seed: int, size: tuple[int, int] = (8, 6)) -> dict[str, Any]:
    return {"samples": torch.randn(1, 4, *size, generator=torch.Generator().manual_seed(seed))}


def conditioning(seed: int) -> list[Any]:
    made = torch.Generator().manual_seed(seed)
    extra = {"pooled_output": torch.randn(1, 8, generator=made), "guidance": 3.5, "control": None, "size": (1024, 768)}
    return [[torch.randn(1, 7, 8, generator=made).to(torch.bfloat16), extra]]


def lists(count: int, first: int = 0) -> tuple[list[Any], list[Any]]:
    numbers = range(first, first + count)
    return [latent(number) for number in numbers], [conditioning(number) for number in numbers]


def test_what_was_saved_comes_back_in_order(path: Path) -> None:
    """Nesting, types, dtypes and order are those that were saved, for the lists as their users unpack them."""
    latents, conditionings = lists(5)
    assert save_dataset(latents, conditionings, path) == 5
    with load_dataset(path) as dataset:
        found, others = dataset
        assert len(found) == len(others) == 5
        assert same(list(found), latents)
        assert same(list(others), conditionings)
        assert same(found[-1], latents[-1])
        assert same(others[1:3], conditionings[1:3])
        with pytest.raises(IndexError):
            found[5]


@given(st.lists(st.tuples(trees, trees), max_size=4))
@settings(max_examples=25)
def test_any_nested_containers_can_be_samples(tmp_path_factory: pytest.TempPathFactory, pairs: list[Any]) -> None:
    """Whatever nesting of plain values and tensors is saved, and however often, comes back."""
    folder = tmp_path_factory.mktemp("dataset") / "d"
    latents, conditionings = [one for one, _ in pairs], [other for _, other in pairs]
    save_dataset(latents, conditionings, folder)
    with load_dataset(folder) as (found, others):
        assert same(list(found), latents)
        assert same(list(others), conditionings)


def test_lazy_leaves_are_read_when_they_are_used(path: Path) -> None:
    """With `lazy`, a sample's shapes are known before a byte of it is read."""
    latents, conditionings = lists(2)
    save_dataset(latents, conditionings, path)
    with load_dataset(path, lazy=True) as (found, others):
        one = found[1]["samples"]
        assert (one.shape, one.dtype) == ((1, 4, 8, 6), torch.float32)
        assert same(one.load(), latents[1]["samples"])
        assert others[0][0][1]["guidance"] == 3.5
        assert isinstance(others[0][0][0], precook.LazyTensor)


def test_appending_writes_only_what_is_new(path: Path) -> None:
    """The packs that were there stay as they are; equal conditionings are stored once."""
    latents, conditionings = lists(3)
    save_dataset(latents, conditionings, path)
    packs = {pack: pack.stat().st_mtime_ns for pack in path.glob("packs/*/*")}
    more = [latent(10), latent(11)]
    assert append_dataset(more, [conditionings[0]] * 2, path) == 5
    assert {pack: pack.stat().st_mtime_ns for pack in packs} == packs
    with precook.open(path) as store:
        assert len(store) == 3 + 3 + 2
    with load_dataset(path) as (found, others):
        assert same(list(found), latents + more)
        assert same(list(others), [*conditionings, conditionings[0], conditionings[0]])


def test_equal_bytes_in_another_shape_are_another_sample(path: Path) -> None:
    """What is stored once is what is equal in everything."""
    flat = torch.arange(6.0)
    latents = [{"samples": flat.reshape(2, 3)}, {"samples": flat.reshape(3, 2)}, {"samples": flat.int()}]
    save_dataset(latents, [[]] * 3, path)
    with load_dataset(path) as (found, _):
        assert same(list(found), latents)


def test_lists_of_different_length_change_nothing(path: Path) -> None:
    """A missing conditioning is told, for lists and for iterators, and the dataset is what it was."""
    latents, conditionings = lists(3)
    save_dataset(latents, conditionings, path)
    with pytest.raises(precook.PrecookError, match="3 latents and 2 conditionings"):
        append_dataset(latents, conditionings[:2], path)
    with pytest.raises(precook.PrecookError, match="sample 2"):
        append_dataset(iter(latents), iter(conditionings[:2]), path)
    with load_dataset(path) as (found, _):
        assert len(found) == 3


def test_a_dataset_that_is_not_there_is_an_error_of_ours(path: Path) -> None:
    """Neither a missing folder nor a missing name gives an empty list."""
    with pytest.raises(precook.NoStoreError):
        load_dataset(path)
    save_dataset(*lists(1), path)
    with pytest.raises(precook.NoSnapshotError):
        load_dataset(path, name="other")
    with pytest.raises(precook.PrecookError, match="cannot be called"):
        save_dataset(*lists(1), path, name="../other")


def test_a_kill_while_saving_leaves_the_old_dataset(path: Path) -> None:
    """The list changes in one step at the end: killed before, it is what it was, and saving again works."""
    save_dataset(*lists(2), path)
    code = """
import os, signal, sys
import numpy as np
from precook.integrations.comfyui import save_dataset
def dying():
    for number in range(3):
        yield {"samples": np.array(number)}
    os.kill(os.getpid(), signal.SIGKILL)
save_dataset(dying(), [[]] * 4, sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with load_dataset(path) as (found, _):
        assert same(list(found), lists(2)[0])
    save_dataset(*lists(4, first=20), path)
    with load_dataset(path) as (found, _):
        assert same(list(found), lists(4, first=20)[0])


def test_two_processes_that_append_lose_nothing(path: Path) -> None:
    """Each adds its samples to what the other has written."""
    save_dataset([{"samples": torch.tensor(0.0)}], [[]], path)
    code = """
import sys
import numpy as np
from precook.integrations.comfyui import append_dataset
first = int(sys.argv[2])
for number in range(first, first + 3):
    append_dataset([{"samples": np.array(float(number))}], [[]], sys.argv[1])
"""
    commands = [[sys.executable, "-c", code, str(path), str(first)] for first in (100, 200)]
    children = [subprocess.Popen(command) for command in commands]
    assert [child.wait() for child in children] == [0, 0]
    with load_dataset(path) as (found, _):
        assert {one["samples"].item() for one in found} == {0, 100, 101, 102, 200, 201, 202}
        assert len(found) == 7


def test_memory_stays_flat_while_saving(path: Path) -> None:
    """Samples that come from an iterator are never all in memory."""
    code = """
import resource, sys
import numpy as np
from precook.integrations.comfyui import save_dataset
megabytes = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
count, size = 80, (1, 16, 256, 256)  # 4 MiB each, 320 MiB in all
before = megabytes()
made = ({"samples": np.full(size, number, np.float32)} for number in range(count))
save_dataset(made, ([[np.zeros(2), {}]] for _ in range(count)), sys.argv[1])
print(megabytes() - before)
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 260  # two commits of 64 MiB, with their copies


def test_a_dataset_shares_its_store_and_is_kept_there(path: Path) -> None:
    """Embeddings of another front in the same folder are none of its samples; a collection keeps all that it names."""
    with EmbeddingCacheManager(path) as manager:
        manager.save_cache("pixel_latent", "hash", torch.zeros(1))
        save_dataset(*lists(2), path)
        assert manager.cache_exists("pixel_latent", "hash")
        assert manager.get_cache_stats()["pixel_latent"] == 1
    with precook.open(path) as store:
        assert plan_gc(store, grace=0).execute().entries == 1
    with load_dataset(path) as (found, others):
        assert same(list(found), lists(2)[0])
        assert same(list(others), lists(2)[1])


def test_a_dataset_can_be_fed(path: Path) -> None:
    """The folder is a store with a snapshot: batches come from it as from any other."""
    latents = [latent(number) for number in range(4)]
    save_dataset(latents, [[[torch.ones(1, 3), {}]]] * 4, path)
    with precook.open(path) as store, store.snapshot("training").feed(batch_size=4) as feed:
        (batch,) = feed.epoch(0)
        assert batch["latent"]["samples"].shape == (4, 1, 4, 8, 6)
        assert batch["conditioning"][0][0].shape == (4, 1, 3)


def test_no_pickle_is_in_the_files(path: Path) -> None:
    """Every file with samples in it is plain safetensors: any reader opens it, and none can be made to run code."""
    from safetensors import safe_open  # noqa: PLC0415

    save_dataset(*lists(2), path)
    packs = [*path.glob("packs/*/*"), *path.glob("snapshots/*/*")]
    assert len(packs) == 2
    for pack in packs:
        with safe_open(pack, framework="numpy") as opened:
            assert list(opened.keys())
