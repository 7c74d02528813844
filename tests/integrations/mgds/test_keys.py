"""What an mgds cache does when something changes between two runs: everything that counts, and nothing else.

Numbers in names are those of the contract's list of traps: a complete key (1), never wrong data (2), identity per
sample (4), cost in proportion (5), several models in one store (9).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

# ruff: noqa: E402 - without torch there is nothing to import
torch = pytest.importorskip("torch", reason="torch is not installed")

import precook
from precook.report import SILENT
from tests.support.mgds_pipelines import (
    MGDS,
    DiskCache,
    Encode,
    GetFilename,
    Module,
    OutputPipelineModule,
    PipelineState,
    ReadPixels,
    Run,
    collect_pictures,
    concept,
    shown,
    weights,
)

CONTENT = {"content_key_in_name": "prompt"}


def by_path(items: list[dict[str, Any]]) -> dict[str, Any]:
    """What was shown of each picture, by its name."""
    found = {}
    for item in shown(items):
        path = item.pop("image_path")
        found[Path(path).name] = item
    return found


def run(folder: Path, concepts: list[dict[str, Any]], **options: Any) -> tuple[dict[str, Any], tuple[int, int]]:
    """One epoch in a new process' place: what was shown, and how much was encoded."""
    with Run(folder, concepts, **options) as made:
        items = by_path(made.epoch())
        return items, made.encoded


def test_5_an_unchanged_set_encodes_nothing(tmp_path: Path, cats: Path) -> None:
    """The second run gives the same items without a call of an encoder or of before_cache_fun."""
    before, encoded = run(tmp_path, [concept(cats)])
    assert encoded == (4, 4)
    with Run(tmp_path, [concept(cats)]) as again:
        assert by_path(again.epoch()) == before
        assert again.encoded == (0, 0)
        assert again.before == []


def test_4_an_added_file_is_encoded_alone_and_changes_no_other(tmp_path: Path, cats: Path) -> None:
    """A file that sorts before all others moves every index; the others keep their draws, crops and captions."""
    before, _ = run(tmp_path, [concept(cats, image_variations=2)], target="64,128,256")
    (cats / "000-first.png").write_bytes(b"new")
    (cats / "000-first.txt").write_text("a new one")
    after, encoded = run(tmp_path, [concept(cats, image_variations=2)], target="64,128,256")
    assert encoded == (1, 1)
    assert after.pop("000-first.png")["tokens"][2] == [ord(char) for char in "a new one"]
    assert after == before


def test_4_a_removed_file_leaves_the_others_as_they_were(tmp_path: Path, cats: Path) -> None:
    """Nothing is encoded, and every other sample keeps what it had."""
    before, _ = run(tmp_path, [concept(cats)], target="64,128,256")
    for suffix in ("png", "txt"):
        (cats / f"001.{suffix}").unlink()
    after, encoded = run(tmp_path, [concept(cats)], target="64,128,256")
    assert encoded == (0, 0)
    del before["001.png"]
    assert after == before


def test_4_renamed_files_and_a_moved_folder_cost_no_encoding(tmp_path: Path, cats: Path) -> None:
    """Names and folders are no part of what a picture is; the path that is shown is the one of today."""
    before, _ = run(tmp_path, [concept(cats)])
    for suffix in ("png", "txt"):
        (cats / f"002.{suffix}").rename(cats / f"renamed.{suffix}")
    moved = tmp_path / "elsewhere"
    cats.rename(moved)
    with Run(tmp_path, [concept(moved, name="cats")]) as again:
        items = again.epoch()
        assert again.encoded == (0, 0)
    assert {Path(item["image_path"]).parent for item in items} == {moved}
    after = by_path(items)
    before["renamed.png"] = before.pop("002.png")
    assert after == before


