"""Exit codes of commands that come to an end without an error of ours; an error has its own."""

from __future__ import annotations

FAILED = 1
"""Something is wrong, such as what `doctor` found."""
SOME_FAILED = 3
"""Everything was tried, and some of it could not be made."""
DAMAGED = 4
"""Bytes are not what was put, or a source is not what was remembered of it; repaired or not."""
NO_SPACE = 14
"""A size cannot be reached."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""Whoever read our output has had enough."""
