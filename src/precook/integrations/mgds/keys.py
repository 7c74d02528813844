"""Keys of an mgds cache: what decides an entry, and nothing about where a sample stands in the list.

mgds draws by position: the seed of a draw holds the sample's index and the module's. A key with these in it would lose
every entry behind a new file. So a key holds the sample's identity and the variation, and the draw that was made first
for them is the draw.

With a content key (`content_key_in_name`) there are two steps. A draw key says which text was drawn for a sample and a
variation; memory keeps the digest of that text. The key of the entry then holds the text, and not the sample: equal
texts are encoded once, wherever they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from precook.errors import EncodeError, IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.plain import plain
from precook.identity.recipe import Recipe
from precook.integrations.mgds.cache import CacheOptions
from precook.integrations.mgds.groups import GetPrevious, SharedSettings
from precook.integrations.mgds.sources import Sources
from precook.integrations.mgds.upstream import PathUse, Upstream, UpstreamModule, module_identities, trace
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.values import Bytes, Key

VERSION = 1
_TEXTS = Kind("mgds texts/1", key=32, value=32)
"""Digests of texts that were drawn, by their draw keys."""
_SELECTION = frozenset({"path", "seed", "include_subdirectories", "name", "enabled"})
"""Settings of a concept that say which samples it has, and nothing about what they become."""


@dataclass(frozen=True, slots=True)
class KeyInputs:
    """What goes into one kind of key."""

    recipe: Recipe
    paths: dict[str, PathUse]
    settings: tuple[str, ...]
    """Names of values that concepts and the pipeline's settings give."""


@dataclass(frozen=True, slots=True)
class KeyRules:
    """What the keys of a cache are made of, as far as the pipeline decides it."""

    upstream: Upstream
    """All that leads to the cached names."""
    draw: KeyInputs
    """Of draw keys; without a content key these are the keys of the entries. Their paths are all that count."""
    content: str | None = None
    """The name of the text that decides an entry."""
    beside_text: KeyInputs | None = None
    """What decides an entry beside its text, where there is a content key."""

    @property
    def recipe(self) -> Recipe:
        """What makes the entries."""
        return (self.beside_text or self.draw).recipe


def key_rules(modules: Sequence[UpstreamModule], options: CacheOptions, seed: int) -> KeyRules:
    """Work out what decides the entries of a cache, with the weights as they are now."""
    names, content = options.names, options.content
    upstream = trace(modules, names)
    lacking = [name for name in names if name not in upstream.asked]
    if lacking:
        raise IdentityError(lacking[0], "no module before the cache gives this name", hint="check the names")
    paths = _with_declared(upstream, options.sources)
    if not paths and content is None:
        hint = "give source_path_in_name, the name of the path of a sample's file, or content_key_in_name"
        raise IdentityError(names[0], "no module that leads to it names the path of a file", hint=hint)

    def recipe(kind: str, of: Upstream, **data: object) -> Recipe:
        identities = module_identities(of, options.identities, options.model)
        return Recipe(kind, {"version": VERSION, **data, "seed": seed, "modules": identities})

    cached = {"split": sorted(options.split), "aggregate": sorted(options.aggregate)}
    grouped = [name for name in options.groups.group if name.rpartition(".")[2] not in _SELECTION]
    if content is None:
        settings = tuple(sorted({*upstream.settings(), *grouped}))
        return KeyRules(upstream, KeyInputs(recipe("mgds", upstream, **cached), paths, settings))
    beside = trace(modules, names, without=content)
    beside_text = KeyInputs(recipe("mgds", beside, **cached), _with_declared(beside, ()), beside.settings())
    before = trace(modules, [content])
    if content not in before.asked:
        raise IdentityError(content, "no module before the cache gives this name", hint="check content_key_in_name")
    settings = tuple(sorted({*before.settings(), *grouped}))
    return KeyRules(upstream, KeyInputs(recipe("mgds-text", before), paths, settings), content, beside_text)


def _with_declared(upstream: Upstream, declared: Sequence[str]) -> dict[str, PathUse]:
    """What is taken from each path; of those that a user declares, the content and no more of the path than its end."""
    uses = dict(upstream.paths)
    for name in declared:
        uses[name] = (uses.get(name, PathUse(0)) & PathUse.NAME) | PathUse.CONTENT | PathUse.SUFFIX
    return dict(sorted(uses.items()))


