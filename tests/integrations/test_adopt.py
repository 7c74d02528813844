"""`precook adopt`: caches of other tools, as their own formats have them, become a dataset of ours."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from precook.integrations.adopt import STATUS, plan_adopt
from precook.integrations.adopt.npz import NpzFile
from precook.integrations.adopted import Adopted
from tests.cli.test_hostile_store import limited
from tests.support.commands import run
from tests.support.projects import picture
from tests.support.trees import same

pytest.importorskip("torch", reason="torch is not installed")
old = pytest.importorskip("tests.support.old_caches")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two pictures of 96 x 64 with captions."""
    folder = tmp_path / "data"
    for number in range(2):
        picture(folder / f"p{number}.png", number)
        (folder / f"p{number}.txt").write_text(f"picture {number}\n")
    return folder


def adopt(folder: Path, path: Path, **options: Any) -> precook.Snapshot:
    """Adopt everything there is, nothing left out."""
    plan = plan_adopt(folder, **options)
    assert not plan.left_out
    with precook.open(path) as store:
        return plan.execute(store, "old").snapshot


def trees(path: Path, snapshot: precook.Snapshot, encoder: str) -> dict[bytes, list[Any]]:
    """The entries of each sample, by the digest of its picture."""
    content = snapshot.content
    keys, owners = content.line_keys.get(encoder), content.lines.sample
    if keys is None:
        keys, owners = content.picture_keys[encoder], content.pictures.sample
    found: dict[bytes, list[Any]] = {}
    with precook.open(path, read_only=True) as store:
        for sample, key in zip(owners, keys, strict=True):
            image = content.samples.image[sample].tobytes()
            found.setdefault(image, []).append(store.get(precook.Key(key.tobytes())))
    return found


def of(found: dict[bytes, list[Any]], image: Path) -> list[Any]:
    return found[precook.digest(image).bytes]


