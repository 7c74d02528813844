"""`precook clear`: removes what somebody wants to be rid of."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from precook.cli.options import ConfigOption, JsonOption, StoreOption, YesOption
from precook.cli.remove import plan_and_remove


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="RECIPE", help="What this recipe made: its kind, or the first digits of its digest."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="A dataset's snapshots, and what no other dataset needs.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Remove what a recipe made, a dataset, or everything.

    However young it is. It is a preview until --yes.
    """
    if [recipe is not None, dataset is not None, everything].count(True) != 1:
        raise typer.BadParameter("say one of --recipe, --dataset and --all")
    from precook.maintain.prune import plan_clear

    planner = partial(plan_clear, recipe=recipe, dataset=dataset, everything=everything)
    return plan_and_remove(config, store, planner, yes=yes, as_json=as_json)[1]
