"""Caches as other tools write them, made from their documented formats; for tests."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from PIL import Image
from safetensors.torch import save_file


def _size(picture: Path) -> tuple[int, int]:
    with Image.open(picture) as image:
        return image.size


def _floats(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sd_latent(
    picture: Path, *buckets: tuple[int, int], architecture: str = "sdxl", flipped: bool = False, seed: int = 0
) -> tuple[Path, dict[str, Any]]:
    """sd-scripts: one .npz per picture; SD and SDXL hold one size, the others several. Buckets are (width, height)."""
    width, height = _size(picture)
    arrays: dict[str, Any] = {}
    for number, (across, down) in enumerate(buckets):
        latent = _floats(seed + number, 4, down // 8, across // 8)
        ending = "" if architecture in ("sd", "sdxl", "old") else f"_{down // 8}x{across // 8}"
        arrays[f"latents{ending}"] = latent
        arrays[f"original_size{ending}"] = np.array([width, height])
        arrays[f"crop_ltrb{ending}"] = np.array([0.0, 3.0, float(across), 3.0 + down])
        if flipped:
            arrays[f"latents_flipped{ending}"] = latent[..., ::-1]
            arrays[f"alpha_mask{ending}"] = _floats(seed + 9, down, across)
    name = "" if architecture == "old" else f"_{width:04d}x{height:04d}_{architecture}"
    path = picture.with_name(f"{picture.stem}{name}.npz")
    np.savez(path, **arrays)
    return path, arrays


def sd_text(picture: Path, *, seed: int = 0) -> tuple[Path, dict[str, Any]]:
    """sd-scripts: what SDXL's two text encoders made of a caption."""
    arrays = {
        "hidden_state1": _floats(seed, 77, 8),
        "hidden_state2": _floats(seed + 1, 77, 12),
        "pool2": _floats(seed + 2, 12),
    }
    path = picture.with_name(f"{picture.stem}_te_outputs.npz")
    np.savez(path, **arrays)
    return path, arrays


def flux_text(picture: Path) -> tuple[Path, dict[str, Any]]:
    """sd-scripts: the same for FLUX, with a plain bool among the arrays."""
    arrays = {
        "l_pooled": _floats(1, 8),
        "t5_out": _floats(2, 16, 8),
        "txt_ids": np.zeros((16, 3), np.float32),
        "t5_attn_mask": np.ones(16, np.int64),
        "apply_t5_attn_mask": np.array(True),
    }
    path = picture.with_name(f"{picture.stem}_flux_te.npz")
    np.savez(path, **arrays)
    return path, arrays


