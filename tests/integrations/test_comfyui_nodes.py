"""Nodes for ComfyUI: the folder that is linked into `custom_nodes`, and what its three nodes do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
import precook.integrations.comfyui_nodes
from precook.integrations.comfyui import load_dataset
from precook.store.packfile import TableFile
from tests.integrations.test_comfyui import conditioning, latent, lists
from tests.integrations.test_shards import write_shards
from tests.support.comfyui_stand_in import install, load_custom_node, run_node, train
from tests.support.stores import watch_reads
from tests.support.trees import same

torch = pytest.importorskip("torch", reason="torch is not installed")

FOLDER = Path(precook.integrations.comfyui_nodes.__file__).parent
MAKE, SAVE, LOAD = (f"Precook{verb}TrainingDataset" for verb in ("Make", "Save", "Load"))


@pytest.fixture(params=["schemas", "mappings"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The nodes as a ComfyUI of either kind gets them, through a link in its custom_nodes."""
    (tmp_path / "custom_nodes").mkdir()
    link = tmp_path / "custom_nodes" / "precook"
    link.symlink_to(FOLDER)
    (tmp_path / "output").mkdir()
    install(monkeypatch, tmp_path / "output", schemas=request.param == "schemas")
    return load_custom_node(link, monkeypatch)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is read of stores."""
    return watch_reads(monkeypatch)


def save(
    nodes: dict[str, Any], latents: list[Any], conditionings: list[Any], folder: str = "set", size: int = 2
) -> None:
    run_node(nodes[SAVE], latents=latents, conditioning=conditionings, folder_name=[folder], shard_size=[size])


def load(nodes: dict[str, Any], folder: str = "set") -> list[list[Any]]:
    return run_node(nodes[LOAD], folder_name=[folder])


def loaded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: loaded(item) for key, item in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(map(loaded, tree))
    return tree.load() if isinstance(tree, precook.LazyTensor) else tree


class Clip:
    """Counts what it encodes."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def tokenize(self, text: str) -> str:
        return text

    def encode_from_tokens_scheduled(self, tokens: str) -> list[Any]:
        self.encoded.append(tokens)
        return [[torch.full((1, 2, 3), float(len(tokens))), {"pooled_output": torch.ones(1, 3)}]]


class Vae:
    """Makes four numbers of a picture."""

    def encode(self, pixels: Any) -> Any:
        assert pixels.shape[-1] == 3
        return pixels.mean(dim=(1, 2))[..., None, None]


def test_a_dataset_is_made_of_pictures_and_texts(nodes: dict[str, Any]) -> None:
    """A latent and a conditioning for each picture, from colours alone; each different text is encoded once."""
    clip = Clip()
    images = [torch.full((1, 2, 2, 4), float(number)) for number in range(3)]
    made = run_node(nodes[MAKE], images=images, vae=[Vae()], clip=[clip], texts=["a", "bb", "a"])
    assert [one["samples"].shape for one in made[0]] == [(1, 3, 1, 1)] * 3
    assert [one["samples"][0, 0, 0, 0].item() for one in made[0]] == [0, 1, 2]
    assert [one[0][0][0, 0, 0].item() for one in made[1]] == [1, 2, 1]
    assert clip.encoded == ["a", "bb"]
    made[1][0][0][1]["added"] = 1
    assert "added" not in made[1][2][0][1]


@pytest.mark.parametrize(("texts", "encoded"), [({"texts": ["all"]}, ["all"]), ({}, [""]), ({"texts": []}, [""])])
def test_one_text_serves_all_pictures_and_none_is_the_empty_one(
    nodes: dict[str, Any], texts: dict[str, Any], encoded: list[str]
) -> None:
    """As for ComfyUI's own node; any other number of texts is an error."""
    clip = Clip()
    images = [torch.zeros(1, 2, 2, 3)] * 3
    made = run_node(nodes[MAKE], images=images, vae=[Vae()], clip=[clip], **texts)
    assert [len(one) for one in made] == [3, 3]
    assert clip.encoded == encoded
    with pytest.raises(precook.PrecookError, match="3 pictures and 2 texts"):
        run_node(nodes[MAKE], images=images, vae=[Vae()], clip=[clip], texts=["a", "b"])


