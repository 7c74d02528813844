"""Latents of a VAE of diffusers for videos: Wan, HunyuanVideo, LTX, CogVideoX, Mochi and others like them."""

from __future__ import annotations

from precook.encode.encoder import Item
from precook.encode.vae import VaeEncoder, check_pixels
from precook.plan.wanted import Input
from precook.values import Pixels


class VideoVaeEncoder(VaeEncoder):
    """A tensor C x t x h x w for each clip, as the model itself gives it; else all is as with pictures.

    Clips of a number of frames that the model would cut are refused. Nothing of it is compiled.
    """

    input: Input = "video"
    can_compile = False
    _clips = True

    def _pixels(self, batch: list[Item]) -> list[Pixels]:
        """The clips of a batch, each T x H x W x 3."""
        return check_pixels([item.video for item in batch], "clips", "(frames, height, width, 3)")
