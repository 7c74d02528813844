"""Tokenizers of transformers, and the encoder that keeps their token ids.

An entry of `transformers-tokens` is a dict `input_ids`, `attention_mask`: torch int64, one number per token, without
padding. Both are what the tokenizer answers to the text alone with return_tensors="pt", less the batch dimension; the
mask is all ones then, and padded along with the ids in a batch. A text that gives no token is an empty entry.

How a text is cut is the tokenizer's matter (its side, its special tokens); to what length is `max_length`, or without
it the limit that the tokenizer states. A tokenizer that states none cuts nothing.

Texts in parts become what TRL's SFTTrainer makes of them. A conversation goes through the tokenizer's chat template,
with its tools where it has some. A
prompt with its completion is tokenised as one text, ended with the end-of-sequence token unless it ends so already, and
the completion begins where the tokens are others than those of the prompt alone. Beside the ids stand `labels`: the ids
that count in the loss, -100 elsewhere. They are cut after the first `max_length` tokens; what has no label left then is
refused. With `labels`, or `eos: on`, texts in one piece are ended and cut like that, too.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precook.config.encoders import TransformersTokens
from precook.encode.encoder import BaseEncoder, Item
from precook.encode.model_folder import check_tokenizer
from precook.encode.torch_tools import LOCAL, library, loading, raised
from precook.errors import EncodeError, printable
from precook.plan.freeze import SpecialTokens
from precook.plan.wanted import Input
from precook.sources.documents import Document
from precook.store.snapshot_content import FrozenEos
from precook.store.tree import Tree

_NO_LIMIT = 10**9
"""transformers writes 10**30 for a tokenizer without a limit; nothing near this one is a limit either."""
NO_LABEL = -100
"""What torch's cross entropy leaves out."""
_SOME_TEXT = "a"
"""Shows what a tokenizer puts around a text."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One text as the tokenizer gives it, cut and not padded."""

    columns: dict[str, list[int]]
    """`input_ids`, and beside it whatever else the tokenizer makes for its model, or `labels`; all of one length."""
    whole: int
    """How many tokens the text has when it is not cut."""

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        return self.columns["input_ids"]

    @property
    def cut(self) -> bool:
        """Whether tokens were lost."""
        return len(self.ids) < self.whole


