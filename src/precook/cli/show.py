"""`precook show`: one entry with its tree, its numbers, its recipe, its place and its source; or one sample."""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import output
from precook.cli.options import ConfigOption, JsonOption, StoreOption, key_digits, named_config, open_to_read
from precook.cli.output import Line, Span
from precook.errors import DAMAGED, DamagedEntryError, PrecookError, printable
from precook.units import format_age, format_count, format_size, local_time, utc_time

if TYPE_CHECKING:
    from precook.cli.entries import RecipeInfo
    from precook.maintain.owners import Owner, SnapshotSample
    from precook.store.reader import Located
    from precook.store.store import Store
    from precook.values import Array

_MOST_FIELDS = 40
"""Lines of a recipe or of labels that are shown to people."""
_FIELD_LENGTH = 120
_DIGEST_DIGITS = 16
_KEY_DIGITS = 64
_MOST_OWNERS = 5
"""Samples and files that are shown to people."""


def command(
    key: Annotated[
        str,
        typer.Argument(
            parser=key_digits, metavar="KEY", help="The key of an entry, or a sample, or at least the first 4 digits."
        ),
    ],
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show one entry and the file that it was made of, or one sample.

    Of an entry its tree and numbers, its recipe and its place. Files are named by snapshots that keep paths, and by the
    config's concepts as far as their files are remembered.
    """
    from precook.cli.entries import find_key
    from precook.cli.tree import tree_lines
    from precook.maintain.owners import find_samples
    from precook.plan.trace import check_one

    with open_to_read(config, store) as opened:
        # A whole key that is there can be nothing else: then no snapshot has to be read for it.
        whole = len(key) == _KEY_DIGITS and opened.begins_with(key, most=1)
        samples = [] if whole else find_samples(opened, key)
        if samples:
            names = list(dict.fromkeys(sample.sample for sample in samples))
            check_one(names, {entry.bytes for entry in opened.begins_with(key, most=_MOST_OWNERS)}, key)
            return _show_sample(opened, samples, config, as_json=as_json)
        view = _read(opened.locate(find_key(opened, key)))
        source = _trace(opened, view.entry, config)
    if as_json:
        output.document({**_document(view), **_source_document(source)})
    else:
        output.facts(_facts(view, source))
        output.line()
        for line in tree_lines(view.tree):
            output.line(line)
    return 0 if view.damage is None else DAMAGED


@dataclass(frozen=True, slots=True)
class EntrySource:
    """Where an entry came from."""

    owners: Sequence[Owner]
    """The samples that need it, by the snapshots."""
    paths: Sequence[str]
    """Their pictures, or the file that it was made of: as snapshots and the config's concepts name it."""


def _trace(store: Store, entry: Located, config: Path | None) -> EntrySource:
    """The samples and the files behind an entry, as far as anybody remembers them; no source is read."""
    from precook.maintain.owners import find_owners
    from precook.plan.trace import key_inputs

    owners = find_owners(store, {entry.key.bytes}).get(entry.key.bytes, [])
    digests = {owner.image for owner in owners if owner.image is not None}
    paths = [owner.path for owner in owners if owner.path is not None]
    return EntrySource(
        owners, _with_remembered(paths, store, config, digests | key_inputs(store, store.memory(), entry.key))
    )


def _with_remembered(paths: list[str], store: Store, config: Path | None, digests: set[bytes]) -> list[str]:
    """The paths that snapshots have, or else those that the config's concepts have for this content."""
    from precook.config.check import read_config
    from precook.plan.trace import trace_files

    place = named_config(config)
    if paths or place is None or not digests:
        return list(dict.fromkeys(paths))
    try:
        settings, _ = read_config(place)
    except PrecookError:
        if config is not None:
            raise
        return []  # nobody has named it, and the store speaks for itself
    trust = settings.stamps == "trust"
    return trace_files(settings.used_concepts, place.parent, store.memory(), digests, trust=trust)


def _source_document(source: EntrySource) -> dict[str, Any]:
    samples = [owner.as_json() for owner in source.owners]
    return {"sources": list(source.paths), "samples": samples}


def _source_facts(source: EntrySource) -> Iterator[tuple[str, Line]]:
    """The files first, then who needs it."""
    yield from _path_facts(source.paths, known=bool(source.owners))
    for number, owner in enumerate(source.owners[:_MOST_OWNERS]):
        sample = (
            "the empty prompt" if owner.sample is None else f"sample {owner.sample[:_DIGEST_DIGITS]} ({owner.concept})"
        )
        yield "" if number else "needed by", f"{owner.dataset}: {owner.encoder} of {sample}"
    if len(source.owners) > _MOST_OWNERS:
        yield "", f"and {len(source.owners) - _MOST_OWNERS:,} more"


def _path_facts(paths: Sequence[str], *, known: bool) -> Iterator[tuple[str, Line]]:
    for number, path in enumerate(paths[:_MOST_OWNERS]):
        yield "" if number else "source", printable(path)
    if len(paths) > _MOST_OWNERS:
        yield "", f"and {len(paths) - _MOST_OWNERS:,} more"
    if known and not paths:
        reason = "not known: its snapshot keeps no paths, and no file that is remembered here has this content"
        yield "source", Span(f"{reason}; `precook explain` looks at the sources", "dim")


def _show_sample(store: Store, samples: Sequence[SnapshotSample], config: Path | None, *, as_json: bool) -> int:
    """Show a sample: its file and its entries, in each dataset that has it."""
    found = [
        (sample, _with_remembered([] if sample.path is None else [sample.path], store, config, {sample.image}))
        for sample in samples
    ]
    if as_json:
        documents = [
            {
                "dataset": sample.dataset,
                "snapshot": sample.snapshot,
                "concept": sample.concept,
                "content": sample.image.hex(),
                "sources": paths,
                "entries": [{"encoder": encoder, "key": key} for encoder, key in sample.entries],
            }
            for sample, paths in found
        ]
        output.document({"sample": samples[0].sample, "datasets": documents})
        return 0
    for number, (sample, paths) in enumerate(found):
        if number:
            output.line()
        output.facts(_sample_facts(sample, paths))
    return 0


def _sample_facts(sample: SnapshotSample, paths: Sequence[str]) -> Iterator[tuple[str, Line]]:
    yield "sample", sample.sample
    yield from _path_facts(paths, known=True)
    yield "dataset", f"{sample.dataset}, snapshot {sample.snapshot}"
    yield "concept", sample.concept
    yield "content", sample.image.hex()
    for number, (encoder, key) in enumerate(sample.entries):
        yield "" if number else "entries", f"{encoder}  {key}"


@dataclass(frozen=True, slots=True)
class EntryView:
    """One entry with all there is to say about it."""

    entry: Located
    recipe: RecipeInfo | None
    labels: Any
    """Its labels in canonical form, None where it has none."""
    tree: Any
    """Its tree, with a `Tensor` in the place of each tensor: nothing here needs torch."""
    damage: str | None
    """Why its bytes cannot be trusted, None where they match their checksum."""


def _read(entry: Located) -> EntryView:
    """Read an entry and check it; of a damaged one only nesting and shapes, which its pack's head vouches for."""
    from precook.cli.entries import read_recipe
    from precook.cli.tree import Tensor
    from precook.store.packfile import RowDamagedError, damage_reason
    from precook.store.tree import read_values

    table = entry.table.table
    arrays: Sequence[Array | None] = [None] * len(table.leaves)
    damage = None
    try:
        arrays = entry.table.read(entry.row, check=True)
    except (RowDamagedError, OSError) as error:
        damage = damage_reason(error, entry.pack)
    tensors = [
        Tensor(leaf.dtype, leaf.library, leaf.row_shape(entry.row), array)
        for leaf, array in zip(table.leaves, arrays, strict=True)
    ]
    try:
        tree = table.build(tensors, read_values(table.values.row(entry.row), named=True))
    except (ValueError, RecursionError) as error:
        raise DamagedEntryError(entry.key, entry.pack, f"its plain values cannot be read: {error}") from error
    try:
        labels = json.loads(entry.labels)
    except (ValueError, RecursionError):
        labels = "unreadable"
    return EntryView(entry, read_recipe(entry.recipe), labels, tree, damage)


def _document(view: EntryView) -> dict[str, Any]:
    from precook.cli.tree import tree_document

    entry, recipe = view.entry, view.recipe
    return {
        "key": entry.key.hex,
        "bytes": entry.nbytes,
        "created": utc_time(entry.created),
        "recipe": {**recipe.as_json(), "data": recipe.data} if recipe else None,
        "made_with": entry.made or None,
        "labels": view.labels,
        "pack": str(entry.pack),
        "row": entry.pack_row,
        "copies": entry.copies,
        "checksum": "ok" if view.damage is None else "damaged",
        "damage": view.damage,
        "tree": tree_document(view.tree),
    }


def _facts(view: EntryView, source: EntrySource) -> Iterator[tuple[str, Line]]:
    """What is said about an entry above its tree."""
    from precook.cli.tree import count_tensors

    entry, recipe = view.entry, view.recipe
    yield "entry", entry.key.hex
    yield from _source_facts(source)
    yield from _outlined_fact("recipe", recipe.name if recipe else "none", recipe and recipe.data)
    yield from _outlined_fact("made with", "", entry.made)
    yield from _outlined_fact("labels", "" if view.labels else "none", view.labels)
    yield "size", f"{format_size(entry.nbytes)}, {format_count(count_tensors(view.tree), 'tensor')}"
    yield "written", f"{format_age(time.time() - entry.created)}, {local_time(entry.created)}"
    yield "pack", str(entry.pack)
    yield "row", f"{entry.pack_row:,}"
    if entry.copies > 1:
        yield "copies", f"in {entry.copies} packs"
    if view.damage is None:
        yield "checksum", Span("ok", "green")
    else:
        yield "checksum", Span(f"damaged: {view.damage}", "bold red")


def _outlined_fact(name: str, first: str, form: Any) -> Iterator[tuple[str, Line]]:
    """A name with plain data beside it, a field in each line."""
    lines: list[Line] = [first] if first else []
    for field in outline(form) if form else ():
        label = f"{field.name}: " if field.name and field.text else field.name and f"{field.name}:"
        lines.append(["  " * (field.depth + bool(first)), Span(label, "dim"), field.text])
    for line in lines:
        yield name, line
        name = ""


@dataclass(frozen=True, slots=True)
class OutlineField:
    """One line of an outline."""

    depth: int
    name: str
    text: str


def outline(form: Any) -> list[OutlineField]:
    """Plain data in canonical form as indented lines, one for each value that fits on one.

    The store may be somebody else's: tags that canonical form does not have are shown as they are.
    """
    try:
        fields = list(_outline(form, 0))
    except RecursionError:
        return [OutlineField(0, "", "nested too deeply to show")]
    if len(fields) > _MOST_FIELDS:
        fields = [*fields[:_MOST_FIELDS], OutlineField(0, "…", f"{len(fields) - _MOST_FIELDS} more")]
    return fields


def _outline(form: Any, depth: int) -> Iterator[OutlineField]:
    for name, value in _named_parts(form):
        text = _form_text(value)
        if text is None:
            yield OutlineField(depth, name, "")
            yield from _outline(value, depth + 1)
        else:
            short = text if len(text) <= _FIELD_LENGTH else f"{text[:_FIELD_LENGTH]}… ({len(text):,} characters)"
            yield OutlineField(depth, name, short)


def _named_parts(form: Any) -> list[tuple[str, Any]]:
    """The named parts of a value; a value without any is one part without a name."""
    tag, content = _untag(form)
    if tag == "$dataclass" and isinstance(content, list) and len(content) == 2:  # noqa: PLR2004 - name and fields
        return [(str(content[0]), content[1])]
    if tag == "$dict" and isinstance(content, list):
        return [(str(_form_text(pair[0])), pair[1]) for pair in content if isinstance(pair, list) and len(pair) == 2]  # noqa: PLR2004
    if tag is None and isinstance(content, dict):
        return list(content.items())
    if tag is None and isinstance(content, list):
        return [(f"[{number}]", item) for number, item in enumerate(content)]
    return [("", form)]


def _form_text(form: Any) -> str | None:
    """A value in canonical form on one line, None where it is a dict with something in it."""
    tag, content = _untag(form)
    if tag is not None:
        return _tagged_text(tag, content)
    if isinstance(content, list):
        items = [_form_text(item) for item in content]
        return None if None in items else f"[{', '.join(map(str, items))}]"
    if isinstance(content, dict):
        return None if content else "{}"
    return content if isinstance(content, str) else json.dumps(content)


def _tagged_text(tag: str, content: Any) -> str | None:
    if tag in ("$dict", "$dataclass"):
        return None
    if tag in ("$digest", "$key"):
        return f"{tag[1:]} {str(content)[:_DIGEST_DIGITS]}…"
    if tag == "$enum" and isinstance(content, list) and content:
        content = content[0]
    try:
        if tag == "$bytes":
            return f"{len(base64.b64decode(content)):,} bytes"
        if tag == "$str":
            return bytes.fromhex(content).decode("utf-8", "surrogatepass")
    except (binascii.Error, TypeError, ValueError):
        return "0 bytes" if tag == "$bytes" else str(content)
    return str(content)


def _untag(form: Any) -> tuple[str | None, Any]:
    if isinstance(form, dict) and len(form) == 1:
        ((tag, content),) = form.items()
        if tag.startswith("$"):
            return tag, content
    return None, form
