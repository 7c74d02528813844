"""Latents that were made of the same pixels before: what else is cached beside them may change, the VAE is not asked.

With masks switched on, mgds' pipeline has more modules, so every draw is another one: other crops, other flips. Two
things keep that from costing an encoding:

- A sample is drawn as it was drawn first. `FirstDraws` remembers where it stood then, and where the modules stood that
  draw; while an entry is made, they draw as if they stood there.
- What goes into the VAE is compared with what went into it before, byte for byte (`LatentReuse`). Only where that is
  equal a latent is taken from the entry that has it, so a mask never stands beside a latent of another crop.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from blake3 import blake3

from precook.identity.canonical import canonical
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.integrations.mgds.upstream import UpstreamModule, trace
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.store.store import Store
from precook.values import Key

_ENCODE = "mgds.pipelineModules.EncodeVAE.EncodeVAE"
_BEHIND = frozenset({_ENCODE, "mgds.pipelineModules.SampleVAEDistribution.SampleVAEDistribution"})
"""What may stand between the pixels and a latent."""
_LATENTS = Kind("mgds latents/1", key=32, value=32)
"""By pixels, VAE and name, the key of an entry that may have the latent: it says itself of which pixels it is."""
_FIRST_DRAWS = Kind("mgds first draws/1", key=32, value=40)
"""By a sample's file and a variation: its index when it was drawn first, and the digest of the modules' places."""
_POSITIONS = "mgds positions/1"
"""The places of modules, as JSON, by their digests."""


# Where a sample was drawn first


@dataclass(frozen=True, slots=True)
class _FirstDraw:
    """Where a sample and the modules stood when it was drawn."""

    index: int
    positions: dict[str, int]


class FirstDraws:
    """The places at which samples are drawn while entries are made."""

    def __init__(self, modules: Sequence[UpstreamModule], seed: int, memory: Memory) -> None:
        counts: dict[str, int] = {}
        self._modules: list[tuple[Any, str]] = []
        for module in modules:
            counts[module.kind] = counts.get(module.kind, 0) + 1
            self._modules.append((module.module, f"{module.kind} {counts[module.kind]}"))
        self._here = {name: position for position, (_, name) in enumerate(self._modules)}
        form = json.dumps(self._here, sort_keys=True)
        self._seed = seed
        self._positions = digest(form)
        self._current = threading.local()
        self._known = {key.tobytes(): value.tobytes() for key, value in zip(*memory.rows(_FIRST_DRAWS), strict=True)}
        """As it was before this build: samples of one build do not share their draws."""
        self._known_positions = {key: json.loads(note) for key, note in memory.notes(_POSITIONS).items()}
        self._new: dict[bytes, bytes] = {}
        if modules:
            memory.write_note(_POSITIONS, self._positions.bytes, form)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """While this lasts, modules draw at the place that `at` has chosen in their thread."""
        drawing = [(module, name) for module, name in self._modules if hasattr(module, "_get_rand")]
        for module, name in drawing:
            module._get_rand = self._rand(name)  # noqa: SLF001 - the one place where mgds draws
        try:
            yield
        finally:
            for module, _ in drawing:
                del module._get_rand  # noqa: SLF001

    @contextlib.contextmanager
    def at(self, source: bytes | None, index: int, variation: int) -> Iterator[None]:
        """Draw a sample, known by its file's digest, where it was drawn first; here, if it never was."""
        if source is None or not self._modules:
            yield
            return
        key = blake3(source + f"{variation} {self._seed}".encode()).digest()
        value = self._known.get(key)
        positions = self._known_positions.get(value[8:]) if value is not None else None
        if value is None or positions is None:
            self._new.setdefault(key, index.to_bytes(8, "little") + self._positions.bytes)
        else:
            self._current.place = _FirstDraw(int.from_bytes(value[:8], "little"), positions)
        try:
            yield
        finally:
            self._current.place = None

    def remember(self, memory: Memory) -> None:
        """Keep where samples were drawn for the first time."""
        if self._new:
            keys, values = (np.frombuffer(b"".join(part), np.uint8) for part in (self._new, self._new.values()))
            memory.remember(_FIRST_DRAWS, keys.reshape(-1, 32), values.reshape(-1, 40))

    def _rand(self, name: str) -> Any:
        def rand(variation: int, index: int = -1) -> Random:
            place: _FirstDraw | None = getattr(self._current, "place", None)
            position = self._here[name]
            if place is not None and index >= 0:
                position, index = place.positions.get(name, position), place.index
            return Random(hash((self._seed, position, variation, index)))  # noqa: S311 - mgds' own draw

        return rand