def test_what_the_nodes_save_they_load(nodes: dict[str, Any]) -> None:
    """Pooled outputs, masks, hints, areas and plain values of a conditioning; batches as Resolution Bucket makes."""
    latents, conditionings = lists(3)
    conditionings[0][0][1] |= {
        "mask": torch.rand(1, 8, 6),
        "mask_strength": 0.5,
        "control_hint": torch.rand(1, 3, 64, 48),
        "area": ("percentage", 0.5, 1.0, 0.0, 0.0),
        "reference_latents": [torch.rand(1, 4, 2, 2)],
        "dtype": torch.bfloat16,
        "clip_start_percent": np.float32(0.25),
        "guides": {1, 2},
    }
    latents[1] |= {"noise_mask": torch.ones(1, 1, 8, 6), "batch_index": [0]}
    latents.append({"samples": torch.rand(5, 4, 2, 3)})
    conditionings.append([one for number in range(5) for one in conditioning(number)])
    save(nodes, latents, conditionings)
    found = load(nodes)
    assert all(isinstance(one["samples"], torch.Tensor) for one in found[0])
    assert same(loaded(found), [latents, conditionings])


def test_a_training_reads_what_its_batches_use(nodes: dict[str, Any], reads: list[object], monkeypatch: Any) -> None:
    """Nothing is read for lists, nor while they are converted, joined and copied; three steps read three batches."""
    monkeypatch.setattr("precook.store.lazy_torch.LARGE", 1)
    latents, conditionings = lists(40)
    save(nodes, latents, conditionings)
    reads.clear()
    found = load(nodes)
    assert [len(one) for one in found] == [40, 40]
    assert len(reads) == 1  # the list itself
    reads.clear()
    losses = train(found[0], found[1], torch, steps=3, batch_size=2)
    assert len(reads) == 3 * 2 * 2
    assert losses == train(latents, conditionings, torch, steps=3, batch_size=2)


def test_a_bucket_is_read_by_the_sample(nodes: dict[str, Any], monkeypatch: Any) -> None:
    """A batch of a large saved bucket takes its own rows from the disk, once the bucket was checked piece by piece."""
    bucket = {"samples": torch.randn(40, 4, 64, 64)}
    save(nodes, [bucket], [[one for number in range(40) for one in conditioning(number)]])
    found = load(nodes)[0][0]["samples"].to(torch.float64)
    parts = []
    original = TableFile.read_one
    monkeypatch.setattr(TableFile, "read", None)
    monkeypatch.setattr(TableFile, "read_one", lambda *args: parts.append(args[3]) or original(*args))
    assert same(found[[7, 3]], bucket["samples"][[7, 3]].double())
    assert same(found[:2][1].load(), bucket["samples"][1].double())
    assert parts == [7, 3, 1]


def test_objects_are_refused_by_name_and_the_dataset_stays(nodes: dict[str, Any]) -> None:
    """A ControlNet in a conditioning cannot be kept: the error says where it is and what to do."""
    save(nodes, *lists(2))

    class ControlNet:
        pass

    latents, conditionings = lists(2)
    conditionings[1][0][1]["control"] = ControlNet()
    with pytest.raises(precook.PrecookError, match=r"'control'.*ControlNet.*after Load Training Dataset"):
        save(nodes, latents, conditionings)
    assert same(loaded(load(nodes)), list(lists(2)))


@pytest.mark.parametrize("name", ["../out", "", ".", "a/../.."])
def test_a_folder_is_inside_of_the_output_directory(nodes: dict[str, Any], name: str) -> None:
    """Whatever a workflow from elsewhere says."""
    with pytest.raises(precook.PrecookError, match="output directory"):
        save(nodes, *lists(1), folder=name)
    with pytest.raises(precook.PrecookError, match="output directory"):
        load(nodes, name)


def state(node: Any) -> Any:
    return getattr(node, "fingerprint_inputs", None) or node.IS_CHANGED


