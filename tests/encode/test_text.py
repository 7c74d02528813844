"""Hidden states of texts, beside transformers called directly: one text at a time, padded to max_length, untrimmed.

Tolerance: 1e-4 in float32 (about 1e-5 is seen), where the states of different texts differ by more than 0.1.
"""

from __future__ import annotations

import gc
import inspect
import json
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precook.config.encoders import TransformersText
from precook.encode.encoder import Item
from precook.encode.text import TextEncoder
from precook.errors import EncodeError
from tests.encode.test_tokens import BEGIN, END, WORDS, save_tokenizer

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

LIMIT = 14
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 20,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
KEYS: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
T5: dict[str, Any] = {
    "vocab_size": 40,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


@dataclass(frozen=True)
class Family:
    """A kind of model: what is saved, what is loaded to compare with, and its tokenizer."""

    saved: Callable[[], Any]
    compared: str
    tokenizer: dict[str, Any] = field(default_factory=dict)
    masked: bool = True
    pooled: str = ""


FAMILIES = {
    # As SD and FLUX use it; its pad token is its end token.
    "clip": Family(
        lambda: transformers.CLIPTextModel(transformers.CLIPTextConfig(**SIZES)),
        "CLIPTextModel",
        {"pad_token": END},
        masked=False,
        pooled="pooler_output",
    ),
    # As SDXL's second: projected, and padded with another token.
    "clip-projection": Family(
        lambda: transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(**SIZES, projection_dim=24)),
        "CLIPTextModelWithProjection",
        masked=False,
        pooled="text_embeds",
    ),
    # With the end token that old configs state, where the pooled position is that of the highest id.
    "clip-old": Family(
        lambda: transformers.CLIPTextModel(transformers.CLIPTextConfig(**{**SIZES, "eos_token_id": 2})),
        "CLIPTextModel",
        masked=False,
        pooled="pooler_output",
    ),
    "t5": Family(
        lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
        "T5EncoderModel",
        {"template": f"$A {END}"},
    ),
    "umt5": Family(
        lambda: transformers.UMT5EncoderModel(transformers.UMT5Config(**T5)),
        "UMT5EncoderModel",
        {"template": f"$A {END}"},
    ),
    # No special tokens at all, padded on the left.
    "qwen3": Family(
        lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**KEYS)),
        "Qwen3Model",
        {"template": "$A", "padding_side": "left"},
    ),
    # No pad token.
    "llama": Family(
        lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**KEYS)),
        "LlamaModel",
        {"template": f"{BEGIN} $A", "pad_token": None},
    ),
    "mistral": Family(
        lambda: transformers.MistralModel(transformers.MistralConfig(**KEYS, sliding_window=4)),
        "MistralModel",
        {"template": f"{BEGIN} $A", "padding_side": "left"},
    ),
    # With token types, which its tokenizer gives too.
    "bert": Family(
        lambda: transformers.BertModel(transformers.BertConfig(**SIZES)),
        "BertModel",
        {
            "template": f"{BEGIN}:0 $A:1 {END}:0",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        },
        pooled="pooler_output",
    ),
    "roberta": Family(
        lambda: transformers.RobertaModel(transformers.RobertaConfig(**SIZES)), "RobertaModel", pooled="pooler_output"
    ),
}
POOLING = [name for name, family in FAMILIES.items() if family.pooled]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    """Small models gain nothing from threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def save_model(folder: Path, model: Any, **tokenizer: Any) -> Path:
    """A model folder with random weights, large enough for texts to differ."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(folder)
    return save_tokenizer(folder, **tokenizer)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of each family."""

    @cache
    def folder(name: str) -> Path:
        family = FAMILIES[name]
        return save_model(tmp_path_factory.mktemp(name), family.saved(), **family.tokenizer)

    return folder


class Direct:
    """transformers, called as its documentation says: one text, padded to `LIMIT`, all layers."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        self.family = FAMILIES[name]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = END
        self.model = getattr(transformers, self.family.compared).from_pretrained(folder, **options).eval()
        self.known: dict[str, tuple[Any, Any]] = {}

    def __call__(self, text: str) -> tuple[Any, Any]:
        """The model's output, and which positions are real."""
        if text not in self.known:
            inputs = self.tokenizer(text, padding="max_length", truncation=True, max_length=LIMIT, return_tensors="pt")
            given = inputs if self.family.masked else {"input_ids": inputs["input_ids"]}
            with torch.no_grad():
                self.known[text] = self.model(**given, output_hidden_states=True), inputs["attention_mask"][0].bool()
        return self.known[text]