class KeyMaker:
    """Makes the keys of a pipeline's samples.

    `get_shared` asks for `concept` and the like, which stay the same in a run, and may answer from what it knows.
    """

    def __init__(
        self, rules: KeyRules, sources: Sources, get_previous: GetPrevious, *, get_shared: GetPrevious
    ) -> None:
        self._rules = rules
        self._sources = sources
        self._get_previous = get_previous
        parts = [rules.draw] if rules.beside_text is None else [rules.draw, rules.beside_text]
        self._shared = SharedSettings(get_shared, [name for part in parts for name in part.settings])
        self._numbers: dict[int, int] = {}
        """By index, the number that `SharedSettings` gives it."""
        self._settings: dict[tuple[int, tuple[str, ...]], object] = {}
        """Digests of settings, by that number and their names."""
        self._identities: dict[int, bytes] = {}
        self._drawn_here: set[bytes] = set()
        """Draw keys whose texts were drawn in this process: it would draw the same again."""

    def keys(self, indices: Sequence[int], variation: int, memory: Memory, *, redraw: bool = False) -> Bytes:
        """The key of each sample in a variation, a row each.

        A text that was drawn before stays the one, wherever its sample stands now. `redraw` takes what is drawn here
        and now instead: the entry of the other is gone, and only this one can be made.
        """
        draws = self._draw_keys(indices, variation)
        if self._rules.content is None:
            return draws
        known, texts = memory.recall(_TEXTS, draws)
        if redraw:
            known &= [row.tobytes() in self._drawn_here for row in draws]
        for row in np.flatnonzero(~known).tolist():
            texts[row] = np.frombuffer(self._draw_text(indices[row], variation), np.uint8)
            self._drawn_here.add(draws[row].tobytes())
        memory.remember(_TEXTS, draws[~known], texts[~known])
        return self._text_keys(indices, [row.tobytes() for row in texts])

    def known_keys(self, indices: Sequence[int], variation: int, memory: Memory) -> Bytes | None:
        """The same without drawing anything; None where a text was never drawn."""
        draws = self._draw_keys(indices, variation)
        if self._rules.content is None:
            return draws
        known, texts = memory.recall(_TEXTS, draws)
        return self._text_keys(indices, [row.tobytes() for row in texts]) if known.all() else None

    def current_key(self, index: int, variation: int) -> Key:
        """The key of the text that is drawn for a sample at its present place."""
        return Key(self._text_keys([index], [self._draw_text(index, variation)]).tobytes())

    def _draw_keys(self, indices: Sequence[int], variation: int) -> Bytes:
        """What decides a draw; without a content key, the keys of the entries themselves."""
        for index in indices:
            if index not in self._identities:
                self._identities[index] = self._sources.identity(index, self._rules.draw.paths)
        digests = [self._identities[index] for index in indices]
        return self._make(self._rules.draw, indices, digests, variation=variation)

    def _draw_text(self, index: int, variation: int) -> bytes:
        """The digest of the text that mgds draws for a sample now."""
        name = self._rules.content
        assert name is not None
        text = self._get_previous(variation, name, index)
        if not isinstance(text, str):
            raise EncodeError(f"{name} gave a {type(text).__name__}, and a content key is a text")
        return digest(text).bytes

    def _text_keys(self, indices: Sequence[int], texts: Sequence[bytes]) -> Bytes:
        beside = self._rules.beside_text
        assert beside is not None
        digests = [
            blake3(text + self._sources.identity(index, beside.paths)).digest()
            for index, text in zip(indices, texts, strict=True)
        ]
        return self._make(beside, indices, digests)

    def _make(self, inputs: KeyInputs, indices: Sequence[int], digests: Sequence[bytes], **settings: object) -> Bytes:
        """Keys in bulk, for all samples at a time that share their settings."""
        rows_by_number: dict[int, list[int]] = {}
        for row, index in enumerate(indices):
            if index not in self._numbers:
                self._numbers[index] = self._shared.number(index)
            rows_by_number.setdefault(self._numbers[index], []).append(row)
        keys = np.zeros((len(indices), 32), np.uint8)
        for number, rows in rows_by_number.items():
            if (number, inputs.settings) not in self._settings:
                values = {name: plain(self._shared.value(number, name), name) for name in inputs.settings}
                self._settings[number, inputs.settings] = digest(canonical(values))
            shared = self._settings[number, inputs.settings]
            made = inputs.recipe.keys(b"".join(digests[row] for row in rows), settings=shared, **settings)
            keys[rows] = np.frombuffer(made, np.uint8).reshape(-1, 32)
        return keys
