"""Datasets of the hub: tables that hold pictures themselves, in Parquet files or as `save_to_disk` writes them.

The real `datasets` library writes them, and a picture is known by its own bytes wherever it stands.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

import precook
from precook.sources import embedded, parquet_values
from tests.support.pictures import chunk
from tests.support.projects import Watched, Words, content, missing, picture, project

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

PICTURES = {"encoders": {"pixels": {"uses": "image"}, "words": Words()}}


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def encoded(seed: int, size: tuple[int, int] = (96, 64)) -> bytes:
    """A picture as a file of it."""
    file = io.BytesIO()
    rng = np.random.default_rng(seed)
    small = Pictures.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8))
    small.resize(size, Pictures.Resampling.NEAREST).save(file, "PNG")
    return file.getvalue()


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"image": {"bytes": encoded(number), "path": f"p{number}.png"}, "text": f"picture {number}"}
        for number in range(first, first + count)
    ]


def hub(rows: list[dict[str, Any]], **more: Any) -> Any:
    """A dataset as the hub has it: pictures of the Image feature, and captions."""
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string"), **more})
    return datasets.Dataset.from_list(rows, features=features)


def as_files(folder: Path, count: int) -> Path:
    """The same pictures and captions as files."""
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"p{number}.png").write_bytes(encoded(number))
        (folder / f"p{number}.txt").write_text(f"picture {number}\n")
    return folder


def write_plain(path: Path, rows: list[dict[str, Any]]) -> None:
    """By pyarrow itself: `datasets` would look for files whose paths stand there."""
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([row["image"] for row in rows], kind)
    parquet.write_table(pa.table({"image": images, "text": [row["text"] for row in rows]}), path)


def of_table(path: str, **more: Any) -> dict[str, Any]:
    return {"concepts": [{"name": "things", "path": path, "captions": {"column": "text"}, **more}], **PICTURES}


def keys(plan: precook.Plan) -> dict[str, set[str]]:
    """All keys that are wanted, by encoder."""
    return {name: {bytes(key).hex() for key in one.wants.keys} for name, one in plan.encoders.items()}


def write(form: str, base: Path, dataset: Any) -> str:
    """A dataset in one of the forms that it is downloaded or saved in; the path of the concept."""
    if form == "file":
        dataset.to_parquet(base / "train.parquet")
        return "train.parquet"
    if form == "folder of shards":
        (base / "data").mkdir()
        for number in range(3):
            dataset.shard(3, number, contiguous=True).to_parquet(base / f"data/train-0000{number}-of-00003.parquet")
        return "data"
    if form == "some of the files":
        for number in range(2):
            dataset.shard(2, number, contiguous=True).to_parquet(base / f"train-0000{number}-of-00002.parquet")
        hub(rows(2, first=100)).to_parquet(base / "test-00000-of-00001.parquet")
        return "train-*.parquet"
    dataset.save_to_disk(base / "saved", num_shards=2)
    return "saved"


FORMS = ("file", "folder of shards", "some of the files", "saved to disk")


@pytest.mark.parametrize("form", FORMS)
def test_pictures_in_a_table_have_the_keys_of_the_same_pictures_as_files(tmp_path: Path, form: str) -> None:
    """What was encoded of files is not encoded again of a table that holds them, however that was written."""
    as_files(tmp_path / "files", 5)
    path = write(form, tmp_path, hub(rows(5)))
    with project(tmp_path, concepts=[{"name": "things", "path": "files"}], **PICTURES) as first:
        report = first.plan().build()
        assert report.encoded == {"pixels": 5, "words": 6}  # and the empty prompt
        expected = keys(first.plan())
    with project(tmp_path, **of_table(path)) as second:
        plan = second.plan()
        assert keys(plan) == expected
        assert not plan.missing
        assert not plan.failed
        assert plan.build().encoded == {"pixels": 0, "words": 0}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_of_pictures_is_built_and_fed(tmp_path: Path, form: str) -> None:
    """One sample for each row, with its own caption, and from the snapshot without the table."""
    path = write(form, tmp_path, hub(rows(5)))
    with project(tmp_path, **of_table(path)) as opened:
        assert opened.plan().build().encoded == {"pixels": 5, "words": 6}
        batches = list(opened.feed(batch_size=1).epoch(0))
        for written in [*tmp_path.glob("*.parquet"), *tmp_path.glob("data/*"), *tmp_path.glob("saved/*")]:
            written.unlink()
        again = list(opened.store.snapshot("test").feed(batch_size=1).epoch(0))
    assert [batch["sample"] for batch in again] == [batch["sample"] for batch in batches]
    assert sorted(caption for batch in batches for caption in batch["caption"]) == [
        f"picture {number}" for number in range(5)
    ]


def test_a_row_in_a_new_shard_encodes_one_picture(tmp_path: Path) -> None:
    """What stands in the shards that were there is found again, and nothing of them is encoded."""
    path = write("folder of shards", tmp_path, hub(rows(5)))
    with project(tmp_path, **of_table(path)) as opened:
        opened.plan().build()
        hub(rows(1, first=5)).to_parquet(tmp_path / "data/train-00003-of-00004.parquet")
        assert opened.plan().build().encoded == {"pixels": 1, "words": 1}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("settled")
def test_a_plan_over_an_unchanged_table_reads_no_picture(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamp of the table vouches for all of them: none is read, decoded or hashed, nor is the table."""
    path = write(form, tmp_path, hub(rows(5)))
    with project(tmp_path, **of_table(path)) as opened:
        before = keys(opened.plan())

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a picture was read, or the table hashed")

    monkeypatch.setattr(embedded.TableFile, "read_open", refuse)
    monkeypatch.setattr(embedded, "digest_open", refuse)
    monkeypatch.setattr(embedded, "understand", refuse)
    with project(tmp_path, **of_table(path)) as again:
        assert keys(again.plan()) == before


