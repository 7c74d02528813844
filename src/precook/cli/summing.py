"""Reports of processes that build together: how one travels to the first of them, and what all come to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from precook.encode.build import BuildReport
from precook.plan.entries import Failure
from precook.plan.plan import Plan
from precook.values import Key


def written(report: BuildReport) -> str:
    """A report as a line of text."""
    failed = [{**dataclasses.asdict(one), "key": one.key and one.key.hex} for one in report.failed]
    return json.dumps({**dataclasses.asdict(report), "failed": failed}) + "\n"


def read(line: bytes) -> BuildReport:
    """The report that was written so."""
    document = json.loads(line)
    failed = tuple(Failure(**{**one, "key": one["key"] and Key.from_hex(one["key"])}) for one in document["failed"])
    return BuildReport(**{**document, "failed": failed})


def summed(plan: Plan, own: BuildReport, others: Sequence[BuildReport], *, retry_failed: bool) -> BuildReport:
    """One report for processes that built a plan together; `own` is that of the first of them."""
    reports = [own, *others]
    encoded, truncated = (
        {name: sum(getattr(one, field).get(name, 0) for one in reports) for name in plan.encoders}
        for field in ("encoded", "truncated")
    )
    failed = _failed(plan, reports)
    return dataclasses.replace(
        own,
        encoded=encoded,
        # What the others made, the first process found there.
        reused={
            name: max(len(one.ready), own.reused[name] - encoded[name] + own.encoded[name])
            for name, one in plan.encoders.items()
        },
        failed=failed,
        left=_left(plan, failed, retry_failed=retry_failed) if own.stopped else own.left,
        truncated=truncated,
        bytes=sum(one.bytes for one in reports),
        peak_memory=sum(one.peak_memory for one in reports),
    )


def _failed(plan: Plan, reports: Sequence[BuildReport]) -> tuple[Failure, ...]:
    """What failed, once each; but not what failed for one process and was made by another."""
    found = {(one.encoder, one.key or (one.concept, one.path)): one for report in reports for one in report.failed}
    missing = set(plan.store.missing([one.key for one in found.values() if one.key is not None]))
    return tuple(one for one in found.values() if one.key is None or one.key in missing)


def _left(plan: Plan, failed: Sequence[Failure], *, retry_failed: bool) -> int:
    """How many entries nobody has made or tried."""
    tried = {(one.encoder, one.key) for one in failed}
    left = 0
    for name, one in plan.encoders.items():
        rows = [*one.missing.tolist(), *(one.failures if retry_failed else ())]
        keys = [Key(key.tobytes()) for key in one.wants.keys[rows]]
        left += sum((name, key) not in tried for key in plan.store.missing(keys))
    return left
