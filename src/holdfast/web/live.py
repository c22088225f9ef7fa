"""Numbers that change in place while somebody looks: one stream for each tab, one look a second for all of them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

from holdfast.errors import HoldfastError
from holdfast.model.masking import masked_text
from holdfast.operate.operator import Operator
from holdfast.web.calls import Call, Refusal
from holdfast.web.filters import job_id
from holdfast.web.shown import clock, number, span, visible
from holdfast.web.views.drawn import job_state
from holdfast.web.views.overview import numbers_of

if TYPE_CHECKING:
    from holdfast.web.site import Site

EVERY = 1.0  # seconds
QUIET = 15.0  # a stream says at least something so often, or a proxy would close it
MOST_STREAMS = 200
MOST_TOPICS = 5


async def stream(site: "Site", call: Call) -> Response:
    """`GET /live?topics=overview,job:ID`. It sends names and values, never HTML."""
    topics = [word for word in call.request.query_params.get("topics", "overview").split(",") if word]
    if len(topics) > MOST_TOPICS:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{len(topics)} topics are too many: {MOST_TOPICS} at most")
    for topic in topics:
        if topic != "overview":
            _job_of(topic)
    if site.streams >= MOST_STREAMS:
        raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{MOST_STREAMS} streams are open. Ask again later")
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_frames(site, topics), media_type="text/event-stream", headers=headers)


def _job_of(topic: str) -> str:
    kind, _, word = topic.partition(":")
    if kind != "job":
        raise Refusal(HTTPStatus.BAD_REQUEST, f"there is no topic {topic[:60]!r} (known: overview, job:ID)")
    return str(job_id(word))


async def _frames(site: "Site", topics: list[str]) -> AsyncIterator[bytes]:
    site.streams += 1
    sent: dict[str, str] = {}
    quiet = 0.0
    try:
        while True:
            try:
                values = await values_of(site, topics)
                frame = {name: text for name, text in values.items() if sent.get(name) != text}
                event = "values"
            except HoldfastError as error:
                frame, event = {"sentence": masked_text(visible(str(error)))[:500]}, "away"
            sent.update(frame)
            quiet += EVERY
            if frame:
                yield f"event: {event}\ndata: {json.dumps(frame)}\n\n".encode()
                quiet = 0.0
            elif quiet >= QUIET:
                yield b": still here\n\n"
                quiet = 0.0
            await asyncio.sleep(EVERY)
    finally:
        with contextlib.suppress(ValueError):
            site.streams -= 1


async def values_of(site: "Site", topics: list[str]) -> dict[str, str]:
    """By the name of an element: its text. All of them are read from what everybody shares."""
    found: dict[str, str] = {}
    for topic in topics:
        found |= await (_overview(site) if topic == "overview" else _job(site, _job_of(topic)))
    return found


async def _overview(site: "Site") -> dict[str, str]:
    numbers = await numbers_of(site)
    worst = numbers.worst
    found = {
        "clock": f"{numbers.at:%H:%M:%S} UTC",
        "oldest": span(worst.oldest_due_seconds if worst else 0.0),
        "due": number(numbers.due),
        "running": number(numbers.running),
        "done": number(round(numbers.found.finished_last_minute / 60, 1)),
        "dead": number(numbers.found.dead_letters),
        "workers": number(numbers.found.workers.alive),
    }
    for load in numbers.found.queues:
        found[f"q.{load.name}.due"] = number(load.pending)
        found[f"q.{load.name}.running"] = number(load.processing)
        found[f"q.{load.name}.oldest"] = span(load.oldest_due_seconds)
    for worker in numbers.workers:
        found[f"w.{worker.id}.running"] = number(worker.running)
    return found


async def _job(site: "Site", word: str) -> dict[str, str]:
    wanted = job_id(word)
    report = await site.snapshots.get(
        f"job:{wanted}", EVERY, lambda: site.look(Operator.show_job.procedure(wanted))
    )
    if report is None:
        return {"job.state": "gone"}
    job = report.job
    found = {"job.state": job_state(job).word, "job.attempts": f"{job.attempts} of {job.max_attempts}"}
    if job.lease_expires_at is not None:
        found["job.lease"] = clock(job.lease_expires_at)
    if report.progress is not None:
        found["job.progress"] = f"{report.progress.fraction:.0%}"
    return found