@pytest.mark.usefixtures("settled")
def test_a_table_that_was_moved_is_hashed_and_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy has another stamp and the same content: what is known of its pictures is known of the copy's."""
    write("file", tmp_path, hub(rows(3)))
    with project(tmp_path, **of_table("train.parquet")) as opened:
        before = keys(opened.plan())
    shutil.copy(tmp_path / "train.parquet", tmp_path / "copy.parquet")
    monkeypatch.setattr(embedded, "understand", lambda *_: pytest.fail("a picture was looked at"))
    with project(tmp_path, **of_table("copy.parquet")) as again:
        assert keys(again.plan()) == before


@pytest.mark.usefixtures("settled")
def test_a_changed_row_is_found_by_the_new_stamp(tmp_path: Path) -> None:
    """A table that is written again with one other picture wants that one, and no other."""
    path = write("file", tmp_path, hub(rows(3)))
    with project(tmp_path, **of_table(path)) as opened:
        opened.plan().build()
        hub([*rows(2), *rows(1, first=7)]).to_parquet(tmp_path / path)
        assert missing(opened.plan()) == {"pixels": 1, "words": 1}


def bomb() -> bytes:
    """A header that claims 65,000 x 65,000 pixels."""
    header = (65_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


BAD: dict[str, tuple[Any, str]] = {
    "null": (None, "no picture in column 'image': neither bytes nor a path"),
    "neither": ({"bytes": None, "path": None}, "no picture in column 'image': neither bytes nor a path"),
    "broken": ({"bytes": encoded(3)[:-40], "path": "x.png"}, ""),
    "nothing": ({"bytes": b"", "path": "x.png"}, ""),
    "no picture": ({"bytes": b"MZ" + bytes(100), "path": "x.png"}, ""),
    "bomb": ({"bytes": bomb(), "path": "x.png"}, ""),
    "a path to nothing": ({"bytes": None, "path": "absent.png"}, "no such file"),
}


@pytest.mark.parametrize("form", ["file", "saved to disk"])
@pytest.mark.parametrize("what", BAD)
def test_a_bad_cell_is_told_by_its_row_and_the_others_go_on(tmp_path: Path, what: str, form: str) -> None:
    """File and row of what cannot be used, and why; every other row is built."""
    cell, reason = BAD[what]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([row["image"] for row in rows(2)] + [cell] + [row["image"] for row in rows(2, first=2)], kind)
    table = pa.table({"image": images, "text": pa.array([f"picture {number}" for number in range(5)])})
    if form == "file":
        parquet.write_table(table, tmp_path / "train.parquet")
        path = name = "train.parquet"
    else:
        datasets.Dataset(table).save_to_disk(tmp_path / "saved")
        path, name = "saved", "data-00000-of-00001.arrow"
    with project(tmp_path, **of_table(path)) as opened:
        for plan in (opened.plan(), opened.plan()):
            [failure] = plan.failed
            assert failure.path == ("absent.png" if what == "a path to nothing" else f"{name}, row 3")
            assert failure.reason
            assert reason in failure.reason
        report = opened.plan().build()
        assert report.encoded["pixels"] == 4
        assert len(report.failed) == 1


def test_bytes_alone_are_pictures_as_well(tmp_path: Path) -> None:
    """A column of plain binary, as pandas and polars write it, in any packing."""
    as_files(tmp_path / "files", 4)
    with project(tmp_path, concepts=[{"name": "things", "path": "files"}], **PICTURES) as first:
        first.plan().build()
    images, texts = [encoded(number) for number in range(4)], [f"picture {number}" for number in range(4)]
    for packing in ("none", "snappy", "gzip", "zstd", "brotli", "lz4"):
        parquet.write_table(pa.table({"image": images, "text": texts}), tmp_path / "t.parquet", compression=packing)
        with project(tmp_path, **of_table("t.parquet")) as opened:
            plan = opened.plan()
            assert (len(plan.ready), len(plan.missing), plan.failed) == (9, 0, ())


def test_paths_that_are_null_in_every_row_say_nothing(tmp_path: Path) -> None:
    """What is written of nulls alone has no type at all."""
    rows = [{"image": {"bytes": encoded(number), "path": None}, "text": "x"} for number in range(2)]
    table = pa.Table.from_pylist(rows)
    assert str(table.schema.field("image").type) == "struct<bytes: binary, path: null>"
    parquet.write_table(table, tmp_path / "t.parquet")
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    for path in ("t.parquet", "saved"):
        with project(tmp_path, **of_table(path)) as opened:
            assert (opened.plan().samples.count, opened.plan().failed) == (2, ())


def test_a_row_without_bytes_is_found_by_its_path(tmp_path: Path) -> None:
    """Relative to the table, as in a table of paths; rows of both kinds may stand in one table."""
    picture(tmp_path / "data/inner/a.png", 1)
    mixed = [{"image": {"bytes": None, "path": "inner/a.png"}, "text": "by path"}, *rows(1)]
    write_plain(tmp_path / "data/train.parquet", mixed)
    with project(tmp_path, **of_table("data")) as opened:
        plan = opened.plan()
        assert not plan.failed
        assert {Path(plan.samples.path(sample)).name for sample in range(2)} == {"a.png", "train.parquet, row 2"}
        assert plan.build().encoded["pixels"] == 2


def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    """A table from somebody else does not make us read other files."""
    picture(tmp_path / "secret.png", 1)
    (tmp_path / "data").mkdir()
    write_plain(
        tmp_path / "data/t.parquet", [{"image": {"bytes": None, "path": "../secret.png"}, "text": "x"}, *rows(1)]
    )
    with project(tmp_path, **of_table("data/t.parquet")) as opened:
        [failure] = opened.plan().failed
        assert "outside: allow" in failure.reason


def test_masks_and_further_pictures_stand_in_columns_of_their_own(tmp_path: Path) -> None:
    """Each is the picture of its row, and one that is not there is a mask of white or a sample that is left out."""
    table = [
        {**row, "control": {"bytes": encoded(50 + number), "path": None}, "mask": {"bytes": encoded(90), "path": None}}
        for number, row in enumerate(rows(3))
    ]
    table[1]["mask"] = None
    table[2]["control"] = None
    hub(table, control=datasets.Image(), mask=datasets.Image()).to_parquet(tmp_path / "t.parquet")
    expected = np.asarray(Pictures.open(io.BytesIO(encoded(51))))
    seen = Watched("control", lambda item: item.images["control"])
    sections = of_table("t.parquet", images={"control": {"column": "control"}}, masks={"column": "mask"})
    sections["encoders"] = {"pixels": {"uses": "image"}, "mask": {"uses": "mask", "factor": 8}, "control": seen}
    seen.inputs = ("control",)  # type: ignore[attr-defined]
    with project(tmp_path, image={"resolutions": ["96x64"], "step": 16}, **sections) as opened:
        plan = opened.plan()
        assert [failure.path for failure in plan.failed] == ["t.parquet, row 3"]
        assert "no control picture for it" in plan.failed[0].reason
        report = plan.build()
        assert report.encoded == {"pixels": 2, "mask": 2, "control": 2}
        assert any(np.array_equal(item.images["control"], expected) for item in seen.items)


def test_columns_of_pictures_that_nothing_takes_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further pictures may be gigabytes."""
    table = [{**row, "control": {"bytes": encoded(5), "path": None}} for row in rows(2)]
    hub(table, control=datasets.Image()).to_parquet(tmp_path / "t.parquet")
    looked: list[str] = []
    real = embedded.TableFile.read_open

    def watch(self: Any, descriptor: int, stamp: Any, column: str, row: int) -> bytes | None:
        looked.append(column)
        return real(self, descriptor, stamp, column, row)

    monkeypatch.setattr(embedded.TableFile, "read_open", watch)
    with project(tmp_path, **of_table("t.parquet", images={"control": {"column": "control"}})) as opened:
        assert opened.plan().build().encoded["pixels"] == 2
    assert set(looked) == {"image"}


def test_explain_and_trace_name_the_table_and_the_row(tmp_path: Path) -> None:
    """`train.parquet, row 2`: by that name, by the table's own, and back from an entry."""
    path = write("file", tmp_path, hub(rows(3)))
    with project(tmp_path, **of_table(path)) as opened:
        opened.plan().build()
        plan = opened.plan()
        place = tmp_path / "train.parquet, row 2"
        [sample] = plan.explain(place).samples
        assert sample.path == str(place)
        assert sample.image == precook.digest(encoded(1)).hex
        assert len(plan.explain(tmp_path / "train.parquet").samples) == 3
        entry = next(state for state in sample.entries if state.encoder == "pixels")
        [traced] = plan.explain(Path(entry.key.hex)).samples
        assert traced.path == str(place)


@pytest.mark.parametrize("form", ["file", "saved to disk"])
def test_a_table_that_is_replaced_before_it_is_encoded_gives_no_wrong_entry(tmp_path: Path, form: str) -> None:
    """What was hashed is what is encoded: rows that are others by then are told, and nothing is stored for them."""
    path = write(form, tmp_path, hub(rows(8)))
    seen = Watched("image", content)
    with project(tmp_path, **{**of_table(path), "encoders": {"pixels": seen}}) as opened:
        plan = opened.plan()
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)
        write(form, tmp_path, hub([*rows(4), *rows(4, first=100)]))
        plan.build()
        made = {plan.samples.images[entry.sample].tobytes() for entry in plan.missing if entry.key in opened.store}
        assert made == {precook.digest(encoded(number)).bytes for number in range(4)}
        after = opened.plan()
        assert {image.tobytes() for image in after.samples.images} > made
        after.build()
        assert not opened.plan().missing


