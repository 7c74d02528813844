"""Every VAE of diffusers: its latents are those that its own pipelines prepare, bit for bit, or it is refused.

One picture at a time, in float32, with pixels in the order in which training scripts stack them: channel after channel.
Whoever hands a pipeline a picture of Pillow's gets them interleaved, which torch sums up in another order; and in
batches, too, the last bits are others.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from precook import EncodeError
from precook.config import encoders
from precook.encode.encoder import Item
from precook.encode.vae import VaeEncoder

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")

vaes = pytest.importorskip("tests.support.vaes")
autoencoders = pytest.importorskip("diffusers.models.autoencoders")

pytestmark = pytest.mark.usefixtures("one_thread")

NOT_FOR_PICTURES = {
    "AutoencoderKLAllegro": "videos of 24 frames",
    "AutoencoderVidTok": "frames before its first one",
    "AutoencoderKLKVAEAudio": "sound",
    "AutoencoderKLLTX2Audio": "sound",
    "AutoencoderKLMiniMaxH3Audio": "sound",
    "AutoencoderOobleck": "sound",
    "AutoencoderSAME": "sound",
    "Cosmos3AVAEAudioTokenizer": "sound",
    "LongCatAudioDiTVae": "sound",
    "MMAudioVAE": "sound",
    "RFD4ProteinaAutoencoder": "proteins",
}
"""Classes of diffusers that encode something, but no picture."""


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's VAE, saved when first asked for."""
    made: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in made:
            torch.manual_seed(0)
            made[name] = tmp_path_factory.mktemp("vae")
            vaes.FAMILIES[name].make().save_pretrained(made[name])
        return made[name]

    return folder_of


def picture(size: tuple[int, int]) -> Any:
    return np.random.default_rng(5).integers(0, 256, (*size, 3), np.uint8)


def encode(folder: Path, shown: Any, **fields: Any) -> Any:
    """One latent, by the encoder."""
    made = VaeEncoder(encoders.DiffusersVae(uses="diffusers-vae", model="models/vae", **fields), folder)
    made.load("cpu")
    try:
        return made.encode([Item(image=shown)])[0]
    finally:
        made.unload()


def preprocessed(shown: Any) -> Any:
    """The picture as diffusers' own processor gives it to pipelines."""
    return diffusers.image_processor.VaeImageProcessor(do_resize=False).preprocess(Image.fromarray(shown))


def prepared(folder: Path, name: str, shown: Any) -> Any:
    """What the family's pipeline makes of the picture, C x h x w, with the picture's own noise."""
    kind = getattr(diffusers, name.partition(":")[0])
    model = kind.from_pretrained(folder).eval()
    image = preprocessed(shown).contiguous()
    with torch.no_grad():
        latents = vaes.FAMILIES[name].prepare(model, image, torch.Generator().manual_seed(vaes.noise_seed(shown)))
    assert latents.shape[0] == 1
    return latents[0].squeeze(1) if latents.ndim == 5 else latents[0]


@pytest.mark.parametrize("name", vaes.FAMILIES)
def test_a_latent_is_the_pipelines_own(name: str, folder_of: Callable[[str], Path]) -> None:
    """Pixels, shift, scale, means and deviations are applied as the pipeline of that family applies them."""
    family = vaes.FAMILIES[name]
    shown = picture(family.size)
    made = encode(folder_of(name), shown, posterior=family.posterior, scaled=family.scaled)
    expected = prepared(folder_of(name), name, shown)
    torch.testing.assert_close(family.rest(made), expected, rtol=0, atol=0)
    assert float(expected.std()) > 0.001


