"""Text encoders of transformers: the hidden states of a text, and its pooled vector.

An entry of `transformers-text` is a dict of torch tensors, in the dtype of the settings:

    hidden   tokens x width; with several layers, layers x tokens x width in the order asked
    pooled   width; where the settings want it and the model has one
    mask     tokens, bool, true for the real ones; only with keep_padding, where nothing else would tell them apart

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
them; only padded positions depend on that. tests/test_encode_text.py compares all this with the library, one text at a
time, padded to max_length.

crop_start drops the first positions of `hidden` and `mask` after encoding. A text without tokens (some tokenizers make
none of "") has a `hidden` of 0 x width; where a pooled vector of it is wanted too, the text is refused.
"""

from __future__ import annotations

import gc
import inspect
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from precook.config.encoders import TransformersText
from precook.encode.encoder import Item
from precook.encode.libraries import LOCAL, WEIGHTS, check_complete, check_weights, library, loading, moved, torch_dtype
from precook.encode.tokens import Row, Tokenizer, check_limit
from precook.errors import EncodeError, printable
from precook.plan.wants import Input
from precook.store.tree import Tree

_POSITIONS = ("position_embedding", "position_embeddings", "embed_positions", "wpe")
"""How models call their tables of learned positions."""
_MIXING = ("convbert",)
"""Models whose convolutions carry padding into real positions, mask or no mask."""
_HINT_FOLDER = "name the folder of the text encoder; `subfolder` names one inside it"


class TextEncoder:
    """Keeps hidden states of each text."""

    input: Input = "text"
    concurrent = True

    def __init__(self, section: TransformersText, folder: Path, tokenizer: Path) -> None:
        self.truncated = 0
        self._counting = threading.Lock()
        """Texts cut so far."""
        self._section = section
        self._folder = folder
        self._tokenizer_folder = tokenizer
        self._loaded: tuple[Tokenizer, _Model] | None = None

    def load(self, device: str) -> None:
        """Load tokenizer and model, and refuse what they cannot do before the first text."""
        tokenizer = Tokenizer(self._tokenizer_folder)
        if self._section.chat_template:
            with loading("chat template", self._tokenizer_folder):
                _in_template(tokenizer, "")
        model = _Model(self._folder, tokenizer, self._section, device)
        if not self._section.chat_template:
            check_limit(tokenizer, model.limit, self._tokenizer_folder)
        self._loaded = tokenizer, model

    def length(self, text: str) -> int:
        """Tokens the text takes, with all that is put around it, after cutting."""
        tokenizer, model = self._parts()
        return len(self._rows([text], tokenizer, model)[0].ids)

    def encode(self, batch: list[Item]) -> list[Tree]:
        """A dict of `hidden`, and what else there is, for each text."""
        tokenizer, model = self._parts()
        texts = [item.text for item in batch if item.text is not None]
        assert len(texts) == len(batch), "a text encoder gets items with a text"
        rows = self._rows(texts, tokenizer, model)
        trees = model.run(rows)
        with self._counting:
            self.truncated += sum(row.cut for row in rows)
        return trees

    def unload(self) -> None:
        """Let go of the model and of its memory on the device."""
        if self._loaded is None:
            return
        self._loaded = None
        gc.collect()  # whatever refers back to the model must not keep its memory
        torch = library("torch")
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _parts(self) -> tuple[Tokenizer, _Model]:
        if self._loaded is None:
            raise EncodeError("this encoder is not loaded", hint="call load(device) first")
        return self._loaded

    def _rows(self, texts: list[str], tokenizer: Tokenizer, model: _Model) -> list[Row]:
        section = self._section
        texts = [f"{section.prefix}{text}{section.suffix}" for text in texts]
        if section.chat_template:
            texts = [_in_template(tokenizer, text) for text in texts]
        return tokenizer.rows(texts, limit=model.limit, special_tokens=not section.chat_template)


