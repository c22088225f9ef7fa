"""Lists that hold still: how many of their lines are no longer as they were when somebody began to look."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.operate.operator import Operator
from holdfast.store.search import JobFilter
from holdfast.web.calls import Call, check_searches
from holdfast.web.filters import JOB_SEARCHES, job_filter
from holdfast.web.views.jobs import LINES, SOON

if TYPE_CHECKING:
    from holdfast.web.site import Site

JOBS = "jobs"  # the topic of a stream
EVERY = 3.0  # seconds between two queries of a list, shared by all its viewers
Lines = Mapping[UUID, tuple[str, int]]  # state and attempts of each


def watched_list(call: Call, query: Mapping[str, str]) -> "ListWatch":
    check_searches(call, JOB_SEARCHES, query)
    return ListWatch(job_filter(query, call.site.masked_of), json.dumps(dict(query), sort_keys=True))


class ListWatch:
    """One page of a list, as one viewer got it."""

    def __init__(self, wanted: JobFilter, name: str) -> None:
        self._wanted = wanted
        self._topic = f"list:{name}"
        self._was: Lines | None = None
        self._since: datetime | None = None

    async def values(self, site: "Site") -> dict[str, str]:
        now = await site.snapshots.get(self._topic, EVERY, lambda: _lines(site, self._wanted))
        if self._was is None or self._since is None:
            self._was, self._since = now, site.now()
        changed = changes(self._was, now)
        said = f"{changed} changed since {self._since:%H:%M:%S}, show" if changed else ""
        return {"jobs.changed": said, "clock": f"{site.now():%H:%M:%S} UTC"}


def changes(was: Lines, now: Lines) -> int:
    """Lines that came, and those that are another way. One that only moved down the list has not changed."""
    came = sum(1 for one in now if one not in was)
    other = sum(1 for one, line in now.items() if one in was and was[one] != line)
    pushed = came if len(now) == LINES else 0  # off the page, by those that came
    gone = sum(1 for one in was if one not in now) - pushed
    return came + other + max(gone, 0)


async def _lines(site: "Site", wanted: JobFilter) -> Lines:
    found = await site.look(Operator.list_jobs.procedure(wanted, limit=LINES, patience=SOON))
    return {job.id: (job.state, job.attempts) for job in found.jobs}