# What was encoded of the same pixels


@dataclass(frozen=True, slots=True)
class LatentRule:
    """A cached name that is nothing but what a VAE makes of a picture."""

    name: str
    module: Any
    """The one that encodes."""
    identity: bytes
    """What makes the latent of the pixels, as a digest."""


def latent_rules(modules: Sequence[UpstreamModule], names: Sequence[str], recipe: Recipe) -> tuple[LatentRule, ...]:
    """The cached names that a VAE makes of pixels, and of nothing else."""
    identities: Any = recipe.data
    rules = []
    for name in names:
        encoders = [module for module in trace(modules, [name]).modules if module.kind == _ENCODE]
        if len(encoders) != 1:
            continue
        beside = trace(modules, [name], without=encoders[0].module.in_name)
        if not {module.kind for module in beside.modules} <= _BEHIND:
            continue
        outputs = [sorted(module.outputs) for module in beside.modules]
        made = [one for one in identities["modules"] if [one["settings"].get("out_name")] in outputs]
        if len(made) == len(beside.modules):
            rules.append(LatentRule(name, encoders[0].module, digest(canonical([name, made])).bytes))
    return tuple(rules)


class LatentReuse:
    """Latents by the pixels that they were made of."""

    def __init__(self, rules: Sequence[LatentRule], store: Store, memory: Memory) -> None:
        self._rules = {rule.name: rule for rule in rules}
        self._store = store
        rows = zip(*memory.rows(_LATENTS), strict=True) if rules else ()
        self._known = {pixels.tobytes(): entry.tobytes() for pixels, entry in rows}
        self._new: dict[bytes, bytes] = {}

    def pixels(self, variation: int, index: int) -> dict[str, bytes]:
        """Of each latent, what it is made of and by, as a digest: the pixels and the VAE."""
        made_of = {}
        for name, rule in self._rules.items():
            pixels = rule.module._get_previous_item(variation, rule.module.in_name, index)  # noqa: SLF001 - mgds' own way
            flat = pixels.detach().cpu().contiguous()
            form = f"{flat.dtype} {tuple(flat.shape)}".encode()
            made_of[name] = blake3(rule.identity + digest(form).bytes + _bytes(flat)).digest()
        return made_of

    def find(self, pixels: Mapping[str, bytes], entry: Key) -> dict[str, Any]:
        """Latents that were made of the same; the others are known to be in `entry` from now on."""
        found = {}
        for name, made_of in pixels.items():
            known = self._known.get(made_of)
            tree = self._store.get(Key(known), None) if known is not None else None
            # The entry itself has to say so: another training may have put it first, with a draw of its own.
            if tree is None or tree.get("pixels", {}).get(name) != made_of or name in tree["distributions"]:
                self._new[made_of] = entry.bytes
            else:
                found[name] = tree["split"][name]
        return found

    def remember(self, memory: Memory) -> None:
        """Keep of which pixels latents were made."""
        if self._new:
            keys, values = (np.frombuffer(b"".join(part), np.uint8) for part in (self._new, self._new.values()))
            memory.remember(_LATENTS, keys.reshape(-1, 32), values.reshape(-1, 32))


def _bytes(tensor: Any) -> bytes:
    """The bytes of a tensor, whatever its dtype."""
    import torch  # noqa: PLC0415 - whoever has tensors has imported it

    content: bytes = tensor.flatten().view(torch.uint8).numpy().tobytes()
    return content