def test_1_an_edited_picture_and_an_edited_caption_are_encoded_alone(tmp_path: Path, cats: Path) -> None:
    """Each edit costs one encoding by the one encoder it concerns, also with size and mtime as before."""
    before, _ = run(tmp_path, [concept(cats)])
    status = (cats / "001.png").stat()
    (cats / "001.png").write_bytes((cats / "001.png").read_bytes()[::-1])
    os.utime(cats / "001.png", ns=(status.st_atime_ns, status.st_mtime_ns))
    after, encoded = run(tmp_path, [concept(cats)])
    assert encoded == (1, 0)
    assert {name for name in after if after[name] != before[name]} == {"001.png"}
    (cats / "003.txt").write_text("edited")
    after, encoded = run(tmp_path, [concept(cats)])
    assert encoded == (0, 1)
    assert after["003.png"]["tokens"][2] == [ord(char) for char in "edited"]


def test_5_touched_and_copied_files_are_read_and_not_encoded(tmp_path: Path, cats: Path) -> None:
    """New times on old bytes cost hashing only."""
    before, _ = run(tmp_path, [concept(cats)])
    for path in cats.iterdir():
        path.touch()
    copy = tmp_path / "copy"
    shutil.copytree(cats, copy)
    for folder in (cats, copy):
        after, encoded = run(tmp_path, [concept(folder, name="cats")])
        assert (after, encoded) == (before, (0, 0))


def test_1_equal_bytes_in_two_concepts_with_different_augmentation_stay_apart(tmp_path: Path, cats: Path) -> None:
    """The same picture under two settings is two entries, each shown in its concept; under one setting it is one."""
    copy = tmp_path / "copy"
    shutil.copytree(cats, copy)
    made = [concept(cats, image={"strength": 0}), concept(copy, image={"strength": 1000})]
    with Run(tmp_path / "a", made) as both:
        items = both.epoch()
        assert len(both.encoder.calls) == 8
        for item in items:
            plain = list(Path(item["image_path"]).read_bytes())
            assert (item["latent_image"].tolist() == plain) == (item["concept_name"] == "cats")
    alike = [concept(cats, image={"strength": 0}), concept(copy, image={"strength": 0})]
    with Run(tmp_path / "b", alike) as both:
        both.epoch()
        assert len(both.encoder.calls) == 4


def test_1_another_resolution_is_encoded_beside_the_first(tmp_path: Path, cats: Path) -> None:
    """After a change and back again, the first resolution is still there."""
    first, _ = run(tmp_path, [concept(cats)], target="64")
    second, encoded = run(tmp_path, [concept(cats)], target="128")
    assert encoded == (4, 0)
    assert {item["crop_resolution"] for item in second.values()} == {(128, 256)}
    assert run(tmp_path, [concept(cats)], target="64") == (first, (0, 0))


def test_1_other_weights_never_get_the_old_values(tmp_path: Path, cats: Path) -> None:
    """Weights that differ, loaded anew or written to in place, are another encoder; the text encoder is not asked."""
    run(tmp_path, [concept(cats)], vae=weights(1.0))
    doubled, encoded = run(tmp_path, [concept(cats)], vae=weights(2.0))
    assert encoded == (4, 0)
    model = weights(1.0)
    assert run(tmp_path, [concept(cats)], vae=model)[1] == (0, 0)
    with torch.no_grad():
        model.weight.fill_(2.0)
    assert run(tmp_path, [concept(cats)], vae=model) == (doubled, (0, 0))
    model.weight.data.fill_(4.0)  # leaves no trace but in the weight
    quadrupled, encoded = run(tmp_path, [concept(cats)], vae=model)
    assert encoded == (4, 0)
    assert quadrupled["000.png"]["latent_image"] != doubled["000.png"]["latent_image"]


def test_1_what_is_hooked_onto_an_encoder_counts_while_it_is_there(tmp_path: Path, cats: Path) -> None:
    """Neither a hook nor another `forward` is among an encoder's weights; without them the old entries are found."""

    class Adapter:
        def __init__(self, model: torch.nn.Module, scale: float) -> None:
            self.scale = scale
            self.original = model.forward
            model.forward = self.forward

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.original(x) * self.scale

    model = weights()
    before, _ = run(tmp_path, [concept(cats)], text_model=model)
    for scale in (2.0, 3.0):
        adapter = Adapter(model, scale)
        assert run(tmp_path, [concept(cats)], text_model=model)[1] == (0, 4)
        model.forward = adapter.original
    assert run(tmp_path, [concept(cats)], text_model=model) == (before, (0, 0))


