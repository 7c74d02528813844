"""Fields: which parts of a batch a training loop gets, and under which names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precook.errors import FeedError

_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """The parts that are kept, and the names that they get.

    A part is named as the batch has it: `latent`, or `prompt.hidden` for a leaf of a tree.
    """

    kept: tuple[str, ...] | None = None
    """The feed's name of each, or the one that it gets; None keeps everything."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Names of parts, and the names under which each then stands at the top of the batch."""

    @classmethod
    def of(cls, fields: Sequence[str] | None, rename: Mapping[str, str] | None) -> Fields:
        """What a caller asks for; `FeedError` where that cannot be meant."""
        if isinstance(fields, str) or not all(isinstance(name, str) for name in fields or ()):
            raise FeedError(f"fields is a list of names, not {fields!r}", hint='such as fields=["latent", "prompt"]')
        pairs = tuple((rename or {}).items())
        if not all(isinstance(name, str) and isinstance(new, str) and new for name, new in pairs):
            hint = 'such as rename={"latent": "model_input"}'
            raise FeedError(f"rename says a new name for each name, not {rename!r}", hint=hint)
        return cls(None if fields is None else tuple(fields), pairs)

    def choose(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch of these parts under these names; `FeedError` names what is not there, or is there twice."""
        if self.kept is None and not self.renamed:
            return batch
        moved = {self._find(batch, name, "rename"): new for name, new in self.renamed}
        if self.kept is None:
            chosen = list(_paths(batch))
        else:
            sources = {new: path for path, new in moved.items()}
            chosen = [sources[name] if name in sources else self._find(batch, name, "fields") for name in self.kept]
            lost = [".".join(path) for path in moved if not any(path[: len(part)] == part for part in chosen)]
            if lost:
                hint = f"add it to the fields, or leave it out of rename; fields: {', '.join(self.kept)}"
                raise FeedError(f"{lost[0]} is renamed, and not among the fields", hint=hint)
        made: dict[str, Any] = {}
        owners: dict[str, _Path] = {}
        """What stands under each name at the top, as the feed names it."""
        for path in (leaf for part in chosen for leaf in _paths(_part(batch, part), part)):
            # The longest wins: a leaf may leave a tree that is renamed itself.
            source = next((path[:length] for length in range(len(path), 0, -1) if path[:length] in moved), path[:1])
            top = moved.get(source, source[0])
            if owners.setdefault(top, source) != source:
                names = " and ".join(".".join(name) for name in (owners[top], source))
                raise FeedError(f"rename: {names} would both be {top!r}", hint="give them names of their own")
            *trees, name = top, *path[len(source) :]
            place = made
            for tree in trees:
                place = place.setdefault(tree, {})
            place[name] = _part(batch, path)
        return made

    def _find(self, batch: dict[str, Any], name: str, asked: str) -> _Path:
        path = _split(batch, name)
        if path is None:
            names = ", ".join(".".join(path) for path in _paths(batch))
            raise FeedError(f"{asked}: a batch has no {name!r}", hint=f"there are {names}")
        return path


def _split(tree: Any, name: str) -> _Path | None:
    """A dotted name as the way to what it names; names with dots of their own are found, too."""
    if not isinstance(tree, dict):
        return None
    if name in tree:
        return (name,)
    for first in tree:
        if isinstance(first, str) and name.startswith(f"{first}."):
            rest = _split(tree[first], name[len(first) + 1 :])
            if rest is not None:
                return (first, *rest)
    return None


def _paths(tree: Any, above: _Path = ()) -> Iterator[_Path]:
    """The ways to everything that is no dict."""
    if isinstance(tree, dict):
        for name, part in tree.items():
            yield from _paths(part, (*above, name))
    else:
        yield above


def _part(tree: Any, path: _Path) -> Any:
    for name in path:
        tree = tree[name]
    return tree