class _Model:
    """A model on its device: rows of tokens in, trees out."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, section: TransformersText, device: str) -> None:
        self._torch = library("torch")
        self._dtype = torch_dtype(section.dtype)
        self._section = section
        self._device = device
        model, self._pools = _load(folder, section, self._dtype)
        self._model = moved(model, device)
        parameters = inspect.signature(self._model.forward).parameters
        if "input_ids" not in parameters:
            raise EncodeError(f"{printable(folder)}: {type(self._model).__name__} takes no text", hint=_HINT_FOLDER)
        self._names = _inputs(self._model, tokenizer, parameters)
        self._options = {"return_dict": True, "output_hidden_states": section.layers != (-1,)}
        if "use_cache" in parameters:
            self._options["use_cache"] = False
        self._vocabulary: int = self._model.get_input_embeddings().weight.shape[0]
        self._whole = section.keep_padding or _sees_padding(self._model, tokenizer, parameters)
        """Whether it runs on `limit` tokens, however short the texts are."""
        self._left = section.keep_padding and tokenizer.library.padding_side == "left"
        self.limit = _limit(section, tokenizer, self._model, self._torch, folder)
        """The most tokens of a text."""
        self._pads = self._padding(tokenizer, folder)
        self._nothing = self._measure(folder)

    def run(self, rows: Sequence[Row]) -> list[Any]:
        """A tree for each row."""
        self._check(max(row.ids) for row in rows if row.ids)
        some = [row for row in rows if row.ids or self._whole]
        made = iter(self._encode(some) if some else ())
        return [next(made) if row.ids or self._whole else self._of_nothing() for row in rows]

    def _encode(self, rows: Sequence[Row]) -> list[Any]:
        longest = self.limit if self._whole else max(len(row.ids) for row in rows)
        assert longest is not None, "a model that runs whole has a limit"
        with self._torch.inference_mode():
            out = self._forward({name: [self._padded(row, name, longest) for row in rows] for name in self._names})
            # Layer by layer: all of them at once would lie on the device twice.
            states = [state.to("cpu", self._dtype) for state in self._states(out)]
            pooled = self._pooled(out)
            pooled = None if pooled is None else pooled.to("cpu", self._dtype)
        # Copied outside of inference mode: autograd takes no tensor that was made in it.
        return [self._tree(states, pooled, number, len(row.ids), longest) for number, row in enumerate(rows)]

    def _tree(self, states: list[Any], pooled: Any, number: int, length: int, longest: int) -> dict[str, Any]:
        kept = slice(self._section.crop_start, longest if self._section.keep_padding else length)
        several = self._section.layers == "all" or len(states) > 1
        parts = [state[number, kept] for state in states]
        tree = {"hidden": self._torch.stack(parts) if several else parts[0].clone()}
        if pooled is not None:
            tree["pooled"] = pooled[number].clone()
        if self._section.keep_padding:
            places = self._torch.arange(longest)
            real = places >= longest - length if self._left else places < length
            tree["mask"] = real[kept].clone()
        return tree

    def _forward(self, columns: dict[str, list[list[int]]]) -> Any:
        tensors = {name: self._torch.tensor(rows, dtype=self._torch.int64) for name, rows in columns.items()}
        return self._model(**{name: tensor.to(self._device) for name, tensor in tensors.items()}, **self._options)

    def _states(self, out: Any) -> list[Any]:
        layers = self._section.layers
        if layers == "all":
            return list(out.hidden_states)
        return [out.last_hidden_state if layer == -1 else out.hidden_states[layer] for layer in layers]

    def _pooled(self, out: Any) -> Any:
        if not (self._section.pooled and self._pools):
            return None
        projected = getattr(out, "text_embeds", None)
        return getattr(out, "pooler_output", None) if projected is None else projected

    def _padded(self, row: Row, name: str, longest: int) -> list[int]:
        column = row.columns[name]
        padding = [self._pads[name]] * (longest - len(column))
        return padding + column if self._left else column + padding

    def _padding(self, tokenizer: Tokenizer, folder: Path) -> dict[str, int]:
        pads = tokenizer.pads
        if self._whole:
            why = "keep_padding is set" if self._section.keep_padding else "this model sees padding"
            if pads is None:
                hint = "give its tokenizer a pad token, or name another tokenizer"
                raise EncodeError(f"{printable(folder)}: {why}, and the tokenizer has no pad token", hint=hint)
            if self.limit is None:
                hint = "set max_length"
                raise EncodeError(f"{printable(folder)}: {why}, and nothing says up to what length", hint=hint)
            self._check([pads["input_ids"]])
            return pads
        # Masked or after every real position, any token will do: some tokenizers have none for it, or one of their own
        # that the model does not know.
        if pads is None or pads["input_ids"] >= self._vocabulary:
            return {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0}
        return pads

    def _check(self, ids: Iterable[int]) -> None:
        # On a GPU an index beyond the table ends the process's use of the device, not just this call.
        highest = max(ids, default=0)
        if highest >= self._vocabulary:
            message = f"the tokenizer gives token {highest}, and the model knows {self._vocabulary} tokens"
            raise EncodeError(message, hint="name the tokenizer that belongs to this model")

    def _measure(self, folder: Path) -> dict[str, Any]:
        """Run one token: what this model answers, and the entry of a text without any."""
        one = {"input_ids": 0, "attention_mask": 1, "token_type_ids": 0}
        with self._torch.inference_mode():
            out = self._forward({name: [[one[name]]] for name in self._names})
        needed = ["last_hidden_state", *(["hidden_states"] if self._options["output_hidden_states"] else [])]
        if any(getattr(out, name, None) is None for name in needed):
            kind = type(self._model).__name__
            raise EncodeError(f"{printable(folder)}: {kind} gives no hidden states", hint=_HINT_FOLDER)
        if self._section.layers != "all" and self._options["output_hidden_states"]:
            count = len(out.hidden_states)
            for layer in self._section.layers:
                if not -count <= layer < count:
                    hint = f"layers go from 0 (the embeddings) to {count - 1}, or from -{count} to -1"
                    raise EncodeError(f"{printable(folder)}: there is no layer {layer}", hint=hint)
        tree = self._tree(self._states(out), self._pooled(out), 0, 0, 0)
        return {name: tensor.to("cpu", self._dtype) for name, tensor in tree.items() if name != "mask"}

    def _of_nothing(self) -> dict[str, Any]:
        if "pooled" in self._nothing:
            message = "the tokenizer makes no token of this text, so there is nothing to pool"
            raise EncodeError(message, hint="set a prefix, or pooled: false")
        return {name: tensor.clone() for name, tensor in self._nothing.items()}


def _load(folder: Path, section: TransformersText, dtype: Any) -> tuple[Any, bool]:
    """The model, and whether a pooler that it may have is more than random numbers."""
    check_weights(folder)
    transformers = library("transformers")
    if section.attention is not None and "/" in section.attention:
        hint = "choose one that is installed, such as sdpa or eager"
        raise EncodeError(f"attention: {printable(section.attention)} is code from the hub", hint=hint)
    with loading("model", folder):
        config = transformers.AutoConfig.from_pretrained(folder, **LOCAL, trust_remote_code=False)
        # Ours or the library's choice: a config file could name code from the hub.
        config._attn_implementation = section.attention  # noqa: SLF001
        kind = _kind(transformers, config, folder)
        # The name of this argument changed with 4.56.
        old = tuple(map(int, transformers.__version__.split(".")[:2])) < (4, 56)
        model, info = kind.from_pretrained(
            folder, config=config, **{"torch_dtype" if old else "dtype": dtype}, **WEIGHTS
        )
    missing = set(info["missing_keys"])
    pooler = {name for name in missing if "pooler" in name.split(".")}
    check_complete(folder, missing - pooler)
    return model.eval(), not pooler


def _kind(transformers: Any, config: Any, folder: Path) -> Any:
    """The class to load: the one that the config names, without heads and decoders."""
    for name in config.architectures or ():
        kind = getattr(transformers, name, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            continue
        if hasattr(kind, "get_text_features"):
            # It has a text encoder of its own kind inside: with or without projection, we cannot know.
            hint = (
                f"save its text part alone: {name.removesuffix('Model')}TextModel.from_pretrained(…).save_pretrained(…)"
            )
            raise EncodeError(f"{printable(folder)}: {name} encodes texts and pictures", hint=hint)
        if name.endswith("EncoderModel") or not (config.is_encoder_decoder or "For" in name or "Head" in name):
            return kind
    return transformers.AutoModelForTextEncoding if config.is_encoder_decoder else transformers.AutoModel


def _inputs(model: Any, tokenizer: Tokenizer, parameters: Any) -> list[str]:
    """Which of the tokenizer's columns the model gets."""
    names = ["input_ids", "attention_mask", "token_type_ids"]
    if model.config.model_type == "clip_text_model" and not getattr(model.config, "use_attention_mask", False):
        names.remove("attention_mask")
    return [
        name for name in names if name in parameters and name in ("input_ids", *tokenizer.library.model_input_names)
    ]


