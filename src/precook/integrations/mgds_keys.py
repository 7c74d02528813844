"""Keys of an mgds cache: what decides an entry, and nothing about where a sample stands in the list.

mgds draws by position: the seed of a draw holds the sample's index and the module's. A key with these in it would lose
every entry behind a new file. So a key holds the sample's identity and the variation, and the draw that was made first
for them is the draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from precook.errors import EncodeError, IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.processors import plain
from precook.identity.recipe import Recipe
from precook.integrations.mgds_groups import Ask, FolderRoots
from precook.integrations.mgds_sources import Sources
from precook.integrations.mgds_upstream import Closure, Stage, Use, closure, identities
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.values import Bytes, Key

VERSION = 1
_TEXTS = Kind("mgds texts/1", key=32, value=32)
"""Digests of texts that were drawn, by what decided them."""
_WHERE = frozenset({"path", "seed", "include_subdirectories", "name", "enabled"})
"""Settings of a concept that say which samples it has, and nothing about what they become."""


@dataclass(frozen=True, slots=True)
class Naming:
    """What a cache's keys are made of, as far as the pipeline decides it."""

    everything: Closure
    """All that leads to the cached names."""
    uses: dict[str, Use]
    """Every path that counts."""
    recipe: Recipe
    """Who makes the entries."""
    own_uses: dict[str, Use]
    """Paths that count for an entry; with a content key, those that do so beside it."""
    own_settings: tuple[str, ...]
    content: str | None
    """The name of the text that decides an entry."""
    text_recipe: Recipe
    """Who makes that text; without one, the same as `recipe`."""
    text_settings: tuple[str, ...]


def name_entries(
    stages: Sequence[Stage],
    *,
    split: Sequence[str],
    aggregate: Sequence[str],
    group: Sequence[str],
    sources: Sequence[str],
    content: str | None,
    seed: int,
    given: Mapping[str, object],
    model: object,
) -> Naming:
    """Work out what decides the entries of a cache with these names; `sources` are declared to be read as files."""
    names = [*split, *aggregate]
    everything = closure(stages, names)
    lacking = [name for name in names if name not in everything.asked]
    if lacking:
        raise IdentityError(lacking[0], "no module before the cache gives this name", hint="check the names")
    uses = _declared(everything, sources)
    if not uses and content is None:
        hint = "give source_path_in_name, the name of the path of a sample's file, or content_key_in_name"
        raise IdentityError(names[0], "no module that leads to it names the path of a file", hint=hint)
    own = closure(stages, names, given=content) if content is not None else everything
    own_uses = _declared(own, ()) if content is not None else uses
    grouped = [name for name in group if name.rpartition(".")[2] not in _WHERE]
    data = {"version": VERSION, "split": sorted(split), "aggregate": sorted(aggregate)}
    recipe = Recipe("mgds", {**data, "seed": seed, "modules": identities(own, given, model)})
    if content is None:
        settings = tuple(sorted({*everything.values(), *grouped}))
        return Naming(everything, uses, recipe, uses, settings, None, recipe, settings)
    before = closure(stages, [content])
    if content not in before.asked:
        raise IdentityError(content, "no module before the cache gives this name", hint="check content_key_in_name")
    text = Recipe("mgds-text", {"version": VERSION, "seed": seed, "modules": identities(before, given, model)})
    settings = tuple(sorted({*before.values(), *grouped}))
    return Naming(everything, uses, recipe, own_uses, own.values(), content, text, settings)


def _declared(found: Closure, sources: Sequence[str]) -> dict[str, Use]:
    """What is taken from each path; of those that are declared, the content and no more of the path than its end."""
    declared = {name: (found.paths.get(name, Use(0)) & Use.NAME) | Use.CONTENT | Use.SUFFIX for name in sources}
    return dict(sorted({**found.paths, **declared}.items()))


