"""Tokenizers and processors as what really runs."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from precook import Digest, IdentityError, identify
from precook.identity.canonical import canonical
from tests.support.identities import clip, form, same

transformers: Any = pytest.importorskip("transformers", reason="identifies tokenizers and processors")
tokenizers: Any = pytest.importorskip("tokenizers", reason="trains a tokenizer")
CORPUS = ["a cat sat on the mat", "the dog ate the log", "hello world, it's 2024!"]
TOKENS = ["<unk>", "<s>", "</s>", "<pad>", "<|endoftext|>", "<|startoftext|>"]


# Tokenizers


def backend(corpus: list[str]) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus * 10, trainer)
    return tokenizer


def fast(corpus: list[str] | None = None, **settings: object) -> Any:
    known = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend(corpus or CORPUS), **{**known, "chat_template": "{{ messages }}", **settings}
    )


def bos() -> Any:
    return fast(add_bos_token=True, model_max_length=77)


def clip_tokenizer() -> Any:
    model = json.loads(backend(CORPUS).to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = transformers.CLIPTokenizer(vocab=model["vocab"], merges=merges, pad_token="<pad>")
    tokenizer.add_tokens(["<style>"])
    tokenizer.add_special_tokens({"extra_special_tokens": ["<image>"]})
    return tokenizer


def unigram() -> Any:
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((char, -1.5) for char in "\u2581abcdeht")]
    return transformers.T5Tokenizer(vocab=vocab, extra_ids=3)


def python_bytes() -> Any:
    return transformers.ByT5Tokenizer(extra_ids=5)


def python_vocabulary(folder: Path) -> Any:
    file = folder / "vocab.txt"
    file.write_text("<cls>\n<pad>\n<eos>\n<unk>\na\nc\nt\n<mask>")
    return transformers.EsmTokenizer(vocab_file=str(file))


def sentencepiece(folder: Path) -> Any:
    spm: Any = pytest.importorskip("sentencepiece", reason="trains a sentencepiece model")
    prefix = str(folder / "spiece")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 10), model_prefix=prefix, vocab_size=60, hard_vocab_limit=False, pad_id=3,
        minloglevel=2,
    )  # fmt: skip
    return transformers.BertGenerationTokenizer(vocab_file=f"{prefix}.model")


MAKERS: dict[str, Callable[[Path], Any]] = {
    "fast": lambda _: fast(),
    "bos": lambda _: bos(),
    "clip": lambda _: clip_tokenizer(),
    "unigram": lambda _: unigram(),
    "python, no file": lambda _: python_bytes(),
    "python, with file": python_vocabulary,
    "sentencepiece": sentencepiece,
}


@pytest.fixture(params=MAKERS, scope="module")
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer of each backend."""
    return MAKERS[request.param](tmp_path_factory.mktemp("tokenizer"))


def use(tokenizer: Any) -> None:
    tokenizer(["a cat", "the dog ate the log"], padding=True, truncation=True, max_length=5)
    tokenizer.decode([4, 5, 6])


def test_use_does_not_change_a_tokenizer(tokenizer: Any) -> None:
    """Padding, truncating and decoding leave the identity alone."""
    before = form(tokenizer)
    use(tokenizer)
    assert form(tokenizer) == before


def test_saving_and_loading_a_tokenizer_keeps_its_identity(tokenizer: Any, tmp_path: Path) -> None:
    """A tokenizer saved and loaded, twice and after use, by its class or by AutoTokenizer, is the same."""
    before = form(tokenizer)
    tokenizer.save_pretrained(tmp_path / "one")
    loaded = type(tokenizer).from_pretrained(tmp_path / "one")
    use(loaded)
    loaded.save_pretrained(tmp_path / "two")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "two")
    assert type(again) is type(tokenizer)
    assert form(loaded) == form(again) == before


def test_a_pickled_tokenizer_is_the_same(tokenizer: Any) -> None:
    """A tokenizer that was pickled after use is the same."""
    use(tokenizer)
    assert same(pickle.loads(pickle.dumps(tokenizer)), tokenizer)


def test_another_process_gives_the_same_identity() -> None:
    """In a worker that was sent the objects, with other hash seeds, everything is the same."""
    objects = [fast(), clip_tokenizer(), python_bytes(), clip(), clip_processor()]
    use(objects[0])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.map(identify, objects)
    assert [canonical(identity) for identity in there] == [form(obj) for obj in objects]


