"""`precook prune`: removes what nobody has used for a while."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from precook.cli.options import ConfigOption, JsonOption, StoreOption, YesOption, duration_option
from precook.cli.remove import plan_and_remove


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    older_than: Annotated[Any, duration_option("Remove what was not written or used for so long, such as 30d.")],
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Remove what nobody has used for a while; a preview until --yes."""
    from precook.maintain.prune import plan_prune

    planner = partial(plan_prune, older_than=older_than)
    return plan_and_remove(config, store, planner, yes=yes, as_json=as_json)[1]
