"""`precook pull`: a dataset, or all of a store, from a bucket to a folder."""

from __future__ import annotations

from typing import Annotated

import typer

from precook.cli import progress
from precook.cli.options import ConfigOption, JsonOption, StoreOption, find_folder, find_remote
from precook.cli.transfer import show_transfer


def command(
    dataset: Annotated[str | None, typer.Argument(metavar="[DATASET]", help="The dataset; without it, all.")] = None,
    *,
    source: Annotated[str, typer.Option("--from", metavar="URL", help="The bucket, such as s3://bucket/prefix.")],
    config: ConfigOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a dataset, or everything, from a bucket to a folder.

    What is here is not brought again, and every byte is checked. A pull that was interrupted goes on where it stopped.
    """
    from precook.open_store import open_store

    url = find_remote(config, source)
    opened = open_store(find_folder(config, store, "pull"))
    with opened:
        done = opened.pull(url, dataset=dataset, report=progress.reporter())
    show_transfer(done, "pulled", str(url), as_json=as_json)
