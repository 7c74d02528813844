"""Vision towers: equal to the model itself, of a sample's own picture or of a further one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from precook.sources.crop import cut
from precook.sources.pictures import decode
from tests.support.projects import picture, project

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.usefixtures("one_thread")


def save(folder: Path, kind: str = "CLIPVisionModelWithProjection") -> Path:
    """A tiny vision tower of CLIP with its processor."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPVisionConfig(**sizes, image_size=32, patch_size=8, projection_dim=8)
    getattr(transformers, kind)(config).save_pretrained(folder)
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    transformers.CLIPImageProcessor(**size).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["CLIPVisionModel", "CLIPVisionModelWithProjection"])
def test_entries_are_what_the_model_makes(tmp_path: Path, kind: str) -> None:
    """Hidden states, pooled output and projection, of the control picture as it is cut."""
    save(tmp_path / "model", kind)
    for number, name in enumerate("ab"):
        picture(tmp_path / f"data/{name}.png", number)
        picture(tmp_path / f"control/{name}.png", 10 + number)
    concepts = [{"name": "a", "path": "data", "images": {"control": "../control/{stem}.png"}}]
    section = {"uses": "transformers-vision", "model": "model", "of": "control", "layers": [-1, 1]}
    model = getattr(transformers, kind).from_pretrained(tmp_path / "model").eval()
    processor = transformers.CLIPImageProcessor.from_pretrained(tmp_path / "model")
    with project(tmp_path, concepts=concepts, encoders={"vision": section}) as opened, torch.inference_mode():
        assert opened.build().encoded == {"vision": 2}
        for entry in opened.plan().ready:
            pixels = decode((tmp_path / "control" / Path(entry.path or "").name).read_bytes())
            shown = Image.fromarray(cut(pixels, entry.geometry))
            made = model(**processor(images=shown, return_tensors="pt"), output_hidden_states=True)
            stored: Any = opened.store.get(entry.key)
            states = torch.stack([made.hidden_states[-1][0], made.hidden_states[1][0]])
            assert torch.allclose(stored["hidden"], states, atol=1e-5)
            pooled = {"pooled": "pooler_output", "image_embeds": "image_embeds"}
            expected = {name: getattr(made, field, None) for name, field in pooled.items()}
            assert set(stored) == {"hidden", *(name for name, value in expected.items() if value is not None)}
            for name, value in expected.items():
                if value is not None:
                    assert torch.allclose(stored[name], value[0], atol=1e-5)
        (batch,) = opened.feed(batch_size=2).epoch(0)
        assert batch["vision"]["hidden"].shape == (2, 2, 17, 16)


def test_a_model_of_texts_and_pictures_is_refused(tmp_path: Path) -> None:
    """With what to save instead; which of its parts is meant is not guessed."""
    save(tmp_path / "model")
    config = (tmp_path / "model/config.json").read_text()
    (tmp_path / "model/config.json").write_text(config.replace("CLIPVisionModelWithProjection", "CLIPModel"))
    picture(tmp_path / "data/a.png", 1)
    encoders = {"vision": {"uses": "transformers-vision", "model": "model"}}
    with (
        project(tmp_path, encoders=encoders) as opened,
        pytest.raises(Exception, match="CLIPModel encodes texts and pictures"),
    ):
        opened.build()
