"""What charts, small lines and timelines are drawn from: the numbers behind a picture are right, whatever it looks like."""

import asyncio
import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from tests.conftest import within
from tests.web.conftest import Shop
from tests.web.surfing import Surfer

from holdfast import Holdfast
from holdfast.errors import ConfigurationError
from holdfast.model.histogram import BUCKETS, bucket_of
from holdfast.model.ring import owners
from holdfast.operate.operator import Operator
from holdfast.operate.ring import RingReport
from holdfast.operate.stats import Waits
from holdfast.pages import Counted, Owned, Reach, Reader, Ring
from holdfast.pages import Link as To
from holdfast.store.samples import Latest
from holdfast.store.stats import Marked, Minute, Waited
from holdfast.testing import Kit
from holdfast.web import lists, live
from holdfast.web.application import Dashboard
from holdfast.web.charts import counted_chart, spark, wait_chart
from holdfast.web.filters import job_filter
from holdfast.web.life import life_of
from holdfast.web.rings import WIDE, reach_chart, ring_chart
from holdfast.web.trends import POINTS, Range, in_steps, wait_lines
from holdfast.web.views.jobs import LINES
from holdfast.web.views.keys import ring_of
from holdfast.web.views.overview import numbers_of

AT = datetime(2026, 5, 1, 10, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def waited(minute: int, queue: str, seconds: float, jobs: int = 100) -> Waited:
    counts = [0] * BUCKETS
    counts[bucket_of(seconds)] = jobs
    return Waited(AT + minute * MINUTE, queue, seconds, counts)


def shown(*found: Waited, step: int = 1) -> Range:
    return Range([], Waits(AT, list(found), []), timedelta(minutes=step))


@pytest.fixture
def vera(surfer_of: Callable[..., Surfer]) -> Surfer:
    return surfer_of("viewer")


# Waits --------------------------------------------------------------------------------------------------------------


def test_the_worst_queue_stands_against_the_others() -> None:
    quick = [waited(n, "mail", 0.1, 1000) for n in range(POINTS)]
    slow = [waited(n, "billing", 60.0, 10) for n in range(50, POINTS)]
    lines = wait_lines(shown(*quick, *slow)).lines
    assert [line.label for line in lines] == ["billing p95", "others p95", "others p50"]
    # One percentile over all would say 0.1 s: 10 of 1,010 wait for a minute.
    assert lines[0].points[55] == pytest.approx(60, rel=0.5)
    assert lines[1].points[55] == pytest.approx(0.1, rel=0.5)
    assert lines[0].points[10] is None  # nothing of it began then


def test_what_was_slow_an_hour_ago_is_not_what_is_slow_now() -> None:
    then = [waited(n, "billing", 60.0) for n in range(5)]
    now = [waited(n, "mail", 1.0) for n in range(POINTS)]
    assert wait_lines(shown(*then, *now)).lines[0].label == "mail p95"
    assert wait_lines(shown(*then)).lines[0].label == "billing p95"  # where nothing is newer


def test_steps_of_a_day_are_summed() -> None:
    found = wait_lines(shown(waited(0, "mail", 1.0), waited(23, "mail", 8.0, 900), step=24))
    assert found.lines[0].points[0] == pytest.approx(8.0, rel=0.5)
    minutes = [Minute(AT + n * MINUTE, 1, 2, 3) for n in range(49)]
    assert in_steps(minutes, 24) == [
        Minute(AT, 24, 48, 72),
        Minute(AT + 24 * MINUTE, 24, 48, 72),
        Minute(AT + 48 * MINUTE, 1, 2, 3),
    ]


def test_nothing_to_draw_is_no_chart() -> None:
    assert wait_chart(wait_lines(shown())) is None
    assert spark([]) is None
    assert spark([3.0]) is None


def test_a_line_is_interrupted_where_nothing_is_known_and_words_do_not_stand_on_each_other() -> None:
    lines = wait_lines(shown(waited(0, "mail", 1.0), waited(1, "mail", 1.0), waited(9, "mail", 1.0)))
    chart = wait_chart(lines)
    assert chart is not None
    assert len(chart.lines[0].pieces) == 2
    same = wait_lines(shown(waited(59, "mail", 1.0), waited(59, "billing", 1.01)))
    drawn = wait_chart(same)
    assert drawn is not None
    heights = sorted(one.label_y for one in drawn.lines)
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 13
    assert [at for at, _ in chart.table] == [AT, AT + MINUTE, AT + 9 * MINUTE]


def test_marks_stand_at_their_time() -> None:
    points = [(AT + n * MINUTE, (1,)) for n in range(60)]
    marks = [(AT + 30 * MINUTE, "release 2"), (AT - MINUTE, "before"), (AT + 90 * MINUTE, "after")]
    chart = counted_chart(Counted((("done", "comp"),), points, "Jobs", marks=marks))
    (only,) = chart.marks
    assert only.label == "10:30 release 2"
    assert chart.columns[29].rects[0].x < only.at < chart.columns[31].rects[0].x


# The life of a job --------------------------------------------------------------------------------------------------


def test_the_life_of_a_job_that_failed(kit: Kit, shop: Shop) -> None:
    report = Operator(kit.database, "test").find_job(shop.dead)
    life = life_of(report, datetime.now(UTC))
    assert [one.node.label for one in life.nodes] == ["enqueued", "attempt 1"]
    assert life.nodes[1].node.inside == "1"  # the claim
    assert "attempt 1 at" in life.sentence


def test_the_life_of_a_job_that_ran_and_of_one_that_waits(kit: Kit, shop: Shop) -> None:
    operator = Operator(kit.database, "test")
    done = life_of(operator.find_job(shop.done), datetime.now(UTC))
    assert [one.node.label for one in done.nodes][-1] == "completed"
    assert "ran" in [one.label for one in done.stretches]
    waits = life_of(operator.find_job(shop.waiting), datetime.now(UTC))
    assert [one.node.label for one in waits.nodes] == ["enqueued", "now", "due"]
    assert [(one.label, one.dotted) for one in waits.stretches] == [
        ("not due yet", False),
        ("until due", True),
    ]


def test_of_many_attempts_the_first_and_the_last_are_drawn(kit: Kit, app: Holdfast) -> None:
    @app.task(max_attempts=20, name="flaky")
    def flaky() -> None: ...

    job = app.send("flaky", {}, run_after=timedelta(hours=1))
    for n in range(1, 13):
        kit.sql(
            "INSERT INTO holdfast.errors (job_id, queue, attempt, generation, at, worker, kind, message, trace)"
            " VALUES (%s, 'inbox', %s, %s, holdfast.now() + make_interval(secs => %s), 'w', %s, 'no', '')",
            [job.id, n, n, n / 1000, "WorkerSilent" if n == 12 else "OSError"],
        )
    life = life_of(Operator(kit.database, "test").find_job(job.id), datetime.now(UTC))
    labels = [one.node.label for one in life.nodes]
    assert labels == [
        "enqueued",
        "attempt 1",
        "attempt 2",
        "6 more",
        "attempt 9",
        "attempt 10",
        "attempt 11",
        "lost",
        "now",
        "due",
    ]
    assert life.nodes[-1].x <= life.width
    lost = life.nodes[7].node
    assert (lost.tone, lost.after) == ("dead", "taken back")


# The ring and the log -----------------------------------------------------------------------------------------------


def test_the_dashes_of_a_ring_are_its_buckets() -> None:
    ring = Ring(
        16,
        [Owned("a", [(0, 3), (8, 9)], To("a", "keys")), Owned("b", [(4, 7), (10, 15)], To("b", "keys"))],
        "Ring",
    )
    chart = ring_chart(ring)
    drawn = {}
    for one, dashes in chart.dashes:
        lengths = list(map(int, dashes.split()))
        assert sum(lengths) == 16
        place = 0
        owned: list[int] = []
        for n, length in enumerate(lengths):
            owned += range(place, place + length) if n % 2 == 0 else []
            place += length
        drawn[one.label] = owned
    assert drawn == {"a": [0, 1, 2, 3, 8, 9], "b": [4, 5, 6, 7, 10, 11, 12, 13, 14, 15]}
    assert "a owns 6, b owns 10" in chart.sentence


def test_a_reader_stands_where_it_is() -> None:
    readers = [
        Reader("start", "p", 100),
        Reader("half", "p", 150),
        Reader("end", "p", 200),
        Reader("before", "p", 7),
    ]
    x = {one.reader.label: one.x for one in reach_chart(Reach(100, 200, readers, "Log"))}
    assert (x["start"], x["half"], x["end"], x["before"]) == (6.0, WIDE / 2, WIDE - 6, 6.0)


# Read from the database ---------------------------------------------------------------------------------------------

SUMMED = """
INSERT INTO holdfast.throughput (minute, queue, task, completed, failed, max_wait, runs, waits)
VALUES (date_trunc('minute', holdfast.now()) - interval '2 minutes', 'mail', 'send', 90, 10, 3.5, %s, %s),
       (date_trunc('minute', holdfast.now()) - interval '2 minutes', 'mail', 'charge', 5, 0, 0.2, %s, %s),
       (date_trunc('minute', holdfast.now()) - interval '3 hours', 'mail', 'send', 7, 0, 0.2, %s, %s)
"""


def test_waits_are_summed_by_minute_and_queue(kit: Kit) -> None:
    ones, twos = [1] * BUCKETS, [2] * BUCKETS
    kit.sql(SUMMED, [ones, ones, ones, twos, ones, ones])
    operator = Operator(kit.database, "test")
    (found,) = operator.waits().waited
    assert (found.queue, found.longest, list(found.counts)) == ("mail", 3.5, [3] * BUCKETS)
    assert len(operator.waits(back=240).waited) == 2
    with pytest.raises(ConfigurationError, match="back must be between 1 and 1440"):
        operator.waits(back=1441)


WORKERS = """
INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency, release)
VALUES ('a', 'h', 1, 'gone', holdfast.now() - interval '3 hours', holdfast.now() - interval '1 day', '{}', '{}', 1, 'old'),
       ('b', 'h', 2, 'alive', holdfast.now(), holdfast.now() - interval '5 minutes', '{}', '{}', 1, 'old'),
       ('c', 'h', 3, 'alive', holdfast.now(), holdfast.now() - interval '4 minutes', '{}', '{}', 1, 'new')
"""


def test_a_release_is_a_mark_when_it_comes_and_not_when_a_worker_restarts(kit: Kit) -> None:
    kit.sql(WORKERS)
    kit.sql(
        "INSERT INTO holdfast.breakers (task, state, opened_at) VALUES ('charge', 'open', holdfast.now()),"
        " ('send', 'closed', holdfast.now()), ('ship', 'open', holdfast.now() - interval '2 hours')"
    )
    marks = Operator(kit.database, "test").waits().marks
    assert [(one.kind, one.name) for one in marks] == [("breaker", "charge"), ("release", "new")]
    assert isinstance(marks[0], Marked)


SAMPLED = """
INSERT INTO holdfast.samples (minute, queue, due, behind, running, held, blocked, oldest, workers)
VALUES (date_trunc('minute', holdfast.now()), 'mail', 3, 0, 0, 0, 0, 1.5, 1),
       (date_trunc('minute', holdfast.now()), 'parcels', 4, 2, 0, 0, 0, 7.5, 1),
       (date_trunc('minute', holdfast.now()) - interval '2 hours', 'mail', 9, 0, 0, 0, 0, 1, 1)
"""


def test_a_trend_is_of_all_queues_and_of_those_that_are_named(kit: Kit) -> None:
    kit.sql(SAMPLED)
    found = Operator(kit.database, "test").trend(["parcels", "nobody's"])
    assert [(one.queue, one.due, one.oldest) for one in found] == [("parcels", 4, 7.5), (None, 7, 7.5)]


async def test_the_oldest_is_one_that_could_run(
    kit: Kit, dashboard: Dashboard, shop: Shop, mara: Surfer
) -> None:
    for n in (1, 2):  # behind the one that is blocked
        kit.app.send("ship", {"number": n}, partition_key="order:9182", queue="parcels")
    kit.sql(
        "UPDATE holdfast.work SET available_at = holdfast.now() - interval '9 minutes' WHERE queue = 'parcels'"
    )
    kit.sql(
        "INSERT INTO holdfast.samples (minute, queue, due, behind, running, held, blocked, oldest, workers)"
        " VALUES (date_trunc('minute', holdfast.now()), 'parcels', 2, 2, 0, 0, 1, NULL, 1)"
        " ON CONFLICT (minute, queue) DO UPDATE SET due = 2, behind = 2, oldest = NULL"
    )
    seen = await numbers_of(dashboard.site)
    (parcels,) = (load for load in seen.found.queues if load.name == "parcels")
    assert (parcels.oldest_due_seconds or 0) > 500
    assert (seen.oldest(parcels), seen.behind(parcels)) == (None, 2)
    assert seen.worst is None or seen.worst.name != "parcels"
    text = await mara.page("/")
    row = text[text.index("<b>parcels</b>") :]
    assert "2 behind" in row[: row.index("</tr>")]


def test_without_a_sample_it_is_the_oldest_that_is_due(kit: Kit) -> None:
    from holdfast.web.views.overview import Numbers

    kit.app.send("send", {"order_id": 1})
    found = Operator(kit.database, "test").overview()
    (inbox,) = (load for load in found.queues if load.name == "inbox")
    numbers = Numbers(AT, found, [], None, [], {"mail": Latest("mail", 3, None)})  # type: ignore[arg-type]
    assert numbers.oldest(inbox) == inbox.oldest_due_seconds


async def test_the_overview_shows_the_span_that_is_asked_for(mara: Surfer, kit: Kit, shop: Shop) -> None:
    kit.sql(SUMMED, [[1] * BUCKETS] * 6)
    assert "Jobs a minute" in await mara.page("/")
    assert "the last 6 hours, in steps of 6 minutes" in await mara.page("/?history=6h")
    assert "the last day, in steps of 24 minutes" in await mara.page("/?history=1d")
    answer = await mara.get("/?history=2d")
    assert (answer.status_code, "is not one of 1h, 6h, 1d" in answer.text) == (400, True)


def test_a_group_says_when_its_jobs_died_and_what_they_share(kit: Kit, app: Holdfast) -> None:
    for n in range(6):
        key = "order:1" if n < 4 else f"order:{n}"
        app.send(
            "charge", {"order_id": n, "card_token": "x"}, partition_key=key, tags=["vip"] if n < 2 else []
        )
    kit.run_worker()
    kit.sql(
        "UPDATE holdfast.dead_letters SET died_at = died_at - interval '3 hours' WHERE partition_key = 'order:1'"
    )
    operator = Operator(kit.database, "test")
    (group,) = operator.group_dead().groups
    assert (len(group.by_hour), group.by_hour[-1], group.by_hour[-4], sum(group.by_hour)) == (24, 2, 4, 6)
    found = operator.dead_facets(group.id, group.task)
    keys = [(one.value, one.count, one.different, one.whole) for one in found if one.kind == "key"]
    assert keys == [("order:1", 4, 3, 6), ("order:4", 1, 3, 6), ("order:5", 1, 3, 6)]
    assert [(one.value, one.count) for one in found if one.kind == "tag"] == [("vip", 2)]
    assert operator.dead_facets("0" * 8, group.task) == []


# What the pages do with it ------------------------------------------------------------------------------------------


async def test_a_job_beside_its_list(mara: Surfer, vera: Surfer, shop: Shop) -> None:
    text = await mara.page(f"/jobs?state=scheduled&peek={shop.waiting}")
    peek = text[text.index("data-peek ") :]
    assert "Why it is not running" in peek
    assert str(shop.waiting) in peek
    assert "data-peek " not in await mara.page(f"/jobs?peek={uuid4()}")  # one that is gone
    assert "is not the id of a job" in (await mara.get("/jobs?peek=1")).text.replace("&#39;", "'")
    seen = await vera.page(f"/jobs?peek={shop.dead}")
    assert "tok_4242" not in seen
    assert "psp.example" not in seen


def test_what_has_changed_in_a_list() -> None:
    a, b, c = (str(uuid4()) for _ in range(3))
    was: dict[str, list[object]] = {a: ["pending", 0], b: ["pending", 0]}
    assert lists.changes(was, dict(was)) == 0
    assert lists.changes(was, {a: ["processing", 0], b: ["pending", 0]}) == 1
    assert lists.changes(was, {c: ["pending", 0], **was}) == 1
    assert lists.changes(was, {a: ["pending", 0]}) == 1
    full: dict[str, list[object]] = {str(uuid4()): ["pending", 0] for _ in range(LINES)}
    pushed: dict[str, list[object]] = {c: ["pending", 0], **dict(list(full.items())[:-1])}
    assert lists.changes(full, pushed) == 1  # the last one only moved off the page


async def test_a_stream_of_a_list_says_how_many_changed(
    kit: Kit, dashboard: Dashboard, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "EVERY", 0.0)
    monkeypatch.setattr(live, "EVERY", 0.01)
    watch = lists.ListWatch(job_filter({"queue": "mail"}, lambda _: ()), "mail")
    frames = live._frames(dashboard.site, ["jobs"], (), [watch])
    first = await anext(frames)
    assert json.loads(first.decode().partition("data: ")[2])["jobs.changed"] == ""
    await asyncio.to_thread(kit.app.send, "send", {"order_id": 9}, queue="mail")
    async with asyncio.timeout(within(10)):
        async for frame in frames:
            said = json.loads(frame.decode().partition("data: ")[2]).get("jobs.changed", "")
            if said:
                assert said.startswith("1 changed since ")
                break
    await frames.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("query", "status"), [("topics=overview&state=dead", 400), ("topics=jobs&stat=dead", 400)]
)
async def test_a_filter_of_a_stream_is_checked(mara: Surfer, query: str, status: int) -> None:
    assert (await mara.get(f"/live?{query}")).status_code == status


