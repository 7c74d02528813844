"""Pictures as latents."""

from __future__ import annotations

from typing import Any

from mgds.PipelineModule import PipelineModule
from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule


class EncodeVAE(PipelineModule, RandomAccessPipelineModule):
    """Gives what an autoencoder of diffusers makes of a picture."""

    def __init__(self, in_name: str, out_name: str, vae: Any) -> None:
        super().__init__()
        self.in_name = in_name
        self.out_name = out_name
        self.vae = vae

    def length(self) -> int:
        return self._get_previous_length(self.in_name)

    def get_inputs(self) -> list[str]:
        return [self.in_name]

    def get_outputs(self) -> list[str]:
        return [self.out_name]

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        image = self._get_previous_item(variation, self.in_name, index)
        return {self.out_name: self.vae.encode(image.unsqueeze(0)).latent_dist}