def test_no_path_enters_a_tokenizers_identity(tokenizer: Any, tmp_path: Path) -> None:
    """Neither the name nor any path a tokenizer was loaded from is part of it."""
    tokenizer.save_pretrained(tmp_path)
    loaded = type(tokenizer).from_pretrained(tmp_path)
    assert loaded.name_or_path
    assert str(tmp_path.parent) not in form(loaded).decode()


def with_token(tokenizer: Any, **flags: bool) -> Any:
    tokenizer.add_tokens([tokenizers.AddedToken("<new>", **flags)])
    return tokenizer


def with_attribute(tokenizer: Any, name: str, value: object) -> Any:
    setattr(tokenizer, name, value)
    return tokenizer


def test_every_change_of_a_fast_tokenizer_is_seen() -> None:
    """Vocabulary, added tokens, template, sides, length and special tokens: each makes another tokenizer."""
    others = [
        fast(["another corpus", "of other words"]),
        with_token(fast()),
        with_token(fast(), lstrip=True),
        with_token(fast(), single_word=True),
        fast(chat_template="{{ other }}"),
        fast(chat_template=None),
        fast(padding_side="left"),
        fast(truncation_side="left"),
        fast(model_max_length=5),
        fast(pad_token="</s>"),
        fast(add_bos_token=True),
        fast(split_special_tokens=True),
        fast(model_input_names=["input_ids"]),
        fast(clean_up_tokenization_spaces=True),
        fast(extra_special_tokens=["<|endoftext|>"]),
        with_attribute(fast(), "padding_side", "left"),
    ]
    forms = {form(fast()), *map(form, others)}
    # Setting the padding side when it is made, or afterwards, is the same.
    assert len(forms) == len(others)


def test_tokens_with_random_names_count_by_their_ids(tmp_path: Path) -> None:
    """A program that makes up tokens for its embeddings makes up others in each process, under the same ids."""

    def with_made_up(tokenizer: Any, count: int) -> Any:
        tokenizer.add_tokens([f"<{uuid.uuid4()}>" for _ in range(count)])
        return tokenizer

    for make in (fast, lambda: python_vocabulary(tmp_path)):
        assert same(with_made_up(make(), 2), with_made_up(make(), 2))
        assert len({form(with_made_up(make(), count)) for count in (0, 1, 2)}) == 3


def test_a_long_template_is_shown_as_a_digest() -> None:
    """A chat template too long to read is a digest, and its last character counts."""
    long = "{{ messages }}" * 1000
    assert isinstance(identify(fast(chat_template=long))["chat_template"], Digest)  # type: ignore[index]
    assert not same(fast(chat_template=long), fast(chat_template=long + "."))


def test_the_vocabulary_of_a_tokenizer_is_a_digest() -> None:
    """What is too long to read is a digest, and the rest of a fast tokenizer can be compared by eye."""
    identity: Any = identify(fast())
    assert isinstance(identity["backend"]["model"]["vocab"], Digest)
    assert identity["backend"]["model"]["type"] == "BPE"
    assert identity["backend"]["pre_tokenizer"]["type"] == "ByteLevel"
    assert identity["special_tokens"]["pad_token"] == "<pad>"
    assert len(canonical(identity)) < 10_000


def test_a_raw_tokenizer_keeps_its_padding() -> None:
    """In a tokenizer without transformers, padding and truncation are settings and count."""
    base = form(backend(CORPUS))
    padded, cut, other = backend(CORPUS), backend(CORPUS), backend(["other"])
    padded.enable_padding(pad_id=3)
    cut.enable_truncation(5)
    assert base == form(backend(CORPUS))
    assert len({base, form(padded), form(cut), form(other)}) == 4


