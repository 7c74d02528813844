"""The mgds front in the chain that OneTrainer builds: an image cache, a text cache behind it, and prompts by file name.

`make clients` runs OneTrainer's own loaders; these tests hold what was seen there, on the stand-in.
"""

from __future__ import annotations

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
    EncodeVAE,
    MapData,
    Module,
    OutputPipelineModule,
    PipelineState,
    ReadPixels,
    Run,
    Theirs,
    Tokenize,
    collect_pictures,
    concept,
    pictures,
    shown,
)

FILENAME = {"prompt_source": "filename"}


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """Folders of two concepts, with files of the same names and without captions."""
    pictures(tmp_path / "cats", 4, captions=False)
    pictures(tmp_path / "dogs", 6, first=2, captions=False)
    return [tmp_path / "cats", tmp_path / "dogs"]


def texts(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The prompt that each item was encoded with, beside the name of its file."""
    return [("".join(map(chr, item["tokens"].tolist())), Path(item["image_path"]).stem) for item in items]


@pytest.mark.parametrize(
    "balancing",
    [
        ({"balancing": 2.0}, {}),
        ({"balancing": 0.5}, {"balancing": 0.5}),
        ({"balancing": 2, "balancing_strategy": "SAMPLES"}, {"balancing": 0.4}),
        ({"balancing": 9, "balancing_strategy": "SAMPLES", "text_variations": 2}, {"image_variations": 2}),
    ],
)
def test_prompts_by_file_name_belong_to_their_pictures_whatever_the_balancing(
    tmp_path: Path, two: list[Path], balancing: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """Behind an image cache that shows samples often or seldom, each text is of its own file, and that of mgds' own."""
    made = [concept(folder, text=FILENAME, **changes) for folder, changes in zip(two, balancing, strict=True)]
    with (
        Run(tmp_path / "theirs", made, cache=Theirs, filenames=True) as theirs,
        Run(tmp_path / "ours", made, filenames=True) as ours,
    ):
        for _ in range(5):
            items = ours.epoch()
            assert shown(items) == shown(theirs.epoch())
            assert [text for text, _ in texts(items)] == [name for _, name in texts(items)]


@pytest.mark.parametrize("epoch", [1, 4])
def test_a_resumed_run_asks_no_cache_for_another_epoch(tmp_path: Path, two: list[Path], epoch: int) -> None:
    """A process that begins at a later epoch shows what mgds' own cache shows there."""
    made = [concept(two[0], text=FILENAME, text_variations=2), concept(two[1], text=FILENAME, balancing=0.5)]
    with (
        Run(tmp_path / "theirs", made, cache=Theirs, filenames=True, epoch=epoch) as theirs,
        Run(tmp_path / "ours", made, filenames=True, epoch=epoch) as ours,
    ):
        assert shown(ours.epoch()) == shown(theirs.epoch())


def test_one_added_file_costs_one_text_behind_an_image_cache(tmp_path: Path, two: list[Path]) -> None:
    """A file that sorts before all others moves their numbers, and none of their texts is encoded again."""
    made = [concept(two[0], text=FILENAME, balancing=2.0), concept(two[1], text=FILENAME)]
    with Run(tmp_path, made, filenames=True) as run:
        run.epoch()
    (two[0] / "!new.png").write_bytes(b"new")
    with Run(tmp_path, made, filenames=True) as run:
        items = run.epoch()
        assert run.encoded == (1, 1)
        assert all(text == name for text, name in texts(items))


# Functions of texts


class Model:
    """Writes the tokens of an embedding into prompts, as OneTrainer's models do."""

    def __init__(self, placeholder: str, tokens: str) -> None:
        self.placeholder, self.tokens = placeholder, tokens

    def add_embeddings(self, prompt: str) -> str:
        return prompt.replace(self.placeholder, self.tokens)


def mapped(folder: Path, made: list[Any], model: Model, **options: Any) -> tuple[list[Any], int]:
    """The items of an epoch whose prompts go through a model's method, and how many texts were encoded."""
    extra = [MapData(in_name="prompt", out_name="prompt", map_fn=model.add_embeddings)]
    with Run(folder, made, extra=extra, **options) as run:
        return run.epoch(), run.encoded[1]


@pytest.mark.parametrize("options", [{}, {"text_options": {"content_key_in_name": "prompt"}}], ids=["plain", "content"])
def test_a_method_in_the_chain_is_known_by_what_it_makes_of_the_texts(
    tmp_path: Path, cats: Path, options: dict[str, Any]
) -> None:
    """No identity has to be given; what changes its result for some texts has these encoded again and no others."""
    made = [concept(cats)]
    for number in range(4):
        (cats / f"{number:03}.txt").write_text(f"cats {number}")
    first, count = mapped(tmp_path / "ours", made, Model("1", "<one>"), **options)
    assert shown(first) == shown(mapped(tmp_path / "theirs", made, Model("1", "<one>"), cache=Theirs)[0])
    assert count == 4
    assert mapped(tmp_path / "ours", made, Model("1", "<one>"), **options)[1] == 0
    second, count = mapped(tmp_path / "ours", made, Model("1", "<two>"), **options)
    assert count == 1
    assert [text for text, _ in texts(second)] == ["cats 0", "cats <two>", "cats 2", "cats 3"]


def test_texts_behind_a_method_keep_their_first_draw_when_files_are_added(tmp_path: Path, cats: Path) -> None:
    """Captions of two lines: a file that sorts first moves all numbers, costs one text, and changes nobody's line."""
    model, made = Model("a", "<a>"), [concept(cats)]
    before = {name: text for text, name in texts(mapped(tmp_path, made, model)[0])}
    (cats / "!new.png").write_bytes(b"new")
    items, count = mapped(tmp_path, made, model)
    assert count == 1
    assert before.items() < {name: text for text, name in texts(items)}.items()


def test_a_chat_template_is_known_by_the_messages_it_makes(tmp_path: Path, cats: Path) -> None:
    """A lambda in `Tokenize` needs no identity; other messages are other tokens."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    words = {word: at for at, word in enumerate(["?", "user", "system", "cats", "another", *map(str, range(9))])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    template = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="?", unk_token="?", chat_template=template
    )

    def epoch(role: str) -> tuple[list[list[int]], int]:
        chat = Tokenize(
            "prompt",
            "ids",
            "ids_mask",
            tokenizer,
            4,
            apply_chat_template=lambda text: [{"role": role, "content": text}],
        )
        with Run(tmp_path, [concept(cats)], extra=[chat], text_names=("ids", "tokens")) as run:
            return [item["ids"].tolist() for item in run.epoch()], run.encoded[1]

    first, count = epoch("user")
    assert count == 4
    assert {ids[0] for ids in first} == {words["user"]}
    assert epoch("user") == (first, 0)
    second, count = epoch("system")
    assert count == 4
    assert {ids[0] for ids in second} == {words["system"]}


def test_what_cannot_be_identified_is_said_before_the_cache_in_front_encodes(tmp_path: Path, cats: Path) -> None:
    """A function that only the text cache meets ends the start before a picture is encoded."""

    class Mapped(Module):
        def __init__(self) -> None:
            super().__init__("prompt", "prompt")
            self.function = str.upper

    with Run(tmp_path, [concept(cats)], extra=[Mapped()]) as run:
        with pytest.raises(precook.IdentityError, match=r"Mapped\.function"):
            run.start()
        assert run.encoded == (0, 0)


# Names


def test_a_cache_without_names_can_be_made_and_started(tmp_path: Path, cats: Path) -> None:
    """All text encoders trained: OneTrainer makes a text cache without names; nothing is cached, nothing is wrong."""
    with (
        Run(tmp_path / "ours", [concept(cats, balancing=2.0)], text_names=()) as run,
        Run(tmp_path / "theirs", [concept(cats, balancing=2.0)], text_names=(), cache=Theirs) as theirs,
    ):
        assert shown(run.epoch()) == shown(theirs.epoch())
        assert run.encoded == (4, 0)
        assert run.text_cache.length() == 8
        assert run.text_cache.get_outputs() == []


@pytest.mark.parametrize("names", [("tokens", "left_out"), ("left_out",)])
def test_a_name_that_no_module_makes_has_no_value(tmp_path: Path, cats: Path, names: tuple[str, ...]) -> None:
    """A model without one of its text encoders is cached without it, as by mgds' own cache, and gives None there."""
    with (
        Run(tmp_path / "ours", [concept(cats)], text_names=names) as run,
        Run(tmp_path / "theirs", [concept(cats)], text_names=names, cache=Theirs) as theirs,
    ):
        assert shown(run.epoch()) == shown(theirs.epoch())
        assert run.text_cache.get_item(0, "left_out")["left_out"] is None


# A VAE whose decoder is trained


class Noise(Module):
    """A picture made of the bytes of a file and a draw."""

    made = staticmethod(lambda: None)
    """Called for each; of the class, so that it is no setting of the module's."""

    def make(self, variation: int, index: int) -> Any:
        type(self).made()
        content = Path(self.given(variation, index)).read_bytes()
        torch.manual_seed(sum(content) + 1000 * self._get_rand(variation, index).randint(0, 9))
        return torch.rand(3, 8, 8)


def test_a_vae_whose_decoder_is_trained_encodes_each_variation_once(
    tmp_path: Path, cats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine-tuning changes the decoder at every step; the encoder, which is all that counts, stays what it was."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(block_out_channels=[4], norm_num_groups=2, latent_channels=2)
    encoded: list[int] = []
    monkeypatch.setattr(Noise, "made", staticmethod(lambda: encoded.append(1)))
    group = {f"{name}_in_name": f"concept.{name}" for name in ("balancing", "balancing_strategy")}

    def epochs(count: int, first: int = 0) -> list[int]:
        cache = DiskCache(
            cache_dir=str(tmp_path / "cache"),
            split_names=["latent"],
            variations_in_name="concept.image_variations",
            variations_group_in_name="concept.path",
            source_path_in_name="image_path",
            report=SILENT,
            **group,
        )
        state = PipelineState(1)
        modules = [collect_pictures(), Noise("image_path", "image"), EncodeVAE("image", "latent", vae), cache]
        made = [concept(cats, image_variations=2)]
        output = OutputPipelineModule(names=["latent"])
        data = MGDS(torch.device("cpu"), made, {}, [*modules, output], batch_size=1, state=state, initial_epoch=first)
        counts = []
        for _ in range(count):
            encoded.clear()
            data.start_next_epoch()
            counts.append(len(encoded))
            with torch.no_grad():
                vae.decoder.conv_out.weight.add_(0.1)
        cache.close()
        state.executor.shutdown()
        return counts

    assert epochs(6) == [4, 4, 0, 0, 0, 0]
    assert epochs(2, first=6) == [0, 0]
    with torch.no_grad():
        vae.encoder.conv_in.weight.add_(0.1)
    assert epochs(1) == [4]


def test_a_module_between_two_caches_gets_no_sample_of_another_number(tmp_path: Path, cats: Path) -> None:
    """A first cache that repeats its samples numbers them otherwise: asking through it is refused."""

    class Double(Module):
        def make(self, variation: int, index: int) -> Any:
            return self.given(variation, index) * 2

    def start(balancing: float) -> list[Any]:
        options = {"source_path_in_name": "image_path", "report": SILENT}
        grouped = {
            "variations_in_name": "concept.image_variations",
            "balancing_in_name": "concept.balancing",
            "balancing_strategy_in_name": "concept.balancing_strategy",
            "variations_group_in_name": "concept.path",
        }
        first = DiskCache(cache_dir=str(tmp_path / "first"), split_names=["image"], **options, **grouped)
        second = DiskCache(cache_dir=str(tmp_path / "second"), split_names=["doubled"], **options)
        reading, output = ReadPixels("image_path", "image"), OutputPipelineModule(names=["doubled"])
        modules = [collect_pictures(), reading, first, Double("image", "doubled"), second, output]
        state = PipelineState(2)
        made = [concept(cats, balancing=balancing)]
        data = MGDS(torch.device("cpu"), made, {}, modules, batch_size=1, state=state)
        try:
            data.start_next_epoch()
            return [item["doubled"].tolist() for item in data]
        finally:
            first.close()
            second.close()
            state.executor.shutdown()

    assert start(1.0) == [[2 * byte for byte in path.read_bytes()] for path in sorted(cats.glob("*.png"))]
    with pytest.raises(precook.IdentityError, match="in an order of its own"):
        start(2.0)