def _sees_padding(model: Any, tokenizer: Tokenizer, parameters: Any) -> bool:
    """Whether padding changes what real positions hold."""
    if model.config.model_type in _MIXING:
        return True
    masked = "attention_mask" in parameters and "attention_mask" in tokenizer.library.model_input_names
    return not (masked or any(getattr(module, "is_causal", False) for module in model.modules()))


def _positions(model: Any, torch: Any) -> int | None:
    """How many positions the model has learned; None where it works them out."""
    count = _said_positions(model)
    if count is None:
        return None
    tables = [module for name, module in model.named_modules() if name.rpartition(".")[2] in _POSITIONS]
    for table in tables:
        # One of fewer rows belongs to a vision tower.
        if isinstance(table, torch.nn.Embedding) and table.num_embeddings >= count:
            # RoBERTa and its kin count from behind the padding index.
            return count - (0 if table.padding_idx is None else table.padding_idx + 1)
    return None


def _said_positions(model: Any) -> int | None:
    count = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return count if isinstance(count, int) and count > 0 else None


def _limit(section: TransformersText, tokenizer: Tokenizer, model: Any, torch: Any, folder: Path) -> int | None:
    """The most tokens of a text; None where nobody states a limit."""
    positions = _positions(model, torch)
    if section.max_length is None:
        limits = [limit for limit in (tokenizer.limit, positions) if limit is not None]
        return min(limits) if limits else _said_positions(model)
    if positions is not None and section.max_length > positions:
        message = f"{printable(folder)}: max_length is {section.max_length}, and the model has {positions} positions"
        raise EncodeError(message, hint=f"set max_length to {positions} or less")
    return section.max_length


def _in_template(tokenizer: Tokenizer, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    made: str = tokenizer.library.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return made
