"""`precook evict`: removes the least recently used down to a size."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from precook.cli import output
from precook.cli.options import ConfigOption, JsonOption, StoreOption, YesOption, duration_option, size_option
from precook.cli.remove import plan_and_remove
from precook.errors import NO_SPACE
from precook.units import format_size


def command(
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    max_size: Annotated[Any, size_option("What all packs may take, such as 200GB.")],
    grace: Annotated[Any, duration_option("Keep what was written or used since, such as 1h.")] = "0s",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> int:
    """Remove the least recently used entries down to a size.

    It is a preview until --yes.
    """
    from precook.maintain.evict import plan_evict

    planner = partial(plan_evict, max_bytes=max_size, grace=grace)
    size, code = plan_and_remove(config, store, planner, yes=yes, as_json=as_json)
    if size <= max_size:
        return code
    if not as_json:
        output.tell(f"{format_size(size)} stay, which is more than {format_size(max_size)}: the rest is protected")
        output.hint(
            "end what holds leases, or let go of snapshots; `precook leases` and `precook status` show them; "
            "`precook compact` drops second copies"
        )
    return NO_SPACE