def test_one_picture_costs_its_page_and_not_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many pages is read by headers, and of its content one page for one picture."""
    images = [encoded(number) + bytes(50_000) for number in range(200)]
    table = pa.table({"image": images, "text": ["x"] * 200})
    parquet.write_table(table, tmp_path / "t.parquet", compression="none", use_dictionary=False, write_batch_size=4)
    size = (tmp_path / "t.parquet").stat().st_size
    with project(tmp_path, **of_table("t.parquet")) as opened:
        concept = opened.plan().samples.by_concept[0]
    read: list[int] = []
    real = parquet_values.read_at

    def watch(descriptor: int, offset: int, count: int) -> bytes:
        read.append(count)
        return real(descriptor, offset, count)

    monkeypatch.setattr(parquet_values, "read_at", watch)
    assert concept.read(150, "image") == images[150]
    assert sum(read) < size / 3


def test_pages_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    """However many are asked for, what is kept stays within the bound, or is one page."""
    cache = embedded.PageCache(nbytes=1000)
    pages = {number: np.zeros(300, np.uint8) for number in range(10)}
    for number, page in pages.items():
        assert cache.recall(number, lambda page=page: page) is page  # type: ignore[misc]
        assert sum(kept.nbytes for kept in cache._pages.values()) <= 1000
    assert cache.recall(9, lambda: pytest.fail("it was kept")) is pages[9]
    assert cache.recall("large", lambda: np.zeros(5000, np.uint8)).nbytes == 5000
    assert list(cache._pages) == ["large"]
    cache.clear()
    assert cache.recall(9, lambda: pages[3]) is pages[3]


def test_equal_pictures_of_several_rows_are_samples_of_their_own(tmp_path: Path) -> None:
    """As with files: one entry, and two samples that keep their identity when rows are added before other files."""
    double = [{**rows(1)[0], "text": text} for text in ("one", "two")]
    hub(double).to_parquet(tmp_path / "t.parquet")
    with project(tmp_path, **of_table("t.parquet")) as opened:
        plan = opened.plan()
        assert plan.samples.count == 2
        assert len({plan.samples.id(sample) for sample in range(2)}) == 2
        assert plan.build().encoded["pixels"] == 1


@pytest.mark.parametrize("form", ["file", "saved to disk"])
def test_a_list_of_texts_is_several_captions(tmp_path: Path, form: str) -> None:
    """As in every table that has lists."""
    several = [{**row, "text": [row["text"], "again"][: number + 1]} for number, row in enumerate(rows(2))]
    path = write(form, tmp_path, hub(several, text=datasets.Sequence(datasets.Value("string"))))
    with project(tmp_path, **of_table(path)) as opened:
        [one] = opened.plan().samples.by_concept
        assert [list(one.texts(sample)) for sample in range(2)] == [["picture 0"], ["picture 1", "again"]]


def test_file_names_beside_the_pictures_are_captions(tmp_path: Path) -> None:
    """`captions: filename` takes the path that stands beside the bytes; a row without one has no caption."""
    named = [{"image": {"bytes": encoded(0), "path": "a red cat.png"}, "text": ""}, *rows(1, first=1)]
    named[1]["image"]["path"] = None
    hub(named).to_parquet(tmp_path / "t.parquet")
    concepts = [{"name": "things", "path": "t.parquet", "captions": "filename"}]
    with project(tmp_path, concepts=concepts, **PICTURES) as opened:
        [one] = opened.plan().samples.by_concept
        assert [list(one.texts(sample)) for sample in range(2)] == [["a red cat"], [""]]


def test_what_is_no_table_is_told_with_the_next_step(tmp_path: Path) -> None:
    """A folder of splits, one without tables, a star that matches nothing, and rows that a second file chooses."""
    datasets.DatasetDict({"train": hub(rows(1))}).save_to_disk(tmp_path / "splits")
    picture(tmp_path / "pictures/a.png", 1)
    hub(rows(1)).save_to_disk(tmp_path / "chosen")
    state = json.loads((tmp_path / "chosen/state.json").read_text())
    (tmp_path / "chosen/state.json").write_text(json.dumps({**state, "_indices_data_files": [{"filename": "x"}]}))
    hub(rows(1)).save_to_disk(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/state.json").write_text(json.dumps({"_data_files": [{"filename": "../x.arrow"}]}))
    expected = {
        "splits": "name one of its splits",
        "pictures": "a folder without tables",
        "train-*.parquet": "no file has such a name",
        "nowhere/*.parquet": "No such file",
        "absent": "no such folder",
        "chosen": "its rows are chosen by a second file",
        "elsewhere": "'../x.arrow'",
    }
    for path, words in expected.items():
        with project(tmp_path, **of_table(path)) as opened, pytest.raises(precook.SourceError) as refused:
            opened.plan()
        assert words in str(refused.value)
        assert refused.value.hint


def test_an_encoder_of_clips_takes_no_pictures_of_a_table(tmp_path: Path) -> None:
    """It is said, and nothing is made of them."""
    hub(rows(1)).to_parquet(tmp_path / "t.parquet")
    clips = Watched("video", lambda item: item.video)
    sections = {**of_table("t.parquet"), "encoders": {"clips": clips}}
    with project(tmp_path, **sections) as opened, pytest.raises(precook.SourceError, match="an encoder takes clips"):
        opened.plan()


def test_rows_that_were_read_during_an_edit_are_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is written over while it is read, and then put back, is read again."""
    table = tmp_path / "train.parquet"
    flat = [Pictures.new("RGB", (96, 64), colour) for colour in ("red", "green", "blue", "white")]
    contents = [io.BytesIO() for _ in flat]
    for picture_, file in zip(flat, contents, strict=True):
        picture_.save(file, "BMP")  # of one length, so that the two tables are laid out alike
    tables = []
    for pair in (contents[:2], contents[2:]):
        images = pa.array([{"bytes": file.getvalue()} for file in pair], pa.struct({"bytes": pa.binary()}))
        parquet.write_table(pa.table({"image": images, "text": ["a", "b"]}), table, compression="none")
        tables.append(table.read_bytes())
    before, other = tables
    table.write_bytes(before)
    read = embedded.TableFile.read_open

    def edited(self: Any, *arguments: Any) -> Any:
        table.write_bytes(other)
        return read(self, *arguments)

    with project(tmp_path, **of_table("train.parquet")) as planned:
        with monkeypatch.context() as patch:
            patch.setattr(embedded.TableFile, "read_open", edited)
            with pytest.raises(precook.SourceChangedError):
                planned.plan()
        table.write_bytes(before)
        found = keys(planned.plan())["pixels"]
    for number, file in enumerate(contents[:2]):
        (tmp_path / "files").mkdir(exist_ok=True)
        (tmp_path / "files" / f"{number}.bmp").write_bytes(file.getvalue())
    with project(tmp_path, concepts=[{"name": "things", "path": "files"}], **PICTURES) as files:
        assert keys(files.plan())["pixels"] == found


def test_a_path_under_a_null_cell_does_not_count(tmp_path: Path) -> None:
    """In a stream of Arrow as in a file of Parquet: what a struct hides is not there."""
    (tmp_path / "saved").mkdir()
    struct = pa.StructArray.from_arrays(
        [pa.array([None, encoded(2)], pa.binary()), pa.array(["a.png", "b.png"])],
        names=["bytes", "path"],
        mask=pa.array([True, False]),
    )
    hub(rows(1)).save_to_disk(tmp_path / "saved")
    (file,) = (tmp_path / "saved").glob("*.arrow")
    (tmp_path / "saved" / "a.png").write_bytes(encoded(1))
    stream = pa.table({"image": struct, "text": ["none", "one"]})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, stream.schema) as writer:
        writer.write_table(stream)
    with project(tmp_path, **of_table("saved")) as planned:
        assert len(planned.plan().ready) + len(planned.plan().missing) == 3
