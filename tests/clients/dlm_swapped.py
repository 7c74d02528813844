"""A pytest plugin: dlm with our caches in the place of its own, as if its imports were changed.

With SWAP_DIGESTS in the environment, its digests of tokenizers and processors are ours as well.
"""

from __future__ import annotations

import os

import dlm.data.vl_cache
import dlm.directives.cache
import dlm.directives.cache_key

from precook.integrations import tokenized, vl

DIGESTS = bool(os.environ.get("SWAP_DIGESTS"))
SWAPPED = {
    dlm.directives.cache: (tokenized, ["TokenizedCache", "CachedTokens"]),
    dlm.directives.cache_key: (tokenized, ["CacheKey", "tokenizer_sha256"] if DIGESTS else []),
    dlm.data.vl_cache: (vl, ["VlCache", "VlCacheKey", *(["processor_sha256"] if DIGESTS else [])]),
}

for theirs, (ours, names) in SWAPPED.items():
    for name in names:
        assert hasattr(theirs, name)
        setattr(theirs, name, getattr(ours, name))