def test_every_change_of_a_python_tokenizer_is_seen(tmp_path: Path) -> None:
    """A python tokenizer is told apart by vocabulary, added tokens and settings."""
    base = python_vocabulary(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "vocab.txt").write_text("<cls>\n<pad>\n<eos>\n<unk>\na\nt\nc\n<mask>")
    others = [
        transformers.EsmTokenizer(vocab_file=str(tmp_path / "other" / "vocab.txt")),
        with_token(python_vocabulary(tmp_path)),
        with_token(python_vocabulary(tmp_path), rstrip=True),
        with_attribute(python_vocabulary(tmp_path), "padding_side", "left"),
        with_attribute(python_vocabulary(tmp_path), "chat_template", "x"),
        transformers.EsmTokenizer(vocab_file=str(tmp_path / "vocab.txt"), eos_token="<mask>"),
    ]
    assert len({form(base), *map(form, others)}) == len(others) + 1
    assert not same(python_bytes(), transformers.ByT5Tokenizer(extra_ids=6))


def test_a_vocabulary_that_no_file_holds_is_seen() -> None:
    """A python tokenizer of one's own is told apart by its tokens, also where saving writes no vocabulary."""

    class Letters(transformers.PythonBackend):  # type: ignore[misc]
        def __init__(self, letters: str, **settings: object) -> None:
            self._letters = {letter: index for index, letter in enumerate(letters)}
            super().__init__(unk_token="a", **settings)

        def get_vocab(self) -> dict[str, int]:
            return dict(self._letters)

        def _convert_token_to_id(self, token: str) -> int:
            return self._letters[token]

    assert Letters("abc").save_vocabulary(".") == ()
    assert same(Letters("abc"), Letters("abc"))
    assert not same(Letters("abc"), Letters("acb"))


def test_settings_inside_a_python_tokenizer_are_seen(tmp_path: Path) -> None:
    """A setting that only an object inside the tokenizer holds is known by the argument that set it."""
    legacy: Any = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy", reason="a python tokenizer")
    file = tmp_path / "vocab.txt"
    file.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na")
    one, other = (legacy.BertTokenizerLegacy(vocab_file=str(file), strip_accents=strip) for strip in (True, False))
    assert not same(one, other)


def test_a_sentencepiece_model_counts_as_it_is_in_memory(tmp_path: Path) -> None:
    """Replacing or deleting the file behind a loaded tokenizer changes nothing about it."""
    tokenizer = sentencepiece(tmp_path)
    before = form(tokenizer)
    (tmp_path / "spiece.model").write_bytes(b"something else")
    assert form(tokenizer) == before
    (tmp_path / "spiece.model").unlink()
    assert form(tokenizer) == before


def test_a_tokenizer_that_cannot_show_its_vocabulary_is_refused() -> None:
    """Without a vocabulary to look at there is no identity, only a hint."""

    class Secretive(transformers.ByT5Tokenizer):  # type: ignore[misc]
        def save_vocabulary(self, *_: object, **__: object) -> tuple[str, ...]:
            raise NotImplementedError

    with pytest.raises(IdentityError, match="cannot show its vocabulary") as caught:
        identify({"tokenizer": Secretive()})
    assert caught.value.where == "['tokenizer']"
    assert "Path" in caught.value.hint


# Processors


def image_processor(**settings: object) -> Any:
    pytest.importorskip("PIL", reason="image processors")
    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    return transformers.CLIPImageProcessor(**{**size, **settings})


def clip_processor(**settings: object) -> Any:
    return transformers.CLIPProcessor(image_processor=image_processor(**settings), tokenizer=clip_tokenizer())


def llava(**settings: object) -> Any:
    tokenizer = fast(extra_special_tokens={"image_token": "<image>"}, chat_template=None)
    known = {"patch_size": 8, "vision_feature_select_strategy": "default"}
    return transformers.LlavaProcessor(image_processor=image_processor(), tokenizer=tokenizer, **{**known, **settings})


def test_an_image_processor_is_the_class_that_ran() -> None:
    """The class and the backend are those of the object, not those its config file would name."""
    processor = image_processor()
    identity: Any = identify(processor)
    assert identity["kind"] == "image-processor"
    assert identity["class"] == f"{type(processor).__module__}.{type(processor).__qualname__}"
    assert identity["backend"] == processor.backend
    assert identity["settings"]["resample"] == 3
    assert "image_processor_type" not in identity["settings"]


def test_the_backend_of_an_image_processor_counts() -> None:
    """Twins under one name and one config, on torchvision and on PIL, are two processors."""
    base = type(image_processor())
    twins = [type("Twin", (base,), {"backend": backend, "__module__": "twins"})() for backend in ("pil", "torchvision")]
    assert twins[0].to_dict() == twins[1].to_dict()
    assert not same(*twins)


