"""Text models of transformers: which class a folder holds, what it takes and how much of it, and what it answers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.config.encoders import TransformersText
from precook.encode.compiled import CompiledParts, repeated_layers
from precook.encode.model_folder import two_towers
from precook.encode.offload import place_model
from precook.encode.tokens import Tokenizer, TokenRow
from precook.encode.torch_tools import (
    LOCAL,
    DeviceRun,
    check_complete,
    check_weights,
    library,
    load_weights,
    loading,
    planless_attention,
    send,
    torch_dtype,
)
from precook.errors import EncodeError, printable

_BEFORE, _AFTER = (0, 0), (1, 1)
"""Tokens that a model is tried with: any vocabulary has them."""
_POSITIONS = ("position_embedding", "position_embeddings", "embed_positions", "wpe")
"""How models call their tables of learned positions."""
_MIXING = ("convbert",)
"""Models whose convolutions carry padding into real positions, mask or no mask."""
_FEWEST = 2
"""Texts, and tokens of each, that compiled code is run on at least: for one alone torch would make code of its own."""
_EXAMPLE_LENGTH = 32
_EXAMPLE_TOKENS, _FEW_TOKENS = 4096, 128
"""Tokens that a model is compiled with: as many as keep a GPU busy, for which code is chosen, and fewer on a CPU."""
_CORE_TOKENS = 384
"""Tokens of a batch for each core of a CPU, at most: with so many the products of matrices are as quick as they get,
and what larger batches need is asked of the system for every step and given back. On two cores a model of 256 numbers a
token took 16 % longer by 5,120 tokens at a time than by 640, and one of 768 numbers 29 %."""
_HINT_FOLDER = "name the folder of the text encoder; `subfolder` names one inside it"


class TextModel:
    """A model on its device: rows of tokens in, trees out."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, section: TransformersText, device: str) -> None:
        self._torch = library("torch")
        self._dtype = torch_dtype(section.dtype)
        self._section = section
        self._device = device
        model, self._pools = _load_model(folder, section, self._dtype)
        self._model = place_model(model, device, section.device_memory)
        parameters = inspect.signature(self._model.forward).parameters
        if "input_ids" not in parameters:
            raise EncodeError(f"{printable(folder)}: {type(self._model).__name__} takes no text", hint=_HINT_FOLDER)
        self._names = _input_names(self._model, tokenizer, parameters, masked=section.attention_mask)
        self._options = {"return_dict": True, "output_hidden_states": section.layers != (-1,)}
        if "use_cache" in parameters:
            self._options["use_cache"] = False
        self._vocabulary: int = self._model.get_input_embeddings().weight.shape[0]
        self._keeps_padding = section.keep_padding or not section.attention_mask
        """Whether entries have all `limit` positions."""
        self._whole = self._keeps_padding or _sees_padding(self._model, tokenizer, parameters)
        """Whether it runs on `limit` tokens, however short the texts are."""
        self._left = self._keeps_padding and tokenizer.library.padding_side == "left"
        self.limit = _most_tokens(section, tokenizer, self._model, self._torch, folder)
        """The most tokens of a text."""
        self._pads = self._padding(tokenizer, folder)
        self._nothing = self._measure(folder)
        self._maskless = "attention_mask" in parameters and parameters["attention_mask"].default is None
        """Whether it can do without a mask."""
        self._causal = self._maskless and not self._pooling and self._looks_back_only()
        """Whether padding to the right stays without effect, masked or not."""
        self.compiled = CompiledParts(type(self._model).__name__, repeated_layers(self._model))
        """The layers, which may run on compiled code."""
        self.most_tokens = _CORE_TOKENS * self._torch.get_num_threads() if device == "cpu" else None
        """The most tokens of a batch that it is quick with, where there is such a bound."""

    def runs(self, row: TokenRow) -> bool:
        """Whether the model is asked about a row: not about one without tokens, unless padding makes some."""
        return bool(row.ids) or self._whole

    def checked(self, rows: Sequence[TokenRow]) -> list[TokenRow]:
        """The rows that the model is asked about, if it knows all their tokens."""
        self._check(max(row.ids) for row in rows if row.ids)
        some = [row for row in rows if self.runs(row)]
        if len(some) < len(rows):
            self.of_nothing()
        return some

    def longest(self, rows: Sequence[TokenRow]) -> int:
        """How many tokens the model runs on."""
        if self._whole:
            assert self.limit is not None, "a model that runs whole has a limit"
            return self.limit
        longest = max((len(row.ids) for row in rows), default=0)
        return max(longest, _FEWEST) if self.compiled.on and self.limit != 1 else longest

    def inputs(self, rows: Sequence[TokenRow], longest: int) -> dict[str, Any]:
        """The columns of some rows, padded, on the device."""
        names = self._names
        padded = any(len(row.ids) < longest for row in rows)
        if self._maskless and not self._whole and (self._causal or not padded):
            # A mask costs a slower kernel, and models ask the device what is in it, which waits for all batches before.
            names = [name for name in names if name != "attention_mask"]
        inputs = {name: send(self._padded(rows, name, longest), self._device) for name in names}
        if "attention_mask" in inputs and self._device.startswith("cuda"):
            # Waited for here, where nobody else is kept from working by it.
            self._torch.cuda.current_stream(self._device).synchronize()
        return inputs

    def begin(self, inputs: dict[str, Any]) -> DeviceRun:
        """Run the model: each layer's states, and what it pooled, if that is wanted."""
        with self._torch.inference_mode():
            run = DeviceRun(self._device)
            wanted = self._results(inputs)
            # Of states each token, because not all of them are kept.
            run.ordered(wanted, self._dtype, [2] * (len(wanted) - self._pooling) + [1] * self._pooling)
            return run

    def not_finite(self, finite: Sequence[npt.NDArray[np.bool_]], rows: Sequence[TokenRow], longest: int) -> list[int]:
        """The numbers of the rows of which something that is kept is not finite."""
        states, pooled = (finite[:-1], finite[-1:]) if self._pooling else (finite, ())
        good = np.logical_and.reduce([*pooled, np.ones(len(rows), bool)])
        kept = np.zeros((len(rows), longest), bool)
        for line, row in zip(kept, rows, strict=True):
            line[self._kept(len(row.ids), longest)] = True
        return np.flatnonzero(~(good & np.logical_and.reduce([flags | ~kept for flags in states]).all(axis=1))).tolist()

    def compile(self) -> None:
        """Run the layers on compiled code from now on, if that works."""
        with self._torch.inference_mode():
            self.compiled.turn_on(self._examples)

    def _results(self, inputs: dict[str, Any]) -> list[Any]:
        """What is kept of the model's answer: each layer's states, and what it pooled, if that is wanted."""
        count = len(inputs["input_ids"])
        if self.compiled.on and count < _FEWEST:
            inputs = {name: column.repeat(_FEWEST, 1) for name, column in inputs.items()}
        with planless_attention(self._device):
            out = self.compiled.run(lambda: self._model(**inputs, **self._options))
        pooled = self._pooled(out)
        return [result[:count] for result in (*self._states(out), *([] if pooled is None else [pooled]))]

    def _examples(self) -> list[Any]:
        """Results of tokens that mean nothing, for each way in which the model is called."""
        torch = self._torch
        tokens = _FEW_TOKENS if self._device == "cpu" else _EXAMPLE_TOKENS
        length = self.limit if self._whole and self.limit else min(self.limit or _EXAMPLE_LENGTH, _EXAMPLE_LENGTH)
        rows = max(_FEWEST, tokens // length)
        rows += rows == length  # else torch would take the two to be the same number for ever
        ids = torch.arange(rows * length, device=self._device).view(rows, length) % self._vocabulary
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        inputs = {name: inputs[name] for name in self._names}
        if "attention_mask" not in inputs:
            return self._results(inputs)
        plain = {name: column for name, column in inputs.items() if name != "attention_mask"}
        results = self._results(plain if self._maskless and not self._whole else inputs)
        if not self._causal or self._whole:
            padded = inputs["attention_mask"].clone()
            padded[0, length // 2 :] = 0
            padded[0] = padded[0].flip(0) if self._left else padded[0]
            # What a model makes of padding means nothing.
            masked = self._results({**inputs, "attention_mask": padded})
            results += [result[1:] for result in masked]
        return results

    def trees(self, results: list[Any], rows: Sequence[TokenRow], longest: int) -> list[dict[str, Any]]:
        """A tree for each of the rows that the model was asked about."""
        pooled = results[-1] if self._pooling and results else None
        states = results[:-1] if self._pooling else results
        return [self._tree(states, pooled, number, len(row.ids), longest) for number, row in enumerate(rows)]

    def of_nothing(self) -> dict[str, Any]:
        """The tree of a text without tokens."""
        if "pooled" in self._nothing:
            message = "the tokenizer makes no token of this text, so there is nothing to pool"
            raise EncodeError(message, hint="set a prefix, or pooled: false")
        return self._nothing

    def _tree(self, states: list[Any], pooled: Any, number: int, length: int, longest: int) -> dict[str, Any]:
        kept = self._kept(length, longest)
        several = self._section.layers == "all" or len(states) > 1
        parts = [state[number, kept] for state in states]
        tree = {"hidden": self._torch.stack(parts) if several else parts[0]}
        if pooled is not None:
            tree["pooled"] = pooled[number]
        if self._keeps_padding:
            places = self._torch.arange(longest)
            real = places >= longest - length if self._left else places < length
            tree["mask"] = real[kept]
        return tree

    def _kept(self, length: int, longest: int) -> slice:
        """The positions of a text of so many tokens that its entry has."""
        return slice(self._section.crop_start, longest if self._keeps_padding else length)

    def cost(self, row: TokenRow) -> int:
        """How many tokens the model runs on for a text, alone."""
        return self.limit if self._whole and self.limit is not None else len(row.ids)

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

    def _padded(self, rows: Sequence[TokenRow], name: str, longest: int) -> list[npt.NDArray[np.int64]]:
        columns = np.full((len(rows), longest), self._pads[name], np.int64)
        for line, row in zip(columns, rows, strict=True):
            column = row.columns[name]
            line[longest - len(column) if self._left else 0 :][: len(column)] = column
        return list(columns)

    def _padding(self, tokenizer: Tokenizer, folder: Path) -> dict[str, int]:
        pads = tokenizer.pads
        if self._whole:
            why = "this model sees padding"
            if self._keeps_padding:
                why = "keep_padding is set" if self._section.keep_padding else "attention_mask is false"
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
        token = {"input_ids": 0, "attention_mask": 1, "token_type_ids": 0}
        inputs = {name: send([np.array([token[name]])], self._device) for name in self._names}
        with self._torch.inference_mode():
            out = self._model(**inputs, **self._options)
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
        pooled = self._pooled(out)
        self._pooling = pooled is not None
        tree = self._tree(self._states(out), pooled, 0, 0, 0)
        return {name: tensor.to("cpu", self._dtype) for name, tensor in tree.items() if name != "mask"}

    def _looks_back_only(self) -> bool:
        """Whether two tokens stay what they are, to the last bit, whatever follows them."""
        if self.limit is not None and self.limit < len(_BEFORE) + len(_AFTER):
            return False
        rows = [np.array(_BEFORE + after) for after in (_AFTER, _BEFORE)]
        inputs = {
            name: send(rows if name == "input_ids" else [0 * row for row in rows], self._device)
            for name in self._names
            if name != "attention_mask"
        }
        with self._torch.inference_mode():
            first, second = self._model(**inputs, **self._options).last_hidden_state[:, : len(_BEFORE)]
        return bool(self._torch.equal(first, second))


def _load_model(folder: Path, section: TransformersText, dtype: Any) -> tuple[Any, bool]:
    """The model, and whether a pooler that it may have is more than random numbers."""
    check_weights(folder)
    transformers = library("transformers")
    if section.attention is not None:
        _check_attention(transformers, section.attention)
    with loading("model", folder):
        config = transformers.AutoConfig.from_pretrained(folder, **LOCAL, trust_remote_code=False)
        # Ours or the library's choice: a config file could name code from the hub.
        config._attn_implementation = section.attention  # noqa: SLF001
        kind = _kind(transformers, config, folder)
        model, missing = load_weights(kind, folder, config, dtype)
    pooler = {name for name in missing if "pooler" in name.split(".")}
    check_complete(folder, missing - pooler)
    return model, not pooler


def _check_attention(transformers: Any, attention: str) -> None:
    """Refuse a kind of attention that is not installed: transformers would fetch its code from the hub."""
    hint = "choose one that is installed, such as sdpa or eager"
    if "/" in attention:
        raise EncodeError(f"attention: {printable(attention)} is code from the hub", hint=hint)
    if "flash" in attention:
        # transformers has a function for each version.
        is_there = getattr(transformers.utils, f"is_flash_attn_{attention[-1]}_available", None)
        if is_there is None or not is_there():
            raise EncodeError(f"attention: {printable(attention)} is not installed, or not for this machine", hint=hint)


def _kind(transformers: Any, config: Any, folder: Path) -> Any:
    """The class to load: the one that the config names, without heads and decoders."""
    for name in config.architectures or ():
        kind = getattr(transformers, name, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            continue
        if hasattr(kind, "get_text_features"):
            raise two_towers(folder, name)
        if name.endswith("EncoderModel") or not (config.is_encoder_decoder or "For" in name or "Head" in name):
            return kind
    return transformers.AutoModelForTextEncoding if config.is_encoder_decoder else transformers.AutoModel


def _input_names(model: Any, tokenizer: Tokenizer, parameters: Any, *, masked: bool) -> list[str]:
    """Which of the tokenizer's columns the model gets."""
    names = ["input_ids", "attention_mask", "token_type_ids"]
    clip = model.config.model_type == "clip_text_model" and not getattr(model.config, "use_attention_mask", False)
    if clip or not masked:
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


def _most_tokens(section: TransformersText, tokenizer: Tokenizer, model: Any, torch: Any, folder: Path) -> int | None:
    """The most tokens of a text; None where nobody states a limit."""
    positions = _positions(model, torch)
    if section.max_length is None:
        limits = [limit for limit in (tokenizer.limit, positions) if limit is not None]
        return min(limits) if limits else _said_positions(model)
    if positions is not None and section.max_length > positions:
        message = f"{printable(folder)}: max_length is {section.max_length}, and the model has {positions} positions"
        raise EncodeError(message, hint=f"set max_length to {positions} or less")
    return section.max_length
