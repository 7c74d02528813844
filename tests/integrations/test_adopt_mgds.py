"""`precook adopt` of what mgds has cached: with each picture what was made of it, and nothing of which nobody knows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.integrations.adopt import plan_adopt
from tests.support.commands import run
from tests.support.projects import picture
from tests.support.trees import same

torch = pytest.importorskip("torch", reason="torch is not installed")
old = pytest.importorskip("tests.support.old_caches")


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Three pictures of 96 x 64 with captions."""
    made = [tmp_path / "data" / f"p{number}.png" for number in range(3)]
    for number, path in enumerate(made):
        picture(path, number)
        path.with_suffix(".txt").write_text(f"picture {number}\n")
    return made


def adopted(plan: Any, path: Path) -> dict[tuple[str, int], Any]:
    """What a dataset of the adopted caches holds, by picture and variation."""
    names = {sample.content.bytes: sample.picture.name for sample in plan.samples}
    with precook.open(path) as store:
        content = plan.execute(store, "old").snapshot.content
        found: dict[tuple[str, int], Any] = {}
        for owner, key in zip(content.pictures.sample, content.picture_keys["latent"], strict=True):
            name = names[content.samples.image[owner].tobytes()]
            number = sum(one == name for one, _ in found)
            found[name, number] = store.get(precook.Key(key.tobytes()))
        return found