@pytest.fixture(scope="module")
def directs(folders: Callable[[str], Path]) -> Callable[[str], Direct]:
    """What transformers says, for each family."""
    return cache(lambda name: Direct(name, folders(name)))


def loaded(folder: Path, **options: Any) -> TextEncoder:
    options = {"max_length": LIMIT, **options}
    encoder = TextEncoder(TransformersText(uses="transformers-text", model="unused", **options), folder, folder)
    encoder.load("cpu")
    return encoder


def encode(encoder: TextEncoder, *texts: str) -> list[Any]:
    return encoder.encode([Item(text=text) for text in texts])


def close(found: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance)


TEXTS = [
    "",
    "a cat",
    "the quick brown fox runs in the park",
    "seven unheard-of balloons",
    "fox",
    " ".join(WORDS),
]
"""Of mixed lengths, with the empty one, and one longer than `LIMIT`; without that, no batch is as long as `LIMIT`."""
BATCHES = [TEXTS, TEXTS[:-1], TEXTS[1:3], TEXTS[:1]]


class TestEquality:
    """Batched and trimmed, the states are those of the library."""

    @pytest.mark.parametrize("name", FAMILIES)
    def test_the_references_tell_texts_apart(self, directs: Callable[[str], Direct], name: str) -> None:
        """The tolerance means something: states of different texts are far apart, and so are layers."""
        (one, _), (other, _) = directs(name)("a cat sits"), directs(name)("the dog runs")
        for layer in range(4):
            assert (one.hidden_states[layer] - other.hidden_states[layer]).abs().amax() > 0.1
        for upper, lower in zip(one.hidden_states[1:], one.hidden_states, strict=False):
            assert (upper - lower).abs().amax() > 0.1

    @pytest.mark.parametrize("name", FAMILIES)
    @pytest.mark.parametrize("crop", [0, 1, 3])
    def test_the_last_layer(
        self, folders: Callable[[str], Path], directs: Callable[[str], Direct], name: str, crop: int
    ) -> None:
        """`hidden` is the last_hidden_state at the real positions, less the cropped ones; `pooled` is not cropped."""
        encoder, direct = loaded(folders(name), crop_start=crop), directs(name)
        for batch in BATCHES:
            texts = [text for text in batch if text or name != "qwen3"]  # which makes no token of the empty one
            for text, tree in zip(texts, encode(encoder, *texts), strict=True):
                out, real = direct(text)
                close(tree["hidden"], out.last_hidden_state[0, real][crop:])
                assert list(tree) == (["hidden", "pooled"] if direct.family.pooled else ["hidden"])
                if direct.family.pooled:
                    close(tree["pooled"], out[direct.family.pooled][0])

    @pytest.mark.parametrize("name", FAMILIES)
    @pytest.mark.parametrize("layers", ["all", [-2], [0], [3], [2, 0, -1], [-1, -3, 3]], ids=str)
    def test_layers(
        self, folders: Callable[[str], Path], directs: Callable[[str], Direct], name: str, layers: Any
    ) -> None:
        """-1 is the last_hidden_state, any other number that of hidden_states; several are stacked as asked."""
        encoder, direct = loaded(folders(name), layers=layers, crop_start=1), directs(name)
        texts = TEXTS[1:-1]
        for text, tree in zip(texts, encode(encoder, *texts), strict=True):
            out, real = direct(text)
            states = out.hidden_states
            if layers != "all":
                states = [out.last_hidden_state if layer == -1 else states[layer] for layer in layers]
            wanted = torch.stack([state[0, real][1:] for state in states])
            close(tree["hidden"], wanted if layers == "all" or len(layers) > 1 else wanted[0])

    @pytest.mark.parametrize("name", [name for name in FAMILIES if name != "llama"])
    @pytest.mark.parametrize("layers", [[-1], [-2, 1]], ids=str)
    def test_kept_padding(
        self, folders: Callable[[str], Path], directs: Callable[[str], Direct], name: str, layers: list[int]
    ) -> None:
        """All positions as the library gives them, padded as the tokenizer pads, and which of them are real."""
        encoder, direct = loaded(folders(name), layers=layers, keep_padding=True, crop_start=2), directs(name)
        texts = [text for text in TEXTS if text or name != "qwen3"]
        for text, tree in zip(texts, encode(encoder, *texts), strict=True):
            out, real = direct(text)
            states = [out.last_hidden_state if layer == -1 else out.hidden_states[layer] for layer in layers]
            wanted = torch.stack([state[0, 2:] for state in states])
            close(tree["hidden"], wanted if len(layers) > 1 else wanted[0])
            assert torch.equal(tree["mask"], real[2:])
            if direct.family.pooled:
                close(tree["pooled"], out[direct.family.pooled][0])

    @pytest.mark.parametrize("name", FAMILIES)
    def test_any_batch(self, folders: Callable[[str], Path], directs: Callable[[str], Direct], name: str) -> None:
        """Whatever texts share a batch, none changes another."""
        encoder, direct = loaded(folders(name)), directs(name)
        smallest = 1 if name == "qwen3" else 0
        text = st.lists(st.sampled_from(WORDS), min_size=smallest, max_size=16).map(" ".join)

        @settings(max_examples=25)
        @given(st.lists(text, max_size=7))
        def check(texts: list[str]) -> None:
            for one, tree in zip(texts, encode(encoder, *texts), strict=True):
                out, real = direct(one)
                close(tree["hidden"], out.last_hidden_state[0, real])
                assert encoder.lengths([one])[0] == len(tree["hidden"])
                if direct.family.pooled:
                    close(tree["pooled"], out[direct.family.pooled][0])

        check()

    @pytest.mark.parametrize("options", [{}, {"layers": [0, -2]}, {"keep_padding": True}])
    @pytest.mark.parametrize("name", ["clip", "t5", "mistral", "bert"])
    def test_batches_that_overlap_do_not_mix(
        self, folders: Callable[[str], Path], name: str, options: dict[str, Any]
    ) -> None:
        """One batch is launched before the other has landed, as on a GPU: each text still has what it has alone."""
        if options.get("keep_padding"):
            options = {**options, "crop_start": 1}
        encoder = loaded(folders(name), **options)
        batches = [["fox", "a quick red fox"], ["seven red balloons", "a"]]
        costs = [len(encoder._tokenised([text])[0].ids) for text in batches[0]]
        if options.get("keep_padding"):
            # However short they are, the model runs on as many tokens as the longest may have.
            costs = [encoder._parts()[1].limit] * len(costs)
        assert encoder.lengths(batches[0]) == costs
        flights = [encoder.stage([Item(text=text) for text in batch]) for batch in batches]
        for flight in flights:
            flight.launch()
        for batch, flight in zip(batches, flights, strict=True):
            for text, tree in zip(batch, flight.land(), strict=True):
                (alone,) = encode(encoder, text)
                assert tree.keys() == alone.keys()
                for part, tensor in tree.items():
                    close(tensor, alone[part])

    @pytest.mark.parametrize(("name", "causal"), [("qwen3", True), ("mistral", True), ("t5", False), ("bert", False)])
    def test_a_mask_is_left_out_where_padding_cannot_matter(
        self, folders: Callable[[str], Path], name: str, causal: bool
    ) -> None:
        """A model that looks back only gets none, any other gets one as soon as a batch is padded."""
        encoder = loaded(folders(name), pooled=False)
        given: list[set[str]] = []
        model = encoder._parts()[1]._model
        model.register_forward_pre_hook(lambda _, __, named: given.append(set(named)), with_kwargs=True)
        encode(encoder, "a fox", "a red fox")
        encode(encoder, "a red", "a fox")
        assert ["attention_mask" in names for names in given] == [not causal, False]

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    @pytest.mark.parametrize("name", ["clip", "t5", "qwen3"])
    def test_half_precision(self, folders: Callable[[str], Path], name: str, dtype: str) -> None:
        """Weights and states are in the dtype of the settings; within a twentieth, batched and padded agree."""
        encoder = loaded(folders(name), dtype=dtype)
        direct = Direct(name, folders(name), dtype=getattr(torch, dtype))
        texts = TEXTS[1:]
        for text, tree in zip(texts, encode(encoder, *texts), strict=True):
            out, real = direct(text)
            close(tree["hidden"], out.last_hidden_state[0, real].to(getattr(torch, dtype)), tolerance=0.05)

    @pytest.mark.parametrize(
        ("kind", "number"),
        [("FluxPipeline", "_2"), ("StableDiffusion3Pipeline", "_3"), ("LTXPipeline", ""), ("CogVideoXPipeline", "")],
    )
    def test_t5_without_a_mask_is_what_the_pipelines_make(
        self, folders: Callable[[str], Path], kind: str, number: str
    ) -> None:
        """`attention_mask: false`: each text alone has the very bits of the pipeline's own call, padding included."""
        diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
        model = transformers.T5EncoderModel.from_pretrained(folders("t5")).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folders("t5"))
        pipeline = getattr(diffusers, kind)
        parts = dict.fromkeys(list(inspect.signature(pipeline.__init__).parameters)[1:])
        made = pipeline(**{**parts, f"text_encoder{number}": model, f"tokenizer{number}": tokenizer})
        encoder = loaded(folders("t5"), attention_mask=False)
        for text in TEXTS:
            with torch.no_grad():
                out = made._get_t5_prompt_embeds(
                    text, max_sequence_length=LIMIT, device=torch.device("cpu"), dtype=torch.float32
                )
            wanted = out[0] if isinstance(out, tuple) else out
            (tree,) = encode(encoder, text)
            assert torch.equal(tree["hidden"], wanted[0])
            assert int(tree["mask"].sum()) == min(LIMIT, len(tokenizer(text)["input_ids"]))
        masked = encode(loaded(folders("t5"), keep_padding=True), "a cat")[0]["hidden"]
        assert (masked - encode(encoder, "a cat")[0]["hidden"]).abs().amax() > 0.1
        for text, tree in zip(TEXTS, encode(encoder, *TEXTS), strict=True):
            close(tree["hidden"], encode(encoder, text)[0]["hidden"])

    def test_the_last_of_all_layers_of_clip_lacks_the_final_norm(self, folders: Callable[[str], Path]) -> None:
        """[-1] and the last of "all" are two things for CLIP, and the same for Llama."""
        for name, same in (("clip", False), ("llama", True)):
            (last,), (every,) = (
                encode(loaded(folders(name)), "a cat"),
                encode(loaded(folders(name), layers="all"), "a cat"),
            )
            assert torch.allclose(last["hidden"], every["hidden"][-1], atol=1e-4) == same