def test_1_weights_that_change_during_a_run_leave_no_entry_under_the_old_name(tmp_path: Path, cats: Path) -> None:
    """What a later epoch builds is found by the weights that made it, and never by those the run began with."""
    concepts = [concept(cats, image_variations=2)]
    with Run(tmp_path / "right", concepts, vae=weights(1.0)) as run_:
        expected = [by_path(run_.epoch()) for _ in range(2)]
    model = weights(1.0)
    with Run(tmp_path, concepts, vae=model) as run_:
        assert by_path(run_.epoch()) == expected[0]
        with torch.no_grad():
            model.weight.fill_(5.0)
        run_.epoch()
        assert run_.encoded == (4, 0)
    with Run(tmp_path, concepts, vae=weights(1.0)) as run_:
        assert [by_path(run_.epoch()), run_.encoded] == [expected[0], (0, 0)]
        assert [by_path(run_.epoch()), run_.encoded] == [expected[1], (4, 0)]
    # The snapshot names what is there, and nothing else: the first variation of the changed weights was never made.
    with Run(tmp_path, concepts, vae=weights(5.0)) as run_:
        run_.epoch()
        assert run_.encoded == (4, 0)


def test_1_a_setting_of_a_module_is_part_of_the_key(tmp_path: Path, cats: Path) -> None:
    """Another dtype in an attribute of an upstream module is another entry."""
    run(tmp_path, [concept(cats)])
    with Run(tmp_path, [concept(cats)]) as other:
        other.encoder.dtype = torch.bfloat16
        other.image_cache.init(other.data.loading_pipeline, 42, _place(other, other.image_cache), other.state)
        items = other.epoch()
        assert other.encoded == (4, 0)
        assert {item["latent_image"].dtype for item in items} == {torch.bfloat16}


def _place(run_: Run, module: Any) -> int:
    return run_.data.loading_pipeline.modules.index(module)


def test_1_a_module_more_in_front_of_the_cache_counts_if_it_leads_to_it(tmp_path: Path, cats: Path) -> None:
    """One that changes the picture makes new latents and leaves texts alone; one that leads nowhere changes nothing."""

    class Brighten(Module):
        def make(self, variation: int, index: int) -> Any:
            return self.given(variation, index) + 1

    before, _ = run(tmp_path, [concept(cats)])
    after, encoded = run(tmp_path, [concept(cats)], extra=[Brighten("image", "image")])
    assert encoded == (4, 0)
    assert after["000.png"]["latent_image"] != before["000.png"]["latent_image"]
    aside = [Brighten("image", "preview")]
    assert run(tmp_path, [concept(cats)], extra=aside) == (before, (0, 0))


def test_1_a_mask_that_appears_changes_or_goes_is_noticed(tmp_path: Path, cats: Path) -> None:
    """A missing mask means a white one; writing, editing and removing it each concern its own sample alone."""
    options: dict[str, Any] = {"masks": True, "image_options": {"extra_watched_paths_in_names": ["mask_path"]}}
    white, encoded = run(tmp_path, [concept(cats)], **options)
    assert encoded[0] == 4
    mask = cats / "002-masklabel.png"
    for content in (b"\1\2\3", b"\3\2\1"):
        mask.write_bytes(content)
        items, encoded = run(tmp_path, [concept(cats)], **options)
        assert encoded == (1, 0)
        assert items["002.png"]["latent_mask"][2] == list(content)
        assert {name for name in items if items[name] != white[name]} == {"002.png"}
    mask.unlink()
    assert run(tmp_path, [concept(cats)], **options) == (white, (0, 0))


def test_1_masked_training_switched_on_and_off_keeps_both_and_never_pairs_by_position(
    tmp_path: Path, cats: Path
) -> None:
    """More names are other entries, made in one pass: no mask is ever put beside a latent of another draw."""
    plain, _ = run(tmp_path, [concept(cats)], target="64,128,256")
    masked, encoded = run(tmp_path, [concept(cats)], target="64,128,256", masks=True)
    assert encoded == (4, 0)
    assert all("latent_mask" in item for item in masked.values())
    assert run(tmp_path, [concept(cats)], target="64,128,256") == (plain, (0, 0))


