"""Old `shard_NNNN.pkl` sets of ComfyUI's training nodes, converted without running them."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import precook
from precook.integrations.comfyui import load_dataset
from precook.integrations.shards import convert_pickled
from tests.integrations.test_comfyui import lists
from tests.support.commands import environment
from tests.support.trees import same

torch = pytest.importorskip("torch", reason="torch is not installed")


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
    """Parameters and other objects are no values of a sample; an ordered dict and a size are, as dict and tuple."""
    folder = tmp_path / "old"
    folder.mkdir()
    for value in (torch.nn.Parameter(torch.ones(1)), Counter(a=1), np.dtype("float32"), np.array([1.0])):
        torch.save({"latents": [{"samples": value}], "conditioning": [[]]}, folder / "shard_0000.pkl")
        with pytest.raises(precook.SourceError, match=r"no plain value|which no plain"):
            convert_pickled(folder, tmp_path / "out")
    latent = OrderedDict(samples=torch.ones(2), size=torch.Size([1, 2]))
    torch.save({"latents": [latent], "conditioning": [[]]}, folder / "shard_0000.pkl")
    convert_pickled(folder, tmp_path / "out")
    with load_dataset(tmp_path / "out") as (found, _):
        assert same(list(found), [{"samples": torch.ones(2), "size": (1, 2)}])


def test_plain_values_of_torch_and_numpy_are_converted(tmp_path: Path) -> None:
    """Types, devices, numpy scalars, sets and bytes come back as what they were."""
    folder = tmp_path / "old"
    folder.mkdir()
    extra = {
        "dtype": torch.bfloat16,
        "device": [torch.device("cpu"), torch.device("cuda", 1)],
        "numpy": [np.float32(1.5), np.float64(-0.0), np.int64(3), np.bool_(False), np.complex64(1j)],
        "set": {1, "a", None},
        "frozen": frozenset({b"\xff"}),
        "bytes": [b"", b"\x00\xfe"],
    }
    torch.save(
        {"latents": [{"samples": torch.ones(1)}], "conditioning": [[[torch.ones(1), extra]]]}, folder / "shard_0000.pkl"
    )
    convert_pickled(folder, tmp_path / "out")
    with load_dataset(tmp_path / "out") as (_, found):
        assert same(found[0][0][1], extra)


@pytest.mark.parametrize(
    "opcodes",
    [
        b"c__builtin__\nset\n](K\x01\x8a\x10" + b"\x01" * 16 + b"e\x85R.",
        b"c__builtin__\nset\n]]a\x85R.",
        b"ctorch\ndevice\nX\x05\x00\x00\x00other\x85R.",
        b"ctorch\ndevice\nX\x04\x00\x00\x00cudaJ\xff\xff\xff\xff\x86R.",
        b"cnumpy\ndtype\nX\x01\x00\x00\x00O\x89\x88\x87R.",
        b"cnumpy._core.multiarray\nscalar\ncnumpy\ndtype\nX\x02\x00\x00\x00f4\x89\x88\x87RX\x00\x00\x00\x00\x86R.",
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
        b"c_codecs\nencode\nX\x03\x00\x00\x00\xe2\x82\xacX\x06\x00\x00\x00latin1\x86R.",
        b"}}b.",
        b"ctorch\nfloat32\n)R.",
    ],
)
def test_odd_calls_of_known_names_are_refused(tmp_path: Path, opcodes: bytes) -> None:
    """A name that may be called is called with what it takes, or not at all."""
    folder = tmp_path / "old"
    folder.mkdir()
    archived(folder / "shard_0000.pkl", b"\x80\x02" + opcodes)
    with pytest.raises(precook.SourceError, match="shard"):
        convert_pickled(folder, tmp_path / "out")


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


LAUGHS = b"]q\x00" + b"".join(b"](" + b"h%c" % n * 12 + b"eq%c" % (n + 1) for n in range(50))
"""A list that holds a list twelve times, which holds a list twelve times: 12^50 of them in 1.5 KB."""
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuJ%btQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"%b\x89ccollections\nOrderedDict\n)RtR"


NUMPY_TYPE = b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x89\x88\x87R"


def shard_of(latent: bytes) -> bytes:
    """The pickle of a shard with one latent."""
    conditioning = b"X\x0c\x00\x00\x00conditioning](]e"
    return b"\x80\x02}(X\x07\x00\x00\x00latents](" + latent + b"e" + conditioning + b"u."


def tensor_of(elements: int, *, offset: int = 0, side: int = 1, stride: int = 1) -> bytes:
    """Instructions for a tensor over the elements of a storage, as many as are said to be there."""
    numbers = [number.to_bytes(8, "little", signed=True) for number in (offset, side, stride)]
    place = b"\x8a\x08" + numbers[0] + b"\x8a\x08" + numbers[1] + b"\x85\x8a\x08" + numbers[2] + b"\x85"
    return TENSOR % (elements.to_bytes(4, "little"), place)


def one_record_many_times(path: Path) -> None:
    """16 MiB of zeros that 300 members of the directory share."""
    size, names = 16 << 20, [f"archive/data/{number}" for number in range(300)]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(names[0], bytes(size))
        first = archive.infolist()[0]
        for name in names[1:]:
            info = zipfile.ZipInfo(name)
            info.header_offset, info.file_size, info.compress_size, info.CRC = 0, size, size, first.CRC
            archive.filelist.append(info)
            archive.NameToInfo[name] = info
        tensors = [
            tensor_of(size // 4).replace(b"X\x01\0\0\x000X", b"X%c\0\0\0%bX" % (len(key), key))
            for key in (str(number).encode() for number in range(300))
        ]
        archive.writestr("archive/data.pkl", shard_of(b"](" + b"".join(tensors) + b"e"))


def converted(folder: Path) -> subprocess.CompletedProcess[str]:
    """Convert in a process of its own, which may not take long; it prints the error and the most memory it had."""
    code = (
        "import resource, sys, torch\n"
        "import precook.integrations.shards as shards\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    shards.convert_pickled(sys.argv[1], sys.argv[1] + '-out')\n"
        "except shards.SourceError as error:\n"
        "    print('refused:', error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (40, 40)),
        capture_output=True,
        text=True,
        check=False,
    )


EQUAL_HASHES = b"".join(b"\x8a\x0a%bN" % (n * (2**61 - 1)).to_bytes(10, "little") for n in range(1, 200_000))
BOMBS: dict[str, tuple[Callable[[Path], object], str]] = {
    "lists of lists": (lambda path: archived(path, shard_of(LAUGHS)), "unfolds to more than 2,000,000 values"),
    "a list in itself": (lambda path: archived(path, shard_of(b"]q\x00h\x00a")), "nests values more than 64"),
    "many containers": (lambda path: archived(path, shard_of(b"}" * (16 << 20))), "its pickle is larger than"),
    "deep containers": (lambda path: archived(path, shard_of(b"N" + b"\x85" * (3 << 20))), "nests values more than 64"),
    "one record many times": (one_record_many_times, "its members claim 4.7 GiB"),
    "an array of bytes": (
        lambda path: archived(path, shard_of(b"c__builtin__\nbytearray\nJ\x00\x00\x00\x70\x85R")),
        "calls __builtin__.bytearray",
    ),
    "a tensor without elements of its own": (
        lambda path: archived(path, shard_of(b"ctorch\nTensor\nJ\x00\x00\x00\x70\x85R")),
        "calls torch.Tensor",
    ),
    "keys that a dict cannot tell apart": (
        lambda path: archived(path, shard_of(b"}(" + EQUAL_HASHES + b"u")),
        "neither text nor small numbers",
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_shard_takes_neither_long_nor_much_memory(tmp_path: Path, bomb: str) -> None:
    """What a few bytes would unfold to is found before it is unfolded, and the error names the shard and the reason."""
    folder = tmp_path / "old"
    folder.mkdir()
    make, reason = BOMBS[bomb]
    make(folder / "shard_0000.pkl")
    ended = converted(folder)
    assert ended.returncode == 0, ended.stderr
    assert f"refused: {folder / 'shard_0000.pkl'}" in ended.stdout
    assert reason in ended.stdout
    assert int(ended.stdout.splitlines()[-1]) < 1024


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (tensor_of(4), None),
        (tensor_of(4, side=4), None),
        (tensor_of(4, side=3, stride=0), None),
        (tensor_of(4, offset=4, side=0), None),
        (tensor_of(5), "another size than it has"),
        (tensor_of(1 << 30), "another size than it has"),
        (tensor_of(4, side=5), "beyond its bytes"),
        (tensor_of(4, offset=2, side=2, stride=2), "beyond its bytes"),
        (tensor_of(4, offset=4), "beyond its bytes"),
        (tensor_of(4, offset=-1), "no numbers of one"),
        (tensor_of(4, side=2, stride=-1), "no numbers of one"),
        (tensor_of(4, side=1 << 40, stride=0), "far larger than its bytes"),
        (tensor_of(4, side=2, stride=1 << 62), "beyond its bytes"),
        (NUMPY_TYPE + tensor_of(4, side=4) + b"\x85b", "the state of what is no plain value"),
    ],
)
def test_a_tensor_lies_inside_its_bytes(tmp_path: Path, tensor: bytes, reason: str | None) -> None:
    """No pickle reaches memory that is not of its own file: sizes, places and strides are compared with its bytes."""
    folder = tmp_path / "old"
    folder.mkdir()
    with zipfile.ZipFile(folder / "shard_0000.pkl", "w") as archive:
        archive.writestr("archive/data.pkl", shard_of(tensor))
        archive.writestr("archive/data/0", bytes(16))
    if reason is None:
        assert convert_pickled(folder, tmp_path / "out") == 1
        return
    with pytest.raises(precook.SourceError, match=reason):
        convert_pickled(folder, tmp_path / "out")


def test_a_shard_that_is_no_file_or_mostly_holes_is_refused(tmp_path: Path) -> None:
    """A FIFO is not waited for, and a terabyte that is not there is not read."""
    folder = tmp_path / "old"
    folder.mkdir()
    shard = folder / "shard_0000.pkl"
    os.mkfifo(shard)
    with pytest.raises(precook.SourceError, match="a FIFO, not a file"):
        convert_pickled(folder, tmp_path / "out")
    shard.unlink()
    size = 1 << 40
    with open(shard, "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", shard_of(b"N"))
        archive.writestr("archive/data/0", b"x")
        info = archive.infolist()[-1]
        info.file_size = info.compress_size = size
        archive.start_dir += size
        file.seek(archive.start_dir)
    with pytest.raises(precook.SourceError, match=r"its members claim 1\.0 TiB, and 64\.0 MiB are there"):
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


def test_a_lost_shard_is_noticed(tmp_path: Path, path: Path) -> None:
    """A hole in the numbers, or fewer shards than the metadata counts, is not a shorter dataset."""
    folder = write_shards(tmp_path / "old", *lists(6))
    (folder / "shard_0002.pkl").unlink()
    with pytest.raises(precook.SourceError, match=r"shard_0002\.pkl: this shard is missing"):
        convert_pickled(folder, path)
    with pytest.raises(precook.SourceError, match=r"no shard_NNNN\.pkl"):
        convert_pickled(tmp_path, path)


def test_shards_of_an_earlier_save_are_not_taken_for_samples(tmp_path: Path, path: Path) -> None:
    """ComfyUI's node leaves them where it saves fewer samples: the metadata counts those that belong to it."""
    folder = write_shards(tmp_path / "old", *lists(6))
    fewer = write_shards(tmp_path / "fewer", *lists(3, first=10))
    for file in fewer.iterdir():
        file.replace(folder / file.name)
    with pytest.raises(precook.SourceError, match=r"3 shards where metadata\.json counts 2 .*from shard_0002\.pkl on"):
        convert_pickled(folder, path)
    (folder / "shard_0002.pkl").unlink()
    assert convert_pickled(folder, path) == 3
