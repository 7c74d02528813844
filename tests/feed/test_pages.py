"""Pages of documents at their own size: what a feed hands out is what the model's own processor makes of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import precook
from tests.encode.test_processor import kind
from tests.support import pipelines
from tests.support.feeds import equal
from tests.support.projects import Watched, picture, project

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PAGE = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN = ("Qwen2VLImageProcessor", {"min_pixels": 28 * 28, "max_pixels": 36 * 28 * 28})
IDEFICS = ("Idefics3ImageProcessor", {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}})


def pages(base: Path, count: int = 20) -> Path:
    """Pages of odd sizes, lying and standing, with a text beside each."""
    sizes = np.random.default_rng(0).integers(20, 400, (count, 2)).tolist()
    for number, (width, height) in enumerate(sizes):
        picture(base / f"data/p{number:02}.png", number, (width, height))
        (base / f"data/p{number:02}.txt").write_text(f"a page with the number {number}")
    return base


def saved(folder: Path, made: tuple[str, dict[str, Any]]) -> Any:
    """An image processor, and its folder written."""
    name, settings = made
    processor = kind(name)(**settings)
    processor.save_pretrained(folder)
    return processor


def owner_of(base: Path, *, image: dict[str, Any] | None = None, **section: Any) -> precook.Project:
    """A project of pages at their own size."""
    encoders = {"inputs": {"uses": "transformers-processor", "model": "processor", **section}}
    return project(base, image=image or {"resolutions": "native"}, encoders=encoders, keep=["captions"])


def files(owner: precook.Project) -> dict[str, Image.Image]:
    """Each page as Pillow reads it, by its sample."""
    samples = owner.plan().samples
    opened = {samples.id(number).hex(): Image.open(samples.path(number)) for number in range(samples.count)}
    return {sample: image.convert("RGB") for sample, image in opened.items()}


def test_batches_of_pages_are_what_qwens_processor_returns_for_them(tmp_path: Path) -> None:
    """Patches of all pages lie end to end and grids are stacked, bit by bit as in a live call; edges tell them."""
    processor = saved(pages(tmp_path) / "processor", QWEN)
    with owner_of(tmp_path) as owner:
        assert owner.build().encoded == {"inputs": 20}
        images = files(owner)
        feed = owner.feed(batch_size=8)
        batches = list(feed.epoch(0))
        assert [len(batch["sample"]) for batch in batches].count(8) == 2, "pages of all sizes fill a batch"
        for batch in batches:
            shown = [images[sample] for sample in batch["sample"]]
            live = processor(images=shown, return_tensors="pt")
            inputs = batch["inputs"]
            assert list(inputs) == ["pixel_values", "image_grid_thw", "cu_seqlens"]
            assert torch.equal(inputs["pixel_values"], live["pixel_values"])
            assert torch.equal(inputs["image_grid_thw"], live["image_grid_thw"])
            patches = [processor.get_number_of_image_patches(image.height, image.width, {}) for image in shown]
            assert inputs["cu_seqlens"].diff().tolist() == patches
            assert inputs["cu_seqlens"].dtype == torch.int32
            assert batch["size"] is None
            assert batch["target_size"].tolist() == [[image.height, image.width] for image in shown]
            assert torch.equal(batch["target_size"], batch["original_size"])
        assert equal(batches, owner.store.snapshot("test").feed(batch_size=8).epoch(0))
        numpy = owner.feed(batch_size=8, tensors="numpy").epoch(0)
        assert all(
            np.array_equal(one["inputs"]["cu_seqlens"], other["inputs"]["cu_seqlens"].numpy())
            for one, other in zip(numpy, batches, strict=True)
        )


def test_a_training_step_of_qwen_on_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny Qwen2.5-VL learns from a batch of the feed as from a live call of its processor, token for token."""
    images = saved(pages(tmp_path, 6) / "processor", QWEN)
    tokenizer = pipelines._qwen_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION)})
    # Its processor of videos wants torchvision, and pages are none.
    monkeypatch.setattr(transformers.Qwen2_5_VLProcessor, "check_argument_for_proper_class", lambda *_: None)
    live_processor = transformers.Qwen2_5_VLProcessor(image_processor=images, tokenizer=tokenizer)
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(VISION))
    rope = {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"}
    sight = {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": pipelines.WIDTH}
    config = transformers.Qwen2_5_VLConfig(
        text_config=pipelines._sizes(tokenizer, num_key_value_heads=2, rope_scaling=rope, rope_theta=10000.0),
        vision_config={**sight, "fullatt_block_indexes": [1]},
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
    )
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    with owner_of(tmp_path) as owner:
        owner.build()
        opened = files(owner)
        (batch,) = owner.feed(batch_size=6).epoch(0)
        inputs = batch["inputs"]
        # As the processor itself does it: a token for every four patches.
        counts = (inputs["image_grid_thw"].prod(dim=1) // images.merge_size**2).tolist()
        texts = [
            PAGE.replace(VISION[2], VISION[2] * count) + caption
            for count, caption in zip(counts, batch["caption"], strict=True)
        ]
        tokens = tokenizer(texts, padding=True, return_tensors="pt")
        live = live_processor(
            images=[opened[sample] for sample in batch["sample"]],
            text=[PAGE + caption for caption in batch["caption"]],
            padding=True,
            return_tensors="pt",
        )
        assert torch.equal(tokens["input_ids"], live["input_ids"])
        given = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        kinds = {"mm_token_type_ids": (tokens["input_ids"] == image).int()}
        unlearnt = (tokens["attention_mask"] == 0) | (tokens["input_ids"] == image)
        labels = tokens["input_ids"].masked_fill(unlearnt, -100)
        loss = model(**tokens, **given, **kinds, labels=labels).loss
        expected = model(**{**live, **kinds}, labels=labels).loss
        assert torch.equal(loss, expected)
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()
        assert model(**tokens, **given, **kinds, labels=labels).loss < loss
        seen = model.model.visual.patch_embed.proj.weight.grad
        assert seen.abs().sum() > 0, "it has looked at the pages"


def test_a_training_step_of_idefics_on_a_batch(tmp_path: Path) -> None:
    """Idefics3 cuts a page into tiles, and pads the batch to the most: so does the feed, and tells which are real."""
    images = saved(pages(tmp_path, 6) / "processor", IDEFICS)
    tokenizer = pipelines._qwen_tokenizer()
    live_processor = transformers.Idefics3Processor(image_processor=images, tokenizer=tokenizer, image_seq_len=4)
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**pipelines._sizes(tokenizer, num_key_value_heads=2)),
        vision_config={
            "image_size": 32,
            "patch_size": 8,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        scale_factor=2,
        image_token_id=live_processor.image_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = transformers.Idefics3ForConditionalGeneration(config)
    with owner_of(tmp_path) as owner:
        owner.build()
        opened = files(owner)
        (batch,) = owner.feed(batch_size=6).epoch(0)
        live = live_processor(
            images=[[opened[sample]] for sample in batch["sample"]],
            text=[f"<image>{caption}" for caption in batch["caption"]],
            padding=True,
            return_tensors="pt",
        )
        inputs = batch["inputs"]
        assert torch.equal(inputs["pixel_values"], live["pixel_values"])
        assert torch.equal(inputs["pixel_attention_mask"], live["pixel_attention_mask"])
        assert len(set(inputs["mask"].sum(dim=1).tolist())) > 1, "pages of several numbers of tiles"
        counts = (live["input_ids"] == live_processor.image_token_id).sum(dim=1)
        assert torch.equal(inputs["mask"].sum(dim=1) * live_processor.image_seq_len, counts)
        given = {name: inputs[name] for name in ("pixel_values", "pixel_attention_mask")}
        tokens = {name: live[name] for name in ("input_ids", "attention_mask")}
        loss = model(**tokens, **given, labels=live["input_ids"]).loss
        assert torch.equal(loss, model(**live, labels=live["input_ids"]).loss)
        loss.backward()
        assert torch.isfinite(loss)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("PixtralImageProcessor", {"size": {"longest_edge": 64}, "patch_size": {"height": 8, "width": 8}}),
        ("LlavaNextImageProcessor", {"crop_size": {"height": 16, "width": 16}, "size": {"shortest_edge": 16}}),
        ("SiglipImageProcessor", {"size": {"height": 16, "width": 16}}),
        ("Siglip2ImageProcessor", {"max_num_patches": 16}),
    ],
)
def test_batches_are_filled_up_as_processors_do(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    """Pictures of other sizes than the largest are filled up with zeros, tiles too, and nothing else is changed."""
    processor = saved(pages(tmp_path, 8) / "processor", (name, settings))
    with owner_of(tmp_path) as owner:
        owner.build()
        images = files(owner)
        (batch,) = owner.feed(batch_size=8).epoch(0)
        live = processor(images=[images[sample] for sample in batch["sample"]], return_tensors="pt")
        assert set(live) <= set(batch["inputs"])
        for part in live:
            assert torch.equal(batch["inputs"][part], live[part]), part


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_dtype_is_that_of_the_processors_numbers_rounded(tmp_path: Path, dtype: str) -> None:
    """Numbers with a fraction are rounded as `BatchFeature.to` rounds them; grids stay whole numbers."""
    processor = saved(pages(tmp_path, 3) / "processor", QWEN)
    with owner_of(tmp_path, dtype=dtype) as owner:
        owner.build()
        images = files(owner)
        (batch,) = owner.feed(batch_size=3).epoch(0)
        live = processor(images=[images[sample] for sample in batch["sample"]], return_tensors="pt")
        assert batch["inputs"]["pixel_values"].dtype == getattr(torch, dtype)
        assert torch.equal(batch["inputs"]["pixel_values"], live["pixel_values"].to(getattr(torch, dtype)))
        assert batch["inputs"]["image_grid_thw"].dtype == torch.int64


def test_a_page_that_the_processor_refuses_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    """A strip of 1 x 20000 pixels is too long for Qwen: it is named with the processor's reason, and left out."""
    saved(pages(tmp_path, 4) / "processor", QWEN)
    picture(tmp_path / "data/strip.png", 40, (1, 20_000))
    with owner_of(tmp_path) as owner:
        report = owner.build()
        assert report.encoded == {"inputs": 4}
        (failure,) = owner.plan().failed
        assert failure.path == "strip.png"
        assert "aspect ratio" in failure.reason
        (batch,) = owner.feed(batch_size=8).epoch(0)
        assert len(batch["sample"]) == 4


def test_pads_of_ones_own_choice(tmp_path: Path) -> None:
    """What lies end to end by itself may be padded or listed; an item alone has all of its own."""
    saved(pages(tmp_path, 5) / "processor", QWEN)
    with owner_of(tmp_path) as owner:
        owner.build()
        (joined,) = owner.feed(batch_size=5).epoch(0)
        (padded,) = owner.feed(batch_size=5, pad={"inputs": "longest"}).epoch(0)
        (listed,) = owner.feed(batch_size=5, pad={"inputs": "list"}).epoch(0)
        for batch in (padded, listed):
            assert batch["sample"] == joined["sample"]
        patches = joined["inputs"]["pixel_values"]
        lengths = joined["inputs"]["cu_seqlens"].diff().tolist()
        assert torch.equal(padded["inputs"]["pixel_values"][padded["inputs"]["mask"]], patches)
        assert padded["inputs"]["image_grid_thw"].shape == (5, 1, 3)
        assert [len(one) for one in listed["inputs"]["pixel_values"]] == lengths
        assert torch.equal(torch.cat(listed["inputs"]["pixel_values"]), patches)
        feed = owner.feed(batch_size=5)
        for number in range(5):
            item = feed.dataset()[number]
            at = joined["sample"].index(item["sample"])
            assert torch.equal(item["inputs"]["pixel_values"], patches.split(lengths)[at])
            assert torch.equal(item["inputs"]["image_grid_thw"], joined["inputs"]["image_grid_thw"][at][None])


def test_entries_of_ones_own_encoder_are_joined_where_that_is_asked_for(tmp_path: Path) -> None:
    """`join` lays any entries end to end; each leaf that has lengths of its own gets its edges, a lone tensor, too."""
    pages(tmp_path, 4)

    def rows(item: precook.Item) -> Any:
        assert item.image is not None
        return item.image.reshape(-1, 3)[: item.image.shape[0]]

    def trees(item: precook.Item) -> Any:
        return {"rows": rows(item), "few": rows(item)[:2], "one": np.zeros((1, 2))}

    encoders = {"lone": Watched("image", rows), "tree": Watched("image", trees, identity=2)}
    with project(tmp_path, image={"resolutions": "native"}, encoders=encoders) as owner:
        owner.build()
        with owner.feed(batch_size=4) as by_size:
            assert len(by_size) == 4, "nobody knows how entries of other sizes go together"
            assert all(batch["size"] == tuple(batch["target_size"][0].tolist()) for batch in by_size.epoch(0))
        feed = owner.feed(batch_size=4, pad={"lone": "join", "tree": "join"})
        (batch,) = feed.epoch(0)
        heights = batch["target_size"][:, 0].tolist()
        assert batch["lone"].shape == (sum(heights), 3)
        assert batch["lone_cu_seqlens"].diff().tolist() == heights
        assert list(batch["tree"]) == ["rows", "few", "one", "rows_cu_seqlens", "few_cu_seqlens"]
        assert torch.equal(batch["tree"]["rows"], batch["lone"])
        assert batch["tree"]["one"].shape == (4, 2)
        item = feed.dataset()[0]
        assert item["lone_cu_seqlens"].tolist() == [0, len(item["lone"])]


def test_what_cannot_be_joined_is_refused_by_name(tmp_path: Path) -> None:
    """Entries that differ in more than their length, and lists without a place for edges, when the feed is made."""
    pages(tmp_path, 2)
    with project(tmp_path, image={"resolutions": "native"}, encoders={"pixels": {"uses": "image"}}) as owner:
        owner.build()
        with pytest.raises(precook.FeedError, match=r"pixels: .* differ in more than length"):
            owner.feed(batch_size=2, pad={"pixels": "join"})
        (batch,) = owner.feed(batch_size=2, pad={"pixels": "list"}).epoch(0)
        assert [list(one.shape[:2]) for one in batch["pixels"]] == batch["target_size"].tolist()
        with pytest.raises(precook.FeedError, match='"join" or a length'):
            owner.feed(batch_size=2, pad={"pixels": "joined"})
    listing = Watched("image", lambda item: [np.zeros((len(item.image), 1))])  # type: ignore[arg-type]
    with project(tmp_path, image={"resolutions": "native"}, encoders={"mine": listing}) as owner:
        owner.build()
        with pytest.raises(precook.FeedError, match="no place for the lengths"):
            owner.feed(batch_size=2, pad={"mine": "join"})
    # Of different lengths in one size: they would be padded, and the mask has no place either.
    texts = Watched("text", lambda item: [np.zeros(len(item.text or ""))])
    for number in range(2):
        (tmp_path / f"data/p{number}.txt").write_text("a" * (number + 1))
    with project(tmp_path, encoders={"words": texts}) as owner:
        owner.build()
        with pytest.raises(precook.FeedError, match="words: a list has no place for the mask"):
            owner.feed(batch_size=2)


def test_masks_lie_end_to_end_with_and_without_white_ones(tmp_path: Path) -> None:
    """A batch in which a sample has no mask has the shape of one in which each has."""
    for number in range(2):
        picture(tmp_path / f"{'ab'[number]}/p.png", number, (64, 64))
    Image.new("L", (64, 64), 0).save(tmp_path / "a/p-mask.png")
    concepts = [{"name": "a", "path": "a", "masks": "{stem}-mask.png"}, {"name": "b", "path": "b"}]
    with project(tmp_path, concepts=concepts, encoders={"mask": {"uses": "mask", "factor": 8}}) as owner:
        owner.build()
        (batch,) = owner.feed(batch_size=2, pad={"mask": "join"}).epoch(0)
        assert batch["mask"].shape == (2, 8, 8)
        assert batch["mask"].mean(dim=(1, 2)).tolist() == [float(name == "b") for name in batch["concept"]]


def test_masks_of_pages_without_one_have_the_size_of_their_page(tmp_path: Path) -> None:
    """Beside each other in a list, a white mask is as large as its own picture, whoever is first in the batch."""
    pages(tmp_path, 3)
    picture(tmp_path / "others/q.png", 50, (40, 80))
    picture(tmp_path / "others/q-masklabel.png", 51, (40, 80))
    concepts = [
        {"name": "pages", "path": "data"},
        {"name": "others", "path": "others", "masks": "{stem}-masklabel.png"},
    ]
    image = {"resolutions": "native", "multiple_of": 8}
    with project(tmp_path, concepts=concepts, image=image, encoders={"mask": {"uses": "mask"}}) as owner:
        owner.build()
        (batch,) = owner.feed(batch_size=4, pad={"mask": "list"}).epoch(0)
        expected = [[1, height // 8, width // 8] for height, width in batch["target_size"].tolist()]
        assert [list(mask.shape) for mask in batch["mask"]] == expected
        white = [bool((mask == 1).all()) for mask in batch["mask"]]
        assert white == [concept == "pages" for concept in batch["concept"]]
        assert all(len(one["sample"]) == 1 for one in owner.feed(batch_size=4).epoch(0))


def test_pages_and_pictures_of_one_size_stay_apart(tmp_path: Path) -> None:
    """Beside other resolutions, pages are batched by themselves, and each batch says what is true of it."""
    saved(pages(tmp_path, 6) / "processor", QWEN)
    image = {"resolutions": ["native", "64x64"], "pick": "each"}
    with owner_of(tmp_path, image=image) as owner:
        owner.build()
        batches = list(owner.feed(batch_size=6).epoch(0))
        assert sorted(map(str, (batch["size"] for batch in batches))) == ["(64, 64)", "None"]
        for batch in batches:
            grids = batch["inputs"]["image_grid_thw"]
            assert grids.shape == (6, 3)
            assert (len({tuple(grid) for grid in grids.tolist()}) == 1) == (batch["size"] is not None)


@pytest.mark.parametrize("made", [QWEN, IDEFICS], ids=["qwen", "idefics"])
def test_pages_are_encoded_when_a_batch_needs_them(tmp_path: Path, made: tuple[str, dict[str, Any]]) -> None:
    """A first epoch without a build gives what a build would have given."""
    saved(pages(tmp_path, 9) / "processor", made)
    with owner_of(tmp_path) as owner:
        with owner.feed(batch_size=4, on_missing="encode") as live:
            given = list(live.epoch(0))
        owner.build()
        assert equal(given, owner.feed(batch_size=4).epoch(0))


def test_further_pictures_keep_their_own_size_too(tmp_path: Path) -> None:
    """Of a control picture at its own size a processor makes what it makes of the file; pages of all sizes meet."""
    processor = saved(pages(tmp_path, 5) / "processor", QWEN)
    for number in range(5):
        picture(tmp_path / f"control/p{number:02}.png", 90 + number, (50 + 37 * number, 200 - 29 * number))
    control = {"control": {"path": "../control/{stem}.png", "fit": "own"}}
    section = {"uses": "transformers-processor", "model": "processor"}
    with project(
        tmp_path,
        concepts=[{"name": "pages", "path": "data", "images": control}],
        image={"resolutions": "native"},
        encoders={"inputs": section, "others": {**section, "of": "control"}},
        keep=["paths"],
    ) as owner:
        owner.build()
        (batch,) = owner.feed(batch_size=5).epoch(0)
        for name, folder in (("inputs", "data"), ("others", "control")):
            images = [Image.open(tmp_path / folder / Path(path).name).convert("RGB") for path in batch["path"]]
            live = processor(images=images, return_tensors="pt")
            assert torch.equal(batch[name]["pixel_values"], live["pixel_values"])
            assert torch.equal(batch[name]["image_grid_thw"], live["image_grid_thw"])


def test_ranks_and_resume(tmp_path: Path) -> None:
    """Pages are shared out among ranks, each once, and a feed goes on where it stood."""
    saved(pages(tmp_path, 8) / "processor", QWEN)
    with owner_of(tmp_path) as owner:
        owner.build()
        feeds = [owner.feed(batch_size=2, rank=rank, world_size=2) for rank in range(2)]
        shown = [sample for feed in feeds for batch in feed.epoch(0) for sample in batch["sample"]]
        assert len(shown) == len(set(shown)) == 8
        feed = owner.feed(batch_size=3)
        epoch = iter(feed.epoch(0))
        next(epoch)
        state = feed.state_dict()
        rest = list(epoch)
        again = owner.feed(batch_size=3)
        again.load_state_dict(state)
        assert equal(rest, again.epoch(0))


def test_a_concept_of_pages_beside_one_of_cut_pictures(tmp_path: Path) -> None:
    """One concept keeps its sizes and another is cut: their batches stay apart, and each says what is true."""
    saved(pages(tmp_path, 4) / "processor", QWEN)
    for number in range(4):
        picture(tmp_path / f"photos/q{number}.png", 60 + number, (96 + number, 64))
    concepts: list[dict[str, Any]] = [
        {"name": "pages", "path": "data", "image": {"resolutions": "native", "multiple_of": 2}},
        {"name": "photos", "path": "photos"},
    ]
    encoders = {"inputs": {"uses": "transformers-processor", "model": "processor"}}
    with project(tmp_path, concepts=concepts, image={"resolutions": ["64x64"]}, encoders=encoders) as owner:
        assert owner.build().encoded == {"inputs": 8}
        for feed in (owner.feed(batch_size=4), owner.store.snapshot("test").feed(batch_size=4)):
            told = {tuple(batch["concept"]): batch["size"] for batch in feed.epoch(0)}
            assert told == {("pages",) * 4: None, ("photos",) * 4: (64, 64)}