def _brain(seed: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def musubi_latent(picture: Path, folder: Path | None = None, *, seed: int = 0) -> tuple[Path, dict[str, Any]]:
    """musubi-tuner: one .safetensors per picture and architecture, the shape and type in the names."""
    width, height = _size(picture)
    tensors = {
        "latents_1x10x8_bfloat16": _brain(seed, 16, 1, 10, 8),
        "latents_control_0_1x10x8_bfloat16": _brain(seed + 1, 16, 1, 10, 8),
    }
    path = (folder or picture.parent) / f"{picture.stem}_{width:04d}x{height:04d}_qi.safetensors"
    metadata = {"architecture": "qwen_image", "width": str(width), "height": str(height), "format_version": "1.0.1"}
    save_file(tensors, path, metadata=metadata)
    return path, tensors


def musubi_text(
    picture: Path, caption: str, folder: Path | None = None, *, tokens: int = 5
) -> tuple[Path, dict[str, Any]]:
    """musubi-tuner: embeddings of one caption, which stands in the metadata."""
    tensors = {"varlen_vl_embed_bfloat16": _brain(tokens, tokens, 8)}
    path = (folder or picture.parent) / f"{picture.stem}_qi_te.safetensors"
    save_file(tensors, path, metadata={"architecture": "qwen_image", "caption1": caption, "format_version": "1.0.1"})
    return path, tensors


def _hashed(picture: Path, facts: dict[str, Any]) -> str:
    content = hashlib.md5(json.dumps(facts, sort_keys=True).encode()).digest()
    return f"{picture.stem}_{base64.urlsafe_b64encode(content).decode().rstrip('=')}.safetensors"


def toolkit_latent(
    picture: Path, *, scaled: tuple[int, int], size: tuple[int, int], flip: bool = False, seed: int = 0
) -> tuple[Path, dict[str, Any]]:
    """ai-toolkit: one .safetensors per cut in `_latent_cache`, the cut in its metadata. Sizes are (width, height)."""
    facts: dict[str, Any] = {
        "filename": picture.name,
        "scale_to_width": scaled[0],
        "scale_to_height": scaled[1],
        "crop_x": (scaled[0] - size[0]) // 2,
        "crop_y": (scaled[1] - size[1]) // 2,
        "crop_width": size[0],
        "crop_height": size[1],
        "latent_space_version": "flux1",
        "latent_version": 1,
        **({"flip_x": True} if flip else {}),
    }
    path = picture.parent / "_latent_cache" / _hashed(picture, facts)
    path.parent.mkdir(exist_ok=True)
    tensors = {"latent": _brain(seed, 16, size[1] // 8, size[0] // 8)}
    metadata = {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}
    save_file(tensors, path, metadata={**metadata, "software": "{}", "format": "pt"})
    return path, tensors


def toolkit_text(picture: Path, caption: str) -> tuple[Path, dict[str, Any]]:
    """ai-toolkit: embeddings of one caption in `_t_e_cache`."""
    facts = {"caption": caption, "text_embedding_space_version": "flux1", "text_embedding_version": 1}
    path = picture.parent / "_t_e_cache" / _hashed(picture, facts)
    path.parent.mkdir(exist_ok=True)
    tensors = {"text_embed": _brain(1, 1, 6, 8), "pooled_embed": _brain(2, 1, 8)}
    save_file(tensors, path)
    return path, tensors


def state(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Everything in a folder: bytes, time and mode of each file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = os.stat(path)
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (content, status.st_mtime_ns, status.st_mode)
    return found


def disk_cache(
    folder: Path, pictures: list[Path], *, variations: int = 1, group: str = "3f" * 32, texts: bool = False
) -> dict[tuple[str, int], dict[str, Any]]:
    """mgds: the files of one group, numbered, and what says which pictures they were made of; nothing, of texts."""
    made = {}
    for variation in range(variations):
        home = folder / group / f"variation-{variation}"
        home.mkdir(parents=True)
        noted = []
        for number, picture in enumerate(pictures):
            width, height = _size(picture)
            if texts:
                item = {"tokens_1": torch.arange(7), "text_encoder_1_hidden_state": torch.ones(7, 4)}
            else:
                item = {
                    "latent_image": torch.full((4, 8, 12), 10.0 * number + variation).bfloat16(),
                    "original_resolution": (height, width),
                    "crop_offset": (0, number),
                }
            made[picture.name, variation] = item
            torch.save(item, home / f"{number}.pt")
            noted.append({} if texts else {"crop_resolution": (64, 96), "image_path": str(picture)})
        torch.save(noted, home / "aggregate.pt")
    return made


def smart_disk_cache(
    folder: Path, pictures: list[Path], *, variations: int = 1, texts: bool = False, model: str = "SDXL"
) -> dict[tuple[str, int], dict[str, Any]]:
    """mgds, pull request 49: files named by their source's content, and an index of the sources."""
    folder.mkdir(parents=True)
    entries, made = {}, {}
    for number, picture in enumerate(pictures):
        source = picture.with_suffix(".txt") if texts else picture
        content = xxhash.xxh64(source.read_bytes()).hexdigest()
        beginning = content[:12] if texts else f"{content[:12]}_64x96"
        for variation in range(variations):
            notes: dict[str, Any] = {"concept": {"name": "cats", "loss_weight": 1.0}}
            if texts:
                item = {"tokens": torch.arange(number, 7), "hidden": torch.full((7, 4), float(number))}
                notes["prompt"] = source.read_text().strip()
            else:
                item = {"latent_image": torch.full((4, 8, 12), 10.0 * number + variation), "crop_resolution": (64, 96)}
            made[picture.name, variation] = item
            path = {} if texts else {"image_path": str(picture)}
            kept = {**item, **path, "__cache_version": 3, "__modeltype": model, "__sourceless_values": notes}
            torch.save(kept, folder / f"{beginning}_{variation + 1}.pt")
        entries[str(source)] = {
            "filename": source.name,
            "hash": content,
            "mtime": source.stat().st_mtime,
            "modeltype": model,
            "variants": {"_" if texts else "64x96": {"cache_file": beginning, "crop_resolution": [64, 96]}},
            "sourceless": {
                "source_path_in_name": "sample_prompt_path" if texts else "image_path",
                "linked_paths": {"image_path": str(picture), "sample_prompt_path": str(picture.with_suffix(".txt"))},
            },
        }
    (folder / "cache.json").write_text(json.dumps({"version": 3, "entries": entries, "hash_index": {}}))
    return made
