"""dlm's own pre-tokenise step on a small document, in a process that just ends; prints what it gave, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dlm.data import build_dataset
from dlm.doc.parser import parse_file
from dlm.store.paths import for_dlm
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = "{% for message in messages %}{{ message.role }} : {{ message.content }} {% endfor %}"


def tokenizer(template: str) -> PreTrainedTokenizerFast:
    """One that knows a few words."""
    words = ["<unk>", "</s>", "def", "return", "user", "assistant", "what", "is", "this", ":", "a", "test", "more"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="</s>")
    fast.chat_template = template
    return fast


def main(document: Path, home: Path, template: str) -> None:
    """Parse, expand, build and pre-tokenise as the trainer does."""
    from dlm.train import trainer  # noqa: PLC0415 - after our caches are in their place, as in dlm itself

    parsed, *_ = trainer._expand_directives(parse_file(document))
    train, val = build_dataset(list(parsed.sections), seed=7)
    store = for_dlm(parsed.frontmatter.dlm_id, home=home)
    train, val, stats = trainer._maybe_pretokenize_datasets(
        train_ds=train, val_ds=val, parsed=parsed, store=store, tokenizer=tokenizer(template)
    )
    rows = [dict(row) for row in (*train, *val)]
    counts = None if stats is None else [stats.cache_hits, stats.cache_misses]
    print(json.dumps({"rows": rows, "counts": counts, "folder": str(store.tokenized_cache_dir)}, default=str))


if __name__ == "__main__":
    if sys.argv[1] == "ours":
        import dlm_swapped  # noqa: F401
    main(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else TEMPLATE)