class TestOtherModels:
    """Models beyond the usual ones."""

    def wanted(self, folder: Path, kind: str, text: str) -> tuple[Any, int]:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        inputs = tokenizer(text, padding="max_length", truncation=True, max_length=LIMIT, return_tensors="pt")
        with torch.no_grad():
            out = getattr(transformers, kind).from_pretrained(folder).eval()(**inputs)
        return out, len(tokenizer(text, truncation=True, max_length=LIMIT)["input_ids"])

    @pytest.mark.parametrize(
        ("kind", "config", "tokenizer"),
        [
            ("SiglipTextModel", lambda: transformers.SiglipTextConfig(**SIZES), {"model_input_names": ["input_ids"]}),
            ("ConvBertModel", lambda: transformers.ConvBertConfig(**SIZES, embedding_size=32), {}),
        ],
    )
    def test_models_that_see_padding_run_on_max_length(
        self, tmp_path: Path, kind: str, config: Callable[[], Any], tokenizer: dict[str, Any]
    ) -> None:
        """Where padding reaches real positions, those are what the library gives when padded to max_length."""
        save_model(tmp_path, getattr(transformers, kind)(config()), **tokenizer)
        encoder = loaded(tmp_path)
        for text, tree in zip(TEXTS[:3], encode(encoder, *TEXTS[:3]), strict=True):
            out, length = self.wanted(tmp_path, kind, text)
            close(tree["hidden"], out.last_hidden_state[0, :length])
            if "pooled" in tree:
                close(tree["pooled"], out.pooler_output[0])

    def test_a_vision_language_model_encodes_text(self, tmp_path: Path) -> None:
        """Qwen2.5-VL, as image models use it: its hidden states of a text alone."""
        rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
        vision = {"depth": 1, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 32}
        config = transformers.Qwen2_5_VLConfig(
            text_config={**SIZES, "num_key_value_heads": 2, "rope_parameters": rope},
            vision_config={**vision, "fullatt_block_indexes": [0]},
            image_token_id=36,
            video_token_id=37,
            vision_start_token_id=38,
            vision_end_token_id=39,
        )
        save_model(tmp_path, transformers.Qwen2_5_VLForConditionalGeneration(config), template="$A")
        for text, tree in zip(TEXTS[1:4], encode(loaded(tmp_path), *TEXTS[1:4]), strict=True):
            out, length = self.wanted(tmp_path, "Qwen2_5_VLModel", text)
            close(tree["hidden"], out.last_hidden_state[0, :length])

    def test_a_pooler_without_weights_is_none(self, tmp_path: Path) -> None:
        """A model that was saved without its pooler has no pooled vector, not a random one."""
        save_model(tmp_path, transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SIZES)))
        assert list(encode(loaded(tmp_path), "a cat")[0]) == ["hidden"]

    @pytest.mark.parametrize("name", POOLING)
    def test_pooled_can_be_left_out(self, folders: Callable[[str], Path], name: str) -> None:
        """`pooled: false` keeps the hidden states alone."""
        assert list(encode(loaded(folders(name), pooled=False), "a cat")[0]) == ["hidden"]


