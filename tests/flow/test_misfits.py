"""A payload that does not fit this worker's signature: set aside, taken by another signature, a dead letter in the end."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from tests.conftest import QUICK, await_until, wait_until

from holdfast import Holdfast, Settings, telemetry
from holdfast.operate.edit import Changes
from holdfast.operate.operator import Operator
from holdfast.runtime.sweep import Sweeper
from holdfast.store.breaker import find_trial
from holdfast.store.housekeeping import prune
from holdfast.store.misfits import bury_misfits, old_misfits
from holdfast.testing import Kit

IMPATIENT = dataclasses.replace(QUICK, misfit_wait=0.3)
Make = Callable[..., Kit]


def old_app(**options: Any) -> Holdfast:
    app = Holdfast()

    @app.task(**options)
    def grows(a: int) -> str:
        return "old"

    return app


def new_app(**options: Any) -> Holdfast:
    app = Holdfast()

    @app.task(**options)
    def grows(a: int, b: int = 7) -> str:
        return f"new {b}"

    return app


def send(kit: Kit, payload: str, **columns: str) -> UUID:
    job_id = kit.sql("SELECT id FROM holdfast.enqueue('grows', %s::jsonb)", [payload])[0]["id"]
    assert isinstance(job_id, UUID)
    return job_id


def refusals(kit: Kit, job_id: UUID) -> int:
    return len(kit.sql("SELECT 1 AS one FROM holdfast.misfits WHERE job_id = %s", [job_id]))


def until_dead(kit: Kit, job_id: UUID) -> dict[str, Any]:
    """Whoever runs sweeps; one that runs until nothing is due may end before its turn comes."""

    def dead() -> bool:
        kit.run_worker()
        return bool(kit.job(job_id)["status"] == "dead_letter")

    wait_until(dead, "it is a dead letter", 60)
    return kit.job(job_id)


MISFITS = {
    "{}": "the payload lacks 'a', which grows requires",
    '{"a": 1, "c": 1}': "grows has no parameter 'c' (known: a)",
    '{"a": "x"}': "parameter 'a' of grows must be int: not str 'x'",
}


@pytest.mark.parametrize("payload", MISFITS)
def test_unknown_missing_and_differently_typed_arguments_are_set_aside_with_the_reason(
    holdfast_kit: Make, payload: str
) -> None:
    kit = holdfast_kit(old_app(), QUICK)
    job_id = send(kit, payload)
    events: list[telemetry.Event] = []
    unsubscribe = telemetry.subscribe(events.append)
    kit.run_worker()
    unsubscribe()
    row = kit.job(job_id)
    assert (row["status"], row["attempts"], row["lease_generation"]) == ("held", 0, 1)
    assert row["hold_reason"] == (
        "its payload does not fit the signature here, and waits for a worker whose signature differs: "
        + MISFITS[payload]
    )
    assert [e.fields["reason"] for e in events if e.name == "job.held"] == [MISFITS[payload]]
    kit.run_worker()
    assert kit.job(job_id)["lease_generation"] == 1  # not claimed again by the same signature


def test_an_upgrade_that_fails_is_a_misfit_too(holdfast_kit: Make) -> None:
    app = Holdfast()

    @app.task(version=2, upgrade={1: lambda p: p["missing"]})
    def grows(a: int) -> None: ...

    kit = holdfast_kit(app, QUICK)
    job_id = send(kit, '{"a": 1}')
    kit.run_worker()
    assert kit.job(job_id)["hold_reason"].endswith(
        ": upgrading the payload of grows from version 1 to 2 failed: KeyError: 'missing'"
    )


def _upgrading(upgrade: Callable[[Any], Any]) -> Holdfast:
    app = Holdfast()

    @app.task(version=2, upgrade={1: upgrade})
    def grows(a: Any) -> Any:
        return a

    return app


def test_a_repaired_upgrade_is_tried(holdfast_kit: Make) -> None:
    """The repair is inside the comprehension, and what it calls has another name: nothing else differs."""
    broken = holdfast_kit(_upgrading(lambda p: {k: int(v) for k, v in p.items()}), QUICK)
    repaired = holdfast_kit(_upgrading(lambda p: {k: str(v) for k, v in p.items()}), QUICK)
    job_id = send(broken, '{"a": "x"}')
    broken.run_worker()
    assert (broken.job(job_id)["status"], refusals(broken, job_id)) == ("held", 1)
    repaired.run_worker()
    assert (repaired.job(job_id)["status"], repaired.job(job_id)["result"]) == ("completed", "x")


def test_a_worker_of_another_signature_takes_it_and_no_attempt_was_spent(holdfast_kit: Make) -> None:
    old, new = holdfast_kit(old_app(), QUICK), holdfast_kit(new_app(), QUICK)
    job_id = send(old, '{"a": 1, "b": 2}')
    old.run_worker()
    assert old.job(job_id)["status"] == "held"
    new.run_worker()
    row = new.job(job_id)
    assert (row["status"], row["result"], row["attempts"], row["lease_generation"]) == (
        "completed",
        "new 2",
        1,
        2,
    )


def test_it_is_a_dead_letter_when_every_live_signature_refused_it_for_a_while(holdfast_kit: Make) -> None:
    kit = holdfast_kit(old_app(), IMPATIENT)
    job_id = send(kit, '{"a": 1, "b": 2}')
    kit.run_worker()
    assert kit.job(job_id)["status"] == "held"
    row = until_dead(kit, job_id)
    assert row["last_error"] == (
        "PayloadError: tried against every live signature: grows has no parameter 'b' (known: a)"
    )
    assert refusals(kit, job_id) == 0


def _live(
    kit: Kit, takes: str | None, *, task: str = "grows", queue: str = "inbox", status: str = "alive"
) -> None:
    kit.sql(
        """INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency,
                                         release, signatures)
           VALUES (gen_random_uuid(), 'elsewhere', 1, %s, now() + interval '1 hour', now(), ARRAY[%s], ARRAY[%s], 1,
                   '', %s::jsonb)""",
        [status, queue, task, takes],
    )


@pytest.mark.parametrize(
    "takes",
    ['{"grows/1": "another"}', None],
    ids=["another signature", "a release that does not say its signature"],
)
def test_it_waits_while_somebody_is_there_who_has_not_tried_it(holdfast_kit: Make, takes: str | None) -> None:
    kit = holdfast_kit(old_app(), IMPATIENT)
    waits = send(kit, '{"a": 1, "b": 2}')
    kit.run_worker()
    kit.sql("UPDATE holdfast.misfits SET at = at - interval '1 hour'")
    _live(kit, _signature(kit, waits))
    _live(kit, takes)
    assert (_buried(kit), kit.job(waits)["status"]) == ([], "held")
    kit.sql("DELETE FROM holdfast.workers WHERE signatures IS NOT DISTINCT FROM %s::jsonb", [takes])
    assert _buried(kit) == [waits]


@pytest.mark.parametrize("other", [{"task": "else"}, {"queue": "outbox"}, {"status": "draining"}])
def test_who_would_not_take_it_anyway_keeps_nobody_waiting(holdfast_kit: Make, other: dict[str, str]) -> None:
    kit = holdfast_kit(old_app(), IMPATIENT)
    job_id = send(kit, '{"a": 1, "b": 2}')
    kit.run_worker()
    kit.sql("UPDATE holdfast.misfits SET at = at - interval '1 hour'")
    assert _buried(kit) == []  # nobody is there who refused it
    _live(kit, _signature(kit, job_id))
    _live(kit, None, **other)
    assert _buried(kit) == [job_id]


def _signature(kit: Kit, job_id: UUID) -> str:
    (row,) = kit.sql("SELECT signature FROM holdfast.misfits WHERE job_id = %s", [job_id])
    return f'{{"grows/1": "{row["signature"]}"}}'


def _buried(kit: Kit) -> list[UUID]:
    ids = [place.job_id for place in kit.database.run(lambda: old_misfits("inbox", 60.0, None, 10))]
    found = kit.database.run(lambda: bury_misfits("inbox", ids, uuid4(), "w", wait=60.0, dead_after=10.0))
    return [job.job_id for job in found]


_REFUSE = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.payload ->> 'c' = 'bad' THEN RAISE EXCEPTION 'refused' USING ERRCODE = '22000'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON holdfast.dead_letters FOR EACH ROW EXECUTE FUNCTION public.refuse()
"""


