"""Packs in the making: a list of entries to the bytes of one safetensors file.

Pure functions that follow docs/reference/format.md word for word; `pack` reads what this module writes.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from precook.identity.canonical import JsonValue, dump_json
from precook.identity.recipe import Recipe
from precook.store.dtypes import DType
from precook.store.format.header import ALIGNMENT, Column, dump_header, load_json
from precook.store.format.pack import DIRECTORY_TYPES, FORMAT, METADATA, NO_RECIPE, checksum, lanes_shape, pack_id
from precook.store.leaves import Leaf
from precook.store.tree import Parts
from precook.values import Array, Bytes

_Content = TypeVar("_Content")


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry ready to be written."""

    key: bytes
    parts: Parts
    recipe: bytes
    """The recipe's canonical form, or nothing."""
    labels: bytes
    """JSON object of labels, or null."""
    checksum: bytes
    made: bytes = b""
    """The versions that it was made with, as JSON, or nothing; the checksum does not cover it."""

    @property
    def nbytes(self) -> int:
        """Roughly what the entry adds to a pack."""
        return len(self.parts.values) + len(self.labels) + 64 + self.parts.nbytes


@dataclass(frozen=True, slots=True)
class PackImage:
    """A pack that is not on disk yet."""

    id: str
    head: bytes
    body: list[Any]
    """Buffers that follow the head, in order."""

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return len(self.head) + sum(int(buffer.nbytes) for buffer in self.body)


def make_entry(
    key: bytes, parts: Parts, *, recipe: Recipe | None = None, labels: bytes = b"null", made: bytes = b""
) -> Entry:
    """An entry with its checksum."""
    found = checksum(
        key=key,
        recipe=recipe.digest.bytes if recipe else NO_RECIPE,
        skeleton=parts.skeleton,
        values=parts.values,
        labels=labels,
        leaves=[(leaf.shape, (leaf.data,)) for leaf in parts.leaves],
    )
    return Entry(key, parts, recipe.form if recipe else b"", labels, found, made if recipe else b"")


def build_pack(entries: Sequence[Entry], *, created: int, salt: str) -> PackImage:
    """The file that holds these entries, row after row in the order given within each table.

    `salt` makes the id unique: two writers that store the same entries at once never touch each other's file.
    """
    recipes = list(dict.fromkeys((entry.recipe, entry.made) for entry in entries if entry.recipe))
    numbers = {recipe: number for number, recipe in enumerate(recipes, 1)} | {(b"", b""): 0}
    tables: defaultdict[bytes, list[Entry]] = defaultdict(list)
    for entry in entries:
        tables[entry.parts.skeleton].append(entry)

    directory: list[tuple[str, Array]] = []
    body: list[tuple[str, DType, tuple[int, ...], list[Leaf]]] = []
    forms = []
    for number, rows in enumerate(tables.values()):
        forms.append(_table_form(f"t{number}", rows, numbers, directory, body))
    head, columns = assemble(forms, recipes, directory, body, created=created, salt=salt)
    return PackImage(pack_id(head), head, [leaf.data for leaves in columns for leaf in leaves if leaf.data.nbytes])


def assemble(
    forms: Sequence[JsonValue],
    recipes: Sequence[tuple[bytes, bytes]],
    directory: list[tuple[str, Array]],
    body: list[tuple[str, DType, tuple[int, ...], _Content]],
    *,
    created: int,
    salt: str,
) -> tuple[bytes, list[_Content]]:
    """The head of a pack of these tables and columns, and what its body columns hold in the order of the file.

    `recipes` are canonical forms, each with what entries of it were made with: the same one may stand there twice.
    """
    # Large elements first, in the directory and in the body: every column then lies aligned to its own elements.
    directory.sort(key=lambda item: -item[1].itemsize)
    body.sort(key=lambda item: -item[1].size)
    used = sum(array.nbytes for _, array in directory)
    if padding := -used % ALIGNMENT:
        directory.append(("padding", np.zeros(padding, np.uint8)))
    columns = []
    start = 0
    for name, array in directory:
        columns.append(Column(name, DIRECTORY_TYPES[array.dtype.str], array.shape, start))
        start = columns[-1].end
    length = start
    for name, dtype, shape, _ in body:
        columns.append(Column(name, dtype.name, shape, start))
        start = columns[-1].end
    form: dict[str, JsonValue] = {
        "format": FORMAT,
        "created": created,
        "salt": salt,
        "directory": length,
        "tables": forms,
        "recipes": [json.loads(recipe) for recipe, _ in recipes],
    }
    if any(made for _, made in recipes):
        form["made"] = [json.loads(made) if made else None for _, made in recipes]
    header = dump_header(columns, {METADATA: dump_json(form).decode("ascii")})
    head = b"".join([header, *(array.tobytes() for _, array in directory)])
    return head, [content for _, _, _, content in body]