class TestText:
    """What is put around a text, and how it is cut."""

    def test_prefix_and_suffix(self, folders: Callable[[str], Path], directs: Callable[[str], Direct]) -> None:
        """They are part of the text, also of the empty one."""
        encoder = loaded(folders("t5"), prefix="the red ", suffix=" sits")
        for text in ("cat", ""):
            out, real = directs("t5")(f"the red {text} sits")
            close(encode(encoder, text)[0]["hidden"], out.last_hidden_state[0, real])
            assert encoder.lengths([text])[0] == int(real.sum())

    def test_chat_template(self, tmp_path: Path) -> None:
        """The text becomes a user's message; the template brings the special tokens, and none comes twice."""
        message = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
        template = "{{ bos_token }} " + message + "{% if add_generation_prompt %}fox{% endif %}"
        model = transformers.LlamaModel(transformers.LlamaConfig(**KEYS))
        save_model(tmp_path, model, template=f"{BEGIN} $A", chat_template=template)
        encoder = loaded(tmp_path, chat_template=True, prefix="red ")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        ids = tokenizer.convert_tokens_to_ids([BEGIN, "user", "red", "cat", "fox"])
        with torch.no_grad():
            direct = transformers.LlamaModel.from_pretrained(tmp_path).eval()(input_ids=torch.tensor([ids]))
        close(encode(encoder, "cat")[0]["hidden"], direct.last_hidden_state[0])
        assert encoder.lengths(["cat"])[0] == 5

    def test_a_tokenizer_without_a_chat_template_is_refused_at_load(self, folders: Callable[[str], Path]) -> None:
        """The settings ask for a template that is not there."""
        with pytest.raises(EncodeError, match="the chat template cannot be loaded"):
            loaded(folders("llama"), chat_template=True)

    def test_cut_texts_are_counted(self, folders: Callable[[str], Path]) -> None:
        """Each text that lost tokens counts once for each time it is encoded; asking for its length does not count."""
        encoder = loaded(folders("t5"))
        long, fits = " ".join(["fox"] * LIMIT), " ".join(["fox"] * (LIMIT - 1))
        assert encoder.lengths([long, fits]) == [LIMIT, LIMIT]
        assert encoder.truncated == 0
        encode(encoder, long, fits, "", long)
        assert encoder.truncated == 2

    def test_the_tokenizer_decides_which_end_is_cut(self, tmp_path: Path) -> None:
        """A tokenizer that truncates on the left keeps the end of the text."""
        save_model(tmp_path, FAMILIES["t5"].saved(), template=f"$A {END}", truncation_side="left")
        encoder = loaded(tmp_path, max_length=4)
        cut, short = encode(encoder, "seven red balloons a quick fox", "a quick fox")
        close(cut["hidden"], short["hidden"])

    @pytest.mark.parametrize(("stated", "positions", "limit"), [(9, 20, 9), (50, 20, 20), (None, 20, 20)])
    def test_without_max_length_the_smaller_limit_holds(
        self, tmp_path: Path, stated: int | None, positions: int, limit: int
    ) -> None:
        """What the tokenizer states or the model has positions for; never more than the model can take."""
        tokenizer = {} if stated is None else {"model_max_length": stated}
        save_model(tmp_path, FAMILIES["clip"].saved(), **tokenizer)
        encoder = loaded(tmp_path, max_length=None)
        assert encode(encoder, "fox " * 30)[0]["hidden"].shape == (limit, 32)

    def test_without_any_limit_nothing_is_cut(self, tmp_path: Path) -> None:
        """T5 has no last position."""
        save_model(tmp_path, FAMILIES["t5"].saved(), template=f"$A {END}")
        assert encode(loaded(tmp_path, max_length=None), "fox " * 600)[0]["hidden"].shape == (601, 32)

    def test_a_text_without_tokens_is_an_empty_entry(self, folders: Callable[[str], Path]) -> None:
        """Qwen's tokenizer makes nothing of the empty prompt: no positions, the right width, and others unharmed."""
        encoder = loaded(folders("qwen3"), layers="all", dtype="bfloat16")
        empty, cat, again = encode(encoder, "", "a cat", "")
        assert empty["hidden"].shape == again["hidden"].shape == (4, 0, 32)
        assert empty["hidden"].dtype == torch.bfloat16
        assert torch.equal(cat["hidden"], encode(encoder, "a cat")[0]["hidden"])
        assert encoder.lengths([""])[0] == 0
        assert encode(loaded(folders("qwen3")), "")[0]["hidden"].shape == (0, 32)

    def test_there_is_no_pooled_vector_of_nothing(self, tmp_path: Path) -> None:
        """A text without tokens is refused where a pooled vector is wanted, and empty where not."""
        save_model(tmp_path, FAMILIES["bert"].saved(), template="$A")
        with pytest.raises(EncodeError, match="nothing to pool"):
            encode(loaded(tmp_path), "a cat", "")
        assert encode(loaded(tmp_path, pooled=False), "")[0]["hidden"].shape == (0, 32)

    def test_cropping_more_than_there_is_leaves_nothing(self, folders: Callable[[str], Path]) -> None:
        """A text with no more tokens than crop_start keeps its pooled vector and no position."""
        (tree,) = encode(loaded(folders("clip"), crop_start=5), "a cat")
        assert tree["hidden"].shape == (0, 32)
        assert tree["pooled"].shape == (32,)


