"""Token ids as the tokenizer gives them, and how a tokenizer is used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precook.config.encoders import TransformersTokens
from precook.encode.encoder import Item
from precook.encode.tokens import Tokenizer, TokensEncoder
from precook.errors import EncodeError
from precook.store.snapshot_content import FrozenEos
from tests.support.projects import dataset, picture, project

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

CORPUS = ["a cat sits on the mat", "a dog runs in the park", "the quick brown fox", "seven red balloons"]
WORDS = sorted({word for line in CORPUS for word in line.split()})
PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "</s>"


def save_tokenizer(folder: Path, *, template: str = f"{BEGIN} $A {END}", **options: Any) -> Path:
    """A fast tokenizer of whole words; `template` puts its special tokens around a text."""
    from tokenizers import Tokenizer as Fast  # noqa: PLC0415
    from tokenizers import models, pre_tokenizers, processors, trainers  # noqa: PLC0415

    fast = Fast(models.WordLevel(unk_token=UNKNOWN))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(special_tokens=[PAD, UNKNOWN, BEGIN, END], show_progress=False)
    fast.train_from_iterator(CORPUS, trainer)
    fast.post_processor = processors.TemplateProcessing(single=template, special_tokens=[(BEGIN, 2), (END, 3)])
    options = {"pad_token": PAD, "unk_token": UNKNOWN, "bos_token": BEGIN, "eos_token": END, **options}
    transformers.PreTrainedTokenizerFast(tokenizer_object=fast, **options).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that adds two special tokens and states a limit of 12 tokens."""
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), model_max_length=12)


def loaded(folder: Path, **settings: Any) -> TokensEncoder:
    encoder = TokensEncoder(TransformersTokens(uses="transformers-tokens", model="unused", **settings), folder)
    encoder.load("cpu")
    return encoder


def encode(encoder: TokensEncoder, *texts: str) -> list[Any]:
    return encoder.encode([Item(text=text) for text in texts])


TEXTS = st.lists(st.sampled_from([*WORDS, "unheard-of"]), max_size=20).map(" ".join)


@given(
    texts=st.lists(TEXTS, max_size=6),
    max_length=st.none() | st.integers(2, 20),
    special=st.booleans(),
    side=st.sampled_from(["left", "right"]),
)
def test_ids_are_the_tokenizers_own(
    folder: Path, texts: list[str], max_length: int | None, special: bool, side: str
) -> None:
    """Each entry equals what the tokenizer returns for the text alone, whatever stands beside it in the batch."""
    encoder = loaded(folder, max_length=max_length, special_tokens=special)
    direct = transformers.AutoTokenizer.from_pretrained(folder)
    direct.truncation_side = encoder._loaded.library.truncation_side = side
    trees = encode(encoder, *texts)
    cut = 0
    for text, tree in zip(texts, trees, strict=True):
        options = {"add_special_tokens": special, "return_tensors": "pt"}
        wanted = direct(text, truncation=True, max_length=max_length, **options)
        assert list(tree) == ["input_ids", "attention_mask"]
        for name in tree:
            assert tree[name].dtype == torch.int64
            assert torch.equal(tree[name], wanted[name][0].long())
        assert encoder.lengths([text])[0] == len(tree["input_ids"])
        cut += len(direct(text, add_special_tokens=special)["input_ids"]) > (max_length or 12)
    assert encoder.truncated == cut


def test_a_text_that_is_too_long_is_refused_when_nothing_may_be_cut(folder: Path) -> None:
    """Without truncation the error tells both lengths, and texts that fit are kept as ever."""
    encoder = loaded(folder, max_length=5, truncation=False)
    with pytest.raises(EncodeError, match="the text has 6 tokens, and max_length is 5"):
        encode(encoder, "a cat", "a cat sits on")
    assert len(encode(encoder, "a cat sits")[0]["input_ids"]) == 5
    assert encoder.truncated == 0


def test_a_tokenizer_without_a_limit_cuts_nothing(tmp_path: Path) -> None:
    """Neither the settings nor the tokenizer state a limit: every token is kept."""
    encoder = loaded(save_tokenizer(tmp_path))
    assert len(encode(encoder, "fox " * 5000)[0]["input_ids"]) == 5002