def _table_form(
    name: str,
    rows: list[Entry],
    recipes: dict[tuple[bytes, bytes], int],
    directory: list[tuple[str, Array]],
    body: list[tuple[str, DType, tuple[int, ...], list[Leaf]]],
) -> JsonValue:
    """Add one table's columns to the directory and the body; its description for the metadata."""
    directory.append((f"{name}/keys", _stack([entry.key for entry in rows])))
    directory.append((f"{name}/checksums", _stack([entry.checksum for entry in rows])))
    directory.append((f"{name}/recipes", np.array([recipes[entry.recipe, entry.made] for entry in rows], "<u2")))
    values = text_form(f"{name}/values", [entry.parts.values for entry in rows], directory)
    labels = text_form(f"{name}/labels", [entry.labels for entry in rows], directory)
    leaf_forms: list[JsonValue] = []
    for label, leaves in zip(
        leaf_names(rows[0].parts.paths), zip(*(entry.parts.leaves for entry in rows), strict=True), strict=True
    ):
        dtype = leaves[0].dtype
        shapes = [leaf.shape for leaf in leaves]
        if shapes.count(shapes[0]) == len(shapes):
            leaf_forms.append({"name": f"{name}/{label}", "shape": list(shapes[0])})
            shape = (len(rows), *lanes_shape(dtype, shapes[0]))
        else:
            leaf_forms.append({"name": f"{name}/{label}", "shape": None})
            directory.append((f"{name}/shapes.{label}", np.array(shapes, "<u4")))
            shape = (sum(leaf.data.nbytes for leaf in leaves) // dtype.size * dtype.lanes,)
        body.append((f"{name}/{label}", dtype, shape, list(leaves)))
    skeleton = json.loads(rows[0].parts.skeleton)
    return {"name": name, "rows": len(rows), **skeleton, "columns": leaf_forms, "values": values, "labels": labels}


def text_form(name: str, texts: list[bytes], directory: list[tuple[str, Array]]) -> JsonValue:
    """`{"all": …}` where every row has the same JSON, else null and two columns."""
    if texts.count(texts[0]) == len(texts) and (form := compact_form(texts[0])) is not None:
        return {"all": form[0]}
    directory.append((name, np.frombuffer(b"".join(texts), np.uint8)))
    directory.append((f"{name}.offsets", np.cumsum([0, *map(len, texts)]).astype("<u4")))
    return None


def compact_form(text: bytes) -> tuple[JsonValue] | None:
    """What a JSON text says, if writing that again gives the same bytes.

    A text of another writer may be spaced in its own way, or be none: its checksum is of its bytes as they are.
    """
    try:
        form = load_json(text)
        return (form,) if dump_json(form) == text else None
    except (ValueError, RecursionError):
        return None


def _stack(rows: list[bytes]) -> Bytes:
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)


def leaf_names(paths: tuple[str, ...]) -> list[str]:
    """Readable names for leaf columns: for people only, so odd characters and long paths are cut down."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for path in paths:
        name = "leaf." + (re.sub(r"[^A-Za-z0-9_.-]", "_", path)[:80] or "tensor")
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}~{seen[name]}")
    return names