async def test_a_viewer_does_not_search_errors_by_a_stream(vera: Surfer) -> None:
    answer = await vera.get("/live?topics=jobs&error=password")
    assert (answer.status_code, "needs the role operator" in answer.text) == (403, True)


def test_what_moves_when_one_leaves(kit: Kit) -> None:
    from holdfast.operate.ring import RingWorker
    from holdfast.web.views.keys import _if_gone

    mine = owners([0, 1, 2])
    workers = [
        RingWorker(
            f"w{n}", "host", n, n, mine.count(n), 0.3, [(b, b) for b, of in enumerate(mine) if of == n]
        )
        for n in range(3)
    ]
    report = RingReport("parcels", len(mine), workers, 0, [], None)
    said = _if_gone(report, workers[0])
    moved = [
        int(word.split(" to ")[0].rpartition(" ")[2])
        for word in said.partition(": ")[2].partition(";")[0].split(", ")
    ]
    assert sum(moved) == workers[0].buckets
    assert said.endswith("no other bucket moves")
    assert _if_gone(RingReport("parcels", 4, workers[:1], 0, [], None), workers[0]) == "nobody is left"
    drawn = ring_of(report, "w2")
    assert [one.chosen for one in drawn.owned] == [False, False, True]
    assert [one.chosen for one in ring_of(report, "nobody").owned] == [True, False, False]
