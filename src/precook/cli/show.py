"""`precook show`: one entry, whole."""

from __future__ import annotations

from typing import Annotated

import typer

from precook.cli import output
from precook.cli.codes import DAMAGED
from precook.cli.options import ConfigOption, JsonOption, StoreOption, key_digits
from precook.cli.projects import place_of_store
from precook.cli.stores import open_to_read


def command(
    key: Annotated[
        str, typer.Argument(parser=key_digits, metavar="KEY", help="The entry's key, or at least its first 4 digits.")
    ],
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show one entry: its tree and numbers, its recipe, its place."""
    from precook.cli.entries import find_key
    from precook.cli.shown import document, read, show

    with open_to_read(place_of_store(config, store)) as opened:
        shown = read(opened.locate(find_key(opened, key)))
    if as_json:
        output.document(document(shown))
    else:
        show(shown)
    return 0 if shown.damage is None else DAMAGED
