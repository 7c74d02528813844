"""Old caches: any file under a tool's name is adopted or left out, any old shard is converted or refused.

The first byte of an input says what the rest is: `n` the .npz of a latent, `t` the .npz of a text, `m` a .safetensors
of a latent, `s` an old shard; `a` the header of an array and `p` the pickle of a shard, each in a good file of its
sort; `d` a file of an mgds DiskCache, `g` the pickle of the index beside it, `j` the index of a SmartDiskCache; `l` the
list of a sample's embeddings and `e` the file of one; `y` dlm's manifest, `x` the tokens of a section and `v` a
processed picture.
"""

from __future__ import annotations

import functools
import io
import json
import random
import shutil
import struct
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from PIL import Image
from safetensors.torch import save

import precook
from precook.errors import PrecookError, SourceError
from precook.integrations.adopt import plan_adopt
from precook.integrations.adopt.dlm import plan_adopt_dlm
from precook.integrations.adopt.embeddings import plan_adopt_embeddings
from precook.integrations.embedding import EmbeddingCacheManager
from precook.integrations.shards import convert_pickled
from precook.integrations.tokenized import CacheKey, TokenizedCache
from precook.integrations.vl import VlCache, VlCacheKey
from tests.fuzz.frame import Target, mutate_bytes, mutate_json

NAMES = {b"n": "p_0096x0064_sdxl.npz", b"a": "p_0096x0064_sdxl.npz", b"t": "p_te_outputs.npz"}
SAFETENSORS = "p_0096x0064_qi.safetensors"
GONE = "/gone/p.png"
MD5 = "0123456789abcdef" * 2
SHA = "ab" * 32
PICTURE = io.BytesIO()
Image.new("RGB", (96, 64)).save(PICTURE, "png")
CONTENT = xxhash.xxh64(PICTURE.getvalue()).hexdigest()


@functools.cache
def home() -> Path:
    return Path(tempfile.mkdtemp())


def check(data: bytes) -> bool:
    """Take over a file, as a user would."""
    kind, rest = data[:1], data[1:]
    if kind in (b"s", b"p"):
        return convert(shard_around(rest) if kind == b"p" else rest)
    folder = home() / "data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "p.png").write_bytes(PICTURE.getvalue())
    if kind in (b"d", b"g", b"j"):
        fill_mgds(folder / "old", kind, rest)
        return adopt(folder)
    if kind in (b"l", b"e"):
        return adopt_embeddings(folder / "old", kind, rest)
    if kind in (b"y", b"x", b"v"):
        return adopt_dlm(folder / "old", kind, rest)
    if kind == b"t":
        (folder / NAMES[b"n"]).write_bytes(latent_file())
    (folder / NAMES.get(kind, SAFETENSORS)).write_bytes(npz_around(rest) if kind == b"a" else rest)
    return adopt(folder)


def fill_mgds(folder: Path, kind: bytes, rest: bytes) -> None:
    """A cache of mgds with this file, of a picture that is no longer where it was."""
    if kind == b"j":
        folder.mkdir()
        (folder / f"{CONTENT[:12]}_64x96_1.pt").write_bytes(mgds_file())
        (folder / "cache.json").write_bytes(rest)
        return
    folder = folder / "variation-0"
    folder.mkdir(parents=True)
    index = torch_file([{"crop_resolution": (64, 96), "image_path": GONE}])
    (folder / "0.pt").write_bytes(rest if kind == b"d" else mgds_file())
    (folder / "aggregate.pt").write_bytes(index if kind == b"d" else with_pickle(index, rest))


def adopt_embeddings(folder: Path, kind: bytes, rest: bytes) -> bool:
    """Whether a sample's embeddings were adopted; what was not is told, and what was is what training gets."""
    for name in ("metadata", "image_latents"):
        (folder / name).mkdir(parents=True)
    listed = json.dumps({"version": "2.0", "image_latents": MD5}).encode()
    (folder / "metadata" / f"{MD5}.json").write_bytes(rest if kind == b"l" else listed)
    (folder / "image_latents" / f"{MD5}.pt").write_bytes(rest if kind == b"e" else torch_file(torch.zeros(2, 3)))
    path = home() / "cache"
    shutil.rmtree(path, ignore_errors=True)
    plan = plan_adopt_embeddings(folder)
    with precook.open(path) as store:
        left_out = (*plan.left_out, *plan.execute(store).failed)
        sample = EmbeddingCacheManager(store).load_cache({"file_hashes": {"main_hash": MD5}})
    assert all(one.reason for one in left_out)
    assert ("image_latents" in sample) == (not left_out)
    return not left_out