class TestEntries:
    """What the tensors are."""

    @pytest.mark.parametrize("options", [{}, {"layers": "all"}, {"keep_padding": True}, {"crop_start": 2}], ids=str)
    def test_each_tensor_stands_alone(self, folders: Callable[[str], Path], options: dict[str, Any]) -> None:
        """On the CPU, contiguous, with a storage of its own and no larger, and fit for autograd."""
        for tree in encode(loaded(folders("clip"), **options), "a cat sits", "a dog", "the quick fox"):
            for tensor in tree.values():
                assert tensor.device.type == "cpu"
                assert tensor.is_contiguous()
                assert tensor.untyped_storage().nbytes() == tensor.nbytes
                assert not tensor.is_inference()
                assert not tensor.requires_grad

    def test_loading_is_silent_and_leaves_no_settings_behind(
        self, folders: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
    ) -> None:
        """No bars and reports of the library in between ours; afterwards it speaks as before."""
        before = transformers.utils.logging.get_verbosity(), transformers.utils.logging.is_progress_bar_enabled()
        saved = folders("umt5"), folders("qwen3")
        capfd.readouterr()
        for folder in saved:
            loaded(folder)
        assert capfd.readouterr() == ("", "")
        after = transformers.utils.logging.get_verbosity(), transformers.utils.logging.is_progress_bar_enabled()
        assert after == before
        assert torch.get_default_dtype() == torch.float32

    def test_unload_frees_the_model(self, folders: Callable[[str], Path]) -> None:
        """Nothing holds the weights any more, after hidden states were asked for too; loading again works."""
        encoder = loaded(folders("llama"), layers="all")
        (before,) = encode(encoder, "a cat")
        weights = [weakref.ref(parameter) for parameter in encoder._parts()[1]._model.parameters()]
        gc.disable()
        try:
            encoder.unload()
            assert not [weight for weight in weights if weight() is not None]
        finally:
            gc.enable()
        with pytest.raises(EncodeError, match=r"not loaded \(call load"):
            encode(encoder, "a cat")
        encoder.load("cpu")
        assert torch.equal(encode(encoder, "a cat")[0]["hidden"], before["hidden"])

    def test_attention_is_computed_as_asked(self, folders: Callable[[str], Path]) -> None:
        """The implementation is passed on, and does not change the states."""
        sdpa, eager = (loaded(folders("qwen3"), attention=name) for name in ("sdpa", "eager"))
        assert eager._parts()[1]._model.config._attn_implementation == "eager"
        for one, other in zip(encode(sdpa, *TEXTS[1:]), encode(eager, *TEXTS[1:]), strict=True):
            close(one["hidden"], other["hidden"])