def alike(tree: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether the tensors are those of the file, bit for bit, whatever their order."""
    return set(tree) == set(wanted) and all(same(tree[name], wanted[name]) for name in wanted)


class TestRoundTrip:
    """What a tool wrote is what a dataset of ours gives, bit for bit."""

    def test_sd_scripts_sdxl(self, data: Path, path: Path) -> None:
        """Latents, flipped latents, masks, sizes and crops, and both text encoders' results."""
        images = sorted(data.glob("*.png"))
        latents = [
            old.sd_latent(image, (96, 64), flipped=True, seed=10 * number)[1] for number, image in enumerate(images)
        ]
        texts = [old.sd_text(image, seed=number)[1] for number, image in enumerate(images)]
        snapshot = adopt(data, path)
        for image, latent, text in zip(images, latents, texts, strict=True):
            (tree,) = of(trees(path, snapshot, "latent"), image)
            assert alike(tree, latent)
            assert alike(*of(trees(path, snapshot, "prompt"), image), text)
        assert snapshot.content.pictures.size.tolist() == [[64, 96]] * 2

    def test_sd_scripts_several_sizes_in_one_file(self, data: Path, path: Path) -> None:
        """FLUX caches keep several sizes in one file: each becomes a cut of its picture, the smallest first."""
        images = sorted(data.glob("*.png"))
        made = {}
        for image in images:
            made[image] = old.sd_latent(image, (192, 128), (96, 64), architecture="flux")[1]
            old.flux_text(image)
        snapshot = adopt(data, path)
        for image in images:
            small, large = of(trees(path, snapshot, "latent"), image)
            assert same(small["latents"], made[image]["latents_8x12"])
            assert same(large["latents"], made[image]["latents_16x24"])
            (text,) = of(trees(path, snapshot, "prompt"), image)
            assert text["apply_t5_attn_mask"].shape == ()
            assert text["apply_t5_attn_mask"]

    def test_old_sd_scripts_names(self, data: Path, path: Path) -> None:
        """A plain `p0.npz`, as old versions wrote it."""
        for image in data.glob("*.png"):
            old.sd_latent(image, (96, 64), architecture="old")
        assert adopt(data, path).samples == 2

    @pytest.mark.parametrize("apart", [False, True])
    def test_musubi_tuner(self, data: Path, path: Path, tmp_path: Path, apart: bool) -> None:
        """bfloat16 latents with a control latent, embeddings of different lengths; beside the pictures or apart."""
        folder = tmp_path / "musubi" if apart else data
        folder.mkdir(exist_ok=True)
        images = sorted(data.glob("*.png"))
        latents = [old.musubi_latent(image, folder, seed=n)[1] for n, image in enumerate(images)]
        texts = [old.musubi_text(image, f"picture {n}", folder, tokens=3 + n)[1] for n, image in enumerate(images)]
        snapshot = adopt(data, path, **({"caches": folder} if apart else {}))
        for image, latent, text in zip(images, latents, texts, strict=True):
            wanted = {
                "latents": latent["latents_1x10x8_bfloat16"],
                "latents_control_0": latent["latents_control_0_1x10x8_bfloat16"],
            }
            assert alike(*of(trees(path, snapshot, "latent"), image), wanted)
            wanted = {"varlen_vl_embed": text["varlen_vl_embed_bfloat16"]}
            assert alike(*of(trees(path, snapshot, "prompt"), image), wanted)

    def test_ai_toolkit(self, data: Path, path: Path) -> None:
        """bfloat16 latents of a cut and of its mirror image, and embeddings."""
        images = sorted(data.glob("*.png"))
        made = {}
        for number, image in enumerate(images):
            made[image] = [
                old.toolkit_latent(image, scaled=(96, 64), size=(64, 64), flip=flip, seed=2 * number + flip)[1]
                for flip in (False, True)
            ]
            old.toolkit_text(image, f"picture {number}")
        snapshot = adopt(data, path)
        for image in images:
            found = of(trees(path, snapshot, "latent"), image)
            assert all(any(same(one, wanted) for one in found) for wanted in made[image])
        assert snapshot.content.pictures.size.tolist() == [[64, 64]] * 4


def test_entries_say_that_their_encoder_is_not_verified(data: Path, path: Path) -> None:
    """The recipe of every adopted entry says so, and what tool and architecture it came from."""
    for image in data.glob("*.png"):
        old.sd_latent(image, (96, 64))
    adopt(data, path)
    with precook.open(path) as store:
        (form,) = store.recipes().values()
    assert STATUS == "adopted, encoder not verified"
    for part in (b'"adopted"', STATUS.encode(), b"sd-scripts", b"sdxl"):
        assert part in form


def test_no_config_finds_them_by_chance(data: Path, path: Path) -> None:
    """A config over the same pictures, with an encoder of its own, has everything to encode."""
    for image in data.glob("*.png"):
        old.sd_latent(image, (96, 64))
    adopt(data, path)
    sections: dict[str, Any] = {
        "image": {"resolutions": ["96x64"], "step": 8},
        "encoders": {"latent": {"uses": "image"}},
    }
    concepts = [{"name": "old", "path": "data"}]
    with precook.Project(base=data.parent, store="cache", dataset="old", concepts=concepts, **sections) as project:
        assert len(project.plan().missing) == 2


def test_adopted_latents_can_be_trained_from(data: Path, path: Path) -> None:
    """The dataset feeds batches without the pictures or the old files being there."""
    latents = {image: old.sd_latent(image, (96, 64), seed=number)[1] for number, image in enumerate(data.glob("*.png"))}
    for image in latents:
        old.sd_text(image)
    adopt(data, path)
    data.rename(data.with_name("elsewhere"))
    with precook.open(path) as store, store.snapshot("old").feed(batch_size=2) as feed:
        (batch,) = feed.epoch(0)
        assert batch["latent"]["latents"].shape == (2, 4, 8, 12)
        assert batch["prompt"]["hidden_state1"].shape == (2, 77, 8)
        wanted = sorted(latent["latents"].sum() for latent in latents.values())
        assert sorted(batch["latent"]["latents"].sum((1, 2, 3)).tolist()) == pytest.approx(wanted)


def test_nothing_is_stored_before_yes_and_no_file_is_changed(data: Path, path: Path) -> None:
    """A preview makes no store; neither it nor the adoption touches a byte, a time or a mode of the folder."""
    for image in data.glob("*.png"):
        old.sd_latent(image, (96, 64))
    before = old.state(data)
    preview = run("adopt", data, "--store", path)
    assert (preview.code, path.exists()) == (0, False)
    assert "sd-scripts/sdxl: 2 pictures, 2 latents" in preview.out
    assert "--yes" in preview.err
    done = run("adopt", data, "--store", path, "--dataset", "mine", "--yes", "--json")
    assert (done.code, done.document["samples"], done.document["adopted"]) == (0, 2, True)
    assert old.state(data) == before
    with precook.open(path) as store:
        assert store.snapshot("mine").samples == 2


def test_the_store_here_is_found(data: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --store, the store in the working folder is the one, as for every command; else a new one in ./cache."""
    old.sd_latent(data / "p0.png", (96, 64))
    monkeypatch.chdir(data)
    assert run("adopt", data, "--json").document["store"] == "cache"
    with precook.open(path) as store:
        store.put(precook.Recipe("any", {}).key(0), 1)
    monkeypatch.chdir(path)
    assert run("adopt", data, "--json").document["store"] == "."


def test_adopting_again_changes_nothing(data: Path, path: Path) -> None:
    """The same files give the same keys: no entry and no snapshot is added."""
    for image in data.glob("*.png"):
        old.sd_latent(image, (96, 64))
    first = adopt(data, path)
    assert adopt(data, path).file == first.file
    with precook.open(path) as store:
        assert len(store) == 2


def test_what_the_tool_made_anew_is_adopted_anew(data: Path, path: Path) -> None:
    """The same picture cached again by another encoder is another entry, not the old one under its key."""
    for image in data.glob("*.png"):
        old.sd_latent(image, (96, 64), seed=1)
    adopt(data, path)
    made = {image: old.sd_latent(image, (96, 64), seed=2)[1] for image in data.glob("*.png")}
    snapshot = adopt(data, path)
    assert snapshot.file.number == 2
    for image, latent in made.items():
        assert alike(*of(trees(path, snapshot, "latent"), image), latent)


class TestLeftOut:
    """A cache that does not fit its picture is named and left out; the others are adopted."""

    def left_out(self, data: Path, **options: Any) -> str:
        """Why the cache of the first picture is left out, where the second one's is fine."""
        old.sd_latent(data / "p1.png", (96, 64))
        plan = plan_adopt(data, **options)
        assert [sample.picture.name for sample in plan.samples] == ["p1.png"]
        (one,) = plan.left_out
        assert "p0" in one.path.name
        return one.reason

    def test_a_picture_of_another_size(self, data: Path) -> None:
        """The picture was replaced by a larger one under the old name."""
        cache, _ = old.sd_latent(data / "p0.png", (96, 64))
        picture(data / "p0.png", 7, (192, 128))
        os.utime(cache)
        assert self.left_out(data) == "it was made of a picture of 96 x 64, and this one has 192 x 128"

    def test_a_note_of_another_size(self, data: Path) -> None:
        """The name fits, but the file notes another picture's size."""
        cache, arrays = old.sd_latent(data / "p0.png", (96, 64))
        np.savez(cache, **{**arrays, "original_size": np.array([64, 96])})
        assert self.left_out(data) == "it was made of a picture of 64 x 96, and this one has 96 x 64"

    def test_a_name_of_another_size(self, data: Path) -> None:
        """The note fits, but the name is that of another picture's cache."""
        cache, _ = old.sd_latent(data / "p0.png", (96, 64))
        cache.rename(data / "p0_0064x0096_sdxl.npz")
        assert self.left_out(data) == "it was made of a picture of 64 x 96, and this one has 96 x 64"

    def test_a_picture_that_was_edited_since(self, data: Path) -> None:
        """Same size, newer file: nobody can tell, so it is not taken unless the times are said to mean nothing."""
        cache, _ = old.sd_latent(data / "p0.png", (96, 64))
        status = os.stat(data / "p0.png")
        os.utime(cache, ns=(status.st_atime_ns, status.st_mtime_ns - 1))
        assert self.left_out(data) == "it is older than its picture"
        assert len(plan_adopt(data, ignore_times=True).samples) == 2

    def test_a_latent_of_another_shape_than_its_name_says(self, data: Path) -> None:
        """A cache whose arrays contradict each other."""
        width, height = 96, 64
        arrays = {
            "latents_8x12": np.zeros((4, 8, 11), np.float32),
            "original_size_8x12": np.array([width, height]),
            "crop_ltrb_8x12": np.zeros(4),
        }
        np.savez(data / "p0_0096x0064_sdxl.npz", **arrays)
        assert "shape (4, 8, 11)" in self.left_out(data)

    def test_a_file_that_is_cut_off(self, data: Path) -> None:
        """Half a file is no cache."""
        cache, _ = old.sd_latent(data / "p0.png", (96, 64))
        cache.write_bytes(cache.read_bytes()[:100])
        assert "cannot be read" in self.left_out(data)

    def test_a_pickle_in_an_array_is_not_run(self, data: Path) -> None:
        """An array of objects is refused by its header; what it would call does not happen."""
        canary = data.parent / "canary"

        class Hostile:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(canary),)

        arrays = {
            "latents": np.array([Hostile()], object),
            "original_size": np.array([96, 64]),
            "crop_ltrb": np.zeros(4),
        }
        np.savez(data / "p0_0096x0064_sdxl.npz", **arrays)
        assert "Python objects" in self.left_out(data)
        assert not canary.exists()
        with np.load(data / "p0_0096x0064_sdxl.npz", allow_pickle=True) as loaded:
            assert loaded["latents"].shape == (1,)
        assert canary.exists()  # the attack works on a loader that allows it

    def test_two_pictures_of_one_name(self, data: Path) -> None:
        """p0.png and p0.webp share the name of their cache: it belongs to neither."""
        Image.new("RGB", (96, 64)).save(data / "p0.webp")
        old.sd_latent(data / "p0.png", (96, 64))
        assert self.left_out(data) == "p0.png and p0.webp share the names of their caches"


def npz_of(path: Path, latents: bytes, *, method: int | None = None) -> None:
    """An archive of sd-scripts with this as the file of its latents, said to be compressed by some method."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("latents.npy", latents)
        for name, array in {"original_size": np.array([96, 64]), "crop_ltrb": np.zeros(4)}.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
        if method is not None:
            archive.infolist()[0].compress_type = method


def array_file(shape: str, descr: str = "<f4") -> bytes:
    """The beginning of an .npy file."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


class TestHostile:
    """A file that is not what a tool writes costs little, is named with the reason, and stops nothing else."""

    @pytest.fixture
    def bad(self, data: Path) -> Path:
        """Where the first picture's cache would lie; the second picture has a good one."""
        old.sd_latent(data / "p1.png", (96, 64))
        return data / "p0_0096x0064_sdxl.npz"

    def adopted(self, bad: Path, reason: str) -> None:
        """Adopt what is there: the good one is, the bad one is told."""
        done = run("adopt", bad.parent, "--store", bad.parent.parent / "cache", "--ignore-times", "--yes")
        assert done.code == 3, done.err
        assert f"{bad.name}: cannot be read: {reason}" in done.out
        assert "let the tool make it again" in done.out
        assert "adopted 1 sample" in done.out

    def adopted_in_little_memory(self, data: Path, reason: str) -> None:
        """The same with a limit of memory."""
        done = limited("adopt", data, "--store", data.parent / "cache", "--ignore-times", "--yes")
        assert done.returncode == 3, done.stderr
        assert reason in done.stdout
        assert "adopted 1 sample" in done.stdout
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("method", [12, 14, 99])
    def test_a_compression_that_is_not_known(self, bad: Path, method: int) -> None:
        """Whatever other programs compress with, numpy writes two forms only."""
        npz_of(bad, array_file("(4, 8, 12)") + bytes(1536), method=method)
        self.adopted(bad, f"latents.npy is compressed by method {method}; stored and deflated members are read")

    def test_gigabytes_of_zeros_in_a_few_megabytes(self, bad: Path) -> None:
        """What would unfold to a thousand times its bytes is not unfolded."""
        zeros = zlib.compressobj(9, wbits=-15)
        packed = b"".join([zeros.compress(array_file("(4, 16384, 32768)")), *[zeros.compress(bytes(1 << 20))] * 8])
        size = 8 << 30
        with zipfile.ZipFile(bad, "w") as archive:
            archive.writestr("latents.npy", packed + bytes((8 << 20) - len(packed)))
            info = archive.infolist()[0]
            info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, size + 128
        self.adopted_in_little_memory(bad.parent, "its members claim 8.0 GiB, and the file has 8.0 MiB")

    def test_more_than_a_member_claims(self, bad: Path) -> None:
        """A stream that goes on behind the size of its member is not followed."""
        stream = zlib.compressobj(9, wbits=-15)
        packed = stream.compress(array_file("(4, 8, 12)") + bytes(32 << 20)) + stream.flush()
        with zipfile.ZipFile(bad, "w") as archive:
            archive.writestr("latents.npy", packed)
            info = archive.infolist()[0]
            info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, 128 + 1536
            for name, array in {"original_size": np.array([96, 64]), "crop_ltrb": np.zeros(4)}.items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, array)
        done = run("adopt", bad.parent, "--store", bad.parent.parent / "cache", "--ignore-times", "--yes")
        assert done.code == 3, done.err
        assert "Bad CRC-32" in done.out
        assert "adopted 1 sample" in done.out

    @pytest.mark.parametrize(
        ("latents", "reason"),
        [
            (array_file("(4, 8, 12)"), "latents has another size than its shape says"),
            (array_file("(-4, -8, 12)") + bytes(1536), "latents has no header that numpy would write"),
            (array_file(f"({'9' * 5000},)"), "latents has no header"),
            (array_file("(" * 90 + ")" * 90), "latents has no header"),
            (array_file("(4,)", "<U4") + bytes(64), "latents holds elements of type '<U4', which are no numbers"),
            (array_file("(4,)", "<f3") + bytes(12), "latents holds elements of type '<f3', which numpy does not know"),
            (array_file("(4, 8, 12)").replace(b"\x93", b"x") + bytes(1536), "latents is no array"),
            (b"", "latents is no array"),
        ],
        ids=["short", "negative", "digits", "nested", "text", "odd", "magic", "empty"],
    )
    def test_headers_that_no_numpy_writes(self, bad: Path, latents: bytes, reason: str) -> None:
        """They are refused before anything is allocated."""
        npz_of(bad, latents)
        self.adopted(bad, reason)

    def test_a_cache_that_is_no_file(self, bad: Path) -> None:
        """A FIFO is not waited for."""
        os.mkfifo(bad)
        self.adopted(bad, "a FIFO, not a file")

    def test_a_cache_of_holes(self, data: Path) -> None:
        """A file of many gigabytes that takes no room on the disk does not take it in memory."""
        old.musubi_latent(data / "p1.png")
        bad = data / "p0_0096x0064_qi.safetensors"
        side = 1 << 17
        header = json.dumps(
            {
                "__metadata__": {"architecture": "qwen_image", "width": "96", "height": "64"},
                f"latents_1x{side}x{side}_bfloat16": {
                    "dtype": "BF16",
                    "shape": [1, 1, side, side],
                    "data_offsets": [0, 2 * side * side],
                },
            }
        ).encode()
        with bad.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + 2 * side * side)
        self.adopted_in_little_memory(data, f"{bad.name}: 32.0 GiB, of which nearly nothing is on the disk")

    def test_a_header_of_megabytes(self, data: Path) -> None:
        """A header of many tensors takes memory for each of them."""
        good = old.musubi_latent(data / "p1.png")[0]
        header = b'{"x":1}'.ljust(80 << 20)
        (data / "p0_0096x0064_qi.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        plan = plan_adopt(data, ignore_times=True)
        assert [cache.path for sample in plan.samples for cache in sample.latents] == [good]
        assert "its header claims 80.0 MiB" in plan.left_out[0].reason

    def test_a_caption_of_gigabytes(self, bad: Path) -> None:
        """A caption file that is none leaves its picture out."""
        old.sd_latent(bad.with_name("p0.png"), (96, 64))
        os.truncate(bad.with_name("p0.txt"), 64 << 30)
        self.adopted_in_little_memory(bad.parent, "p0.png: larger than 16,777,216 bytes")

    @pytest.mark.parametrize("number", ["[" * 100_000, "9" * 5000, "1e5", "-1"])
    def test_numbers_that_are_none(self, data: Path, number: str) -> None:
        """What a tool notes as a number may be anything."""
        good, bad = (old.musubi_latent(data / f"p{place}.png")[0] for place in (1, 0))
        tensors = {name: old._brain(0, 16, 1, 10, 8) for name in ("latents_1x10x8_bfloat16",)}
        metadata = {"architecture": "qwen_image", "width": number, "height": "64"}
        old.save_file(tensors, bad, metadata=metadata)
        plan = plan_adopt(data, ignore_times=True)
        assert [cache.path for sample in plan.samples for cache in sample.latents] == [good]
        assert plan.left_out[0].reason == f"its width is {number[:60]!r}"


def test_numbers_that_are_not_finite_are_not_adopted(data: Path, path: Path) -> None:
    """A NaN in a cache is found when it is read: its sample is left out, and the exit code says so."""
    cache, arrays = old.sd_latent(data / "p0.png", (96, 64))
    arrays["latents"][0, 0, 0] = np.nan
    np.savez(cache, **arrays)
    old.sd_latent(data / "p1.png", (96, 64))
    done = run("adopt", data, "--store", path, "--yes")
    assert done.code == 3
    assert "not finite" in done.out
    assert "adopted 1 sample" in done.out


def test_an_edited_caption_leaves_its_text_cache_out(data: Path) -> None:
    """musubi-tuner notes the caption in the file: another one is another text, whatever the times say."""
    for number in range(2):
        old.musubi_latent(data / f"p{number}.png")
        old.musubi_text(data / f"p{number}.png", f"picture {number}")
    (data / "p0.txt").write_text("another text\n")
    plan = plan_adopt(data, ignore_times=True)
    assert [sample.picture.name for sample in plan.samples] == ["p1.png"]
    assert {one.path.name: one.reason for one in plan.left_out} == {
        "p0_qi_te.safetensors": "it was made of another caption: 'picture 0'",
        "p0.png": "it has no text cache, and others have",
    }


def test_caches_of_two_tools_are_not_mixed(data: Path, path: Path) -> None:
    """Where several kinds lie side by side, you say which; the error lists them."""
    for image in data.glob("*.png"):
        old.sd_latent(image, (96, 64))
        old.musubi_latent(image)
    asked = run("adopt", data, "--store", path)
    assert asked.code == 1
    assert "musubi-tuner/qwen_image (2), sd-scripts/sdxl (2)" in asked.err
    assert "--only" in asked.err
    assert plan_adopt(data, only="sd-scripts").family == "sd-scripts/sdxl"
    assert plan_adopt(data, only="musubi-tuner/qwen_image").family == "musubi-tuner/qwen_image"


def test_ai_toolkit_cuts_of_another_picture_are_left_out(data: Path) -> None:
    """A cut that no scaling of this picture could give: the picture under this name was another."""
    old.toolkit_latent(data / "p0.png", scaled=(64, 96), size=(64, 64))
    old.toolkit_latent(data / "p1.png", scaled=(96, 64), size=(64, 64))
    plan = plan_adopt(data)
    assert [sample.picture.name for sample in plan.samples] == ["p1.png"]
    assert "another shape" in plan.left_out[0].reason


def test_an_array_larger_than_its_file_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    """A header that claims petabytes costs nothing."""
    path = tmp_path / "bomb.npz"
    header = str({"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)}).ljust(117) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("latents.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    with NpzFile(path) as arrays, pytest.raises(ValueError, match="another size than its shape says"):
        arrays.read("latents")


def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    """Any order, rank and type, compressed or not."""
    arrays = {
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "scalar": np.array(3, np.int16),
        "empty": np.zeros((0, 4), np.float16),
        "big": np.arange(3, dtype=">i4"),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        with NpzFile(tmp_path / "a.npz") as found, np.load(tmp_path / "a.npz") as wanted:
            assert set(found.names) == set(wanted.files)
            for name in found.names:
                assert found.read(name).dtype == wanted[name].dtype
                assert np.array_equal(found.read(name), wanted[name])


class TestConfig:
    """A config that names adopted entries uses them like any other's."""

    def project(self, base: Path, **latent: Any) -> precook.Project:
        """A config over the pictures that takes its latents from what was adopted."""
        section = {
            "uses": "precook.integrations.adopted:Adopted",
            "tool": "sd-scripts",
            "architecture": "sdxl",
            **latent,
        }
        return precook.Project(
            base=base,
            store="cache",
            dataset="mixed",
            concepts=[{"name": "old", "path": "data"}],
            image={"resolutions": ["96x64"], "step": 8},
            encoders={"latent": section, "pixels": {"uses": "image"}},
        )

    def write(self, base: Path, image: str = "{resolutions: [96x64], step: 8}") -> Path:
        config = base / "precook.yaml"
        config.write_text(f"""\
store: cache
dataset: mixed
concepts: [{{name: old, path: data}}]
image: {image}
encoders:
  latent: {{uses: "precook.integrations.adopted:Adopted", tool: sd-scripts, architecture: sdxl}}
  pixels: {{uses: image}}
""")
        return config

    def test_its_plan_finds_them_ready(self, data: Path) -> None:
        """After adopting, only what no tool had cached is built, and a batch holds the old latents bit for bit."""
        latents = [old.sd_latent(image, (96, 64), seed=n)[1] for n, image in enumerate(sorted(data.glob("*.png")))]
        config = self.write(data.parent)
        preview = run("adopt", data, "--config", config)
        assert preview.code == 0
        assert "--yes adopts 2 entries for mixed" in preview.err
        done = run("adopt", data, "--config", config, "--yes")
        assert (done.code, done.out.splitlines()[-1]) == (0, "adopted 2 entries for mixed, 0 before")
        with precook.load(config) as project:
            plan = project.plan()
            assert (len(plan.encoders["latent"].ready), len(plan.encoders["latent"].missing)) == (2, 0)
            assert project.build().encoded == {"latent": 0, "pixels": 2}
            with project.store.snapshot("mixed").feed(batch_size=2) as feed:
                (batch,) = feed.epoch(0)
        found = {one.numpy().tobytes() for one in batch["latent"]}
        assert found == {latent["latents"].tobytes() for latent in latents}
        assert run("adopt", data, "--config", config, "--yes", "--json").document["ready"] == 2

    def test_the_encoder_is_known_by_its_name(self, data: Path) -> None:
        """Given as an object or named in a config, it has the same recipe, with the path that configs hold."""
        with (
            self.project(data.parent) as named,
            precook.Project(
                base=data.parent,
                store="cache",
                dataset="mixed",
                concepts=[{"name": "old", "path": "data"}],
                encoders={"latent": Adopted("sd-scripts", "sdxl")},
            ) as given,
        ):
            forms = [
                project.plan(encoders=["latent"]).encoders["latent"].wants.encoding.recipe.form
                for project in (named, given)
            ]
        assert b'"precook.integrations.adopted:Adopted"' in forms[0]
        assert forms[1].startswith(b'["precook.integrations.adopted:Adopted",')

    def test_another_name_finds_nothing(self, data: Path) -> None:
        """Another architecture in the config is another recipe."""
        for image in data.glob("*.png"):
            old.sd_latent(image, (96, 64))
        run("adopt", data, "--config", self.write(data.parent), "--yes")
        with self.project(data.parent) as project:
            assert len(project.plan(encoders=["latent"]).missing) == 0
        with self.project(data.parent, architecture="sd") as project:
            assert len(project.plan(encoders=["latent"]).missing) == 2

    @pytest.mark.parametrize(
        "image", ["{resolutions: [192x128], step: 8}", "{resolutions: [96x64], step: 8, flip: always}"]
    )
    def test_another_cut_is_not_what_was_cached(self, data: Path, image: str) -> None:
        """A config that cuts to another size, or mirrors, gets none of the old latents; each is named."""
        for path in data.glob("*.png"):
            old.sd_latent(path, (96, 64))
        done = run("adopt", data, "--config", self.write(data.parent, image), "--yes")
        assert done.code == 3
        assert "no latent of the cut" in done.out
        assert "adopted 0 entries" in done.out

    def test_mirrored_latents_serve_mirrored_cuts(self, data: Path) -> None:
        """sd-scripts keeps a mirrored latent beside the other: `flip: always` takes that one."""
        made = [old.sd_latent(path, (96, 64), flipped=True)[1] for path in data.glob("*.png")]
        config = self.write(data.parent, "{resolutions: [96x64], step: 8, flip: always}")
        assert run("adopt", data, "--config", config, "--yes").code == 0
        with precook.load(config) as project:
            (key, _) = project.plan(encoders=["latent"]).ready.keys()
            assert same(project.store.get(key), np.ascontiguousarray(made[0]["latents_flipped"]))

    def test_what_is_missing_cannot_be_built(self, data: Path) -> None:
        """A new picture needs the tool: the build says so rather than mixing encoders."""
        old.sd_latent(data / "p0.png", (96, 64))
        config = self.write(data.parent)
        run("adopt", data, "--config", config, "--yes")
        with precook.load(config) as project, pytest.raises(precook.PrecookError, match="cannot be made here"):
            project.build(fail_fast=True)

    def test_a_config_that_names_another_tool_is_told(self, data: Path) -> None:
        """What was found and what the config names must agree."""
        for image in data.glob("*.png"):
            old.musubi_latent(image)
        done = run("adopt", data, "--config", self.write(data.parent))
        assert done.code == 1
        assert "architecture: qwen_image" in done.err