def adopt_dlm(folder: Path, kind: bytes, rest: bytes) -> bool:
    """Whether a section or a picture was adopted; what was not is told, and what was is found by its key."""
    path = home() / "cache"
    shutil.rmtree(path, ignore_errors=True)
    picture, section = VlCacheKey(SHA, SHA, 8, 8), CacheKey("abcd", SHA, 8)
    place = (folder if kind == b"v" else folder / "entries") / "ab"
    place.mkdir(parents=True)
    if kind == b"v":
        (place / picture.as_filename()).write_bytes(rest)
    else:
        (place / section.as_filename()).write_bytes(rest if kind == b"x" else section_file())
        (folder / "manifest.json").write_bytes(rest if kind == b"y" else manifest())
    plan = plan_adopt_dlm(folder, digests={SHA: SHA} if kind == b"v" else None)
    with precook.open(path) as store:
        adoption = plan.execute(store)
        found = VlCache(store).get(picture) if kind == b"v" else TokenizedCache(store).get(section)
    left_out = (*plan.left_out, *adoption.failed)
    assert all(one.reason for one in left_out)
    # A changed manifest may name another tokenizer, and then it is found by that.
    adopted = {entry.key for entry in plan.entries} if adoption.entries else set()
    assert (found is not None) == bool(adopted & {picture, section})
    return not left_out


def adopt(folder: Path) -> bool:
    """Whether everything in a folder was adopted; what was not is told, and what was can be read."""
    path = home() / "cache"
    shutil.rmtree(path, ignore_errors=True)
    try:
        plan = plan_adopt(folder, ignore_times=True)
        with precook.open(path) as store:
            adoption = plan.execute(store, "old")
            for keys in adoption.snapshot.content.picture_keys.values():
                for key in keys:
                    store.get(precook.Key(key.tobytes()))
    except PrecookError as error:
        assert str(error)
        return False
    left_out = (*plan.left_out, *adoption.failed)
    assert all(one.reason for one in left_out)
    return not left_out


def convert(content: bytes) -> bool:
    """Whether an old shard became a dataset."""
    folder, out = home() / "old", home() / "new"
    for place in (folder, out):
        shutil.rmtree(place, ignore_errors=True)
    folder.mkdir()
    (folder / "shard_0000.pkl").write_bytes(content)
    try:
        convert_pickled(folder, out)
    except SourceError as error:
        assert "shard_0000.pkl" in str(error)
        return False
    except PrecookError:
        return False
    return True


@functools.cache
def latent_file() -> bytes:
    """A latent of sd-scripts."""
    file = io.BytesIO()
    size = {"original_size": np.array([96, 64]), "crop_ltrb": np.array([0.0, 0.0, 96.0, 64.0])}
    np.savez(file, latents=np.zeros((4, 8, 12), np.float32), **size)
    return file.getvalue()


def text_file() -> bytes:
    """What sd-scripts' text encoders made."""
    file = io.BytesIO()
    arrays = {"hidden_state1": np.zeros((3, 2)), "hidden_state2": np.zeros((3, 2)), "pool2": np.zeros(2)}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def section_file() -> bytes:
    """What dlm's tokenizer made of a section."""
    file = io.BytesIO()
    np.savez_compressed(file, input_ids=np.arange(4), attention_mask=np.ones(4, np.int64))
    return file.getvalue()


def picture_file() -> bytes:
    """What dlm's processor made of a picture."""
    file = io.BytesIO()
    np.savez(file, pixel_values=np.zeros((1, 3, 2, 2), np.float32))
    return file.getvalue()


def manifest() -> bytes:
    """The list of dlm's sections."""
    row = {"size": 1, "last_access_ts": 1.0, "shard": "ab", "filename": "f", "tokenizer_sha": SHA}
    return json.dumps({"version": 1, "tokenizer_sha256": SHA, "entries": {f"abcd|{SHA}|8": row}}).encode()


def npz_around(header: bytes) -> bytes:
    """A latent's file whose array has this header."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(latent_file())) as good, zipfile.ZipFile(file, "w") as archive:
        for name in good.namelist():
            content = good.read(name)
            if name == "latents.npy":
                content = content[:8] + struct.pack("<H", len(header) & 0xFFFF) + header + bytes(1536)
            archive.writestr(name, content)
    return file.getvalue()


def torch_file(value: Any) -> bytes:
    """As torch.save writes it."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def mgds_file() -> bytes:
    """What mgds cached of a picture."""
    latent = {"latent_image": torch.zeros(4, 8, 12), "original_resolution": (64, 96), "crop_resolution": (64, 96)}
    return torch_file({**latent, "__cache_version": 3})


