"""What holds still: how many lines of a list, and of what needs attention, are no longer as they were when the page was
sent, and whether a job is."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.operate.jobs import JobReport
from holdfast.operate.operator import Operator
from holdfast.store.search import JobFilter
from holdfast.web.baselines import Lines, Since
from holdfast.web.calls import Call, check_searches
from holdfast.web.filters import JOB_SEARCHES, job_filter
from holdfast.web.swapping import changes as changed
from holdfast.web.views.jobs import LINES, SOON, lines_of
from holdfast.web.views.overview import findings_of
from holdfast.web.zones import wall

if TYPE_CHECKING:
    from holdfast.web.site import Site

JOBS = "jobs"  # the topic of a stream
JOB_LASTS = 1.0  # seconds for which one query of a job serves all its viewers
EVERY = 3.0  # seconds between two queries of a list, shared by all its viewers


def watched_list(call: Call, query: Mapping[str, str], mark: str = "") -> "ListWatch":
    """`mark` is that of the page."""
    check_searches(call, JOB_SEARCHES, query)
    return ListWatch(job_filter(query, call.site.masked_of), json.dumps(dict(query), sort_keys=True), mark)


class ListWatch:
    """One page of a list, as one viewer got it."""

    def __init__(self, wanted: JobFilter, name: str, mark: str = "") -> None:
        self._wanted = wanted
        self._topic = f"list:{name}"
        self._since = Since(mark)

    async def values(self, site: "Site") -> dict[str, str]:
        now = await site.snapshots.get(self._topic, EVERY, lambda: _lines(site, self._wanted))
        said = site.baselines.said(self._since, now, changes, site.now())
        return {"jobs.changed": said, "clock": wall(site.now())}


def changes(was: Lines, now: Lines) -> int:
    """Lines that came, and those that are another way. One that only moved down the list has not changed."""
    came = sum(1 for one in now if one not in was)
    other = sum(1 for one, line in now.items() if one in was and list(was[one]) != list(line))
    pushed = came if len(now) == LINES else 0  # off the page, by those that came
    gone = sum(1 for one in was if one not in now) - pushed
    return came + other + max(gone, 0)


async def _lines(site: "Site", wanted: JobFilter) -> Lines:
    found = await site.look(Operator.list_jobs.procedure(wanted, limit=LINES, patience=SOON))
    return lines_of(found.jobs)


class FindingsWatch:
    """What needs attention, as one viewer of the overview got it."""

    def __init__(self, mark: str) -> None:
        self._since = Since(mark)
        self._of: object = None  # the diagnosis that was looked at last
        self._said = ""

    async def values(self, site: "Site") -> dict[str, str]:
        """Nobody waits for the doctor: it looks again in the background, about once a minute for all viewers."""
        site.renew_diagnosis()
        diagnosis = site.known_diagnosis()
        if diagnosis is not None and diagnosis is not self._of:
            self._of = diagnosis
            self._said = site.baselines.said(self._since, findings_of(diagnosis), changed, site.now())
        return {"findings.changed": self._said}


class JobWatch:
    """A job, as one viewer of its page got it. Its state and attempts change in place; the rest of the page does not."""

    def __init__(self, wanted: UUID, mark: str) -> None:
        self._wanted = wanted
        self._since = Since(mark)

    async def values(self, site: "Site") -> dict[str, str]:
        report = await job_seen(site, self._wanted)
        now = {} if report is None else lines_of([report.job])
        return {"job.changed": site.baselines.said(self._since, now, changed, site.now(), counts=False)}


async def job_seen(site: "Site", wanted: UUID) -> JobReport | None:
    """Once a second for all who look at it; None: it is gone."""
    found: JobReport | None = await site.snapshots.get(
        f"job:{wanted}", JOB_LASTS, lambda: site.look(Operator.show_job.procedure(wanted))
    )
    return found
