"""One process of a diffusers example script, as it is or changed: `diffusers_script.py RECORD SCRIPT OPTIONS`.

What the script trains on is recorded where it leaves the script's hands, one line of JSON for each step of each
process, in RECORD with the process' number: digests of the latents that it makes noise for and of what it gives the
denoiser beside them, and the learning rates that the optimizer steps with. With KILLED_AT in the environment the first
process is killed when it begins the step of that number, counted from 0.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import tests.clients.torchvision_operators  # noqa: F401 - before all that imports torchvision

# isort: split
import diffusers
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from precook import digest

DENOISERS = (diffusers.UNet2DConditionModel, diffusers.FluxTransformer2DModel, diffusers.QwenImageTransformer2DModel)
CONDITIONS = (
    *("encoder_hidden_states", "encoder_hidden_states_mask", "pooled_projections", "txt_ids"),
    *("text_embeds", "time_ids"),
)
"""What is recorded of a denoiser's arguments, where it gets them."""


def told(tensor: Any) -> str:
    """A digest of a tensor's numbers, type and shape."""
    tensor = tensor.detach().cpu().contiguous()
    numbers = tensor.flatten().view(torch.uint8).numpy().tobytes()
    return digest(f"{tensor.dtype} {tuple(tensor.shape)} {numbers.hex()}").hex


def watch(record: Path) -> None:
    """Record what each step trains on."""
    process = int(os.environ.get("RANK", "0"))
    killed_at = int(os.environ.get("KILLED_AT", "-1"))
    file = record.with_name(f"{record.name}.{process}").open("a")
    randn_like, latents, steps = torch.randn_like, [], 0

    def noise(latent: Any, **options: Any) -> Any:
        latents.append(told(latent))
        return randn_like(latent, **options)

    def write(line: dict[str, Any]) -> None:
        file.write(json.dumps(line) + "\n")
        file.flush()

    def recorded(forward: Any) -> Any:
        def inner(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            if latents:  # not in validation, which begins with noise alone
                if steps == killed_at and process == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                steps += 1
                given = {**kwargs, **(kwargs.get("added_cond_kwargs") or {})}
                if len(args) > 2:
                    given["encoder_hidden_states"] = args[2]
                write({"latents": latents.pop(), **{name: told(given[name]) for name in CONDITIONS if name in given}})
            return forward(self, *args, **kwargs)

        return inner

    torch.randn_like = noise
    for kind in DENOISERS:
        kind.forward = recorded(kind.forward)
    register_optimizer_step_pre_hook(lambda optimizer, *_: write({"rate": optimizer.param_groups[0]["lr"]}))


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
    sys.argv[:2] = []
    runpy.run_path(sys.argv[0], run_name="__main__")