def test_2_a_missing_caption_file_is_an_empty_text_until_it_is_written(tmp_path: Path, cats: Path) -> None:
    """Without a file the text is empty, as in mgds; a file that appears is read."""
    (cats / "001.txt").unlink()
    items, _ = run(tmp_path, [concept(cats)])
    assert items["001.png"]["tokens"][2] == []
    (cats / "001.txt").write_text("now here")
    items, encoded = run(tmp_path, [concept(cats)])
    assert encoded == (0, 1)
    assert items["001.png"]["tokens"][2] == [ord(char) for char in "now here"]


def test_a_text_key_encodes_each_text_once_wherever_it_comes_from(tmp_path: Path, cats: Path) -> None:
    """With content_key_in_name equal lines share an entry, and editing one line of many costs that line."""
    for path in cats.glob("*.txt"):
        path.write_text("the same")
    items, encoded = run(tmp_path, [concept(cats)], text_options=CONTENT)
    assert encoded[1] == 1
    (cats / "001.txt").write_text("not the same")
    items, encoded = run(tmp_path, [concept(cats)], text_options=CONTENT)
    assert encoded[1] == 1
    assert items["001.png"]["tokens"][2] == [ord(char) for char in "not the same"]
    (cats / "002.txt").write_text("not the same")
    assert run(tmp_path, [concept(cats)], text_options=CONTENT)[1] == (0, 0)
    assert run(tmp_path, [concept(cats)], text_options=CONTENT, text_model=weights(3.0))[1] == (0, 2)


def test_a_text_key_keeps_the_line_that_was_drawn_first(tmp_path: Path, cats: Path) -> None:
    """A file that moves all indices re-rolls no caption, and where a text's entry is lost what is shown is encoded."""
    before, _ = run(tmp_path, [concept(cats)], text_options=CONTENT)
    (cats / "000-first.png").write_bytes(b"new")
    (cats / "000-first.txt").write_text("a new one")
    after, encoded = run(tmp_path, [concept(cats)], text_options=CONTENT)
    assert encoded == (1, 1)
    del after["000-first.png"]
    assert after == before
    for pack in (tmp_path / "text" / "precook" / "packs").glob("*/*.safetensors"):
        pack.unlink()
    for name, item in run(tmp_path, [concept(cats)], text_options=CONTENT)[0].items():
        lines = (cats / name).with_suffix(".txt").read_text().splitlines()
        assert "".join(chr(int(token)) for token in item["tokens"][2]) in lines


def test_a_file_name_that_is_used_as_text_is_part_of_the_key(tmp_path: Path, cats: Path) -> None:
    """Where mgds takes the prompt from the file's name, a renamed file is another text, and an edited one is not."""
    options: dict[str, Any] = {"extra": [GetFilename("image_path", "prompt", include_extension=False)]}
    run(tmp_path, [concept(cats)], **options)
    (cats / "003.png").rename(cats / "a cat.png")
    (cats / "000.png").write_bytes(b"edited")
    items, encoded = run(tmp_path, [concept(cats)], **options)
    assert encoded == (1, 1)
    assert items["a cat.png"]["tokens"][2] == [ord(char) for char in "a cat"]


def test_1_what_cannot_be_identified_is_refused_by_name_until_it_is_given(tmp_path: Path, cats: Path) -> None:
    """A function in an upstream module names itself and the option; given by hand it counts, and so does a change."""

    class Mapped(Module):
        def __init__(self, function: Any) -> None:
            super().__init__("image", "image")
            self.function = function

        def make(self, variation: int, index: int) -> Any:
            return self.function(self.given(variation, index))

    extra = [Mapped(lambda image: image * 2)]
    with Run(tmp_path, [concept(cats)], extra=extra) as refused:
        with pytest.raises(precook.IdentityError, match=r'Mapped\.function.*identities=\{"Mapped\.function"'):
            refused.start()
        assert refused.encoded == (0, 0)
    given = {"identities": {"Mapped.function": "twice"}}
    assert run(tmp_path, [concept(cats)], extra=extra, image_options=given)[1] == (4, 4)
    assert run(tmp_path, [concept(cats)], extra=extra, image_options=given)[1] == (0, 0)
    given = {"identities": {"Mapped.function": "thrice"}}
    extra = [Mapped(lambda image: image * 3)]
    assert run(tmp_path, [concept(cats)], extra=extra, image_options=given)[1] == (4, 0)


