"""Old `shard_NNNN.pkl` sets of ComfyUI's training nodes, converted without running them."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.integrations.comfyui import load_dataset
from precook.integrations.shards import convert_pickled
from tests.integrations.test_comfyui import lists
from tests.support.trees import same

torch = pytest.importorskip("torch", "2.10", reason="old shards are read with torch 2.10 or newer")


def archived(path: Path, pickled: bytes, *, compression: int = zipfile.ZIP_STORED) -> None:
    """A file that `torch.load` takes for one of torch.save's, around any pickle."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", b"3\n")


def write_shards(folder: Path, latents: list[Any], conditionings: list[Any], size: int = 2) -> Path:
    """What the old node writes."""
    folder.mkdir()
    starts = range(0, len(latents), size)
    for number, start in enumerate(starts):
        part = slice(start, start + size)
        shard = {"latents": latents[part], "conditioning": conditionings[part]}
        with open(folder / f"shard_{number:04d}.pkl", "wb") as file:
            torch.save(shard, file)
    metadata = f'{{"num_samples": {len(latents)}, "num_shards": {len(starts)}, "shard_size": {size}}}'
    (folder / "metadata.json").write_text(metadata)
    return folder


def test_a_set_is_converted_bit_for_bit(tmp_path: Path, path: Path) -> None:
    """Every type, views of larger tensors, transposed and expanded ones; the old files stay as they are."""
    latents, conditionings = lists(5)
    big = torch.randn(10, 4)
    latents.append({"samples": big[3:5].t(), "noise_mask": torch.ones(1, 4).expand(3, 4)})
    conditionings.append([[torch.tensor(2).to(torch.float8_e4m3fn), {"none": torch.empty(0), "n": 10**20, "é": True}]])
    latents.append({"samples": torch.tensor([1, 2], dtype=torch.uint16), "batch_index": [0, -1]})
    conditionings.append([])
    folder = write_shards(tmp_path / "old", latents, conditionings)
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert convert_pickled(folder, path) == 7
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    with load_dataset(path) as (found, others):
        assert same(list(found), latents)
        assert same(list(others), conditionings)


def test_a_hostile_shard_is_refused_and_not_run(tmp_path: Path, path: Path) -> None:
    """A pickle that would call something names it in the error; nothing is called and no dataset is made."""
    canary = tmp_path / "canary"

    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(canary),)

    folder = write_shards(tmp_path / "old", *lists(2))
    with open(folder / "shard_0000.pkl", "wb") as file:
        torch.save({"latents": [Hostile()], "conditioning": [[]]}, file)
    with pytest.raises(precook.SourceError, match=r"calls \w+\.mkdir"):
        convert_pickled(folder, path)
    assert not canary.exists()
    with pytest.raises(precook.StoreError):
        load_dataset(path)
    torch.load(folder / "shard_0000.pkl", weights_only=False)
    assert canary.exists()  # the attack works on a loader that allows it


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cos\nsystem\n(S'touch canary'\ntR.",
        b"(ios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02cbuiltins\neval\nX\x03\x00\x00\x001+1\x85R.",
        b"\x80\x02ccollections\nOrderedDict\n)R}b.",
        b"\x80\x02](K\x01K\x02e",
        b"\x80\x02e.",
        b"\x80\x02h\x05.",
        b"",
    ],
)
def test_what_no_plain_value_needs_is_refused(tmp_path: Path, opcodes: bytes) -> None:
    """Other instructions, unknown names and broken pickles are errors of ours, whatever they would do."""
    folder = tmp_path / "old"
    folder.mkdir()
    archived(folder / "shard_0000.pkl", opcodes)
    with pytest.raises(precook.SourceError, match="shard"):
        convert_pickled(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(st.binary(max_size=60))
@settings(max_examples=60)
def test_no_bytes_make_it_stumble(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Any pickle at all is either converted or refused by an error of ours."""
    folder = tmp_path_factory.mktemp("old")
    archived(folder / "shard_0000.pkl", b"\x80\x02}" + content)
    with pytest.raises(precook.SourceError):
        convert_pickled(folder, folder / "out")


def test_a_plain_pickle_is_refused(tmp_path: Path) -> None:
    """What `torch.save` did not write is not read, and no part of it is run."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "shard_0000.pkl").write_bytes(pickle.dumps({"latents": [], "conditioning": []}))
    with pytest.raises(precook.SourceError, match="not a zip file"):
        convert_pickled(folder, tmp_path / "out")


def test_what_torch_allows_beyond_plain_values_is_refused(tmp_path: Path) -> None:
    """Sets, bytes and parameters are no values of a sample; an ordered dict and a size are, as dict and tuple."""
    folder = tmp_path / "old"
    folder.mkdir()
    for value in ({1}, b"x", torch.nn.Parameter(torch.ones(1))):
        torch.save({"latents": [{"samples": value}], "conditioning": [[]]}, folder / "shard_0000.pkl")
        with pytest.raises(precook.SourceError, match="no plain value"):
            convert_pickled(folder, tmp_path / "out")
    latent = OrderedDict(samples=torch.ones(2), size=torch.Size([1, 2]))
    torch.save({"latents": [latent], "conditioning": [[]]}, folder / "shard_0000.pkl")
    convert_pickled(folder, tmp_path / "out")
    with load_dataset(tmp_path / "out") as (found, _):
        assert same(list(found), [{"samples": torch.ones(2), "size": (1, 2)}])


def test_a_file_that_unfolds_to_more_than_its_bytes_is_refused(tmp_path: Path) -> None:
    """Neither compressed members nor strides of zero make gigabytes of a few bytes."""
    folder = tmp_path / "old"
    folder.mkdir()
    archived(folder / "shard_0000.pkl", b"\x80\x02}.", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(precook.SourceError, match="is compressed"):
        convert_pickled(folder, tmp_path / "out")
    huge = {"latents": [{"samples": torch.ones(1).expand(1 << 40)}], "conditioning": [[]]}
    torch.save(huge, folder / "shard_0000.pkl")
    with pytest.raises(precook.SourceError, match="far larger than its bytes"):
        convert_pickled(folder, tmp_path / "out")


def test_an_archive_behind_something_else_is_refused(tmp_path: Path) -> None:
    """What only ends as a zip file would be read by another reader of torch's, for its older formats."""
    folder = tmp_path / "old"
    folder.mkdir()
    archived(folder / "shard_0000.pkl", b"\x80\x02}.")
    content = (folder / "shard_0000.pkl").read_bytes()
    (folder / "shard_0000.pkl").write_bytes(bytes(512) + content)
    with pytest.raises(precook.SourceError, match="not written by torch"):
        convert_pickled(folder, tmp_path / "out")


def test_a_torch_that_can_be_made_to_run_code_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of its reader are known to be unsafe; the error says which one is needed."""
    folder = write_shards(tmp_path / "old", *lists(1))
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(precook.PrecookError, match=r"torch 2\.9\.1.*torch 2\.10 or newer"):
        convert_pickled(folder, tmp_path / "out")


def test_a_lost_shard_is_noticed(tmp_path: Path, path: Path) -> None:
    """A hole in the numbers, or fewer shards than the metadata counts, is not a shorter dataset."""
    folder = write_shards(tmp_path / "old", *lists(6))
    (folder / "shard_0002.pkl").unlink()
    with pytest.raises(precook.SourceError, match=r"shard_0002\.pkl: this shard is missing"):
        convert_pickled(folder, path)
    with pytest.raises(precook.SourceError, match=r"no shard_NNNN\.pkl"):
        convert_pickled(tmp_path, path)