def shard_around(pickled: bytes) -> bytes:
    """A shard with this pickle and the storages of a good one."""
    return with_pickle(good_shards()[0], pickled)


def with_pickle(saved: bytes, pickled: bytes) -> bytes:
    """A file of torch.save with this pickle, and with its own storages."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as good, zipfile.ZipFile(file, "w") as archive:
        for name in good.namelist():
            archive.writestr(name, pickled if name.endswith("data.pkl") else good.read(name))
    return file.getvalue()


@functools.cache
def good_shards() -> list[bytes]:
    """Old shards with everything that they may hold."""
    big = torch.zeros(6, 4)
    latents: list[Any] = [{"samples": big[1:3].t(), "n": [1, -2, 10**20, 1.5, None, True, "é"]}]
    latents += [{"samples": torch.zeros(2, dtype=torch.uint16), "mask": torch.ones(1).expand(3)}]
    latents += [OrderedDict(samples=torch.zeros(1, dtype=torch.bfloat16), size=torch.Size([1, 2]))]
    shared = [[torch.zeros(2, 3), {"pooled": torch.zeros(())}]]
    return [torch_file({"latents": latents[:count], "conditioning": [shared] * count}) for count in (3, 1)]


def seeds() -> list[bytes]:
    """A good file of each sort."""
    metadata = {"architecture": "qwen_image", "width": "96", "height": "64"}
    musubi = save({"latents_1x8x12_bfloat16": torch.zeros(2, 1, 8, 12, dtype=torch.bfloat16)}, metadata=metadata)
    index = {"entries": {GONE: {"hash": CONTENT, "modeltype": "SDXL", "variants": {"64x96": {}}}}}
    index["entries"][GONE]["variants"]["64x96"] = {"cache_file": f"{CONTENT[:12]}_64x96", "crop_resolution": [64, 96]}
    paths = torch_file([{"crop_resolution": (64, 96), "image_path": GONE}])
    mgds = [b"d" + mgds_file(), b"g" + pickle_of(paths), b"j" + json.dumps(index).encode()]
    listed = json.dumps({"version": "2.0", "image_latents": MD5}).encode()
    mgds += [b"l" + listed, b"e" + torch_file(torch.zeros(2, 3, dtype=torch.float16))]
    dlm = [b"y" + manifest(), b"x" + section_file(), b"v" + picture_file()]
    with zipfile.ZipFile(io.BytesIO(latent_file())) as archive:
        array = archive.read("latents.npy")
    header = array[10 : 10 + int.from_bytes(array[8:10], "little")]
    files = [b"n" + latent_file(), b"t" + text_file(), b"m" + musubi, *(b"s" + shard for shard in good_shards())]
    return [*files, b"a" + header, b"p" + pickle_of(good_shards()[0]), *mgds, *dlm]


def pickle_of(saved: bytes) -> bytes:
    """The pickle in a file of torch.save."""
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        return next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The header of a .safetensors is changed as JSON, everything else as bytes, or by a word of its format."""
    kind, rest = data[:1], data[1:]
    if kind == b"m" and rng.randrange(4):
        length = int.from_bytes(rest[:8], "little")
        header = mutate_json(rest[8 : 8 + length], rng)
        return kind + struct.pack("<Q", len(header)) + header + rest[8 + length :]
    if kind in (b"j", b"l", b"y") and rng.randrange(4):
        return kind + mutate_json(rest, rng)
    if rng.randrange(3):
        return kind + mutate_bytes(rest, rng)
    place = rng.randrange(len(rest) + 1)
    word = rng.choice(TOKENS).encode("latin-1") * rng.choice([1, 1, 2, 100])
    return kind + (rest[:place] + word + rest[place + rng.choice([0, len(word)]) :])[: 1 << 16]


TOKENS = (
    *("PK\x01\x02", "PK\x03\x04", "PK\x05\x06", "PK\x06\x06", "\xff\xff\xff\xff", "<f4", "|O", "(4, 8, 12)", "(0,)"),
    *("ctorch._utils\n_rebuild_tensor_v2\n", "ctorch\nFloatStorage\n", "cos\nsystem\n", "ccollections\nOrderedDict\n"),
    *(
        "](",
        "}",
        "e",
        "u",
        "(",
        "t",
        "\x85",
        "h\x00",
        "q\x00",
        "R",
        "Q",
        "b",
        ".",
        "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
    ),
    *("J\xff\xff\xff\x7f", "X\xff\xff\xff\xff", "data_offsets", "\x80\x04"),
)
TARGET = Target("old_cache", seeds, check, mutate, tuple(token.encode("latin-1") for token in TOKENS))