def test_the_empty_text_is_an_entry_of_its_special_tokens(folder: Path) -> None:
    """The empty prompt is two special tokens, or without them an empty entry."""
    assert encode(loaded(folder), "")[0]["input_ids"].tolist() == [2, 3]
    (bare,) = encode(loaded(folder, special_tokens=False), "")
    assert bare["input_ids"].shape == bare["attention_mask"].shape == (0,)
    assert bare["input_ids"].dtype == torch.int64


def test_a_limit_below_the_special_tokens_is_refused_at_load(folder: Path) -> None:
    """A max_length that leaves no room is an error about the settings, not one for every text."""
    with pytest.raises(EncodeError, match="max_length 1 is less than the tokenizer's 2 special tokens"):
        loaded(folder, max_length=1)
    assert len(encode(loaded(folder, max_length=1, special_tokens=False), "a cat")[0]["input_ids"]) == 1


def test_the_pad_id_is_the_tokenizers(folder: Path, tmp_path: Path) -> None:
    """What a batch is padded with; a tokenizer without a pad token says so."""
    assert loaded(folder).find_special_tokens().pad == 0
    assert loaded(save_tokenizer(tmp_path, pad_token=None)).find_special_tokens().pad is None


def test_what_ends_a_text_is_the_tokenizers(folder: Path, tmp_path: Path) -> None:
    """The end-of-sequence token, whether every text ends with it anyway, and where texts are cut."""
    assert loaded(folder).find_special_tokens().eos == FrozenEos(3, before=1, after=1, limit=12)
    bare = loaded(folder, special_tokens=False, max_length=7)
    assert bare.find_special_tokens().eos == FrozenEos(3, before=0, after=0, limit=7)
    opened = loaded(save_tokenizer(tmp_path / "opened", template=f"{BEGIN} $A"))
    assert opened.find_special_tokens().eos == FrozenEos(3, before=1, after=0, limit=None)


def test_an_end_that_cannot_be_told_is_none(tmp_path: Path) -> None:
    """There is none, or it does not come last: another token follows it."""
    assert loaded(save_tokenizer(tmp_path / "none", eos_token=None)).find_special_tokens().eos is None
    inside = save_tokenizer(tmp_path / "inside", template=f"$A {BEGIN}")
    assert loaded(inside).find_special_tokens().eos is None


def test_no_weights_are_needed(folder: Path) -> None:
    """A folder with nothing but a tokenizer is enough."""
    assert not list(folder.glob("*.safetensors"))
    assert encode(loaded(folder), "a cat")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    """The error names the folder; settings alone are no tokenizer, of which transformers would make an empty one."""
    for settings in ({}, {"tokenizer_class": "T5Tokenizer"}, {"tokenizer_class": "Qwen2Tokenizer"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(EncodeError, match="no tokenizer in there") as refusal:
            loaded(tmp_path)
        assert str(tmp_path) in str(refusal.value)


def test_a_tokenizer_of_bytes_needs_no_vocabulary(tmp_path: Path) -> None:
    """ByT5 is whole without a file of tokens."""
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    assert encode(loaded(tmp_path), "ab")[0]["input_ids"].tolist() == [ord("a") + 3, ord("b") + 3, 1]


def test_code_in_the_folder_is_never_run(tmp_path: Path) -> None:
    """A tokenizer that needs code of its own is refused, without asking and without running it."""
    (tmp_path / "evil.py").write_text("raise SystemExit('this ran')")
    (tmp_path / "vocab.txt").write_text("a\n")
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}')
    with pytest.raises(EncodeError, match="the tokenizer cannot be loaded"):
        loaded(tmp_path)


def test_threads_may_share_a_tokenizer(folder: Path) -> None:
    """Lengths are asked for in one thread while another encodes, and neither cuts what the other wants whole."""
    tokenizer = Tokenizer(folder)
    texts = ["a cat sits on the mat " * 400] * 4

    def lengths(limit: int) -> set[int]:
        return {len(row.ids) for _ in range(10) for row in tokenizer.rows(texts, limit=limit)}

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lengths, [9, 10, 11, 12])) == [{9}, {10}, {11}, {12}]


