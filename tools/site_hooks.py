"""What mkdocs runs beside building the site: no page may fetch anything from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b[^>]*?\bhref\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)"
)
"""Scripts, pictures, styles and fonts that a browser loads by itself; links that a reader follows are fine."""


def on_post_build(config: Any) -> None:
    """End with an error that names the first page, and what it fetches."""
    for file in sorted(Path(config.site_dir).rglob("*")):
        if file.suffix in (".html", ".css"):
            for match in FETCHED.finditer(file.read_text("utf-8")):
                raise SystemExit(f"{file}: fetches {next(filter(None, match.groups()))} when it is read")
