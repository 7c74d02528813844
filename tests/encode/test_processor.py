"""What processors make of pictures, beside the processor called directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precook.config.encoders import TransformersProcessor
from precook.encode import processor as module
from precook.encode.encoder import Item
from precook.encode.processor import ProcessorEncoder, backend
from precook.errors import EncodeError

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = [(56, 84), (28, 28), (90, 40)]
PROCESSORS: dict[str, dict[str, Any]] = {
    "CLIPImageProcessor": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
    "SiglipImageProcessor": {"size": {"height": 48, "width": 32}},
    "Siglip2ImageProcessor": {"max_num_patches": 16},
    "Qwen2VLImageProcessor": {"min_pixels": 28 * 28, "max_pixels": 16 * 28 * 28},
}


def kind(name: str) -> Any:
    """The class that runs here: one of the two versions has a name of its own, in transformers 4 the other one."""
    if backend() == "torchvision":
        return getattr(transformers, f"{name}Fast", None) or getattr(transformers, name)
    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


def save(folder: Path, name: str) -> Path:
    kind(name)(**PROCESSORS[name]).save_pretrained(folder)
    return folder


def pictures() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3), np.uint8) for size in SIZES]


def loaded(folder: Path, **options: Any) -> ProcessorEncoder:
    section = TransformersProcessor(uses="transformers-processor", model="unused", options=options)
    encoder = ProcessorEncoder(section, folder)
    encoder.load("cpu")
    return encoder


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CLIPImageProcessor", {}),
        ("CLIPImageProcessor", {"do_resize": False, "image_std": [0.1, 0.2, 0.3]}),
        ("SiglipImageProcessor", {}),
        ("SiglipImageProcessor", {"size": {"height": 20, "width": 10}}),
        ("Siglip2ImageProcessor", {}),
        ("Siglip2ImageProcessor", {"do_normalize": False}),
    ],
)
def test_entries_stack_to_what_the_processor_returns(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """Without its batch dimension, each value is what the processor returns for that picture, bit by bit."""
    encoder = loaded(save(tmp_path, name), **options)
    direct = kind(name)(**PROCESSORS[name])
    images = pictures()
    trees = encoder.encode([Item(image=image) for image in images])
    for image, tree in zip(images, trees, strict=True):
        wanted = direct(images=image, return_tensors="pt", **options)
        assert list(tree) == list(wanted)
        for part, value in tree.items():
            assert torch.equal(value[None], wanted[part])
            assert value.dtype == wanted[part].dtype
            assert value.is_contiguous()
    batch = direct(images=images, return_tensors="pt", **options)
    for part in batch:
        assert torch.equal(torch.stack([tree[part] for tree in trees]), batch[part])


def test_patches_of_qwen_join_to_what_the_processor_returns(tmp_path: Path) -> None:
    """Qwen2-VL lays patches end to end: each entry has its own, and joined they are the batch with its grid."""
    encoder = loaded(save(tmp_path, "Qwen2VLImageProcessor"))
    images = pictures()
    trees = encoder.encode([Item(image=image) for image in images])
    batch = kind("Qwen2VLImageProcessor")(**PROCESSORS["Qwen2VLImageProcessor"])(images=images, return_tensors="pt")
    assert [list(tree) for tree in trees] == [["pixel_values", "image_grid_thw"]] * 3
    for tree in trees:
        assert tree["image_grid_thw"].shape == (1, 3)
        assert tree["pixel_values"].shape[0] == tree["image_grid_thw"].prod()
    for part in batch:
        assert torch.equal(torch.cat([tree[part] for tree in trees]), batch[part])


def test_a_whole_processor_is_used_for_its_pictures(tmp_path: Path) -> None:
    """A folder of a processor with several parts gives what its image processor gives."""
    from tests.encode.test_tokens import save_tokenizer  # noqa: PLC0415

    tokenizer = transformers.AutoTokenizer.from_pretrained(save_tokenizer(tmp_path / "tokenizer"))
    part = kind("CLIPImageProcessor")(**PROCESSORS["CLIPImageProcessor"])
    transformers.CLIPProcessor(part, tokenizer).save_pretrained(tmp_path / "whole")
    (image, *_) = pictures()
    (tree,) = loaded(tmp_path / "whole").encode([Item(image=image)])
    assert torch.equal(tree["pixel_values"][None], part(images=image, return_tensors="pt")["pixel_values"])


def test_a_picture_three_pixels_high_keeps_its_colours(tmp_path: Path) -> None:
    """Three rows of pixels are not mistaken for three colours."""
    image = np.zeros((3, 40, 3), np.uint8)
    image[..., 0] = 255
    options = {"do_resize": False, "do_center_crop": False, "do_normalize": False}
    (tree,) = loaded(save(tmp_path, "CLIPImageProcessor"), **options).encode([Item(image=image)])
    assert tree["pixel_values"].shape == (3, 3, 40)
    assert tree["pixel_values"].amax((1, 2)).tolist() == [1, 0, 0]


@pytest.mark.parametrize("name", PROCESSORS)
def test_an_option_that_the_processor_does_not_take_is_refused_at_load(tmp_path: Path, name: str) -> None:
    """A misspelt option is one error that names it, not one for each picture."""
    with pytest.raises(EncodeError, match="do_resiz"):
        loaded(save(tmp_path, name), do_resiz=False)


def test_options_that_are_ours_are_refused(tmp_path: Path) -> None:
    """What we pass ourselves cannot be passed again."""
    with pytest.raises(EncodeError, match="return_tensors is not yours to set"):
        loaded(save(tmp_path, "CLIPImageProcessor"), return_tensors="np")


@pytest.mark.skipif(backend() == "torchvision", reason="both versions run here, so either can be had")
def test_another_backend_than_the_recipes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe names the version whose pixels are stored; a processor that only runs in the other is refused."""
    folder = save(tmp_path, "CLIPImageProcessor")
    monkeypatch.setattr(module, "backend", lambda: "torchvision")
    with pytest.raises(EncodeError, match=r"CLIPImageProcessor.* runs on pil, the recipe says torchvision"):
        loaded(folder)