@pytest.mark.parametrize("name", ["AutoencoderKLFlux2", "AutoencoderKLMochi", "AutoencoderKL: Playground"])
def test_moments_are_scaled_as_the_mean_is(name: str, folder_of: Callable[[str], Path]) -> None:
    """What is drawn from stored moments is a scaled sample: the mean is the mean's, the spread that of the channel."""
    shown = picture(vaes.FAMILIES[name].size)
    plain = encode(folder_of(name), shown, posterior="moments", scaled=True)
    mean = encode(folder_of(name), shown, scaled=True)
    torch.testing.assert_close(plain["mean"], mean, rtol=0, atol=0)
    moved = encode(folder_of(name), shown, posterior="moments")
    moved = {part: tensor.double() for part, tensor in moved.items()}
    if name == "AutoencoderKLFlux2":
        moved = {part: torch.nn.functional.pixel_unshuffle(tensor, 2) for part, tensor in moved.items()}
    raised = moved["mean"] + (0.5 * moved["logvar"]).exp()
    # One deviation above the mean, scaled by the line through two scaled points of each channel.
    slope = (0.5 * (plain["logvar"].double() - moved["logvar"])).exp()
    line = plain["mean"].double() + slope * (raised - moved["mean"])
    torch.testing.assert_close(line, plain["mean"].double() + (0.5 * plain["logvar"].double()).exp())
    spread = (plain["mean"].double() - plain["mean"].double().mean((1, 2), keepdim=True)) / slope
    torch.testing.assert_close(spread, moved["mean"] - moved["mean"].mean((1, 2), keepdim=True), rtol=1e-4, atol=1e-5)


def test_qwen_images_edit_pipeline_differs_in_the_last_bit_alone(folder_of: Callable[[str], Path]) -> None:
    """Its pipelines disagree among themselves: one divides by the deviation, the other multiplies with its inverse."""
    name = "AutoencoderKLQwenImage"
    shown = picture((32, 48))
    model = diffusers.AutoencoderKLQwenImage.from_pretrained(folder_of(name))
    with torch.no_grad():
        edit = vaes.encodes_frame("QwenImageEditPipeline")(model, preprocessed(shown), None)[0, :, 0]
    torch.testing.assert_close(encode(folder_of(name), shown, scaled=True), edit, rtol=3e-7, atol=1e-7)


def test_a_qwen_image_of_layers_gets_an_opaque_picture(tmp_path: Path) -> None:
    """Its VAE takes alpha, too: what is stored is what its pipeline makes of the picture converted to RGBA."""
    torch.manual_seed(0)
    vaes.qwen(input_channels=4).save_pretrained(tmp_path)
    shown = picture((32, 48))
    model = diffusers.AutoencoderKLQwenImage.from_pretrained(tmp_path)
    image = diffusers.image_processor.VaeImageProcessor(do_resize=False).preprocess(
        Image.fromarray(shown).convert("RGBA")
    )
    with torch.no_grad():
        layered = vaes.encodes_frame("QwenImageLayeredPipeline")(model, image, None)[0, :, 0]
    torch.testing.assert_close(encode(tmp_path, shown, scaled=True), layered, rtol=3e-7, atol=1e-6)


def test_every_class_that_encodes_is_tried_or_known_not_to_take_pictures() -> None:
    """A new class in diffusers shows here: nobody can say yet what its pipelines do with a picture."""
    known = {name.partition(":")[0] for name in vaes.FAMILIES} | set(NOT_FOR_PICTURES)
    there = {name for name, part in vars(autoencoders).items() if isinstance(part, type) and hasattr(part, "encode")}
    assert there - known == set()


