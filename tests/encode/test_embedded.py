"""Pictures in tables through a real VAE: what was encoded of files is there for the table, and the other way round."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

pytestmark = pytest.mark.usefixtures("one_thread")


def encoded(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (48, 64, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def project(base: Path, **concept: Any) -> precook.Project:
    return precook.Project(
        base=base,
        dataset="pictures",
        concepts=[{"name": "pictures", **concept}],
        image={"resolutions": ["64x48"], "step": 16},
        encoders={"latent": {"uses": "diffusers-vae", "model": "vae", "dtype": "float32", "device": "cpu"}},
    )


@pytest.mark.parametrize("form", ["parquet", "save_to_disk"])
def test_latents_of_a_table_are_those_of_the_same_pictures_as_files(tmp_path: Path, form: str) -> None:
    """Built from files first, the table encodes nothing; a row in a new shard encodes one picture, and equal bytes."""
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    diffusers.AutoencoderKL(block_out_channels=(32,), sample_size=32, **blocks).save_pretrained(tmp_path / "vae")
    (tmp_path / "files").mkdir()
    for number in range(3):
        (tmp_path / f"files/{number}.png").write_bytes(encoded(number))
    datasets.disable_progress_bars()
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})

    def hub(*numbers: int) -> Any:
        rows = [{"image": {"bytes": encoded(number), "path": None}, "text": str(number)} for number in numbers]
        return datasets.Dataset.from_list(rows, features=features)

    with project(tmp_path, path="files", captions={"text": "a picture"}) as files:
        assert files.plan().build().encoded == {"latent": 3}
        before = {entry.key: files.store.get(entry.key) for entry in files.plan().ready}
    if form == "parquet":
        hub(0, 1, 2).to_parquet(tmp_path / "data/train-00000-of-00001.parquet")
    else:
        hub(0, 1, 2).save_to_disk(tmp_path / "data")
    with project(tmp_path, path="data", captions={"column": "text"}) as table:
        plan = table.plan()
        assert plan.build().encoded == {"latent": 0}
        assert {entry.key for entry in plan.ready} == set(before)
        if form == "parquet":
            hub(7).to_parquet(tmp_path / "data/train-00001-of-00002.parquet")
        else:
            hub(0, 1, 2, 7).save_to_disk(tmp_path / "more")
    with project(tmp_path, path="data" if form == "parquet" else "more", captions={"column": "text"}) as more:
        assert more.plan().build().encoded == {"latent": 1}
        made = {entry.key: more.store.get(entry.key) for entry in more.plan().ready if entry.key not in before}
    (tmp_path / "files/7.png").write_bytes(encoded(7))
    with project(tmp_path, path="files", captions={"text": "a picture"}) as files:
        plan = files.plan()
        assert not plan.missing
        [(key, latent)] = made.items()
        assert key in {entry.key for entry in plan.ready}
        assert latent.shape == (4, 48, 64)
