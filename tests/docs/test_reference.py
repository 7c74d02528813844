"""The reference, the README and CONTRIBUTING say what the code has, and show what bench/ has printed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

import precook
import precook.testing
from tests.support.pages import ROOT

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "precook"


def tool(name: str) -> ModuleType:
    """A script of tools/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_errors_page_is_what_the_errors_say() -> None:
    """It is made from errors.py: `python tools/errors_page.py` writes it."""
    assert (DOCS / "reference" / "errors.md").read_text("utf-8") == tool("errors_page").page()


def test_every_public_name_is_in_the_reference() -> None:
    """Errors have their own page; everything else is on the page of the Python interface."""
    page = (DOCS / "reference" / "api.md").read_text("utf-8")
    names = set(re.findall(r"^::: precook\.(\w+)$", page, re.MULTILINE))
    errors = {name for name in precook.__all__ if name.endswith("Error")}
    assert names == set(precook.__all__) - errors
    shipped = set(re.findall(r"^::: precook\.testing\.(\w+)$", page, re.MULTILINE))
    assert shipped == set(precook.testing.__all__)


def test_every_page_is_in_the_site() -> None:
    """The navigation names each page once, but for the one that only stores name."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    pages = []
    for entry in settings["nav"]:
        pages += [entry] if isinstance(entry, str) else [page for group in entry.values() for page in group]
    assert sorted([*pages, "format.md"]) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_chart_shows_what_was_printed() -> None:
    """It is drawn from the page of benchmarks: `python tools/readme_chart.py` writes it."""
    assert (DOCS / "images" / "reads.svg").read_text("utf-8") == tool("readme_chart").chart()


def test_figures_in_the_readme_were_printed() -> None:
    """Every number of its table is on the page of benchmarks, digit for digit."""
    readme = (ROOT / "README.md").read_text("utf-8")
    table = readme.split("| people ask |")[1].split("\n\n")[0]
    page = (DOCS / "reference" / "benchmarks.md").read_text("utf-8")
    figures = re.findall(r"(?<![\w-])\d[\d.,]*\d|(?<![\w-])\d", table)
    assert len(figures) > 10
    for figure in figures:
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", page), figure


def test_files_that_contributing_names_are_there() -> None:
    """Whoever looks for the place of a change finds it."""
    files = [str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py")]
    for name in re.findall(r"`([\w/]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8")):
        if not name.startswith(("tests/", "tools/")):
            assert any(f"/{file}".endswith(f"/{name}") for file in files), name
        else:
            assert (ROOT / name).exists(), name
    for folder in re.findall(r"\*\*`(\w+)/`\*\*", (ROOT / "CONTRIBUTING.md").read_text("utf-8")):
        assert (SOURCE / folder).is_dir(), folder


def test_contributing_tells_the_layers_that_are_checked() -> None:
    """Its line of folders is the contract of pyproject.toml, less the modules at the bottom."""
    line = re.search(r"^    (testing > .*)$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    assert line
    folders = line[1].split(" > ")
    layers = re.findall(r'^  "precook\.(\w+)",$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert folders == [layer for layer in layers if layer == "project" or (SOURCE / layer).is_dir()]


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://unpkg.com/x"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        "<style>@import url(http://fonts.example/css)</style>",
        '<img alt="" src=https://example.com/a.png>',
    ],
)
def test_a_site_that_fetches_something_is_refused(tmp_path: Path, page: str) -> None:
    """Reading needs no network; a link that a reader may follow is no fetch."""
    hooks, config = tool("site_hooks"), SimpleNamespace(site_dir=tmp_path)
    (tmp_path / "index.html").write_text('<a href="https://example.com">there</a> <script src="assets/a.js"></script>')
    hooks.on_post_build(config)
    (tmp_path / "index.html").write_text(page)
    with pytest.raises(SystemExit, match=r"index\.html: fetches"):
        hooks.on_post_build(config)


def prose(page: Path) -> list[str]:
    """The lines of a page without code, tables, and notes that a benchmark has printed."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [line for line in text.splitlines() if not line.startswith(("|", "    ", "Note: "))]


def test_every_sentence_has_its_line() -> None:
    """One sentence per line, so that a change of one is a change of one line."""
    for page in DOCS.rglob("*.md"):
        for line in prose(page):
            assert not re.search(r"[a-z`)][.?!] [A-Z`]", line), f"{page.relative_to(ROOT)}: {line}"