def test_a_bad_row_keeps_no_other_from_its_burial(holdfast_kit: Make) -> None:
    kit = holdfast_kit(old_app(), dataclasses.replace(QUICK, misfit_wait=60.0))
    good = [send(kit, '{"a": 1, "b": 2}') for _ in range(6)]
    bad = send(kit, '{"a": 1, "c": "bad"}')
    kit.run_worker()
    kit.sql(_REFUSE)
    _live(kit, _signature(kit, bad))
    kit.sql("UPDATE holdfast.misfits SET at = at - interval '1 hour'")

    assert _sweep_misfits(kit) == 6
    assert {kit.job(i)["status"] for i in good} == {"dead_letter"}
    assert [row["id"] for row in kit.sql("SELECT id FROM holdfast.quarantine")] == [bad]
    assert _sweep_misfits(kit) == 0


def _sweep_misfits(kit: Kit) -> int:
    async def bury() -> int:
        sweeper = Sweeper(kit.database, lambda: None)
        try:
            return await sweeper.bury_misfits()
        finally:
            await sweeper.stop()

    return asyncio.run(bury())


def test_a_worker_that_stops_in_the_middle_of_a_look_hands_its_turn_on(holdfast_kit: Make) -> None:
    kit = holdfast_kit(old_app(), IMPATIENT)
    job_id = send(kit, '{"a": 1, "b": 2}')
    kit.run_worker()
    _live(kit, _signature(kit, job_id))
    kit.sql("UPDATE holdfast.misfits SET at = at - interval '1 hour'")
    kit.sql("UPDATE holdfast.engine SET misfits_at = now()")

    def has_the_turn() -> bool:
        return bool(kit.sql("SELECT misfits_at > now() AS taken FROM holdfast.engine")[0]["taken"])

    async def stop_in_the_middle() -> None:
        sweeper = Sweeper(kit.database, lambda: None)
        look = asyncio.create_task(sweeper.bury_misfits())
        await await_until(has_the_turn, "the look has begun")
        look.cancel()
        await asyncio.wait([look])
        await sweeper.stop()

    with psycopg.connect(kit.url) as stranger:
        stranger.execute("LOCK TABLE holdfast.workers")
        asyncio.run(stop_in_the_middle())
    assert not has_the_turn()
    assert _sweep_misfits(kit) == 1


