"""Keys of an mgds cache: what decides an entry, and nothing about where a sample stands in the list.

mgds draws by position: the seed of a draw holds the sample's index and the module's. A key with these in it would lose
every entry behind a new file. So a key holds the sample's identity and the variation, and the draw that was made first
for them is the draw.

With a content key (`content_key_in_name`) there are two steps. A draw key says which text was drawn for a sample and a
variation; memory keeps the digest of that text. The key of the entry then holds the text, and not the sample: equal
texts are encoded once, wherever they come from.

Functions of texts (`TextFunction`) count by what they give. The texts that they are called on are drawn, so memory
keeps these as well, each by the key of its draw, and the functions are called on them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from precook.errors import EncodeError, IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.patches import replace_random_names
from precook.identity.recipe import Recipe
from precook.integrations.mgds.cache import CacheOptions
from precook.integrations.mgds.groups import GetPrevious, SharedSettings
from precook.integrations.mgds.options import Options, counted_options
from precook.integrations.mgds.sources import Sources
from precook.integrations.mgds.upstream import (
    FirstWeights,
    PathUse,
    TextFunction,
    Upstream,
    UpstreamModule,
    module_identities,
    trace,
)
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.values import Bytes, Key

VERSION = 1
_TEXTS = Kind("mgds texts/1", key=32, value=32)
"""Digests of texts that were drawn, by their draw keys."""
_FUNCTION_TEXTS = "mgds function texts/1"
"""Texts that functions are called on, as JSON, by the keys of their draws."""
_SELECTION = frozenset({"path", "seed", "include_subdirectories", "name", "enabled"})
"""Settings of a concept that say which samples it has, and nothing about what they become."""


@dataclass(frozen=True, slots=True)
class KeyInputs:
    """What goes into one kind of key."""

    recipe: Recipe
    paths: dict[str, PathUse]
    options: Options
    functions: tuple[TextFunction, ...] = ()
    """What they give is a part of the key."""


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
    earlier: KeyInputs | None = None
    """As `draw`, for keys of earlier versions, which held every option: what was made under these is found."""

    @property
    def recipe(self) -> Recipe:
        """What makes the entries."""
        return (self.beside_text or self.draw).recipe

    @property
    def functions(self) -> tuple[TextFunction, ...]:
        """All functions of texts that lead to the cached names."""
        return self.draw.functions + (self.beside_text.functions if self.beside_text is not None else ())

    @property
    def texts_count(self) -> bool:
        """Whether keys hold something of the texts that are drawn: an entry that is lost may need another draw."""
        return self.content is not None or bool(self.functions)


def key_rules(
    modules: Sequence[UpstreamModule], options: CacheOptions, seed: int, first_weights: FirstWeights
) -> KeyRules:
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

    beside = trace(modules, names, without=content)
    grouping = tuple(name for name in options.groups.group if name.rpartition(".")[2] not in _SELECTION)
    cached = {"split": sorted(options.split), "aggregate": sorted(options.aggregate)}

    def inputs(kind: str, of: Upstream, uses: dict[str, PathUse], **data: object) -> tuple[KeyInputs, KeyInputs]:
        """What goes into a key, and what went into it before options that are off were left out."""
        identities = module_identities(of, options.identities, options.model, first_weights)
        counted = counted_options(of, () if of is beside else grouping, identities)
        every = Options(tuple(sorted({*of.settings(), *counted.grouping})))
        always = [identity for number, identity in identities.items() if number not in counted.modules]
        fixed = {"version": VERSION, **data, "seed": seed}
        functions = of.functions(options.identities)
        return (
            KeyInputs(Recipe(kind, {**fixed, "modules": always}), uses, counted, functions),
            KeyInputs(Recipe(kind, {**fixed, "modules": list(identities.values())}), uses, every, functions),
        )

    if content is None:
        draw, earlier = inputs("mgds", upstream, paths, **cached)
        return KeyRules(upstream, draw, earlier=earlier)
    _, beside_text = inputs("mgds", beside, _with_declared(beside, ()), **cached)
    before = trace(modules, [content])
    if content not in before.asked:
        raise IdentityError(content, "no module before the cache gives this name", hint="check content_key_in_name")
    draw, earlier = inputs("mgds-text", before, paths)
    return KeyRules(upstream, draw, content, beside_text, earlier)


def _with_declared(upstream: Upstream, declared: Sequence[str]) -> dict[str, PathUse]:
    """What is taken from each path; of those that a user declares, the content and no more of the path than its end."""
    uses = dict(upstream.paths)
    for name in declared:
        uses[name] = (uses.get(name, PathUse(0)) & PathUse.NAME) | PathUse.CONTENT | PathUse.SUFFIX
    return dict(sorted(uses.items()))


class KeyMaker:
    """Makes the keys of a pipeline's samples.

    `share` gives what knows the values of names such as `concept.image.flip`, which stay the same in a run.
    """

    def __init__(
        self,
        rules: KeyRules,
        sources: Sources,
        get_previous: GetPrevious,
        *,
        share: Callable[[Sequence[str]], SharedSettings],
    ) -> None:
        self._rules = rules
        self._sources = sources
        self._get_previous = get_previous
        parts = [part for part in (rules.draw, rules.beside_text, rules.earlier) if part is not None]
        self._shared = share([name for part in parts for name in part.options.names])
        self._settings: dict[tuple[int, int], object] = {}
        """Digests of the options that matter, by that number and the id of the inputs."""
        self._identities: dict[int, bytes] = {}
        self._made_up_tokens = rules.upstream.made_up_tokens()
        self._values: dict[tuple[TextFunction, str], bytes] = {}
        """What functions make of texts, as digests."""
        self._drawn_here: set[bytes] = set()
        """Draw keys whose texts were drawn in this process: it would draw the same again."""

    def keys(self, indices: Sequence[int], variation: int, memory: Memory, *, redraw: bool = False) -> Bytes:
        """The key of each sample in a variation, a row each.

        A text that was drawn before stays the one, wherever its sample stands now. `redraw` takes what is drawn here
        and now instead: the entry of the other is gone, and only this one can be made.
        """
        draws, beside = self._draw_keys(indices, variation, memory), None
        if self._rules.functions:
            texts = [
                self._function_texts(row.tobytes(), index, variation, memory, redraw=redraw)
                for row, index in zip(draws, indices, strict=True)
            ]
            draws, beside = self._with_values(indices, variation, texts)
        if self._rules.content is None:
            return draws
        known, drawn = memory.recall(_TEXTS, draws)
        if redraw:
            known &= [row.tobytes() in self._drawn_here for row in draws]
        for row in np.flatnonzero(~known).tolist():
            drawn[row] = np.frombuffer(self._draw_text(indices[row], variation), np.uint8)
            self._drawn_here.add(draws[row].tobytes())
        memory.remember(_TEXTS, draws[~known], drawn[~known])
        return self._text_keys(indices, [row.tobytes() for row in drawn], beside)

    def known_keys(self, indices: Sequence[int], variation: int, memory: Memory) -> Bytes | None:
        """The same without drawing anything; None where a text was never drawn."""
        draws, beside = self._draw_keys(indices, variation, memory), None
        if self._rules.functions:
            notes = memory.notes(_FUNCTION_TEXTS)
            if any(row.tobytes() not in notes for row in draws):
                return None
            draws, beside = self._with_values(indices, variation, [json.loads(notes[row.tobytes()]) for row in draws])
        if self._rules.content is None:
            return draws
        known, drawn = memory.recall(_TEXTS, draws)
        return self._text_keys(indices, [row.tobytes() for row in drawn], beside) if known.all() else None

    def current_key(self, index: int, variation: int) -> Key:
        """The key of what is drawn for a sample at its present place."""
        draws, beside = self._draw_keys([index], variation), None
        if self._rules.functions:
            texts = [function.ask(variation, index) for function in self._rules.functions]
            draws, beside = self._with_values([index], variation, [texts])
        if self._rules.content is None:
            return Key(draws.tobytes())
        return Key(self._text_keys([index], [self._draw_text(index, variation)], beside).tobytes())

    def _draw_keys(self, indices: Sequence[int], variation: int, memory: Memory | None = None) -> Bytes:
        """What decides a draw; without a content key and functions, the keys of the entries themselves.

        With `memory`, a text that was drawn under a key of earlier versions has that one.
        """
        rules = self._rules
        keys = self._make(rules.draw, indices, self._source_digests(indices), variation=variation)
        if memory is not None and rules.content is not None and rules.earlier is not None and not rules.functions:
            unknown = np.flatnonzero(~memory.recall(_TEXTS, keys)[0])
            earlier = self._earlier_keys([indices[row] for row in unknown.tolist()], variation)
            known = memory.recall(_TEXTS, earlier)[0]
            keys[unknown[known]] = earlier[known]
        return keys

    def earlier_keys(self, indices: Sequence[int], variation: int) -> Bytes | None:
        """The keys that entries had in earlier versions; None where they had the same, or none."""
        if self._rules.texts_count or self._rules.earlier is None:
            return None
        return self._earlier_keys(indices, variation)

    def _earlier_keys(self, indices: Sequence[int], variation: int) -> Bytes:
        assert self._rules.earlier is not None
        return self._make(self._rules.earlier, indices, self._source_digests(indices), variation=variation)

    def _source_digests(self, indices: Sequence[int]) -> list[bytes]:
        unknown = [index for index in indices if index not in self._identities]
        self._identities.update(zip(unknown, self._sources.identities(unknown, self._rules.draw.paths), strict=True))
        return [self._identities[index] for index in indices]

    def _function_texts(self, draw: bytes, index: int, variation: int, memory: Memory, *, redraw: bool) -> list[str]:
        """The texts that the functions are called on for a sample: those that were drawn first, if they are known."""
        note = memory.note(_FUNCTION_TEXTS, draw)
        if note is not None and not (redraw and draw not in self._drawn_here):
            return list(json.loads(note))
        texts = [function.ask(variation, index) for function in self._rules.functions]
        self._drawn_here.add(draw)
        memory.write_note(_FUNCTION_TEXTS, draw, json.dumps(texts))
        return texts

    def _with_values(
        self, indices: Sequence[int], variation: int, texts: Sequence[Sequence[str]]
    ) -> tuple[Bytes, list[bytes]]:
        """Draw keys that hold what functions give, and what those beside a content key give, as digests."""
        rules, count = self._rules, len(self._rules.draw.functions)
        rows, beside = [], []
        for source, drawn in zip(self._source_digests(indices), texts, strict=True):
            values = [
                self._values.get((function, text)) or self._value(function, text)
                for function, text in zip(rules.functions, drawn, strict=True)
            ]
            rows.append(blake3(b"".join([source, *values[:count]])).digest() if count else source)
            beside.append(b"".join(values[count:]))
        return self._make(rules.draw, indices, rows, variation=variation), beside

    def _value(self, function: TextFunction, text: str) -> bytes:
        """What a function makes of a text, as a digest.

        A token that was made up for an embedding has another name in each process, and stands there by its id.
        """
        form = canonical(function.value(text)).decode("ascii")
        named = replace_random_names(form, lambda name: str(self._made_up_tokens.get(name, name)))
        made = self._values[function, text] = digest(named.encode()).bytes
        return made

    def _draw_text(self, index: int, variation: int) -> bytes:
        """The digest of the text that mgds draws for a sample now."""
        name = self._rules.content
        assert name is not None
        text = self._get_previous(variation, name, index)
        if not isinstance(text, str):
            raise EncodeError(f"{name} gave a {type(text).__name__}, and a content key is a text")
        return digest(text).bytes

    def _text_keys(self, indices: Sequence[int], texts: Sequence[bytes], values: Sequence[bytes] | None) -> Bytes:
        beside = self._rules.beside_text
        assert beside is not None
        sources = self._sources.identities(indices, beside.paths)
        digests = [
            blake3(text + source + (values[row] if values else b"")).digest()
            for row, (source, text) in enumerate(zip(sources, texts, strict=True))
        ]
        return self._make(beside, indices, digests)

    def _make(self, inputs: KeyInputs, indices: Sequence[int], digests: Sequence[bytes], **settings: object) -> Bytes:
        """Keys in bulk, for all samples at a time that share their settings."""
        rows_by_number: dict[int, list[int]] = {}
        for row, index in enumerate(indices):
            rows_by_number.setdefault(self._shared.number(index), []).append(row)
        keys = np.zeros((len(indices), 32), np.uint8)
        for number, rows in rows_by_number.items():
            if (number, id(inputs)) not in self._settings:
                values = inputs.options.matter(functools.partial(self._shared.value, number))
                self._settings[number, id(inputs)] = digest(canonical(values))
            shared = self._settings[number, id(inputs)]
            made = inputs.recipe.keys(b"".join(digests[row] for row in rows), settings=shared, **settings)
            keys[rows] = np.frombuffer(made, np.uint8).reshape(-1, 32)
        return keys
