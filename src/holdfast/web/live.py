"""Numbers that change in place: one stream for each tab, one query a second for all of them."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING
from uuid import UUID

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.db.faults import LockTimeout
from holdfast.errors import DatabaseUnavailable, HoldfastError
from holdfast.model.masking import masked_text
from holdfast.web.baselines import check_mark
from holdfast.web.calls import Call, Refusal
from holdfast.web.databases import places_of
from holdfast.web.filters import JOB_FIELDS, job_id
from holdfast.web.lists import JOBS, FindingsWatch, JobWatch, ListWatch, job_seen, watched_list
from holdfast.web.plain import written
from holdfast.web.shown import clock, number, span, visible
from holdfast.web.views.drawn import job_state
from holdfast.web.views.overview import numbers_of
from holdfast.web.watching import PAGE, PageWatch, watched_page
from holdfast.web.zones import wall

if TYPE_CHECKING:
    from holdfast.web.site import Site

EVERY = 1.0  # seconds
QUIET = 15.0  # a stream says at least something so often, or a proxy would close it
LASTS = 600.0  # seconds of one stream
MOST_STREAMS = 200
MOST_EACH = 20  # of one person
MOST_TOPICS = 5
OVERVIEW = "overview"
Watch = ListWatch | PageWatch | FindingsWatch | JobWatch


async def stream(site: "Site", call: Call) -> Response:
    """`GET /live?topics=overview,job:ID`, `?topics=jobs&state=dead`, `?topics=page&page=workers&query=gone%3Dyes`. It sends
    names and values, never HTML."""
    query = call.query(("topics", "poll", PAGE, "query", "was", *JOB_FIELDS))
    once, path, filters = query.pop("poll", ""), query.pop(PAGE, None), query.pop("query", "")
    mark = check_mark(query.pop("was", ""))
    topics = [word for word in query.pop("topics", OVERVIEW).split(",") if word]
    if len(topics) > MOST_TOPICS:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{len(topics)} topics are too many: {MOST_TOPICS} at most")
    watches = _of_topics(topics, mark)
    if query and JOBS not in topics:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"a filter is for the topic {JOBS}")
    if (path is not None) != (PAGE in topics) or (filters and path is None):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"the topic {PAGE} needs page=, and nothing else takes it")
    if path is not None:
        watches.append(watched_page(call, path, filters, mark))
    await site.learn_masked()
    if JOBS in topics:
        watches.append(watched_list(call, query, mark))
    if once:
        return await _poll(site, call, topics, watches)
    if site.streams.total() >= MOST_STREAMS:
        raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_STREAMS} streams are open. Ask again later")
    if site.streams[call.who.name] >= MOST_EACH:
        raise Refusal(
            HTTPStatus.TOO_MANY_REQUESTS, f"{call.who.name} has {MOST_EACH} streams open. Close a page first"
        )
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return _Stream(site, call.who.name, _frames(site, topics, _beside(call), watches), headers)


def _of_topics(topics: Sequence[str], mark: str) -> list[Watch]:
    """Of those that need nothing more than their name."""
    jobs = [_job_of(topic) for topic in topics if topic not in (OVERVIEW, JOBS, PAGE)]
    overview = [FindingsWatch(mark)] if OVERVIEW in topics else []
    return [*overview, *(JobWatch(wanted, mark) for wanted in jobs)]


async def _poll(site: "Site", call: Call, topics: list[str], watches: Sequence[Watch]) -> Response:
    """The same once, for a browser whose stream a proxy keeps back, or whom there is no stream for."""
    values = await values_of(site, topics, watches)
    values |= {f"db.{other.name}": "away" if other.trouble() else "" for other in _beside(call)}
    return Response(written(values), media_type="application/json")


class _Stream(StreamingResponse):
    """Counted from when it is promised until it ends, however it ends."""

    def __init__(self, site: "Site", who: str, frames: AsyncIterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(frames, media_type="text/event-stream", headers=headers)
        self._site, self._who = site, who
        site.streams[who] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._site.streams[self._who] -= 1
            self._site.streams += Counter()  # without those that have none


def _job_of(topic: str) -> UUID:
    kind, _, word = topic.partition(":")
    if kind != "job":
        raise Refusal(
            HTTPStatus.BAD_REQUEST, f"there is no topic {topic[:60]!r} (known: overview, jobs, page, job:ID)"
        )
    return job_id(word)


def _beside(call: Call) -> list["Site"]:
    """The other databases in the switcher of this person."""
    shown = {place.name for place in places_of(call.request) if not place.is_here}
    return [site for site in call.site.beside if site.name in shown]


async def _frames(
    site: "Site", topics: list[str], beside: Sequence["Site"] = (), watches: Sequence[Watch] = ()
) -> AsyncIterator[bytes]:
    sent: dict[str, str] = {}
    quiet = 0.0
    ends = time.monotonic() + LASTS
    while time.monotonic() < ends:  # a browser reconnects then, and is checked again
        try:
            values = await values_of(site, topics, watches)
            values |= {f"db.{other.name}": "away" if other.trouble() else "" for other in beside}
            frame = {name: text for name, text in values.items() if sent.get(name) != text}
            event = "values"
            sent.update(frame)
        except HoldfastError as error:
            frame, event = {"sentence": masked_text(visible(_said(error)))[:500]}, "away"
            sent.clear()  # what comes next says that it is back
        quiet += EVERY
        if frame or quiet >= QUIET:
            yield f"event: {event}\ndata: {json.dumps(frame)}\n\n".encode()
            quiet = 0.0
        await asyncio.sleep(EVERY)


def _said(error: HoldfastError) -> str:
    if isinstance(error, DatabaseUnavailable):
        return f"The database is unreachable: {error}"
    if isinstance(error, LockTimeout):
        return "New numbers take too long to read, or somebody holds a lock on them. See Doctor"
    return f"New numbers cannot be read: {error}"


async def values_of(site: "Site", topics: list[str], watches: Sequence[Watch] = ()) -> dict[str, str]:
    """By the name of an element: its text. All of them are read from what everybody shares."""
    found: dict[str, str] = {}
    for topic in topics:
        if topic not in (JOBS, PAGE):
            found |= await (_overview(site) if topic == OVERVIEW else _job(site, _job_of(topic)))
    for watch in watches:
        found |= await watch.values(site)
    return found


async def _overview(site: "Site") -> dict[str, str]:
    numbers = await numbers_of(site)
    worst = numbers.worst
    found = {
        "clock": wall(numbers.at),
        "oldest": span(numbers.oldest(worst) if worst else 0.0),
        "oldest.queue": worst.name if worst else "nothing waits",
        "due": number(numbers.due),
        "running": number(numbers.running),
        "done": number(round(numbers.found.finished_last_minute / 60, 1)),
        "dead": number(numbers.found.dead_letters),
        "workers": number(numbers.found.workers.alive),
    }
    for load in numbers.found.queues:
        found[f"q.{load.name}.due"] = number(load.pending)
        found[f"q.{load.name}.running"] = number(load.processing)
        found[f"q.{load.name}.oldest"] = span(numbers.oldest(load))
    for worker in numbers.workers:
        found[f"w.{worker.id}.running"] = number(worker.running)
    return found


async def _job(site: "Site", wanted: UUID) -> dict[str, str]:
    report = await job_seen(site, wanted)
    if report is None:
        return {"job.state": "gone"}
    job = report.job
    found = {"job.state": job_state(job).word, "job.attempts": f"{job.attempts} of {job.max_attempts}"}
    if job.lease_expires_at is not None:
        found["job.lease"] = clock(job.lease_expires_at)
    if report.progress is not None:
        found["job.progress"] = f"{report.progress.fraction:.0%}"
    return found