def test_the_while_counts_from_the_last_signature_that_tried(holdfast_kit: Make) -> None:
    kit = holdfast_kit(old_app(), IMPATIENT)
    job_id = send(kit, '{"a": 1, "b": 2}')
    kit.run_worker()
    _live(kit, _signature(kit, job_id))
    kit.sql("UPDATE holdfast.misfits SET at = at - interval '1 hour'")
    kit.sql(
        """INSERT INTO holdfast.misfits SELECT job_id, 'another', queue, available_at, reason, now() FROM holdfast.misfits"""
    )
    assert _buried(kit) == []
    kit.sql("UPDATE holdfast.misfits SET at = at - interval '1 hour'")
    assert _buried(kit) == [job_id]


def test_an_edited_payload_is_tried_again_by_everybody(holdfast_kit: Make) -> None:
    kit = holdfast_kit(old_app(), QUICK)
    job_id = send(kit, '{"a": 1, "b": 2}')
    kit.run_worker()
    Operator(kit.database, "ann").edit_job(job_id, Changes(unset=["b"]))
    kit.run_worker()
    assert kit.job(job_id)["result"] == "old"


def test_a_replaced_payload_is_tried_again_by_everybody(holdfast_kit: Make) -> None:
    old, new = holdfast_kit(old_app(), QUICK), holdfast_kit(new_app(), QUICK)
    text = "SELECT id FROM holdfast.enqueue('grows', %s::jsonb, replace_key => 'k')"
    job_id = old.sql(text, ['{"a": 1, "b": 2}'])[0]["id"]
    old.run_worker()
    assert old.sql(text, ['{"b": 2}'])[0]["id"] == job_id
    new.run_worker()  # lacks a
    assert (old.job(job_id)["status"], refusals(old, job_id)) == ("held", 2)
    old.run_worker()  # what it refused was another payload
    assert (old.job(job_id)["status"], old.job(job_id)["lease_generation"]) == ("held", 3)


