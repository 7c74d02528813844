"""The VAE encoder against diffusers itself: the same pictures, the same folder, called by hand.

float32 results on one thread may differ between batch sizes in the last bits: `CLOSE` is what is allowed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from precook import EncodeError
from precook.config import encoders
from precook.encode.encoder import Item
from precook.encode.pixels import MaskEncoder
from precook.encode.vae import VaeEncoder

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
vaes = pytest.importorskip("tests.support.vaes")

pytestmark = pytest.mark.usefixtures("one_thread")

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
QWEN_MEAN, QWEN_STD = [-0.75, 0.5, 0.125, 1.5], [2.0, 0.5, 1.25, 3.0]
Picture = npt.NDArray[np.uint8]


def kl(**fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "block_out_channels": (32, 64),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "sample_size": 32,
    }
    return diffusers.AutoencoderKL(**{**defaults, **fields})


def tiny() -> Any:
    return diffusers.AutoencoderTiny(
        encoder_block_out_channels=(16, 16, 16),
        decoder_block_out_channels=(16, 16),
        num_encoder_blocks=(1, 1, 1),
        num_decoder_blocks=(1, 1),
        scaling_factor=0.5,
        shift_factor=0.25,
    )


def qwen(**fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "base_dim": 8,
        "z_dim": 4,
        "dim_mult": [1, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [True],
        "latents_mean": QWEN_MEAN,
        "latents_std": QWEN_STD,
    }
    return diffusers.AutoencoderKLQwenImage(**{**defaults, **fields})


MODELS: dict[str, Callable[[], Any]] = {
    "kl": kl,
    "flux": lambda: kl(
        latent_channels=16, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False
    ),
    "playground": lambda: kl(latents_mean=QWEN_MEAN, latents_std=QWEN_STD, scaling_factor=0.5),
    "tiny": tiny,
    "qwen": qwen,
    "ltx": lambda: vaes.ltx_model(QWEN_MEAN, QWEN_STD, scaling_factor=0.5),
    "channels": lambda: qwen(input_channels=5),
    "unscaled": lambda: diffusers.AutoencoderKLKVAE(
        channels=32, num_enc_blocks=1, num_dec_blocks=1, z_channels=4, ch_mult=(1, 2)
    ),
    "asymmetric": lambda: diffusers.AsymmetricAutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        down_block_out_channels=(32, 64),
        up_block_types=("UpDecoderBlock2D",) * 2,
        up_block_out_channels=(32, 64),
    ),
    "mistaken": lambda: qwen(latents_mean=[0.0] * 3, latents_std=[1.0] * 3),
    "audio": lambda: diffusers.AutoencoderOobleck(
        encoder_hidden_size=4, downsampling_ratios=[2], channel_multiples=[1], decoder_channels=4
    ),
    "unet": lambda: diffusers.UNet2DModel(
        block_out_channels=(32,), down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",), layers_per_block=1
    ),
}
"""Small models with random weights: SD, FLUX, Playground, TAESD, Qwen-Image and LTX, then what is refused."""
VIDEO = {"qwen", "ltx"}
FACTOR = {"kl": 2, "flux": 2, "playground": 2, "tiny": 4, "qwen": 2, "ltx": 4}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of one of `MODELS`, saved when first asked for."""
    made: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in made:
            torch.manual_seed(0)
            folder = tmp_path_factory.mktemp(name)
            MODELS[name]().save_pretrained(folder)
            made[name] = folder
        return made[name]

    return folder_of


def pictures(count: int, height: int = 16, width: int = 24) -> list[Picture]:
    return list(np.random.default_rng(7).integers(0, 256, (count, height, width, 3), np.uint8))


def encoder(folder: Path, **fields: Any) -> VaeEncoder:
    section = encoders.DiffusersVae(uses="diffusers-vae", model="models/vae", **fields)
    return VaeEncoder(section, folder)


def encode(folder: Path, shown: list[Picture], **fields: Any) -> list[Any]:
    made = encoder(folder, **fields)
    made.load("cpu")
    try:
        return made.encode([Item(image=picture) for picture in shown])
    finally:
        made.unload()


