"""How captions become texts: whole files, JSON, words that are put into every caption, and tags that are shuffled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import precook
from precook.config.concept import TagSettings
from precook.sources.caption_rule import CaptionRule
from precook.sources.captions import CaptionError
from tests.support.projects import Watched, missing, picture, project


def texts(base: Path, **concept: Any) -> list[str]:
    """The texts that a build of one concept encodes, in order of the alphabet."""
    encoder = Watched()
    with opened(base, encoder, **concept) as made:
        report = made.build()
        assert not report.failed
    return sorted(item.text or "" for item in encoder.items)


def opened(base: Path, encoder: Any, **concept: Any) -> precook.Project:
    return project(
        base,
        concepts=[{"name": "things", "path": "data", **concept}],
        text={"empty_prompt": False},
        encoders={"words": encoder},
    )


def captioned(base: Path, **captions: str) -> None:
    """Pictures with caption files beside them, by their names."""
    for number, (stem, text) in enumerate(captions.items()):
        picture(base / f"data/{stem}.png", number)
        (base / f"data/{stem}.txt").write_text(text, "utf-8", newline="")


class TestWholeFiles:
    """`captions: {whole: sidecar}`: a file is one caption."""

    def test_a_file_of_several_lines_is_one_caption(self, tmp_path: Path) -> None:
        """Its line breaks are kept, and are the same from whatever system they come."""
        captioned(tmp_path, a="A cat.\r\n\r\nIt sleeps. \r\n", b="A dog.\n\nIt barks.\n")
        assert texts(tmp_path, captions={"whole": "sidecar"}) == ["A cat.\n\nIt sleeps.", "A dog.\n\nIt barks."]

    def test_the_batch_has_the_caption_as_one_text(self, tmp_path: Path) -> None:
        """What a training loop reads is the text that was encoded."""
        captioned(tmp_path, a="A cat.\nIt sleeps.")
        with opened(tmp_path, Watched(), captions={"whole": "sidecar"}) as made:
            made.build()
            (batch,) = made.feed(batch_size=1, seed=0).epoch(0)
        assert batch["caption"] == ["A cat.\nIt sleeps."]

    def test_a_plan_says_which_rule_was_taken_where_it_matters(self, tmp_path: Path) -> None:
        """Files of several lines are counted, with what each rule makes of them; files of one line are not worth it."""
        captioned(tmp_path, a="A cat.\nIt sleeps.", b="A dog.")
        with opened(tmp_path, Watched()) as made:
            assert "things: 1 caption file of several lines: each line is a caption of its own" in str(made.plan())
            assert "1 caption file of several" in str(made.plan()), "and so does a plan that reads no file again"
        with opened(tmp_path, Watched(), captions={"whole": "sidecar"}) as made:
            assert "things: 1 caption file of several lines: each file is one caption" in str(made.plan())
        (tmp_path / "data/a.txt").write_text("A cat.\n\n")
        for rule in ("sidecar", {"whole": "sidecar"}):
            with opened(tmp_path, Watched(), captions=rule) as made:
                assert "several lines" not in str(made.plan())

    def test_a_file_of_one_line_is_encoded_once_for_both_rules(self, tmp_path: Path) -> None:
        """Another rule that gives the same texts finds every entry."""
        captioned(tmp_path, a="A cat.", b="A dog.\nIt barks.")
        with opened(tmp_path, Watched()) as made:
            made.build()
        with opened(tmp_path, Watched(), captions={"whole": "sidecar"}) as made:
            assert missing(made.plan()) == {"words": 1}

    def test_a_hundred_thousand_lines_are_one_text_or_refused(self, tmp_path: Path) -> None:
        """As one caption per line they are too many, told by the file's name, and the other pictures go on."""
        captioned(tmp_path, a="x\n" * 100_001, b="A dog.")
        with opened(tmp_path, Watched()) as made:
            (failure,) = made.plan().failed
            assert (failure.path, "100,001 lines" in failure.reason) == ("a.txt", True)
            assert made.build().encoded == {"words": 1}
        assert texts(tmp_path, captions={"whole": "sidecar"}) == ["\n".join("x" * 100_001)]

    def test_a_file_that_is_too_large_is_refused(self) -> None:
        """What is no caption by its size is not read as one."""
        with pytest.raises(CaptionError, match=r"16,777,217 bytes, and a caption file has at most 16,777,216"):
            CaptionRule(form="whole").read(b"x" * ((16 << 20) + 1))