def alike(tree: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether all that was cached is there, bit for bit, whatever its order."""
    return set(tree) == set(wanted) and all(same(tree[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("beside", [False, True])
def test_a_disk_cache_comes_over_bit_for_bit(tmp_path: Path, images: list[Path], path: Path, beside: bool) -> None:
    """Every variation of every picture, by the paths in its index, wherever the cache lies."""
    cache = images[0].parent / "old" if beside else tmp_path / "old"
    made = old.disk_cache(cache / "image", images, variations=2)
    plan = plan_adopt(images[0].parent, caches=None if beside else cache)
    assert plan.family == "mgds/unknown"
    assert not plan.left_out
    found = adopted(plan, path)
    assert set(found) == set(made)
    assert all(any(alike(tree, made[name, number]) for number in range(2)) for (name, _), tree in found.items())


def test_a_smart_disk_cache_comes_over_with_its_texts(tmp_path: Path, images: list[Path], path: Path) -> None:
    """Each text with its picture, under the model's name; mgds' notes and paths are no part of it."""
    made = old.smart_disk_cache(tmp_path / "old" / "image", images)
    texts = old.smart_disk_cache(tmp_path / "old" / "text", images, texts=True)
    plan = plan_adopt(images[0].parent, caches=tmp_path / "old")
    assert (plan.family, plan.has_prompts, plan.left_out) == ("mgds/SDXL", True, ())
    assert all(alike(tree, made[place]) for place, tree in adopted(plan, path).items())
    with precook.open(path) as store:
        content = store.snapshot("old").content
        trees = [store.get(precook.Key(key.tobytes())) for key in content.line_keys["prompt"]]
    assert len(trees) == 3
    assert all(any(alike(tree, text) for text in texts.values()) for tree in trees)


def test_a_disk_cache_of_texts_is_left_out_because_nobody_knows_which(tmp_path: Path, images: list[Path]) -> None:
    """Its index names no text and no picture; beside one of pictures it is named and left out."""
    old.disk_cache(tmp_path / "old" / "text", images, texts=True)
    with pytest.raises(precook.PrecookError) as caught:
        plan_adopt(images[0].parent, caches=tmp_path / "old")
    assert "does not say which pictures or texts" in (caught.value.hint or "")
    old.disk_cache(tmp_path / "old" / "image", images)
    plan = plan_adopt(images[0].parent, caches=tmp_path / "old")
    assert (len(plan.samples), plan.has_prompts, len(plan.left_out)) == (3, False, 1)


def test_an_interrupted_variation_is_left_out(tmp_path: Path, images: list[Path]) -> None:
    """Mgds writes its index last: without one, nobody knows what the files are."""
    old.disk_cache(tmp_path / "old", images, variations=2)
    (tmp_path / "old" / ("3f" * 32) / "variation-1" / "aggregate.pt").unlink()
    plan = plan_adopt(images[0].parent, caches=tmp_path / "old")
    assert [len(sample.latents) for sample in plan.samples] == [1, 1, 1]
    assert "interrupted" in plan.left_out[0].reason


def test_an_edited_picture_is_left_out(tmp_path: Path, images: list[Path]) -> None:
    """By its time where only that is known, unless the user vouches for it; by its content where that is noted."""
    old.disk_cache(tmp_path / "disk", images)
    old.smart_disk_cache(tmp_path / "smart", images)
    picture(images[1], 99)
    later = images[1].stat().st_mtime + 60
    os.utime(images[1], (later, later))

    def names(cache: str, **options: bool) -> list[str]:
        plan = plan_adopt(images[0].parent, caches=tmp_path / cache, **options)
        return [sample.picture.name for sample in plan.samples]

    assert names("disk") == names("smart") == ["p0.png", "p2.png"]
    assert names("disk", ignore_times=True) == ["p0.png", "p1.png", "p2.png"]
    assert names("smart", ignore_times=True) == ["p0.png", "p2.png"]


def test_content_that_is_noted_counts_more_than_times(tmp_path: Path, images: list[Path]) -> None:
    """A copy that has lost its times is the same picture."""
    old.smart_disk_cache(tmp_path / "smart", images)
    for image in images:
        later = image.stat().st_mtime + 60
        os.utime(image, (later, later))
    assert len(plan_adopt(images[0].parent, caches=tmp_path / "smart").samples) == 3


def test_a_picture_of_another_size_is_left_out(tmp_path: Path, images: list[Path]) -> None:
    """What the file itself notes of its picture must be true of it, also where times are ignored."""
    old.disk_cache(tmp_path / "old", images)
    picture(images[0], 5, size=(64, 64))
    plan = plan_adopt(images[0].parent, caches=tmp_path / "old", ignore_times=True)
    assert [sample.picture.name for sample in plan.samples] == ["p1.png", "p2.png"]
    assert "made of a picture of 96 x 64" in plan.left_out[0].reason


def test_pictures_that_were_moved_are_found_by_name(tmp_path: Path, images: list[Path]) -> None:
    """Not so those of the same name elsewhere, while the pictures of the cache are where they were."""
    old.disk_cache(tmp_path / "old", images)
    for image in images:
        picture(tmp_path / "other" / image.name, 50 + int(image.stem[-1]))
    with pytest.raises(precook.PrecookError):
        plan_adopt(tmp_path / "other", caches=tmp_path / "old", ignore_times=True)
    images[0].parent.rename(tmp_path / "moved")
    assert len(plan_adopt(tmp_path / "moved", caches=tmp_path / "old").samples) == 3


def test_a_cache_without_its_pictures_is_named(tmp_path: Path, images: list[Path]) -> None:
    """Whoever gives the cache alone is told what it is, and that its pictures are to be given, too."""
    old.disk_cache(tmp_path / "old" / "image", images)
    with pytest.raises(precook.PrecookError) as caught:
        plan_adopt(tmp_path / "old")
    assert "a DiskCache of mgds" in (caught.value.hint or "")
    assert "precook adopt PICTURES --caches" in (caught.value.hint or "")


@pytest.mark.parametrize("content", ["[]", "{", '{"entries": 3}', '{"entries": {"a": 1}}', "[" * 100_000])
def test_an_index_that_is_none_is_named(tmp_path: Path, images: list[Path], content: str) -> None:
    """Whatever a file called cache.json holds, nothing but an error of ours comes of it."""
    old.smart_disk_cache(tmp_path / "old", images)
    (tmp_path / "old" / "cache.json").write_text(content)
    with pytest.raises(precook.PrecookError):
        plan_adopt(images[0].parent, caches=tmp_path / "old")


def test_a_file_that_is_only_called_like_an_index_is_nobodys_business(tmp_path: Path, images: list[Path]) -> None:
    """Other programs write a cache.json, too: nothing is left out because of one."""
    old.disk_cache(tmp_path / "old", images)
    (tmp_path / "old" / "cache.json").write_text("{}")
    assert plan_adopt(images[0].parent, caches=tmp_path / "old").left_out == ()


def test_nothing_in_a_cache_file_is_run(tmp_path: Path, images: list[Path]) -> None:
    """A file whose pickle calls something is left out with the name of what it calls."""

    class Mean:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    old.disk_cache(tmp_path / "old", images)
    torch.save({"latent_image": Mean()}, tmp_path / "old" / ("3f" * 32) / "variation-0" / "1.pt")
    plan = plan_adopt(images[0].parent, caches=tmp_path / "old")
    assert len(plan.samples) == 2
    assert "mkdir" in plan.left_out[0].reason
    assert not (tmp_path / "ran").exists()


def test_the_command_adopts_and_says_what_is_left_out(tmp_path: Path, images: list[Path], path: Path) -> None:
    """As for every other tool, with the same options and the same words."""
    old.disk_cache(tmp_path / "old" / "image", images)
    shown = run("adopt", str(images[0].parent), "--caches", str(tmp_path / "old"), "--store", str(path))
    assert shown.code == 0, shown.err
    assert "mgds/unknown: 3 pictures, 3 latents" in shown.out
    assert "which encoder made them is not known" in shown.out
    done = run("adopt", str(images[0].parent), "--caches", str(tmp_path / "old"), "--store", str(path), "--yes")
    assert "adopted 3 samples" in done.out
    with precook.open(path) as store:
        (form,) = store.recipes().values()
        assert json.loads(form)[1] == {
            "status": "adopted, encoder not verified",
            "tool": "mgds",
            "architecture": "unknown",
            "part": "latent",
        }


@pytest.mark.parametrize("source", ["a\0b.png", "a\ud800b.png"])
def test_a_source_that_no_file_can_be_is_without_picture(tmp_path: Path, images: list[Path], source: str) -> None:
    """An index may say anything; the others of it are adopted."""
    old.smart_disk_cache(tmp_path / "old", images)
    index = json.loads((tmp_path / "old" / "cache.json").read_text())
    index["entries"][source] = index["entries"].pop(str(images[0]))
    (tmp_path / "old" / "cache.json").write_text(json.dumps(index))
    plan = plan_adopt(images[0].parent, caches=tmp_path / "old")
    assert (len(plan.samples), plan.without_picture) == (2, 1)
