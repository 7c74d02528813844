"""What mkdocs runs beside building the site: no page may fetch anything from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b[^>]*?\bhref\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)"
)
"""Scripts, pictures, styles and fonts that a browser loads by itself; links that a reader follows are fine."""


def on_post_build(config: Any) -> None:
    for file in sorted(Path(config.site_dir).rglob("*")):
        if file.suffix not in (".html", ".css"):
            continue
        text = file.read_text("utf-8")
        for match in FETCHED.finditer(text):
            raise PluginError(f"{file}: fetches {next(filter(None, match.groups()))} when it is read")