class Keys:
    """The keys of a pipeline's samples."""

    def __init__(self, naming: Naming, sources: Sources, ask: Ask, *, root: Ask) -> None:
        self._naming = naming
        self._sources = sources
        self._ask = ask
        self._roots = FolderRoots(root, (*naming.own_settings, *naming.text_settings))
        self._forms: dict[tuple[int, tuple[str, ...]], object] = {}
        self._codes: dict[int, int] = {}
        self._identities: dict[int, bytes] = {}
        self._fresh: set[bytes] = set()
        """What texts were drawn for in this process: it would draw the same again."""

    def of(self, indices: Sequence[int], variation: int, memory: Memory, *, redraw: bool = False) -> Bytes:
        """The key of each sample in a variation, a row each.

        A text that was drawn before stays the one, wherever its sample stands now. `redraw` takes what is drawn here
        and now instead: the entry of the other is gone, and only this one can be made.
        """
        drawn = self._drawn(indices, variation)
        if self._naming.content is None:
            return drawn
        known, texts = memory.recall(_TEXTS, drawn)
        if redraw:
            known &= [row.tobytes() in self._fresh for row in drawn]
        for at in np.flatnonzero(~known).tolist():
            texts[at] = np.frombuffer(self._text(indices[at], variation), np.uint8)
            self._fresh.add(drawn[at].tobytes())
        memory.remember(_TEXTS, drawn[~known], texts[~known])
        return self._of_texts(indices, [row.tobytes() for row in texts])

    def known(self, indices: Sequence[int], variation: int, memory: Memory) -> Bytes | None:
        """The same without drawing anything; None where a text was never drawn."""
        drawn = self._drawn(indices, variation)
        if self._naming.content is None:
            return drawn
        known, texts = memory.recall(_TEXTS, drawn)
        return self._of_texts(indices, [row.tobytes() for row in texts]) if known.all() else None

    def of_text_now(self, index: int, variation: int) -> Key:
        """The key of the text that is drawn for a sample at its present place."""
        return Key(self._of_texts([index], [self._text(index, variation)]).tobytes())

    def _drawn(self, indices: Sequence[int], variation: int) -> Bytes:
        naming = self._naming
        inputs = [self._identity(index) for index in indices]
        return self._keys(naming.text_recipe, indices, inputs, naming.text_settings, variation=variation)

    def _identity(self, index: int) -> bytes:
        found = self._identities.get(index)
        if found is None:
            found = self._identities[index] = self._sources.identity(index, self._naming.uses)
        return found

    def _text(self, index: int, variation: int) -> bytes:
        name = self._naming.content
        assert name is not None
        text = self._ask(variation, name, index)
        if not isinstance(text, str):
            raise EncodeError(f"{name} gave a {type(text).__name__}, and a content key is a text")
        return digest(text).bytes

    def _of_texts(self, indices: Sequence[int], texts: Sequence[bytes]) -> Bytes:
        naming = self._naming
        own = [self._sources.identity(index, naming.own_uses) for index in indices]
        inputs = [blake3(text + beside).digest() for text, beside in zip(texts, own, strict=True)]
        return self._keys(naming.recipe, indices, inputs, naming.own_settings)

    def _keys(
        self,
        recipe: Recipe,
        indices: Sequence[int],
        inputs: Sequence[bytes],
        names: tuple[str, ...],
        **settings: object,
    ) -> Bytes:
        """Keys in bulk, for all samples at a time that share their settings."""
        rows: dict[int, list[int]] = {}
        for at, index in enumerate(indices):
            if index not in self._codes:
                self._codes[index] = self._roots.code(index)
            rows.setdefault(self._codes[index], []).append(at)
        keys = np.zeros((len(indices), 32), np.uint8)
        for code, chosen in rows.items():
            form = self._form(code, names)
            made = recipe.keys(b"".join(inputs[at] for at in chosen), settings=form, **settings)
            keys[chosen] = np.frombuffer(made, np.uint8).reshape(-1, 32)
        return keys

    def _form(self, code: int, names: tuple[str, ...]) -> object:
        if (code, names) not in self._forms:
            values = {name: plain(self._roots.value(code, name), name) for name in names}
            self._forms[code, names] = digest(canonical(values))
        return self._forms[code, names]