def test_1_a_module_that_is_asked_in_secret_ends_the_build(tmp_path: Path, cats: Path) -> None:
    """A name that stands in no attribute cannot be followed; what it leads to is refused instead of left out."""

    class Secret(Module):
        def make(self, variation: int, index: int) -> Any:
            return self.given(variation, index) + self._get_previous_item(variation, "hid" + "den number", index)

    class Number(Module):
        def make(self, variation: int, index: int) -> Any:
            return 5

    with Run(tmp_path, [concept(cats)], extra=[Number("image", "hidden number"), Secret("image", "image")]) as made:
        with pytest.raises(precook.EncodeError, match="no attribute of the modules that lead to the cache"):
            made.start()
        assert made.encoded[0] == 4


def test_1_a_sample_without_a_file_to_know_it_by_is_refused(tmp_path: Path, cats: Path) -> None:
    """Where no module names a path, the error names the option that does."""

    class Free(Module):
        def __init__(self) -> None:
            super().__init__("concept", "image")

        def make(self, variation: int, index: int) -> Any:
            return torch.zeros(2)

    made = Run(tmp_path, [concept(cats)], extra=[Free()], image_options={"source_path_in_name": None})
    modules = made.data.loading_pipeline.modules
    modules[:] = [module for module in modules if type(module).__name__ not in ("ReadPixels", "Augment", "Bucket")]
    made.image_cache._options = _renamed(made.image_cache._options)
    for place, module in enumerate(modules):
        module.init(made.data.loading_pipeline, 42, place, made.state)
    with made, pytest.raises(precook.IdentityError, match="source_path_in_name"):
        made.start()


def _renamed(options: Any) -> Any:
    import dataclasses  # noqa: PLC0415

    return dataclasses.replace(options, split=("latent_image",), aggregate=())


def test_9_two_models_share_one_store_and_never_an_entry(tmp_path: Path, cats: Path) -> None:
    """Caches of two models and of pictures and texts in one store: each finds its own, also when it comes back."""
    with precook.open(tmp_path / "store") as store:
        shared = {"store": store}
        options: dict[str, Any] = {"image_options": shared, "text_options": shared}
        first, encoded = run(tmp_path / "a", [concept(cats)], vae=weights(1.0), **options)
        assert encoded == (4, 4)
        second, encoded = run(tmp_path / "b", [concept(cats)], vae=weights(2.0), **options)
        assert encoded == (4, 0)
        assert first["000.png"]["latent_image"] != second["000.png"]["latent_image"]
        assert run(tmp_path / "a", [concept(cats)], vae=weights(1.0), **options) == (first, (0, 0))