class Tokenizer:
    """A tokenizer from a folder; any thread may use it."""

    def __init__(self, folder: Path) -> None:
        transformers = library("transformers")
        check_tokenizer(folder)
        with loading("tokenizer", folder):
            self.library: Any = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL, trust_remote_code=False)
        # A fast tokenizer keeps a call's truncation as state: two calls at once cut by each other's limit.
        self._lock = threading.Lock()

    @property
    def limit(self) -> int | None:
        """The most tokens that it says its model takes; None where it says nothing."""
        limit = self.library.model_max_length
        return int(limit) if limit and limit < _NO_LIMIT else None

    @property
    def pads(self) -> dict[str, int] | None:
        """What fills each column up; None where the tokenizer has no pad token."""
        pad = self.library.pad_token_id
        if pad is None:
            return None
        return {"input_ids": pad, "attention_mask": 0, "token_type_ids": self.library.pad_token_type_id}

    def rows(self, texts: Sequence[str], *, limit: int | None, special_tokens: bool = True) -> list[TokenRow]:
        """Each text, cut to `limit` tokens."""
        if not texts:
            return []
        with self._lock:
            whole = self._columns(texts, special_tokens)
            lengths = [len(columns["input_ids"]) for columns in whole]
            long = [number for number, length in enumerate(lengths) if limit is not None and length > limit]
            if long:
                # Again, with truncation: only the tokenizer knows which tokens stay.
                cut = self._columns(
                    [texts[number] for number in long], special_tokens, truncation=True, max_length=limit
                )
                for number, columns in zip(long, cut, strict=True):
                    whole[number] = columns
        return [TokenRow(columns, length) for columns, length in zip(whole, lengths, strict=True)]

    def ids(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """All tokens of a text."""
        with self._lock:
            return list(self._columns([text], special_tokens)[0]["input_ids"])

    def conversation(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        generation: bool = False,
        assistant: bool = False,
    ) -> tuple[list[int], list[int] | None]:
        """The tokens of messages in the chat template, with `generation` up to where an answer would begin.

        With `assistant`, also which of them the assistant says: 1, and 0 for the others.
        """
        with self._lock:
            try:
                found = self.library.apply_chat_template(
                    messages,
                    tools=tools,
                    add_generation_prompt=generation,
                    tokenize=True,
                    return_dict=True,
                    return_assistant_tokens_mask=assistant,
                )
            except Exception as error:
                # Templates raise whatever they like, such as for roles that do not take turns.
                hint = "change the messages, or the template of the tokenizer"
                raise EncodeError(f"the chat template refuses the conversation: {raised(error)}", hint=hint) from error
        return list(found["input_ids"]), list(found["assistant_masks"]) if assistant else None

    def _columns(self, texts: Sequence[str], special_tokens: bool, **options: Any) -> list[dict[str, list[int]]]:  # noqa: FBT001
        columns = self.library(
            list(texts),
            add_special_tokens=special_tokens,
            padding=False,
            **{"truncation": False, "verbose": False, **options},
        )
        names = [name for name in columns if name in ("input_ids", *self.library.model_input_names)]
        return [dict(zip(names, row, strict=True)) for row in zip(*(columns[name] for name in names), strict=True)]


def check_limit(tokenizer: Tokenizer, limit: int | None, folder: Path) -> None:
    """Refuse a limit that the special tokens alone exceed."""
    special = tokenizer.library.num_special_tokens_to_add()
    if limit is not None and limit < special:
        message = f"{printable(folder)}: max_length {limit} is less than the tokenizer's {special} special tokens"
        raise EncodeError(message, hint="raise max_length")


class TokensEncoder(BaseEncoder):
    """Keeps the token ids of each text."""

    input: Input = "text"
    gives_away = True

    def __init__(self, section: TransformersTokens, folder: Path) -> None:
        self.truncated = 0
        self._section = section
        self._folder = folder
        self._tokenizer: Tokenizer | None = None
        self._limit: int | None = None

    def load(self, device: str) -> None:  # noqa: ARG002 - a tokenizer runs on the CPU, wherever the others run
        """Load the tokenizer."""
        library("torch")
        tokenizer = Tokenizer(self._folder)
        self._limit = self._section.max_length or tokenizer.limit
        if self._section.special_tokens:
            check_limit(tokenizer, self._limit, self._folder)
        self._tokenizer = tokenizer

    def find_special_tokens(self) -> SpecialTokens:
        """What `input_ids` are padded with in a batch, and what ends a text. The encoder stays as it is, unloaded."""
        tokenizer = Tokenizer(self._folder)
        pads = tokenizer.pads
        return SpecialTokens(None if pads is None else pads["input_ids"], self._find_eos(tokenizer))

    def _find_eos(self, tokenizer: Tokenizer) -> FrozenEos | None:
        """How a text ends that somebody has put the end-of-sequence token behind; None where that cannot be told.

        It cannot where there is no such token, and where it changes more than the end: then nobody who has the ids of
        the text alone can say what the two make together.
        """
        token, number = tokenizer.library.eos_token, tokenizer.library.eos_token_id
        if token is None or number is None:
            return None
        texts = ["", _SOME_TEXT, _SOME_TEXT + token]
        rows = tokenizer.rows(texts, limit=None, special_tokens=self._section.special_tokens)
        around, text, ended = (row.ids for row in rows)
        limit = self._section.max_length or tokenizer.limit
        if ended == text and text[-1:] == [number]:
            # It ends texts itself, unless they do already: every text has the token, and none gets a second one.
            return FrozenEos(number, len(around) - 1, 0, limit)
        if ended != [*text, number]:
            return None
        after = len(list(itertools.takewhile(number.__eq__, reversed(text))))
        return FrozenEos(number, len(around) - after, after, limit)

    def lengths(self, texts: list[str]) -> list[int]:
        """Tokens each text takes."""
        return [len(row.ids) for row in self._rows(texts)]

    def encode(self, batch: list[Item]) -> list[Tree]:
        """A dict of `input_ids` and `attention_mask` for each text, perhaps with `labels`."""
        plain = [item.text for item in batch if item.text is not None]
        like_trl = self._section.eos == "on" or self._section.labels != "auto"
        texts = iter(self._whole(plain) if like_trl else self._rows(plain))
        rows = [next(texts) if item.document is None else self._in_parts(item.document) for item in batch]
        if not self._section.truncation:
            for row in rows:
                if row.cut:
                    message = f"the text has {row.whole} tokens, and max_length is {self._limit}"
                    raise EncodeError(message, hint="shorten it, raise max_length, or set truncation: true")
        torch = library("torch")
        trees: list[Tree] = [
            {
                "input_ids": torch.tensor(row.ids, dtype=torch.int64),
                "attention_mask": torch.ones(len(row.ids), dtype=torch.int64),
                **({"labels": torch.tensor(row.columns["labels"])} if "labels" in row.columns else {}),
            }
            for row in rows
        ]
        self.truncated += sum(row.cut for row in rows)
        return trees

    def _whole(self, texts: list[str]) -> list[TokenRow]:
        """Texts in one piece as TRL makes them: ended, with labels where they are asked for, and then cut."""
        labels = self._section.labels != "auto"
        ended = [self._ended(text, labelled=labels) for text in texts]
        rows = self._loaded.rows(ended, limit=None, special_tokens=self._section.special_tokens)
        return [self._cut(row.ids, [True] * len(row.ids) if labels else None) for row in rows]

    def _in_parts(self, document: Document) -> TokenRow:
        """A conversation, or a prompt with its completion, and which of its tokens count."""
        parts, tokenizer, wanted = document.parts, self._loaded, self._section.labels
        tools, spoken = parts.get("tools"), None
        if "messages" in parts:
            ids, spoken = tokenizer.conversation(parts["messages"], tools, assistant=wanted == "assistant")
            counts = [True] * len(ids)
        else:
            prompt, completion = parts["prompt"], parts["completion"]
            if isinstance(prompt, str):
                special = self._section.special_tokens
                before = tokenizer.ids(prompt, special_tokens=special)
                ids = tokenizer.ids(prompt + self._ended(completion, labelled=True), special_tokens=special)
            else:
                before, _ = tokenizer.conversation(prompt, tools, generation=True)
                ids, spoken = tokenizer.conversation(prompt + completion, tools, assistant=wanted == "assistant")
            # Tokens may merge across the border, and a template may show a prompt otherwise when it is answered.
            shared = sum(
                1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, ids, strict=False))
            )
            counts = [wanted == "all" or number >= shared for number in range(len(ids))]
        if spoken is not None:
            if not any(spoken):
                hint = "mark it with {% generation %} in the chat template, or choose other labels"
                raise EncodeError("the chat template does not tell what the assistant says", hint=hint)
            counts = [count and bool(said) for count, said in zip(counts, spoken, strict=True)]
        return self._cut(ids, counts)

    def _cut(self, ids: list[int], counts: list[bool] | None) -> TokenRow:
        """The first tokens, as many as there may be; those that count have a label."""
        kept = ids[: self._limit]
        columns = {"input_ids": kept}
        if counts is not None:
            columns["labels"] = [number if count else NO_LABEL for number, count in zip(kept, counts, strict=False)]
            if not any(counts[: self._limit]):
                message = f"none of its first {len(kept)} tokens counts in the loss"
                raise EncodeError(message, hint="raise max_length, or shorten the prompt")
        return TokenRow(columns, len(ids))

    def _ended(self, text: str, *, labelled: bool) -> str:
        """A text with the end-of-sequence token behind it, where it shall have one and does not have it."""
        if self._section.eos == "off" or (self._section.eos == "auto" and not labelled):
            return text
        token: str | None = self._loaded.library.eos_token
        if token is None:
            hint = "give it one, or set eos: off"
            raise EncodeError(f"the tokenizer in {printable(self._folder)} has no end-of-sequence token", hint=hint)
        return text if text.endswith(token) else text + token

    def unload(self) -> None:
        """Let go of the tokenizer."""
        self._tokenizer = None

    def _rows(self, texts: list[str]) -> list[TokenRow]:
        return self._loaded.rows(texts, limit=self._limit, special_tokens=self._section.special_tokens)

    @property
    def _loaded(self) -> Tokenizer:
        if self._tokenizer is None:
            raise EncodeError("this encoder is not loaded", hint="call load(device) first")
        return self._tokenizer