def test_a_cpu_is_asked_for_no_more_tokens_than_it_is_quick_with(folders: Callable[[str], Path]) -> None:
    """So many for each core that torch may use; before a model is loaded nobody knows where it runs."""
    section = TransformersText(uses="transformers-text", model="unused", max_length=LIMIT)
    encoder = TextEncoder(section, folders("clip"), folders("clip"))
    assert encoder.most_work is None
    encoder.load("cpu")
    alone = encoder.most_work
    assert alone is not None
    torch.set_num_threads(2)
    try:
        encoder.load("cpu")
        assert encoder.most_work == 2 * alone
    finally:
        torch.set_num_threads(1)


class TestRefusals:
    """What cannot be encoded as asked is refused at load, by name."""

    def refused(self, folder: Path, match: str, **options: Any) -> None:
        with pytest.raises(EncodeError, match=match) as refusal:
            loaded(folder, **options)
        assert refusal.value.hint

    def test_layers_that_are_not_there(self, folders: Callable[[str], Path]) -> None:
        """Three layers and the embeddings are 0 to 3."""
        self.refused(folders("clip"), "there is no layer 4", layers=[-1, 4])
        self.refused(folders("clip"), "there is no layer -5", layers=[-5])
        loaded(folders("clip"), layers=[-4, 3])

    def test_more_tokens_than_the_model_has_positions(self, folders: Callable[[str], Path]) -> None:
        """CLIP has learned 20 positions, RoBERTa uses one of its 20 for padding, and Llama works them out."""
        self.refused(folders("clip"), "max_length is 21, and the model has 20 positions", max_length=21)
        self.refused(folders("roberta"), "max_length is 20, and the model has 19 positions", max_length=20)
        (tree,) = encode(loaded(folders("roberta"), max_length=19), "fox " * 30)
        assert len(tree["hidden"]) == 19
        loaded(folders("llama"), max_length=200)

    def test_a_limit_below_the_special_tokens(self, folders: Callable[[str], Path]) -> None:
        """A max_length that leaves no room is an error about the settings, not one for every text."""
        self.refused(folders("clip"), "max_length 1 is less than the tokenizer's 2 special tokens", max_length=1)

    def test_kept_padding_without_a_pad_token_or_a_length(self, folders: Callable[[str], Path]) -> None:
        """Padding needs something to pad with, and up to a length."""
        self.refused(folders("llama"), "the tokenizer has no pad token", keep_padding=True)
        self.refused(folders("t5"), "nothing says up to what length", keep_padding=True, max_length=None)
        unmasked = {"attention_mask": False, "max_length": None}
        self.refused(folders("t5"), "attention_mask is false, and nothing says up to what length", **unmasked)

    def test_a_tokenizer_of_another_model(self, folders: Callable[[str], Path], tmp_path: Path) -> None:
        """A token that the model does not know is an error here: on a GPU it would take the device along."""
        small = {**SIZES, "vocab_size": 6}
        save_model(tmp_path, transformers.BertModel(transformers.BertConfig(**small)))
        encoder = loaded(tmp_path)
        assert encode(encoder, "")
        with pytest.raises(EncodeError, match="the model knows 6 tokens"):
            encode(encoder, "seven red balloons")

    def test_a_pad_token_that_only_the_tokenizer_knows(self, tmp_path: Path) -> None:
        """Masked it does no harm, so another takes its place; kept, it would be one of the results."""
        save_model(tmp_path, FAMILIES["t5"].saved(), template=f"$A {END}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        before = encode(loaded(tmp_path), "a cat", "the quick brown fox")
        tokenizer.add_tokens([f"<new-{number}>" for number in range(40)])
        tokenizer.pad_token = "<new-39>"
        tokenizer.save_pretrained(tmp_path)
        for one, other in zip(before, encode(loaded(tmp_path), "a cat", "the quick brown fox"), strict=True):
            close(one["hidden"], other["hidden"])
        self.refused(tmp_path, "the model knows 40 tokens", keep_padding=True)

    def test_a_device_that_is_not_there(self, folders: Callable[[str], Path]) -> None:
        """The error names the model and the device."""
        section = TransformersText(uses="transformers-text", model="unused")
        encoder = TextEncoder(section, folders("clip"), folders("clip"))
        with pytest.raises(EncodeError, match="CLIPTextModel cannot run on cuda:77"):
            encoder.load("cuda:77")

    def test_models_without_text(self, tmp_path: Path) -> None:
        """Vision models, and models that are two at once, are told to be such."""
        vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
        vision |= {"image_size": 32, "patch_size": 16}
        save_model(tmp_path / "v", transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**vision)))
        self.refused(tmp_path / "v", "CLIPVisionModel takes no text")
        both = transformers.CLIPModel(transformers.CLIPConfig(text_config=SIZES, vision_config=vision))
        save_model(tmp_path / "both", both)
        self.refused(tmp_path / "both", "CLIPModel encodes texts and pictures")

    def test_pickled_weights(self, folders: Callable[[str], Path], tmp_path: Path) -> None:
        """Weights that could run code are not opened; the hint says how to save them."""
        for file in folders("clip").iterdir():
            if file.suffix != ".safetensors":
                (tmp_path / file.name).write_bytes(file.read_bytes())
        self.refused(tmp_path, "no weights in there")
        torch.save({"evil": 1}, tmp_path / "pytorch_model.bin")
        self.refused(tmp_path, r"only pickled weights \(pytorch_model.bin\)")
        # A safetensors file of another part does not open the door for the pickle.
        (tmp_path / "other.safetensors").write_bytes((folders("clip") / "model.safetensors").read_bytes())
        self.refused(tmp_path, "the model cannot be loaded")

    @pytest.mark.parametrize("shard", ["shard.bin", "../elsewhere/model.safetensors", ".hidden.safetensors"])
    def test_an_index_of_weights_that_names_something_else(
        self, folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: str
    ) -> None:
        """A pickle among the shards is not opened, and neither is a file that is not in the folder, nor in the key."""
        monkeypatch.setattr(torch, "load", opened := Mock())
        folder = tmp_path / "model"
        folder.mkdir()
        for file in folders("clip").iterdir():
            if file.suffix != ".safetensors":
                (folder / file.name).write_bytes(file.read_bytes())
        weights = safetensors.load_file(folders("clip") / "model.safetensors")
        place = folder / shard
        place.parent.mkdir(exist_ok=True)
        if shard.endswith(".bin"):
            torch.save(weights, place)
        else:
            safetensors.save_file(weights, place, {"format": "pt"})
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, shard)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "other.safetensors").write_bytes(b"so that there are weights")
        self.refused(folder, f"model.safetensors.index.json names {shard}")
        assert not opened.called

    @pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "paged|flash_attention_2"])
    def test_attention_that_is_not_installed(
        self, folders: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, attention: str
    ) -> None:
        """Where the package `kernels` is there, transformers would fetch code from the hub for it, and run that."""
        parts = transformers.modeling_utils
        monkeypatch.setattr(parts, "is_kernels_available", lambda *_, **__: True, raising=False)
        monkeypatch.setattr(parts, "lazy_import_flash_attention", fetched := Mock(), raising=False)
        self.refused(folders("qwen3"), f"attention: {re.escape(attention)} is not installed", attention=attention)
        assert not fetched.called

    def test_weights_that_are_missing_or_damaged(self, folders: Callable[[str], Path], tmp_path: Path) -> None:
        """The library would make up what is missing; here the load ends with the names."""
        for file in folders("clip").iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        weights = safetensors.load_file(tmp_path / "model.safetensors")
        gone = [name for name in weights if "layers.1." in name]
        for name in gone:
            del weights[name]
        safetensors.save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        self.refused(tmp_path, rf"{len(gone)} weights are missing: .*layers\.1\..*, …")
        (tmp_path / "model.safetensors").write_bytes((folders("clip") / "model.safetensors").read_bytes()[:-100])
        self.refused(tmp_path, "the model cannot be loaded")

    def test_adapters(self, folders: Callable[[str], Path], tmp_path: Path) -> None:
        """A LoRA names its base model, which lies elsewhere and would not be in the key."""
        for file in folders("clip").iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folders("clip"))}))
        self.refused(tmp_path, "an adapter, not a model")

    def test_code_from_the_folder_or_the_hub(
        self, folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither a config nor the settings can make the library run code that is not installed."""
        for file in folders("qwen3").iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "evil.py").write_text("raise SystemExit('this ran')")
        config = json.loads((tmp_path / "config.json").read_text())
        hostile = {**config, "attn_implementation": "evil/kernel", "auto_map": {"AutoModel": "evil.Evil"}}
        (tmp_path / "config.json").write_text(json.dumps(hostile))
        assert encode(loaded(tmp_path), "a cat")  # as the model that transformers has under this name
        self.refused(tmp_path, "evil/kernel is code from the hub", attention="evil/kernel")
        hostile = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}}
        (tmp_path / "config.json").write_text(json.dumps(hostile))
        self.refused(tmp_path, "cannot be loaded")
        # A model that transformers has, of a kind that it has not: there the library would ask whoever is at hand.
        monkeypatch.setattr("builtins.input", lambda _: "y")
        hostile = {"model_type": "bart", "auto_map": {"AutoModelForTextEncoding": "evil.Evil"}}
        (tmp_path / "config.json").write_text(json.dumps(hostile))
        self.refused(tmp_path, "cannot be loaded")
