"""Recipes: everything about how an entry is made, and the keys they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from precook.errors import IdentityError
from precook.identity.canonical import canonical
from precook.identity.digest import derived_digest
from precook.values import Digest, Key

_RECIPE_CONTEXT = "precook recipe 1"
_KEY_CONTEXT = "precook key 1"


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """An encoder's identity and settings: a kind and plain data.

    Two recipes are equal when their canonical forms are; whatever decides the encoder's output belongs into `data`.

    >>> vae = Recipe("vae", {"weights": "…", "dtype": "float16"})
    >>> vae.key("a picture's digest", size=(1024, 768)) == vae.key("a picture's digest", size=[1024, 768])
    True
    >>> vae.key("a picture's digest", size=(768, 1024)) == vae.key("a picture's digest", size=(1024, 768))
    False
    """

    kind: str
    data: object
    form: bytes = field(init=False, repr=False)
    """The canonical form that `digest` is the digest of; stored with the entries so that they can be explained."""
    digest: Digest = field(init=False)

    def __post_init__(self) -> None:
        if type(self.kind) is not str or not self.kind:
            raise IdentityError("", f"a recipe's kind is a name, not {self.kind!r}")
        form = canonical([self.kind, self.data])
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "digest", recipe_digest(form))

    @property
    def hex(self) -> str:
        """The digest as 64 hexadecimal digits."""
        return self.digest.hex

    def key(self, *inputs: object, **settings: object) -> Key:
        """The key of what this recipe makes of these inputs and settings: plain data or digests."""
        form = canonical([self.digest, list(inputs), settings])
        return Key(derived_digest(_KEY_CONTEXT, form))

    def keys(self, digests: bytes, **settings: object) -> bytes:
        """The keys of many inputs of one digest each, with the same settings: 32 bytes after the other, like `digests`.

        >>> from precook import digest
        >>> cats = digest("a cat"), digest("another cat")
        >>> vae = Recipe("vae", {"weights": "…"})
        >>> vae.keys(cats[0].bytes + cats[1].bytes, size=64)[32:] == vae.key(cats[1], size=64).bytes
        True
        """
        # One canonical form with a gap: the digest is the only part that differs.
        gap = Digest(bytes(32))
        form = canonical([self.digest, [gap], settings])
        before = canonical([self.digest, [gap]]).partition(gap.hex.encode())[0]
        after = form[len(before) + 64 :]
        text = digests.hex().encode("ascii")
        return b"".join(
            derived_digest(_KEY_CONTEXT, b"%b%b%b" % (before, text[start : start + 64], after))
            for start in range(0, len(text), 64)
        )

    def combined_keys(self, digests: bytes, count: int, form: Callable[[Sequence[Digest]], Sequence[object]]) -> bytes:
        """The keys of many combinations of so many inputs, whose digests stand in a row for each of them.

        `form` says what inputs with these digests are: plain data, the same for all but the digests, in their order.

        >>> from precook import digest
        >>> cat, prompt = digest("a cat"), digest("a prompt")
        >>> recipe = Recipe("edit", {"weights": "…"})
        >>> made = recipe.combined_keys(cat.bytes + prompt.bytes, 2, lambda both: [["image", both[0]], both[1]])
        >>> made == recipe.key(["image", cat], prompt).bytes
        True
        """
        gaps = [Digest(bytes([number]) * 32) for number in range(count)]
        rest = canonical([self.digest, list(form(gaps)), {}])
        pieces: list[tuple[int, bytes]] = []
        """Which digest comes next, if any, and what stands behind it."""
        # From the end: the recipe's own digest stands before all of them.
        for number in reversed(range(count)):
            before, found, after = rest.rpartition(gaps[number].hex.encode("ascii"))
            if found:
                pieces.insert(0, (number, after))
                rest = before
        head = rest
        text, width = digests.hex().encode("ascii"), 64 * count
        keys = []
        for start in range(0, len(text), width):
            parts = [head]
            for number, after in pieces:
                parts += [text[start + 64 * number : start + 64 * number + 64], after]
            keys.append(derived_digest(_KEY_CONTEXT, b"".join(parts)))
        return b"".join(keys)

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Recipe) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)


def recipe_digest(form: bytes) -> Digest:
    """The digest of the recipe with this canonical form."""
    return Digest(derived_digest(_RECIPE_CONTEXT, form))
