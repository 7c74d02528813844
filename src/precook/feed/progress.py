"""Progress: what accelerate is told of a loop over a loader; imported where accelerate has taken one."""

from __future__ import annotations

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState


class LoaderProgress(DataLoaderStateMixin):  # type: ignore[misc]
    """Says from `begin()` to `end()` that a loop runs, and by `end_of_dataloader` that its last batch has come.

    Without it gradients would be accumulated beyond the end of an epoch. The remainder stays unknown: ranks get what
    they get, and nothing is to be cut off of what is gathered from them.
    """

    def __init__(self) -> None:
        self.gradient_state = GradientState()
