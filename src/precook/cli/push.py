"""`precook push`: a dataset, or all of a store, to a bucket."""

from __future__ import annotations

from typing import Annotated

import typer

from precook.cli import progress
from precook.cli.options import ConfigOption, JsonOption, StoreOption, find_remote, find_store, open_to_use
from precook.cli.transfer import show_transfer


def command(
    dataset: Annotated[str | None, typer.Argument(metavar="[DATASET]", help="The dataset; without it, all.")] = None,
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The bucket, such as s3://bucket/prefix.")],
    config: ConfigOption = None,
    store: StoreOption = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="WHAT", help="Also captions or paths, if the snapshot has them; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a dataset, or everything, to a bucket.

    What is there is not brought again, and nothing is encoded. Neither paths nor captions leave unless you ask for
    them. A push that was interrupted goes on where it stopped.
    """
    from precook.maintain.transfer import push
    from precook.open_store import open_store

    url = find_remote(config, to)
    with open_to_use(config, find_store(config, store)) as opened, open_store(url) as target:
        done = push(opened, target, dataset, keep=keep or [], report=progress.reporter())
    show_transfer(done, "pushed", str(url), as_json=as_json)