def test_several_results_for_one_picture_are_refused(tmp_path: Path) -> None:
    """A processor that cuts a wide picture into crops cannot keep them under one: nothing is dropped silently."""
    options = {"pan_and_scan_min_crop_size": 8, "pan_and_scan_max_num_crops": 4}
    options["pan_and_scan_min_ratio_to_activate"] = 1.2
    kind("Gemma3ImageProcessor")(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    encoder = loaded(tmp_path, do_pan_and_scan=True, **options)
    square, wide = np.zeros((32, 32, 3), np.uint8), np.zeros((32, 96, 3), np.uint8)
    assert encoder.encode([Item(image=square)])[0]["pixel_values"].shape == (3, 16, 16)
    with pytest.raises(EncodeError, match="pixel_values of one picture"):
        encoder.encode([Item(image=wide)])


def test_a_folder_without_a_processor_is_refused(tmp_path: Path) -> None:
    """The error names the folder and what could not be loaded from it."""
    with pytest.raises(EncodeError, match="the processor cannot be loaded") as refusal:
        loaded(tmp_path)
    assert str(tmp_path) in str(refusal.value)


def test_code_in_the_folder_is_never_run(tmp_path: Path) -> None:
    """A processor that needs code of its own is refused, without asking and without running it."""
    (tmp_path / "evil.py").write_text("raise SystemExit('this ran')")
    (tmp_path / "preprocessor_config.json").write_text('{"auto_map": {"AutoImageProcessor": "evil.Evil"}}')
    with pytest.raises(EncodeError, match="the processor cannot be loaded"):
        loaded(tmp_path)


def test_an_unloaded_encoder_says_so(tmp_path: Path) -> None:
    """Encoding before load or after unload is an error that names the next step."""
    encoder = loaded(save(tmp_path, "CLIPImageProcessor"))
    encoder.unload()
    with pytest.raises(EncodeError, match=r"not loaded \(call load"):
        encoder.encode([Item(image=pictures()[0])])