def by_hand(
    folder: Path, name: str, shown: list[Picture], *, dtype: Any = torch.float32, tiling: bool = False
) -> tuple[Any, Any]:
    """Model and output of diffusers for the pictures, prepared by its own image processor."""
    kind = getattr(diffusers, json.loads((folder / "config.json").read_text())["_class_name"])
    model = kind.from_pretrained(folder, torch_dtype=dtype)
    if tiling:
        model.enable_tiling()
    processor = diffusers.image_processor.VaeImageProcessor(do_resize=False)
    inputs = processor.preprocess([Image.fromarray(picture) for picture in shown]).to(dtype).contiguous()
    with torch.no_grad():
        return model, model.encode(inputs.unsqueeze(2) if name in VIDEO else inputs)


def mean_by_hand(folder: Path, name: str, shown: list[Picture], **options: Any) -> Any:
    _, output = by_hand(folder, name, shown, **options)
    mean = output.latents if name == "tiny" else output.latent_dist.mode()
    return mean[:, :, 0] if name in VIDEO else mean


@pytest.mark.parametrize("name", FACTOR)
class TestAgainstDiffusers:
    """What is kept is what the library itself gives."""

    def test_the_mean_is_the_librarys(self, name: str, folder_of: Callable[[str], Path]) -> None:
        """Pictures of a batch get the very latents that diffusers gives for the batch, without the frame dimension."""
        shown = pictures(3)
        results = encode(folder_of(name), shown)
        factor = FACTOR[name]
        assert {tuple(result.shape[1:]) for result in results} == {(16 // factor, 24 // factor)}
        torch.testing.assert_close(torch.stack(results), mean_by_hand(folder_of(name), name, shown), rtol=0, atol=0)

    def test_batches_of_any_size_agree(self, name: str, folder_of: Callable[[str], Path]) -> None:
        """1, 2 or 5 pictures at once: each latent is the one that the library gives for its picture alone."""
        shown = pictures(5)
        alone = [mean_by_hand(folder_of(name), name, [picture])[0] for picture in shown]
        made = encoder(folder_of(name))
        made.load("cpu")
        for size in (1, 2, 5):
            batches = [shown[start : start + size] for start in range(0, 5, size)]
            results = [latent for batch in batches for latent in made.encode([Item(image=one) for one in batch])]
            for result, expected in zip(results, alone, strict=True):
                torch.testing.assert_close(result, expected, **CLOSE)
        made.unload()

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_the_dtype_is_that_of_the_settings(self, name: str, dtype: str, folder_of: Callable[[str], Path]) -> None:
        """The model runs in the dtype asked for, and its latents are kept in it."""
        shown = pictures(2)
        results = torch.stack(encode(folder_of(name), shown, dtype=dtype))
        expected = mean_by_hand(folder_of(name), name, shown, dtype=getattr(torch, dtype))
        assert results.dtype == getattr(torch, dtype)
        torch.testing.assert_close(results, expected, rtol=0, atol=0)

    def test_scaled_latents_are_what_the_pipelines_train_on(self, name: str, folder_of: Callable[[str], Path]) -> None:
        """`scaled` applies the config's shift and scaling, or the mean and deviation of each channel."""
        shown = pictures(2)
        plain = mean_by_hand(folder_of(name), name, shown)
        mean, std = (torch.tensor(numbers).view(1, -1, 1, 1) for numbers in (QWEN_MEAN, QWEN_STD))
        expected = {
            "kl": lambda: plain * 0.18215,
            "flux": lambda: (plain - 0.1159) * 0.3611,
            "playground": lambda: (plain - mean) * 0.5 / std,
            "tiny": lambda: (plain - 0.25) * 0.5,
            "qwen": lambda: (plain - mean) / std,
            "ltx": lambda: (plain - mean) * 0.5 / std,
        }[name]()
        torch.testing.assert_close(torch.stack(encode(folder_of(name), shown, scaled=True)), expected)


@pytest.mark.parametrize("name", ["kl", "flux", "qwen", "ltx"])
class TestPosterior:
    """Sample and moments of VAEs that have a distribution."""

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_sample_is_the_librarys_with_the_pictures_own_seed(
        self, name: str, dtype: str, folder_of: Callable[[str], Path]
    ) -> None:
        """Each latent is what `latent_dist.sample` draws for its picture alone with the seed that is documented."""
        shown = pictures(3)
        results = encode(folder_of(name), shown, posterior="sample", dtype=dtype)
        for picture, result in zip(shown, results, strict=True):
            _, output = by_hand(folder_of(name), name, [picture], dtype=getattr(torch, dtype))
            expected = output.latent_dist.sample(torch.Generator().manual_seed(vaes.noise_seed(picture)))[0]
            expected = expected[:, 0] if name in VIDEO else expected
            torch.testing.assert_close(result, expected, **(CLOSE if dtype == "float32" else {}))

    def test_a_sample_does_not_depend_on_its_batch(self, name: str, folder_of: Callable[[str], Path]) -> None:
        """Other neighbours, another order or a second run draw the same noise; another picture draws another."""
        shown = pictures(3)
        first = encode(folder_of(name), shown, posterior="sample")
        torch.manual_seed(99)
        again = encode(folder_of(name), [shown[2], shown[0]], posterior="sample")
        torch.testing.assert_close(again, [first[2], first[0]], **CLOSE)
        means = encode(folder_of(name), shown)
        noise = [sample - mean for sample, mean in zip(first, means, strict=True)]
        assert float((noise[0] - noise[1]).abs().mean()) > 0.1

    def test_moments_are_the_librarys(self, name: str, folder_of: Callable[[str], Path]) -> None:
        """Mean and logvar are kept as diffusers has them, so that each epoch can draw anew."""
        shown = pictures(2)
        _, output = by_hand(folder_of(name), name, shown)
        for row, result in enumerate(encode(folder_of(name), shown, posterior="moments")):
            assert list(result) == ["mean", "logvar"]
            for part in result:
                expected = getattr(output.latent_dist, part)[row]
                torch.testing.assert_close(result[part], expected[:, 0] if name in VIDEO else expected, rtol=0, atol=0)

    def test_drawing_from_scaled_moments_gives_scaled_latents(
        self, name: str, folder_of: Callable[[str], Path]
    ) -> None:
        """Mean and logvar are scaled together: what is drawn from them is the scaled sample."""
        shown = pictures(2)
        samples = encode(folder_of(name), shown, posterior="sample", scaled=True)
        for picture, moments, expected in zip(
            shown, encode(folder_of(name), shown, posterior="moments", scaled=True), samples, strict=True
        ):
            noise = torch.randn(expected.shape, generator=torch.Generator().manual_seed(vaes.noise_seed(picture)))
            drawn = moments["mean"] + (0.5 * moments["logvar"]).exp() * noise
            torch.testing.assert_close(drawn, expected, **CLOSE)


class TestOptions:
    """Tiling, slicing, and what is true of every result."""

    def test_tiles_are_the_librarys(self, folder_of: Callable[[str], Path]) -> None:
        """With `tiling` large pictures are encoded as diffusers tiles them, and without it they are not."""
        shown = pictures(2, 48, 64)
        tiled = torch.stack(encode(folder_of("kl"), shown, tiling=True))
        torch.testing.assert_close(tiled, mean_by_hand(folder_of("kl"), "kl", shown, tiling=True), rtol=0, atol=0)
        whole = torch.stack(encode(folder_of("kl"), shown))
        torch.testing.assert_close(whole, mean_by_hand(folder_of("kl"), "kl", shown), rtol=0, atol=0)
        assert not torch.allclose(tiled, whole, **CLOSE)

    def test_slices_change_no_value(self, folder_of: Callable[[str], Path]) -> None:
        """`slicing` is no part of the key, and need not be: each latent is the one of its picture alone."""
        shown = pictures(3)
        sliced = encode(folder_of("kl"), shown, slicing=True)
        for picture, result in zip(shown, sliced, strict=True):
            alone = mean_by_hand(folder_of("kl"), "kl", [picture])[0]
            torch.testing.assert_close(result, alone, rtol=0, atol=0)

    @pytest.mark.parametrize("posterior", ["mean", "sample", "moments"])
    @pytest.mark.parametrize("name", ["kl", "qwen"])
    def test_results_stand_alone(self, name: str, posterior: str, folder_of: Callable[[str], Path]) -> None:
        """A tensor holds its own memory and no more, is contiguous, and can be trained on as it is."""
        for result in encode(folder_of(name), pictures(3), posterior=posterior):
            for tensor in result.values() if posterior == "moments" else [result]:
                assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
                assert (tensor.is_contiguous(), tensor.device.type) == (True, "cpu")
                assert (tensor.requires_grad, tensor.is_inference()) == (False, False)

    @pytest.mark.parametrize("posterior", ["mean", "sample", "moments"])
    def test_batches_that_overlap_do_not_mix(self, posterior: str, folder_of: Callable[[str], Path]) -> None:
        """One batch is launched before the other has landed, as on a GPU: each picture still has its own latent."""
        made = encoder(folder_of("kl"), posterior=posterior)
        made.load("cpu")
        shown = pictures(4)
        flights = [made.stage([Item(image=picture) for picture in some]) for some in (shown[:2], shown[2:])]
        for flight in flights:
            flight.launch()
        landed = [tree for flight in flights for tree in flight.land()]
        for tree, alone in zip(landed, encode(folder_of("kl"), shown, posterior=posterior), strict=True):
            for part in alone if posterior == "moments" else [...]:
                torch.testing.assert_close(tree[part], alone[part])

    def test_a_mask_has_the_size_of_the_latent(self, folder_of: Callable[[str], Path]) -> None:
        """With the VAE's factor, mask and latent of one geometry have one height and width."""
        (latent,) = encode(folder_of("kl"), pictures(1))
        mask = np.zeros((16, 24), np.uint8)
        (small,) = MaskEncoder(encoders.MaskSection(uses="mask", factor=2)).encode([Item(mask=mask)])
        assert small.shape[1:] == tuple(latent.shape[1:])

    def test_weights_in_several_files_are_loaded(self, tmp_path: Path) -> None:
        """A folder with an index and shards is as good as one with a single file."""
        torch.manual_seed(0)
        kl().save_pretrained(tmp_path, max_shard_size="300KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 1
        shown = pictures(1)
        expected = mean_by_hand(tmp_path, "kl", shown)
        torch.testing.assert_close(torch.stack(encode(tmp_path, shown)), expected, rtol=0, atol=0)


class TestLoading:
    """When the model comes and goes."""

    def test_unloading_frees_the_model(self, folder_of: Callable[[str], Path]) -> None:
        """After `unload` nothing holds the weights, and the encoder can be loaded again."""
        made = encoder(folder_of("qwen"), scaled=True)
        made.load("cpu")
        (before,) = made.encode([Item(image=pictures(1)[0])])
        assert made._vae is not None
        model = weakref.ref(made._vae.model)
        made.unload()
        assert model() is None
        with pytest.raises(EncodeError, match="not loaded"):
            made.encode([Item(image=pictures(1)[0])])
        made.load("cpu")
        (after,) = made.encode([Item(image=pictures(1)[0])])
        torch.testing.assert_close(after, before, rtol=0, atol=0)

    def test_a_refused_load_keeps_no_model(self, folder_of: Callable[[str], Path]) -> None:
        """An encoder that could not be loaded stays empty, and can be unloaded all the same."""
        made = encoder(folder_of("tiny"), posterior="sample")
        with pytest.raises(EncodeError):
            made.load("cpu")
        assert made._vae is None
        made.unload()

    def test_importing_and_making_it_needs_no_torch(self, tmp_path: Path) -> None:
        """A plan makes encoders without loading them: that imports neither torch nor diffusers."""
        code = """
import sys
from pathlib import Path
from precook.config.encoders import DiffusersVae
from precook.encode.vae import VaeEncoder
VaeEncoder(DiffusersVae(uses="diffusers-vae", model="vae"), Path("vae")).unload()
assert not {"torch", "diffusers", "transformers"} & sys.modules.keys()
"""
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)

    @pytest.mark.parametrize("missing", ["diffusers", "torch"])
    def test_a_missing_library_is_named_with_the_extra_to_install(
        self, missing: str, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the library is not installed the error says what to install."""
        folder = folder_of("kl")
        monkeypatch.setitem(sys.modules, missing, None)  # what an interpreter without it does: the import fails
        with pytest.raises(EncodeError, match=rf"needs {missing}.*pip install 'precook\[{missing}\]'"):
            encoder(folder).load("cpu")

    def test_a_device_that_is_not_there_is_named(self, folder_of: Callable[[str], Path]) -> None:
        """A device this torch cannot use is refused by its name."""
        with pytest.raises(EncodeError, match=r"cannot run on mystery.*set device to"):
            encoder(folder_of("kl")).load("mystery")


class TestRefusals:
    """What cannot be encoded as asked is refused by name, with the next step."""

    @pytest.mark.parametrize(
        ("name", "fields", "message"),
        [
            ("tiny", {"posterior": "sample"}, "AutoencoderTiny has no distribution.*sample.*set posterior to mean"),
            ("tiny", {"posterior": "moments"}, "AutoencoderTiny has no distribution.*moments.*set posterior to mean"),
            ("unscaled", {"scaled": True}, "AutoencoderKLKVAE does not say how its latents are scaled.*set scaled"),
            ("mistaken", {"scaled": True}, "AutoencoderKLQwenImage has latents of 4 channels, and its config scales 3"),
            ("asymmetric", {"tiling": True}, "AsymmetricAutoencoderKL has no tiling.*set tiling to false"),
            ("asymmetric", {"slicing": True}, "AsymmetricAutoencoderKL has no slicing.*set slicing to false"),
            ("channels", {}, "AutoencoderKLQwenImage does not encode a picture of 4 x 4 pixels: .*name the folder"),
            ("audio", {}, "AutoencoderOobleck does not say how much smaller its latents are.*name the folder"),
            ("unet", {}, "UNet2DModel is not a VAE.*such as AutoencoderKL"),
        ],
    )
    def test_a_model_that_cannot_do_it_is_refused_at_load(
        self, name: str, fields: dict[str, Any], message: str, folder_of: Callable[[str], Path]
    ) -> None:
        """The error comes before the first batch, and names the class and the setting."""
        with pytest.raises(EncodeError, match=f"(?s){message}"):
            encoder(folder_of(name), **fields).load("cpu")

    @pytest.mark.parametrize("name", FACTOR)
    @pytest.mark.parametrize(("height", "width"), [(15, 24), (16, 21)])
    def test_a_size_between_latents_is_refused_with_its_numbers(
        self, name: str, height: int, width: int, folder_of: Callable[[str], Path]
    ) -> None:
        """No padding and no cropping behind one's back: the size and the multiple are named."""
        message = rf"{width} x {height} pixels: .* multiples of {FACTOR[name]}.*image\.step"
        with pytest.raises(EncodeError, match=message):
            encode(folder_of(name), pictures(1, height, width))

    @pytest.mark.parametrize(
        "batch",
        [
            [Item(image=pictures(1)[0]), Item(image=pictures(1, 24, 16)[0])],
            [Item(image=pictures(1)[0]), Item()],
            [Item(image=pictures(1)[0][:, :, 0])],
            [Item(image=pictures(1)[0].astype(np.float32))],  # type: ignore[arg-type]
        ],
        ids=["sizes", "nothing", "grey", "floats"],
    )
    def test_what_is_no_batch_of_pictures_is_refused(self, batch: list[Item], folder_of: Callable[[str], Path]) -> None:
        """Two sizes, a missing picture, grey or floats are named, not guessed at."""
        made = encoder(folder_of("kl"))
        made.load("cpu")
        with pytest.raises(EncodeError, match="a batch is pictures of uint8 and one shape"):
            made.encode(batch)
        assert made.encode([]) == []
        made.unload()

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("AutoencoderOfTomorrow", r"diffusers [0-9.]+.* has no AutoencoderOfTomorrow.*pip install -U diffusers"),
            ("StableDiffusionPipeline", "StableDiffusionPipeline is not a VAE"),
            ("DDIMScheduler", "DDIMScheduler is not a VAE"),
            ("utils", "utils is not a VAE"),
            ("__version__", "__version__ is not a VAE"),
            (7, "no _class_name"),
            (None, "no _class_name"),
        ],
    )
    def test_only_vaes_of_diffusers_are_loaded(
        self, name: object, message: str, tmp_path: Path, folder_of: Callable[[str], Path]
    ) -> None:
        """What config.json names is looked up in diffusers alone, and must be a model that encodes."""
        folder = tmp_path / "vae"
        shutil.copytree(folder_of("kl"), folder)
        config = json.loads((folder / "config.json").read_text())
        config["_class_name"] = name
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(EncodeError, match=message):
            encoder(folder).load("cpu")

    def test_pickled_weights_are_refused(self, tmp_path: Path) -> None:
        """A folder with only .bin weights is not loaded: a pickle can run code."""
        kl().save_pretrained(tmp_path, safe_serialization=False)
        with pytest.raises(EncodeError, match=r"only pickled weights \(diffusion_pytorch_model\.bin\).*save"):
            encoder(tmp_path).load("cpu")

    def test_an_index_of_weights_that_names_a_pickle_is_refused(self, tmp_path: Path) -> None:
        """Also beside weights that are none: diffusers would open whatever the index names."""
        kl().save_pretrained(tmp_path, safe_serialization=False)
        index = {"metadata": {}, "weight_map": {"encoder.conv_in.weight": "diffusion_pytorch_model.bin"}}
        (tmp_path / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
        (tmp_path / "other.safetensors").write_bytes(b"")
        with pytest.raises(
            EncodeError, match=r"index\.json names diffusion_pytorch_model\.bin: not a \.safetensors file"
        ):
            encoder(tmp_path).load("cpu")

    def test_a_folder_without_config_is_refused(self, tmp_path: Path, folder_of: Callable[[str], Path]) -> None:
        """The error names the missing file, and where a whole pipeline lies there, the setting that helps."""
        shutil.copy(folder_of("kl") / "diffusion_pytorch_model.safetensors", tmp_path)
        with pytest.raises(EncodeError, match=r"config\.json.*subfolder"):
            encoder(tmp_path).load("cpu")
        (tmp_path / "model_index.json").write_text("{}")
        with pytest.raises(EncodeError, match=r"a whole pipeline, not a VAE.*subfolder to vae"):
            encoder(tmp_path).load("cpu")

    @pytest.mark.parametrize("harm", ["missing", "truncated", "other shape", "not there"])
    def test_weights_that_do_not_fit_are_refused(
        self, harm: str, tmp_path: Path, folder_of: Callable[[str], Path]
    ) -> None:
        """Missing, cut off or foreign weights end in an error that names the folder, never in random latents."""
        from safetensors.torch import load_file, save_file  # noqa: PLC0415 - needs torch

        folder = tmp_path / "vae"
        shutil.copytree(folder_of("kl"), folder)
        file = folder / "diffusion_pytorch_model.safetensors"
        weights = load_file(file)
        if harm == "missing":
            del weights["encoder.conv_in.weight"]
        elif harm == "other shape":
            weights["encoder.conv_in.weight"] = torch.zeros(1)
        if harm == "truncated":
            file.write_bytes(file.read_bytes()[:-100])
        elif harm == "not there":
            file.rename(folder / "diffusion_pytorch_model.fp16.safetensors")
        else:
            save_file(weights, file)
        with pytest.raises(EncodeError, match=f"{folder}: "):
            encoder(folder).load("cpu")


def test_a_batch_has_no_tensor_that_32_bits_cannot_number(tmp_path: Path) -> None:
    """Level by level, of which each has a quarter of the pixels: more are never asked for at a time."""
    for number, channels in enumerate([(32, 64), (32, 160)]):
        folder = tmp_path / str(number)
        kl(block_out_channels=channels).save_pretrained(folder)
        made = encoder(folder)
        assert made.most_work is None, "not before it is loaded"
        made.load("cpu")
        assert made.most_work == (2**31 - 1) // max(channels[0], channels[1] // 4)
        made.unload()