def test_an_unloaded_encoder_says_so(folder: Path) -> None:
    """Encoding before load or after unload is an error that names the next step."""
    encoder = loaded(folder)
    encoder.unload()
    with pytest.raises(EncodeError, match=r"not loaded \(call load"):
        encode(encoder, "a cat")


def test_importing_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    """The modules are imported for every plan, so they and their constructors leave the libraries alone."""
    code = """
import sys
from pathlib import Path
from precook.config.encoders import TransformersProcessor, TransformersText, TransformersTokens
from precook.encode.processor import ProcessorEncoder
from precook.encode.text import TextEncoder
from precook.encode.tokens import TokensEncoder
here = Path(sys.argv[1])
TextEncoder(TransformersText(uses="transformers-text", model="m"), here, here)
TokensEncoder(TransformersTokens(uses="transformers-tokens", model="m"), here)
ProcessorEncoder(TransformersProcessor(uses="transformers-processor", model="m"), here)
assert not {"torch", "transformers", "tokenizers"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, absent: str) -> None:
    """Where a library cannot be imported, every encoder that needs it says what to install."""
    code = f"""
import sys
sys.modules["{absent}"] = None  # what an interpreter without it does: the import fails
from pathlib import Path
from precook.config.encoders import TransformersProcessor, TransformersTokens
from precook.encode.processor import ProcessorEncoder
from precook.encode.tokens import TokensEncoder
from precook.errors import EncodeError
for kind, section in (
    (TokensEncoder, TransformersTokens(uses="transformers-tokens", model="m")),
    (ProcessorEncoder, TransformersProcessor(uses="transformers-processor", model="m")),
):
    try:
        kind(section, Path(sys.argv[1])).load("cpu")
    except EncodeError as error:
        assert "needs {absent}, which is not installed (pip install 'precook[{absent}]')" in str(error), error
    else:
        raise AssertionError("loaded")
"""
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)


def test_files_that_are_swapped_after_the_plan_get_no_planned_key(tmp_path: Path) -> None:
    """What other files than the planned ones would make is not stored, by a build nor by a feed that encodes."""
    dataset(tmp_path / "data")
    for number, word in enumerate(WORDS[:3]):
        (tmp_path / f"data/p{number}.txt").write_text(word)
    first = save_tokenizer(tmp_path / "first")
    second = save_tokenizer(tmp_path / "second", template=f"{BEGIN} {BEGIN} $A {END}")
    used = tmp_path / "used"
    shutil.copytree(first, used)
    encoders = {"tokens": {"uses": "transformers-tokens", "model": "used"}}
    with project(tmp_path, encoders=encoders) as owner:
        plan, feed = owner.plan(), owner.feed(batch_size=2, on_missing="encode")
        shutil.rmtree(used)
        shutil.copytree(second, used)
        with pytest.raises(EncodeError, match="tokens: the files of used are others than when the build was planned"):
            plan.build()
        with pytest.raises(EncodeError, match="are others than when the build was planned"), feed:
            list(feed.epoch(0))
        assert len(owner.store) == 0
        assert owner.build().encoded == {"tokens": 4}


def test_mixtures_of_unknown_tags_end_no_build(tmp_path: Path) -> None:
    """Tags that a tokenizer does not know are as many unknown tokens, whichever of them are dropped."""
    picture(tmp_path / "data/p.png", 1)
    (tmp_path / "data/p.txt").write_text("eins, zwei, drei, vier")
    save_tokenizer(tmp_path / "text")
    tags = {"shuffle": False, "dropout": 0.3, "variations": 4, "seed": 14}
    with project(
        tmp_path,
        concepts=[{"name": "things", "path": "data", "tags": tags}],
        encoders={"tokens": {"uses": "transformers-tokens", "model": "text"}},
        text={"empty_prompt": False},
    ) as made:
        # Three different texts of three tags each.
        assert made.build().encoded == {"tokens": 3}
        assert not made.plan().missing
