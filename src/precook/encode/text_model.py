"""A text model on its device: rows of tokens in, trees out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.config.encoders import TransformersText
from precook.encode.staged import Arrival, send
from precook.encode.text_loading import input_names, load_model, most_tokens, sees_padding
from precook.encode.tokens import Tokenizer, TokenRow
from precook.encode.torch_tools import library, moved, planless_attention, torch_dtype
from precook.errors import EncodeError, printable

_BEFORE, _AFTER = (0, 0), (1, 1)
"""Tokens that a model is tried with: any vocabulary has them."""
_HINT_FOLDER = "name the folder of the text encoder; `subfolder` names one inside it"


class TextModel:
    """A model on its device: rows of tokens in, trees out."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, section: TransformersText, device: str) -> None:
        self._torch = library("torch")
        self._dtype = torch_dtype(section.dtype)
        self._section = section
        self._device = device
        model, self._pools = load_model(folder, section, self._dtype)
        self._model = moved(model, device)
        parameters = inspect.signature(self._model.forward).parameters
        if "input_ids" not in parameters:
            raise EncodeError(f"{printable(folder)}: {type(self._model).__name__} takes no text", hint=_HINT_FOLDER)
        self._names = input_names(self._model, tokenizer, parameters)
        self._options = {"return_dict": True, "output_hidden_states": section.layers != (-1,)}
        if "use_cache" in parameters:
            self._options["use_cache"] = False
        self._vocabulary: int = self._model.get_input_embeddings().weight.shape[0]
        self._whole = section.keep_padding or sees_padding(self._model, tokenizer, parameters)
        """Whether it runs on `limit` tokens, however short the texts are."""
        self._left = section.keep_padding and tokenizer.library.padding_side == "left"
        self.limit = most_tokens(section, tokenizer, self._model, self._torch, folder)
        """The most tokens of a text."""
        self._pads = self._padding(tokenizer, folder)
        self._nothing = self._measure(folder)
        self._maskless = "attention_mask" in parameters and parameters["attention_mask"].default is None
        """Whether it can do without a mask."""
        self._causal = self._maskless and not self._pooling and self._looks_back_only()
        """Whether padding to the right stays without effect, masked or not."""

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
        longest = self.limit if self._whole else max((len(row.ids) for row in rows), default=0)
        assert longest is not None, "a model that runs whole has a limit"
        return longest

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

    def begin(self, inputs: dict[str, Any]) -> Arrival:
        """Run the model: each layer's states, and what it pooled, if that is wanted."""
        with self._torch.inference_mode():
            with planless_attention(self._device):
                out = self._model(**inputs, **self._options)
            pooled = self._pooled(out)
            wanted = [*self._states(out), *([] if pooled is None else [pooled])]
            return Arrival(wanted, self._dtype)

    def trees(self, results: list[Any], rows: Sequence[TokenRow], longest: int) -> list[dict[str, Any]]:
        """A tree for each of the rows that the model was asked about."""
        pooled = results[-1] if self._pooling and results else None
        states = results[:-1] if self._pooling else results
        return [self._tree(states, pooled, number, len(row.ids), longest) for number, row in enumerate(rows)]

    def _tree(self, states: list[Any], pooled: Any, number: int, length: int, longest: int) -> dict[str, Any]:
        kept = slice(self._section.crop_start, longest if self._section.keep_padding else length)
        several = self._section.layers == "all" or len(states) > 1
        parts = [state[number, kept] for state in states]
        tree = {"hidden": self._torch.stack(parts) if several else parts[0]}
        if pooled is not None:
            tree["pooled"] = pooled[number]
        if self._section.keep_padding:
            places = self._torch.arange(longest)
            real = places >= longest - length if self._left else places < length
            tree["mask"] = real[kept]
        return tree

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
        inputs = {name: send([np.array([one[name]])], self._device) for name in self._names}
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
            one, other = self._model(**inputs, **self._options).last_hidden_state[:, : len(_BEFORE)]
        return bool(self._torch.equal(one, other))

    def of_nothing(self) -> dict[str, Any]:
        """The tree of a text without tokens."""
        if "pooled" in self._nothing:
            message = "the tokenizer makes no token of this text, so there is nothing to pool"
            raise EncodeError(message, hint="set a prefix, or pooled: false")
        return self._nothing