class TestJson:
    """`captions: {json: caption}`: a field of a JSON file beside the picture."""

    def test_a_field_holds_one_caption_or_several(self, tmp_path: Path) -> None:
        """A text is one, line breaks or not; a list of texts is several; null and blank are none."""
        values = {"a": "a cat\nasleep ", "b": ["a dog", " a dog barks"], "c": None, "d": ["", " "]}
        for number, (stem, value) in enumerate(values.items()):
            picture(tmp_path / f"data/{stem}.png", number)
            (tmp_path / f"data/{stem}.json").write_text(json.dumps({"caption": value, "tags": 3}))
        assert texts(tmp_path, captions={"json": "caption"}) == ["", "a cat\nasleep", "a dog", "a dog barks"]

    def test_the_extension_can_be_another(self, tmp_path: Path) -> None:
        """JSON need not be called so."""
        captioned(tmp_path, a='{"text": "a cat"}')
        assert texts(tmp_path, captions={"json": "text"}, caption_extension=".txt") == ["a cat"]

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ('{"caption": "a cat"', "broken JSON at line 1, column 20"),
            ("", "an empty file is not JSON"),
            ('["a cat"]', "a list, not an object"),
            ('{"text": "a cat"}', "no field 'caption' in it, fields there: 'text'"),
            ('{"caption": 3}', "a number in field 'caption': write a text or a list of texts"),
            ('{"caption": ["a", {}]}', "an object in a list in field 'caption'"),
            ('{"caption": "a", "caption": "b"}', "field 'caption' stands there twice"),
            ('{"caption": NaN}', "NaN is not JSON"),
            ('{"caption": ["a"' + ', "a"' * 100_000 + "]}", "100,001 captions, and a file has at most 100,000"),
            ('{"caption": "a\\u0000"}', "a NUL character"),
            ("[" * 100_000, "nested too deeply"),
            ('{"caption": ' + "1" * 5000 + "}", "unusable JSON"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named(self, tmp_path: Path, content: str, reason: str) -> None:
        """Broken files are told with the reason, and the others go on."""
        for stem, text in (("a", content), ("b", '{"caption": "a dog"}')):
            picture(tmp_path / f"data/{stem}.png", ord(stem))
            (tmp_path / f"data/{stem}.json").write_text(text)
        with opened(tmp_path, Watched(), captions={"json": "caption"}) as made:
            for _ in range(2):  # told again from memory
                (failure,) = made.plan().failed
                assert failure.path == "a.json"
                assert reason in failure.reason
            assert made.build().encoded == {"words": 1}


class TestAdditions:
    """`prefix`, `suffix` and `trigger`: what a concept puts into every caption."""

    @pytest.mark.parametrize(
        ("caption", "expected"),
        [
            ("a cat", "sks, a cat"),
            ("a photo of [trigger], asleep", "a photo of sks, asleep"),
            ("the cat sks, asleep", "the cat sks, asleep"),
            ("sksy things", "sks, sksy things"),
            ("SKS", "sks, SKS"),
        ],
    )
    def test_a_trigger_is_in_every_caption_once(self, caption: str, expected: str) -> None:
        """It takes the place that is kept for it, stays where it is, or comes first."""
        assert CaptionRule(trigger="sks").complete([caption]).texts == [expected]

    @pytest.mark.parametrize("captions", ["sidecar", {"whole": "sidecar"}, "filename", {"text": "a cat"}])
    def test_every_source_of_captions_gets_them(self, tmp_path: Path, captions: object) -> None:
        """Files, names and fixed texts alike, and what is encoded is what a batch says."""
        picture(tmp_path / "data/a cat.png", 1)
        (tmp_path / "data/a cat.txt").write_text("a cat\n")
        concept = {"captions": captions, "prefix": "photo: ", "suffix": "!", "trigger": "sks"}
        assert texts(tmp_path, **concept) == ["photo: sks, a cat!"]
        with opened(tmp_path, Watched(), **concept) as made:
            (batch,) = made.feed(batch_size=1, seed=0).epoch(0)
        assert batch["caption"] == ["photo: sks, a cat!"]

    def test_a_column_gets_them_too(self, tmp_path: Path) -> None:
        """Captions of a table are captions."""
        picture(tmp_path / "data/a.png", 1)
        (tmp_path / "data/t.jsonl").write_text('{"image": "a.png", "caption": ["a cat", "asleep"]}\n')
        found = texts(tmp_path, path="data/t.jsonl", captions={"column": "caption"}, trigger="sks")
        assert found == ["sks, a cat", "sks, asleep"]

    def test_a_picture_without_a_caption_has_them_alone(self, tmp_path: Path) -> None:
        """The trigger is trained on where there is nothing else, and the plan says so."""
        picture(tmp_path / "data/a.png", 1)
        assert texts(tmp_path, trigger="sks", prefix="a photo of ") == ["a photo of sks"]
        with opened(tmp_path, Watched(), trigger="sks") as made:
            assert "1 sample without a caption: only what the config puts into every caption" in str(made.plan())

    def test_only_the_texts_of_that_concept_are_encoded_again(self, tmp_path: Path) -> None:
        """Another trigger changes neither pictures nor the texts of other concepts."""
        for folder in ("one", "two"):
            picture(tmp_path / f"{folder}/a.png", ord(folder[0]))
            (tmp_path / f"{folder}/a.txt").write_text(folder)
        concepts: list[dict[str, Any]] = [{"name": name, "path": name} for name in ("one", "two")]
        with project(tmp_path, concepts=concepts) as made:
            made.build()
        concepts[0]["trigger"] = "sks"
        with project(tmp_path, concepts=concepts) as made:
            assert missing(made.plan()) == {"words": 1}
            made.build()
        with project(tmp_path, concepts=concepts) as made:
            assert missing(made.plan()) == {}

    @pytest.mark.usefixtures("settled")
    def test_a_warm_plan_reads_no_caption_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a rule made of a file is remembered with its content."""
        captioned(tmp_path, a="a cat", b="a dog\nasleep")
        with opened(tmp_path, Watched(), trigger="sks") as made:
            keys = made.plan().missing.keys()

        def refuse(*_: object) -> None:
            raise AssertionError("a caption was read again")

        monkeypatch.setattr(CaptionRule, "read", refuse)
        with opened(tmp_path, Watched(), trigger="sks") as made:
            plan = made.plan()
            assert plan.missing.keys() == keys
            assert not plan.failed


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "change",
    [
        {"captions": {"whole": "sidecar"}},
        {"captions": {"json": "other"}},
        {"caption_encoding": "utf-16-le"},
        {"prefix": "x"},
        {"suffix": "x"},
        {"trigger": "x"},
        {"tags": {"shuffle": False, "separator": ";"}},
        {"tags": {"seed": 1}},
    ],
    ids=str,
)
def test_another_rule_is_never_answered_from_memory(tmp_path: Path, change: dict[str, Any]) -> None:
    """What is remembered of a caption file is remembered for one rule: after a change, texts are as with no memory."""
    start: dict[str, Any] = {"tags": {"separator": ",", "seed": 0}} if "tags" in change else {}
    if "json" in change.get("captions", {}):
        start = {"captions": {"json": "caption"}}
    if "caption_encoding" in change:
        start = {"suffix": "y"}  # so that neither rule is the plain one
    start["caption_extension"] = ".txt"
    captioned(tmp_path, a='{"caption": "a, b, c, d",\n "other": "e; f"}')
    with opened(tmp_path, Watched(), **start) as made:
        before = made.plan().missing.keys()
    keys = []
    for store in ("cache", "fresh"):
        changed = {"name": "things", "path": "data", **start, **change}
        encoders = {"words": Watched()}
        with project(
            tmp_path, store=store, concepts=[changed], text={"empty_prompt": False}, encoders=encoders
        ) as made:
            keys.append(made.plan().missing.keys())
    assert keys[0] == keys[1] != before


TAGS = {"separator": ",", "shuffle": True, "keep_first": 1, "dropout": 0.1, "variations": 8}
MANY = "1girl, solo, smile, hat, red hair, outdoors, tree, sky"


class TestTags:
    """`tags`: captions are lists of tags, shuffled and thinned before they are encoded."""

    def test_every_variation_is_kept_and_each_epoch_shows_one(self, tmp_path: Path) -> None:
        """Eight texts of a caption are encoded, and over many epochs a feed shows all of them, encoding nothing."""
        captioned(tmp_path, a=MANY)
        encoder = Watched()
        with opened(tmp_path, encoder, tags=TAGS) as made:
            assert made.build().encoded == {"words": 8}
            kept = {item.text for item in encoder.items}
            feed = made.feed(batch_size=1, seed=0)
            shown = [batch for epoch in range(100) for batch in feed.epoch(epoch)]
        assert {batch["caption"][0] for batch in shown} == kept
        for batch in shown:
            assert bytes(batch["words"][0].tolist()).decode() == batch["caption"][0], (
                "the entry is of the text that is told"
            )
        assert len(encoder.items) == 8

    def test_the_first_tags_stay_and_all_others_move(self, tmp_path: Path) -> None:
        """`keep_first` holds in every variation; nothing is added, nothing doubled, and only other tags are dropped."""
        captioned(tmp_path, a=MANY)
        found = texts(tmp_path, tags={**TAGS, "keep_first": 2, "dropout": 0.3, "variations": 50})
        tags = MANY.split(", ")
        orders = [text.split(", ") for text in found]
        assert all(order[:2] == tags[:2] for order in orders)
        assert all(set(order) <= set(tags) and len(set(order)) == len(order) for order in orders)
        assert {order[2] for order in orders} == set(tags[2:])
        dropped = sum(len(tags) - len(order) for order in orders) / (6 * len(orders))
        assert 0.2 < dropped < 0.4

    def test_without_dropout_every_tag_is_there(self) -> None:
        """Shuffling loses nothing; dropping alone keeps the order; neither of them leaves the one text there is."""
        caption = [MANY]
        shuffled = CaptionRule(tags=TagSettings(variations=20)).complete(caption).texts
        assert {frozenset(text.split(", ")) for text in shuffled} == {frozenset(MANY.split(", "))}
        thinned = CaptionRule(tags=TagSettings(shuffle=False, dropout=0.5, variations=20)).complete(caption).texts
        places = {tag: number for number, tag in enumerate(MANY.split(", "))}
        for text in filter(None, thinned):
            numbers = [places[tag] for tag in text.split(", ")]
            assert numbers == sorted(numbers)
        assert CaptionRule(tags=TagSettings(shuffle=False)).complete(caption).texts == [MANY]
        assert CaptionRule(tags=TagSettings(dropout=1, variations=1)).complete(caption).texts == [""]

    def test_an_added_tag_encodes_that_captions_texts_only(self, tmp_path: Path) -> None:
        """Other pictures keep theirs, and so does every picture when another one is added."""
        captioned(tmp_path, a=MANY, b=f"{MANY}, dog")
        with opened(tmp_path, Watched(), tags=TAGS) as made:
            made.build()
        (tmp_path / "data/a.txt").write_text(f"{MANY}, cat")
        captioned(tmp_path / "more", c="one, two, three, four, five, six")
        for name in ("c.png", "c.txt"):
            (tmp_path / "more/data" / name).rename(tmp_path / "data" / name)
        encoder = Watched()
        with opened(tmp_path, encoder, tags=TAGS) as made:
            made.build()
        encoded = [item.text or "" for item in encoder.items]
        assert len(encoded) == 16
        assert all("1girl" not in text or text.startswith("1girl") for text in encoded)
        assert not any("dog" in text for text in encoded)

    def test_more_variations_keep_those_that_are_there(self, tmp_path: Path) -> None:
        """The first eight of ten are the eight there were."""
        captioned(tmp_path, a=MANY)
        with opened(tmp_path, Watched(), tags=TAGS) as made:
            made.build()
        with opened(tmp_path, Watched(), tags={**TAGS, "variations": 10}) as made:
            assert missing(made.plan()) == {"words": 2}

    def test_the_seed_decides(self) -> None:
        """The same seed draws the same texts on every machine; another one draws others."""
        drawn = [
            CaptionRule(tags=TagSettings(variations=3, seed=seed)).complete(["a, b, c, d"]).texts for seed in (0, 1)
        ]
        assert drawn[0] == ["b, d, a, c", "a, d, c, b", "d, c, a, b"]
        assert drawn[1] != drawn[0]

    def test_equal_tags_are_encoded_once(self, tmp_path: Path) -> None:
        """Two pictures with the same tags have the same texts, however they are spaced; so have equal variations."""
        captioned(tmp_path, a=MANY, b=MANY.replace(", ", " ,"), c="one, two")
        with opened(tmp_path, Watched(), tags=TAGS | {"dropout": 0.0, "keep_first": 0}) as made:
            assert missing(made.plan()) == {"words": 8 + 2}

    def test_empty_tags_are_passed_over_and_named(self, tmp_path: Path) -> None:
        """A trailing or doubled comma makes no tag; the plan names a file, and all go on."""
        captioned(tmp_path, a="one,, two,", b=" , ,", c="one, two")
        with opened(tmp_path, Watched(), tags={"shuffle": False}) as made:
            for _ in range(2):
                plan = made.plan()
                assert not plan.failed
                assert f"things: 2 samples with empty tags, such as {tmp_path / 'data/a.txt'}" in str(plan)
                assert "1 sample without a caption: the empty prompt is used" in str(plan)
        assert texts(tmp_path, tags={"shuffle": False}) == ["", "one, two"]

    def test_the_trigger_comes_first_and_stays(self, tmp_path: Path) -> None:
        """It is never shuffled, dropped or doubled, wherever the caption has it."""
        captioned(tmp_path, a="one, sks, two, three", b="four, five, [trigger]")
        found = texts(tmp_path, trigger="sks", prefix="photo of ", tags={"dropout": 0.5, "variations": 20})
        assert all(text.split(", ")[0] == "photo of sks" and text.count("sks") == 1 for text in found)

    def test_a_longer_tag_that_has_the_trigger_stands_in_its_place(self) -> None:
        """The word is not put in front once more."""
        rule = CaptionRule(trigger="sks", tags=TagSettings(dropout=0.5, variations=20))
        for caption in ("four, [trigger] asleep, five", "four, sks asleep, five, sks"):
            found = rule.complete([caption]).texts
            assert all(text.split(", ")[0] == "sks asleep" and text.count("sks") == 1 for text in found)
            assert len(set(found)) > 1

    @pytest.mark.parametrize(
        ("separator", "caption", "expected"),
        [(", ", "a,b , c", "a, b, c"), (";", "a;b, c", "a; b, c"), (" ", "a  b c", "a b c"), (" | ", "a|b", "a | b")],
    )
    def test_separators_are_found_with_or_without_spaces(self, separator: str, caption: str, expected: str) -> None:
        """White space around it is no part of a tag."""
        rule = CaptionRule(tags=TagSettings(separator=separator, shuffle=False))
        assert rule.complete([caption]).texts == [expected]

    def test_a_list_in_json_is_the_tags_of_one_caption(self, tmp_path: Path) -> None:
        """As tools write them beside downloaded pictures."""
        picture(tmp_path / "data/a.png", 1)
        (tmp_path / "data/a.json").write_text(json.dumps({"tags": ["1girl", "", "solo"]}))
        assert texts(tmp_path, captions={"json": "tags"}, tags={"shuffle": False}) == ["1girl, solo"]

    def test_a_tag_of_a_list_stays_whole(self, tmp_path: Path) -> None:
        """Who writes a list has said where each tag ends, whatever stands in it."""
        picture(tmp_path / "data/a.png", 1)
        (tmp_path / "data/a.json").write_text(json.dumps({"tags": ["smile, wide", "hat", "a, [trigger], b"]}))
        found = texts(tmp_path, captions={"json": "tags"}, tags={"variations": 20}, trigger="sks")
        assert set(found) == {"a, sks, b, smile, wide, hat", "a, sks, b, hat, smile, wide"}
        thinned = CaptionRule(form="json", field="tags", tags=TagSettings(shuffle=False, dropout=0.5, variations=40))
        content = (tmp_path / "data/a.json").read_bytes()
        assert all(("smile" in text) == ("wide" in text) for text in thinned.read(content).texts)

    def test_a_trigger_with_the_separator_in_it_falls_apart_where_captions_are_split(self) -> None:
        """Such texts are encoded already: they stay what they are."""
        rule = CaptionRule(trigger="sks, person", tags=TagSettings(shuffle=False))
        assert rule.complete(["hat, [trigger]"]).texts == ["sks, person, hat, sks, person"]

    def test_lists_of_tags_that_were_remembered_in_pieces_are_read_again(self) -> None:
        """What an older version made of the same files is not taken for theirs; all other rules keep what they have."""
        tags = TagSettings()
        assert CaptionRule(form="json", field="tags", tags=tags).name.startswith("4/")
        assert CaptionRule(form="json", field="tags").name.startswith("2/")
        assert CaptionRule(tags=tags).name.startswith("2/")
        assert CaptionRule(tags=tags, trigger="sks").name.startswith("3/")

    def test_a_file_that_would_become_too_many_texts_is_refused(self, tmp_path: Path) -> None:
        """Lines times variations are counted before they are made; the others go on."""
        captioned(tmp_path, a="x, y\n" * 1001, b=MANY)
        with opened(tmp_path, Watched(), tags={"variations": 100}) as made:
            (failure,) = made.plan().failed
            assert (failure.path, "would make 100,100 texts" in failure.reason) == ("a.txt", True)
            assert made.build().encoded == {"words": 100}
