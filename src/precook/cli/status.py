"""`precook status`: what a store holds and what it takes, and how the dataset stands."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from precook.cli import bars, output
from precook.cli.options import ConfigOption, JsonOption, StoreOption
from precook.cli.plan import counts_document
from precook.cli.projects import named_config, open_project
from precook.cli.stores import open_to_read
from precook.errors import NoStoreError, PrecookError

if TYPE_CHECKING:
    from precook.project import Project


def command(*, config: ConfigOption = None, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show what a store holds and how the dataset stands.

    With a config the dataset is planned, too, and nothing is written; with --store alone only the store is shown.
    """
    from precook.cli.status_document import status_document
    from precook.cli.status_tables import show_status
    from precook.cli.status_view import look, no_store

    if config is None and (store is not None or named_config(None) is None):
        with open_to_read(store) as opened:
            view = look(opened)
        if as_json:
            output.document(status_document(view))
        else:
            show_status(view)
        return
    with open_project(config, store) as project:
        view = no_store(project.store_path)
        # Before the first build there is no store, and the dataset can be looked at all the same.
        with contextlib.suppress(NoStoreError), open_to_read(project.store_path) as opened:
            view = look(opened)
        # A dataset that cannot be looked at, because a drive is not mounted or a model is gone, is an error that comes
        # after the store.
        if as_json:
            _print_document(project, status_document(view))
        else:
            show_status(view)
            output.line()
            output.text(str(project.plan(write=False, report=bars.reporter())))


def _print_document(project: Project, document: dict[str, Any]) -> None:
    problem = None
    try:
        dataset = {**counts_document(project.plan(write=False, report=bars.reporter())), "error": None}
    except PrecookError as error:
        problem, dataset = error, {"name": project.settings.dataset, "error": error.message}
    output.document({**document, "dataset": dataset})
    if problem is not None:
        raise problem