class TestRefused:
    """What no pipeline makes of a picture is refused by name."""

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda: diffusers.AutoencoderKLAllegro(**ALLEGRO),
                "AutoencoderKLAllegro does not encode a picture: .* 24",
            ),
            (
                lambda: diffusers.AutoencoderVidTok(ch=32, ch_mult=[1, 1, 2, 2], z_channels=4, num_res_blocks=1),
                "AutoencoderVidTok does not encode a picture of",
            ),
            (
                lambda: diffusers.AutoencoderKLLTX2Audio(base_channels=8, ch_mult=(1, 2), num_res_blocks=1),
                "AutoencoderKLLTX2Audio does not encode a picture of",
            ),
            (
                lambda: diffusers.AutoencoderOobleck(
                    encoder_hidden_size=4, downsampling_ratios=[2], channel_multiples=[1], decoder_channels=4
                ),
                "AutoencoderOobleck does not say how much smaller",
            ),
            (
                lambda: diffusers.MMAudioVAE(mel_bins=8, latent_channels=4, hidden_channels=8),
                "MMAudioVAE does not",
            ),
        ],
    )
    def test_a_model_for_something_else(self, tmp_path: Path, make: Callable[[], Any], message: str) -> None:
        """Sound, proteins and longer videos: the sentence names the class."""
        make().save_pretrained(tmp_path)
        with pytest.raises(EncodeError, match=message):
            encode(tmp_path, picture((32, 32)))

    def test_scaling_that_depends_on_what_a_picture_is_for(self, tmp_path: Path) -> None:
        """CogVideoX 1.5 divides a condition by the factor that it multiplies everything else with."""
        model = diffusers.AutoencoderKLCogVideoX(
            latent_channels=4,
            block_out_channels=(8, 8, 8, 8),
            layers_per_block=1,
            norm_num_groups=2,
            invert_scale_latents=True,
        )
        model.save_pretrained(tmp_path)
        with pytest.raises(EncodeError, match=r"scale a picture that they are given .*set scaled to false"):
            encode(tmp_path, picture((32, 32)), scaled=True)
        assert encode(tmp_path, picture((32, 32))).shape == (4, 4, 4)

    def test_a_factor_that_the_pipeline_around_it_leaves_out(self, tmp_path: Path) -> None:
        """GLM-Image takes the same class as Playground, and not its factor: what is equal to one is not the other's."""
        fields = {"latents_mean": vaes.MEAN, "latents_std": vaes.STD}
        vaes.kl(**fields, scaling_factor=0.5).save_pretrained(tmp_path / "vae")
        shown = picture((32, 32))
        alone = encode(tmp_path / "vae", shown, scaled=True)
        (tmp_path / "model_index.json").write_text('{"_class_name": "GlmImagePipeline"}')
        with pytest.raises(
            EncodeError, match=r"GlmImagePipeline leaves the scaling_factor .* out.*set scaled to false"
        ):
            encode(tmp_path / "vae", shown, scaled=True)
        assert encode(tmp_path / "vae", shown).shape == alone.shape
        config = json.loads((tmp_path / "vae/config.json").read_text())
        (tmp_path / "vae/config.json").write_text(json.dumps({**config, "scaling_factor": 1.0}))
        torch.testing.assert_close(encode(tmp_path / "vae", shown, scaled=True), 2 * alone, rtol=0, atol=0)

    def test_patches_of_pictures_that_do_not_come_out_even(self, folder_of: Callable[[str], Path]) -> None:
        """Scaled latents of FLUX.2 are patches of two by two: half a patch is refused with its numbers."""
        folder = folder_of("AutoencoderKLFlux2")
        with pytest.raises(EncodeError, match=r"34 x 32 pixels: AutoencoderKLFlux2 takes multiples of 4.*image\.step"):
            encode(folder, picture((32, 34)), scaled=True)
        assert encode(folder, picture((32, 34))).shape == (4, 16, 17)

    def test_a_picture_that_the_model_would_scale_itself(self, folder_of: Callable[[str], Path]) -> None:
        """AutoencoderRAE squashes whatever it gets into its own square: only that square is taken."""
        with pytest.raises(EncodeError, match=r'48 x 32 pixels: AutoencoderRAE takes 32 x 32 only.*"32x32"'):
            encode(folder_of("AutoencoderRAE"), picture((32, 48)))


ALLEGRO: dict[str, Any] = {
    "block_out_channels": (8, 8),
    "down_block_types": ("AllegroDownBlock3D",) * 2,
    "up_block_types": ("AllegroUpBlock3D",) * 2,
    "temporal_downsample_blocks": (True, False),
    "temporal_upsample_blocks": (False, True),
    "layers_per_block": 1,
    "norm_num_groups": 2,
}