def test_explain_names_the_reason_who_refused_it_and_when_it_dies(holdfast_kit: Make) -> None:
    kit = holdfast_kit(old_app(), dataclasses.replace(Settings(), misfit_wait=600.0))
    job_id = send(kit, '{"a": 1, "b": 2}')
    kit.run_worker()
    found = Operator(kit.database, "ann").explain(job_id)
    assert found.code == "misfit"
    assert found.sentence == (
        "It is set aside: its payload does not fit grows version 1 of this release: "
        "grows has no parameter 'b' (known: a). It waits for a worker whose signature differs. "
        "No live worker of its queue knows the task."
    )
    kit.sql("UPDATE holdfast.misfits SET at = now()")
    _live(kit, _signature(kit, job_id))
    (worker,) = kit.sql("SELECT id FROM holdfast.workers WHERE host = 'elsewhere'")
    said = Operator(kit.database, "ann").explain(job_id).sentence
    assert (
        f"Refused by {worker['id']} (release ). Every live signature has refused it: it is a dead letter in "
        in said
    )
    _live(kit, '{"grows/1": "another"}')
    assert "Not yet tried by " in Operator(kit.database, "ann").explain(job_id).sentence


def test_a_held_first_job_keeps_its_key_and_is_taken_in_its_place(holdfast_kit: Make) -> None:
    apps = old_app(queue="steps"), new_app(queue="steps")
    for app in apps:
        app.queue("steps", ordering="key")
    old, new = (holdfast_kit(app, QUICK) for app in apps)
    text = "SELECT id FROM holdfast.enqueue('grows', %s::jsonb, queue => 'steps', partition_key => 'k')"
    ids = [
        old.sql(text, [payload])[0]["id"] for payload in ('{"a": 1, "b": 2}', '{"a": 1}', '{"a": 1, "b": 3}')
    ]
    old.run_worker()
    assert [old.job(i)["status"] for i in ids] == ["held", "pending", "pending"]
    new.run_worker()
    rows = [new.job(i) for i in ids]
    assert [row["result"] for row in rows] == ["new 2", "new 7", "new 3"]
    assert [row["completed_at"] for row in rows] == sorted(row["completed_at"] for row in rows)


def test_one_that_is_not_the_first_of_its_key_stays_where_it_is(holdfast_kit: Make) -> None:
    apps = old_app(queue="steps"), new_app(queue="steps")
    for app in apps:
        app.queue("steps", ordering="key")
    old, new = (holdfast_kit(app, QUICK) for app in apps)
    text = "SELECT id FROM holdfast.enqueue('grows', %s::jsonb, queue => 'steps', partition_key => 'k', run_at => %s)"
    held = old.sql(text, ['{"a": 1, "b": 2}', None])[0]["id"]
    old.run_worker()
    before = old.sql(text, ['{"a": 1}', datetime.now(UTC) + timedelta(hours=1)])[0]["id"]
    old.sql("UPDATE holdfast.work SET seq = -1 WHERE id = %s", [before])
    new.run_worker()  # put back to waiting, it would be anybody's once the other one is done
    assert (new.job(held)["status"], new.job(before)["status"]) == ("held", "scheduled")


def test_it_is_no_trial_for_a_breaker(holdfast_kit: Make) -> None:
    kit = holdfast_kit(old_app(), QUICK)
    job_id = send(kit, '{"a": 1, "b": 2}')
    kit.run_worker()
    find = functools.partial(find_trial, "inbox", "grows", [1], suspects=False, ordered=False)
    assert kit.database.run(find) is None
    kit.sql("DELETE FROM holdfast.misfits")
    trial = kit.database.run(find)
    assert trial is not None
    assert trial.job_id == job_id


def test_thousands_set_aside_are_taken_back_at_once_and_not_one_by_one(holdfast_kit: Make) -> None:
    old, new = holdfast_kit(old_app(), QUICK), holdfast_kit(new_app(), QUICK)
    old.sql("SELECT holdfast.enqueue('grows', '{\"a\": 1, \"b\": 2}') FROM generate_series(1, 300)")
    old.run_worker()
    assert {row["status"] for row in old.jobs()} == {"held"}
    new.run_worker()
    assert {row["status"] for row in new.jobs()} == {"completed"}
    assert new.sql("SELECT 1 AS one FROM holdfast.jobs WHERE lease_generation > 2") == []


def test_what_finished_jobs_left_is_pruned(holdfast_kit: Make) -> None:
    old, new = holdfast_kit(old_app(), QUICK), holdfast_kit(new_app(), QUICK)
    done, waits = send(old, '{"a": 1, "b": 2}'), send(old, '{"a": 1, "c": 2}')
    old.run_worker()
    new.run_worker()
    assert (refusals(old, done), refusals(old, waits)) == (1, 2)
    old.database.run(lambda: prune("misfits", 1, 100, None))
    assert (refusals(old, done), refusals(old, waits)) == (0, 2)