def test_a_load_node_runs_again_when_its_dataset_has_changed(nodes: dict[str, Any], tmp_path: Path) -> None:
    """ComfyUI compares what a node says about its inputs with what it said before."""
    told = state(nodes[LOAD])
    assert told(folder_name="set") == ""
    save(nodes, *lists(2))
    first = told(folder_name="set")
    assert first == told(folder_name="set") != ""
    save(nodes, *lists(3))
    assert told(folder_name="set") != first
    write_shards(tmp_path / "output" / "old", *lists(3))
    old = told(folder_name="old")
    write_again(tmp_path / "output" / "old")
    assert told(folder_name="old") not in ("", old)


def write_again(folder: Path) -> None:
    """Other samples, in files of the same names."""
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    other = write_shards(folder.with_name("other"), *lists(3, first=10))
    for file in other.iterdir():
        file.rename(folder / file.name)
    other.rmdir()


def test_old_shards_are_loaded_as_they_are_now(nodes: dict[str, Any], tmp_path: Path) -> None:
    """Pickles of ComfyUI's own node are converted once; those that were saved since are converted anew."""
    folder = write_shards(tmp_path / "output" / "old", *lists(3))
    assert same(loaded(load(nodes, "old")), list(lists(3)))
    packs = sorted((folder / "precook").glob("packs/*/*"))
    assert same(loaded(load(nodes, "old")), list(lists(3)))
    assert sorted((folder / "precook").glob("packs/*/*")) == packs
    write_again(folder)
    assert same(loaded(load(nodes, "old")), list(lists(3, first=10)))
    with pytest.raises(precook.NotAStoreError, match="a dataset of ComfyUI"):
        save(nodes, *lists(1), folder="old")


def test_the_size_of_shards_changes_nothing(nodes: dict[str, Any], tmp_path: Path) -> None:
    """It is taken, so that a workflow stays as it is."""
    for size in (1, 1000):
        save(nodes, *lists(3), folder=f"by {size}", size=size)
    found = [load_dataset(tmp_path / "output" / f"by {size}") for size in (1, 1000)]
    assert same(list(found[0].latents), list(found[1].latents))
    assert [len(list((tmp_path / "output" / f"by {size}").glob("packs/*/*"))) for size in (1, 1000)] == [1, 1]
    for dataset in found:
        dataset.close()


def test_numpy_arrays_come_back_as_arrays(nodes: dict[str, Any]) -> None:
    """Other nodes know nothing of lazy ones."""
    save(nodes, [latent(1)], [[[torch.ones(1), {"box": np.arange(4), "sizes": (np.ones(2), torch.Size([2]))}]]])
    extra = load(nodes)[1][0][0][1]
    assert same(extra, {"box": np.arange(4), "sizes": (np.ones(2), torch.Size([2]))})


def test_nodes_of_both_kinds_are_described_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs with their types, limits and defaults; outputs, all of them lists; which takes lists and which ends."""
    described = {}
    old = load_custom_node(FOLDER, monkeypatch)
    install(monkeypatch, tmp_path)
    for name, node in load_custom_node(FOLDER, monkeypatch).items():
        schema = node.define_schema()
        told = old[name].INPUT_TYPES()
        for port in schema.inputs:
            type_, options = told["optional" if port.options["optional"] else "required"][port.name]
            assert (type_, options) == (port.io_type, {k: v for k, v in port.options.items() if k != "optional"})
        assert tuple(port.io_type for port in schema.outputs) == old[name].RETURN_TYPES
        assert tuple(port.name for port in schema.outputs) == old[name].RETURN_NAMES
        assert (schema.is_input_list, schema.is_output_node) == (old[name].INPUT_IS_LIST, old[name].OUTPUT_NODE)
        described[name] = [port.name for port in schema.inputs], [port.io_type for port in schema.outputs]
    dataset = ["LATENT", "CONDITIONING"]
    assert described == {
        MAKE: (["images", "vae", "clip", "texts"], dataset),
        SAVE: (["latents", "conditioning", "folder_name", "shard_size"], []),
        LOAD: (["folder_name"], dataset),
    }