def test_the_twin_on_torchvision_is_another_processor(tmp_path: Path) -> None:
    """One saved config, loaded with torchvision and with PIL, gives two processors."""
    pytest.importorskip("torchvision", reason="the other backend")
    image_processor().save_pretrained(tmp_path)
    load = transformers.AutoImageProcessor.from_pretrained
    twins = [load(tmp_path, backend=name) for name in ("torchvision", "pil")]
    assert [identify(twin)["backend"] for twin in twins] == ["torchvision", "pil"]  # type: ignore[index]
    assert not same(*twins)


def test_saving_and_loading_an_image_processor_keeps_its_identity(tmp_path: Path) -> None:
    """An image processor that was saved, loaded and used is the same, though its enums became numbers."""
    image: Any = pytest.importorskip("PIL.Image", reason="image processors")
    processor = image_processor()
    processor.save_pretrained(tmp_path)
    loaded = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    loaded(image.new("RGB", (40, 50)))
    assert type(loaded.resample) is not type(processor.resample)
    assert same(loaded, processor)


def test_every_setting_of_an_image_processor_is_seen() -> None:
    """Size, mean, resampling and each switch make another processor; the device does not."""
    np: Any = pytest.importorskip("numpy", reason="image processors")
    others = [
        image_processor(size={"shortest_edge": 64}),
        image_processor(image_mean=[0.5, 0.5, 0.5]),
        image_processor(resample=2),
        image_processor(do_normalize=False),
        image_processor(rescale_factor=np.float32(0.5)),
    ]
    assert len({form(image_processor()), *map(form, others)}) == len(others) + 1
    assert same(image_processor(rescale_factor=np.float32(0.5)), image_processor(rescale_factor=0.5))
    assert same(image_processor(device="cpu"), image_processor())


@pytest.mark.parametrize("make", [clip_processor, llava, lambda: llava(chat_template="{{ messages }}")])
def test_saving_and_loading_a_processor_keeps_its_identity(make: Callable[[], Any], tmp_path: Path) -> None:
    """A processor of several parts that was saved and loaded is the same, its template included."""
    processor = make()
    before = form(processor)
    processor.save_pretrained(tmp_path)
    assert form(type(processor).from_pretrained(tmp_path)) == before
    assert form(transformers.AutoProcessor.from_pretrained(tmp_path)) == before


def test_a_processor_is_each_of_its_parts() -> None:
    """A processor of several parts is told apart by each part, its settings and its template."""
    identity: Any = identify(clip_processor())
    assert set(identity["parts"]) == {"image_processor", "tokenizer"}
    assert identity["parts"]["image_processor"] == identify(image_processor())
    assert not same(clip_processor(), clip_processor(do_normalize=False))
    changed = clip_processor()
    with_token(changed.tokenizer)
    assert not same(changed, clip_processor())
    others = [llava(), llava(patch_size=16), llava(chat_template="{{ messages }}"), llava(chat_template="{{ other }}")]
    assert len(set(map(form, others))) == len(others)


def test_what_a_processor_was_given_must_say_what_it_is() -> None:
    """An argument that cannot be identified is refused; what the processor made for itself is left out."""
    processor = llava()
    processor.helper = object()
    assert same(processor, llava())
    processor.patch_size = object()
    with pytest.raises(IdentityError) as caught:
        identify(processor)
    assert caught.value.where == ".patch_size"


def test_a_feature_extractor_is_its_class_and_settings() -> None:
    """A feature extractor is told apart by its settings; tables it derives from them are left out."""
    one, other = (transformers.WhisperFeatureExtractor(feature_size=size) for size in (80, 128))
    identity: Any = identify(one)
    assert identity["kind"] == "feature-extractor"
    assert identity["settings"]["feature_size"] == 80
    assert not same(one, other)


def test_an_image_processor_of_diffusers_is_its_config() -> None:
    """A VAE's image processor is told apart by its config, whichever of it was left at its default."""
    module: Any = pytest.importorskip("diffusers.image_processor", reason="a VAE's image processor")
    assert same(module.VaeImageProcessor(), module.VaeImageProcessor(vae_scale_factor=8))
    assert not same(module.VaeImageProcessor(), module.VaeImageProcessor(vae_scale_factor=16))