def test_a_model_identity_stands_for_weights_that_are_not_looked_at(tmp_path: Path, cats: Path) -> None:
    """Weights that have no bytes to hash, as quantised or offloaded ones, can be named by hand."""

    class Elsewhere(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hollow = torch.nn.Parameter(torch.zeros(1, device="meta"))
            self.weight = torch.ones(1)

    with (
        Run(tmp_path, [concept(cats)], vae=Elsewhere()) as refused,
        pytest.raises(precook.IdentityError, match=r"Encode\.model"),
    ):
        refused.start()
    named = {"model_identity": "a model"}
    assert run(tmp_path, [concept(cats)], vae=Elsewhere(), image_options=named)[1] == (4, 4)
    assert run(tmp_path, [concept(cats)], vae=Elsewhere(), image_options=named)[1] == (0, 0)
    other = {"model_identity": "another model"}
    assert run(tmp_path, [concept(cats)], vae=Elsewhere(), image_options=other)[1] == (4, 0)


def test_an_edit_between_two_epochs_of_a_run_counts_when_something_is_built(tmp_path: Path, cats: Path) -> None:
    """A file edited while a run goes on is read again before its next variation is made; nothing stale is stored."""
    with Run(tmp_path, [concept(cats, image_variations=2, image={"strength": 0})]) as made:
        made.epoch()
        (cats / "001.png").write_bytes(b"edited")
        items = by_path(made.epoch())
        assert items["001.png"]["latent_image"][2] == list(b"edited")
        assert len(made.encoder.calls) == 4


def test_a_collection_takes_what_the_latest_build_does_not_need(tmp_path: Path, cats: Path) -> None:
    """The preview counts and removes nothing; cleaning frees the entries of a removed file and of old settings."""
    run(tmp_path, [concept(cats)], target="64")
    before, _ = run(tmp_path, [concept(cats)], target="128")
    for suffix in ("png", "txt"):
        (cats / f"001.{suffix}").unlink()
    del before["001.png"]
    with Run(tmp_path, [concept(cats)], target="128") as made:
        made.epoch()
        assert made.image_cache.gc_preview().entries == 0  # too young
        preview = made.image_cache.gc_preview(grace=0)
        assert preview.entries >= 5
        assert len(made.image_cache.cache.store) == preview.entries + 4  # three samples, and their aggregates
        assert made.image_cache.gc_clean(grace=0).entries == preview.entries
    assert run(tmp_path, [concept(cats)], target="128") == (before, (0, 0))
    assert run(tmp_path, [concept(cats)], target="64")[1] == (3, 0)


def test_a_collection_keeps_what_was_built_under_another_name(tmp_path: Path, cats: Path) -> None:
    """Two resolutions, each with a snapshot of its own, both survive; taken up again, neither costs an encoding."""

    def named(target: str) -> dict[str, Any]:
        return {"target": target, "image_options": {"snapshot": target}, "text_options": {"snapshot": target}}

    small, _ = run(tmp_path, [concept(cats)], **named("64"))
    with Run(tmp_path, [concept(cats)], **named("128")) as made:
        large = by_path(made.epoch())
        assert made.image_cache.gc_clean(grace=0).entries == 0
    assert run(tmp_path, [concept(cats)], **named("64")) == (small, (0, 0))
    assert run(tmp_path, [concept(cats)], **named("128")) == (large, (0, 0))


def test_encoders_are_told_apart_by_class_too(tmp_path: Path, cats: Path) -> None:
    """A module of another class with the same attributes is another encoder."""

    class Other(Encode):
        def make(self, variation: int, index: int) -> Any:
            return super().make(variation, index) + 1

    before, _ = run(tmp_path, [concept(cats)])
    with Run(tmp_path, [concept(cats)]) as made:
        modules = made.data.loading_pipeline.modules
        made.encoder.__class__ = Other
        made.image_cache.init(made.data.loading_pipeline, 42, modules.index(made.image_cache), made.state)
        after = by_path(made.epoch())
        assert made.encoded == (4, 0)
    assert after["000.png"]["latent_image"] != before["000.png"]["latent_image"]


def test_a_cache_behind_another_depends_on_what_stands_before_both(tmp_path: Path, cats: Path) -> None:
    """What the first one keeps is read through it; its class stands in the key under the name it always had."""

    class Double(Module):
        def make(self, variation: int, index: int) -> Any:
            return self.given(variation, index) * 2

    def epoch() -> list[Any]:
        options = {"source_path_in_name": "image_path", "report": SILENT}
        first = DiskCache(cache_dir=str(tmp_path / "first"), split_names=["image"], **options)
        second = DiskCache(cache_dir=str(tmp_path / "second"), split_names=["doubled"], **options)
        reading, output = ReadPixels("image_path", "image"), OutputPipelineModule(names=["doubled"])
        modules = [collect_pictures(), reading, first, Double("image", "doubled"), second, output]
        state = PipelineState(2)
        data = MGDS(torch.device("cpu"), [concept(cats)], {}, modules, batch_size=1, state=state)
        try:
            data.start_next_epoch()
            (recipe,) = [form for form, _, _ in second.cache.store.totals() if b'"mgds",' in form]
            assert b'"class":"precook.integrations.mgds._disk_cache.<locals>.DiskCache","settings":{}' in recipe
            return [item["doubled"].tolist() for item in data]
        finally:
            first.close()
            second.close()
            state.executor.shutdown()

    assert epoch() == [[2 * byte for byte in path.read_bytes()] for path in sorted(cats.glob("*.png"))]
    (cats / "001.png").write_bytes(b"edited")
    assert [2 * byte for byte in b"edited"] in epoch()
