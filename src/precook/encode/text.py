"""Text encoders of transformers: the hidden states of a text, and its pooled vector.

An entry of `transformers-text` is a dict of torch tensors, in the dtype of the settings:

    hidden   tokens x width; with several layers, layers x tokens x width in the order asked
    pooled   width; where the settings want it and the model has one
    mask     tokens, bool, true for the real ones; only where padding is kept and nothing else would tell them apart

**Layers.** -1 is the model's `last_hidden_state`: what it answers, its final norm included. Every other number n is
`hidden_states[n]` as transformers counts them: 0 is the embeddings, 1 what the first layer made of them, -2 what the
last layer but one did. "all" is that tuple from end to end. Llama, Qwen, Mistral and T5 end it with the
last_hidden_state; CLIP ends it before the final norm, so there [-1] and the last of "all" differ.

**Pooled** is `text_embeds` (CLIPTextModelWithProjection) or `pooler_output` (CLIPTextModel, BERT and its kin). A pooler
whose weights are not in the folder counts as none: the library has filled it with random numbers.

**Text.** prefix + text + suffix; with chat_template that is the content of one user message, and the template brings
the special tokens. The tokenizer cuts it to max_length, in its own way. Without max_length the limit is what the
tokenizer states or the model has positions for, whichever is less.

**Padding.** An entry holds real tokens only, and the model sees padding only up to the longest text of a batch: to the
right and masked, so that no real position changes, whatever side the tokenizer pads. Models that let padding into real
positions (no mask and not causal, such as SigLIP) run on max_length tokens, and so does everything with keep_padding,
padded as the tokenizer pads. CLIP text models run without a mask, as they were trained and as diffusion pipelines run
them; only padded positions depend on that. With `attention_mask: false` no model gets a mask: it runs on max_length
tokens and sees the padding among them, as the pipelines of FLUX, SD3, LTX and CogVideoX run their T5, and an entry has
all of these positions, as with keep_padding. tests/encode/test_text.py compares all this with the library, one text at
a time, padded to max_length.

crop_start drops the first positions of `hidden` and `mask` after encoding. A text without tokens (some tokenizers make
none of "") has a `hidden` of 0 x width; where a pooled vector of it is wanted too, the text is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from precook.config.encoders import TransformersText
from precook.encode.encoder import BaseEncoder, Cost, Item
from precook.encode.text_model import TextModel
from precook.encode.tokens import Tokenizer, TokenRow, check_limit
from precook.encode.torch_tools import DeviceRun, loading, release_memory
from precook.errors import EncodeError
from precook.plan.wanted import Input
from precook.store.tree import Tree


class TextEncoder(BaseEncoder):
    """Keeps hidden states of each text."""

    input: Input = "text"
    gives_away = True
    can_stage = True
    measures = True

    def __init__(self, section: TransformersText, folder: Path, tokenizer: Path) -> None:
        self.truncated = 0
        """Texts cut so far."""
        self._section = section
        self._folder = folder
        self._tokenizer_folder = tokenizer
        self._loaded: tuple[Tokenizer, TextModel] | None = None
        self._measured: dict[str, TokenRow] = {}
        """Texts that were measured and not encoded yet: they need not be tokenised again."""
        self._lock = threading.Lock()
        """Around what several threads count and keep here."""

    @property
    def can_compile(self) -> bool:  # type: ignore[override]
        """Whether its model has layers that repeat."""
        return self._loaded is not None and self._loaded[1].compiled.possible

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        """Whether they run on compiled code."""
        return self._loaded is not None and self._loaded[1].compiled.on

    @property
    def most_work(self) -> int | None:  # type: ignore[override]
        """Tokens up to which a CPU is as quick as it gets."""
        return None if self._loaded is None else self._loaded[1].most_tokens

    def load(self, device: str) -> None:
        """Load tokenizer and model, and refuse what they cannot do before the first text."""
        tokenizer = Tokenizer(self._tokenizer_folder)
        if self._section.chat_template:
            with loading("chat template", self._tokenizer_folder):
                _in_template(tokenizer, "")
        model = TextModel(self._folder, tokenizer, self._section, device)
        if not self._section.chat_template:
            check_limit(tokenizer, model.limit, self._tokenizer_folder)
        self._loaded = tokenizer, model

    def compile(self, batch: Sequence[Item] = ()) -> None:  # noqa: ARG002 - its sizes stay open
        """Compile the layers of the model."""
        self._parts()[1].compile()

    def lengths(self, texts: list[str]) -> list[int]:
        """Tokens that the model runs on for each text, with all that is put around it, after cutting."""
        rows = self._tokenised(texts)
        with self._lock:
            self._measured.update(zip(texts, rows, strict=True))
        _, model = self._parts()
        return [model.cost(row) for row in rows]

    def encode(self, batch: list[Item]) -> list[Tree]:
        """A dict of `hidden`, and what else there is, for each text."""
        staged = self.stage(batch)
        staged.launch()
        # Each with memory of its own, and outside of inference mode: autograd takes no tensor that was made in it.
        return [{name: tensor.clone() for name, tensor in tree.items()} for tree in staged.land()]

    def stage(self, batch: list[Item]) -> StagedTexts:
        """A batch of texts as the model takes it, on its device."""
        _, model = self._parts()
        texts = [item.text for item in batch if item.text is not None]
        assert len(texts) == len(batch), "a text encoder gets items with a text"
        with self._lock:
            known = {text: self._measured.pop(text) for text in set(texts) & self._measured.keys()}
        rest = [text for text in texts if text not in known]
        known.update(zip(rest, self._tokenised(rest), strict=True))
        return StagedTexts(model, [known[text] for text in texts], self._count)

    def unload(self) -> None:
        """Let go of the model and of its memory on the device."""
        self._measured.clear()
        if self._loaded is None:
            return
        self._loaded = None
        release_memory()

    def _count(self, rows: Sequence[TokenRow]) -> None:
        with self._lock:
            self.truncated += sum(row.cut for row in rows)

    def _parts(self) -> tuple[Tokenizer, TextModel]:
        if self._loaded is None:
            raise EncodeError("this encoder is not loaded", hint="call load(device) first")
        return self._loaded

    def _tokenised(self, texts: list[str]) -> list[TokenRow]:
        tokenizer, model = self._parts()
        section = self._section
        texts = [f"{section.prefix}{text}{section.suffix}" for text in texts]
        if section.chat_template:
            texts = [_in_template(tokenizer, text) for text in texts]
        return tokenizer.rows(texts, limit=model.limit, special_tokens=not section.chat_template)


class StagedTexts:
    """A batch of texts on its way through a model; the trees it gives share the batch's memory."""

    def __init__(self, model: TextModel, rows: Sequence[TokenRow], count: Callable[[Sequence[TokenRow]], None]) -> None:
        self._model = model
        self._rows = rows
        self._count = count
        self._some = model.checked(rows)
        self._longest = model.longest(self._some)
        self._inputs = model.inputs(self._some, self._longest) if self._some else {}
        self._run: DeviceRun | None = None
        self.cost: Cost | None = None
        self.not_finite: frozenset[int] | None = None

    def launch(self) -> None:
        """Begin to encode."""
        if self._some:
            self._run = self._model.begin(self._inputs)
            self._inputs = {}

    def land(self) -> list[Any]:
        """A tree for each text."""
        states: list[Any] = []
        if self._run is not None:
            states = self._run.fetch()
            self.cost = self._run.cost
            if self._run.finite is not None:
                asked = [number for number, row in enumerate(self._rows) if self._model.runs(row)]
                wrong = self._model.not_finite(self._run.finite, self._some, self._longest)
                self.not_finite = frozenset(asked[number] for number in wrong)
        encoded = iter(self._model.trees(states, self._some, self._longest))
        trees = [next(encoded) if self._model.runs(row) else self._model.of_nothing() for row in self._rows]
        self._count(self._rows)
        return trees


def _in_template(tokenizer: Tokenizer, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    prompt: str = tokenizer.library.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return prompt
