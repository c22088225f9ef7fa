"""`masked=` holds wherever what a task was given may appear: schedules, errors, events, runs, the audit; pages and JSON."""

import asyncio
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from tests.conftest import QUICK
from tests.web.surfing import Surfer, made_for

from holdfast import Holdfast, Signal, Workflow
from holdfast.errors import TaskDefinitionError
from holdfast.model.masking import MASK, masked_text
from holdfast.operate.edit import Changes
from holdfast.operate.job_acts import cancel_verb
from holdfast.operate.operator import Operator
from holdfast.testing import Kit

TOLD = Signal("told", dict[str, str])
SECRETS = ("gout", "Elm Row", "bitten by a dog")


def clinic() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.task(name="treat", masked=["diagnosis", "street"], max_attempts=1)
    def treat(patient: int, diagnosis: str, address: dict[str, str]) -> dict[str, str]:
        if patient < 0:
            raise ValueError(f"no such patient: diagnosis={diagnosis!r}, address={address!r}")
        return {"diagnosis": diagnosis, "ward": "north"}

    @app.workflow(name="care", masked=["story"])
    async def care(wf: Workflow, story: str) -> dict[str, str]:
        found = await wf.call(treat, patient=2, diagnosis="gout of the toe", address={"street": "Elm Row"})
        told = await wf.signal(TOLD)
        return {**found, **told, "story": story}

    app.schedule(
        "0 3 * * *", treat.job(patient=1, diagnosis="gout", address={"street": "Elm Row"}), name="nightly"
    )
    app.care = care  # type: ignore[attr-defined]
    return app


@pytest.fixture
def kit(holdfast_kit: Any) -> Kit:
    made: Kit = holdfast_kit(clinic(), QUICK)
    return made


def leaks(text: str) -> list[str]:
    return [found[0] for secret in SECRETS if (found := re.search(f".{{0,60}}{secret}.{{0,20}}", text))]


async def test_what_a_task_masks_is_masked_wherever_it_appears(kit: Kit) -> None:
    app = kit.app
    given = {"patient": -1, "diagnosis": "gout", "address": {"street": "Elm Row", "town": "Ayr"}}
    failed = app.send("treat", given)
    misfit = app.send("treat", {**given, "diagnosis": ["gout"]})
    waits = app.send("treat", {**given, "patient": 1}, run_after=timedelta(hours=1))
    app.publish("patient.seen", {"diagnosis": "gout", "n": 17})
    await app.run_worker(until_idle=True)
    # Without the code at hand, as on a command line that has the database alone: nothing is masked as it is written.
    await Operator(kit.database, "bo").edit_job.arun(
        waits.id, Changes(arguments={"diagnosis": "gout, worse"})
    )
    assert leaks(str(kit.sql("SELECT after FROM holdfast.audit")))
    made = made_for(app)
    surfer = Surfer(made)
    texts = {}
    pages = [
        "schedules",
        "schedules/nightly",
        "events",
        "audit",
        "jobs",
        "dead",
        "dead?each=1",
        "limits",
        "doctor",
    ]
    for path in (*pages, *(f"jobs/{one.id}" for one in (failed, misfit, waits))):
        texts[path] = await surfer.page(f"/{path}")
        texts[f"api/{path}"] = await surfer.page(f"/api/v1/{path}")
    added = {"name": "hourly", "task": "treat", "every": "1h", "payload": {**given, "patient": 1}}
    for dry in ("1", "0"):
        answer = await surfer.client.post(
            f"/api/v1/acts/schedule-add?dry_run={dry}", json=added, headers={"authorization": "Bearer x"}
        )
        assert answer.status_code == 200, answer.text
        texts[f"schedule add {dry}"] = answer.text
    assert {where: found for where, text in texts.items() if (found := leaks(text))} == {}
    hidden = json.dumps(MASK)[1:-1]
    for where in ("schedules/nightly", f"jobs/{failed.id}", f"jobs/{misfit.id}", "events", "audit"):
        assert MASK in texts[where], where
        assert hidden in texts[f"api/{where}"], where
    assert hidden in texts["schedule add 0"]
    for where, kept in (("schedules/nightly", "patient"), (f"jobs/{failed.id}", "Ayr"), ("events", "17")):
        assert kept in texts[where]
    await made.site.close()
    await kit.database.aclose()


async def test_what_tasks_and_workflows_mask_is_masked_on_the_page_of_a_run(kit: Kit) -> None:
    app = kit.app
    begun = await app.care.astart("bitten by a dog")  # type: ignore[attr-defined]
    started = str(begun.run_id)
    await app.run_worker(until_idle=True)
    made = made_for(app)
    surfer = Surfer(made)
    answer = await surfer.client.post(
        "/api/v1/acts/workflow-signal",
        json={
            "run": started,
            "signal": "told",
            "payload": json.dumps({"street": "Elm Row", "by": "a nurse"}),
        },
        headers={"authorization": "Bearer x"},
    )
    assert answer.status_code == 200, answer.text
    waiting = [await surfer.page(path.format(started)) for path in ("/workflows/{}", "/api/v1/workflows/{}")]
    await app.run_worker(until_idle=True)
    ended = [
        await surfer.page(path.format(started))
        for path in (
            "/workflows/{}",
            "/api/v1/workflows/{}",
            "/jobs/{}",
            "/api/v1/jobs/{}",
            "/audit",
            "/workflows",
        )
    ]
    assert [leaks(text) for text in (*waiting, *ended)] == [[]] * 8
    assert "a nurse" in waiting[0]
    assert "north" in ended[0]
    assert ended[0].count(MASK) >= 3
    await made.site.close()
    await kit.database.aclose()


def test_a_workflow_names_what_it_masks_as_a_task_does() -> None:
    with pytest.raises(TaskDefinitionError, match="masked must be a list of names"):
        Holdfast("postgresql://unused.invalid/none").workflow(masked="story")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("bad diagnosis='gout, of the toe' here", f"bad diagnosis={MASK} here"),
        ('{"diagnosis": "gout", "n": 1}', f'{{"diagnosis": {MASK}, "n": 1}}'),
        ("diagnosis: Input should be a number, not 'gout' (and 1 more)", f"diagnosis: Input should be a number, not {MASK}"),
        ("address.street: Input should be a number, not 'Elm Row'", f"address.street: Input should be a number, not {MASK}"),
        ("parameter 'diagnosis' must be str: not list ['gout']", f"parameter 'diagnosis' must be str: not {MASK}"),
        ("the diagnosis was made: yes", "the diagnosis was made: yes"),
        ("prediagnosis=gout", "prediagnosis=gout"),
    ],
)  # fmt: skip
def test_a_value_beside_a_name_that_a_task_masks(text: str, seen: str) -> None:
    assert masked_text(text, names=["diagnosis", "street"]) == seen


NOT_INT = "parameter 'card_token' of charge must be int: not "
WITHIN = "parameter 'card' of charge must be Card: holder.pin: Input should be a number, not "
OTHER = "parameter 'order_id' of charge must be int: not str 'x'"
PROSE = "the token was not renewed: no answer, not even an error"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (f"{NOT_INT}str 'tok_1'", f"{NOT_INT}{MASK}"),
        (f"{NOT_INT}str 'tok_1'\nnext", f"{NOT_INT}{MASK}\nnext"),
        (f"{WITHIN}'four' (and 1 more)", f"{WITHIN}{MASK}"),
        (OTHER, OTHER),
        (PROSE, PROSE),
    ],
)
def test_a_value_that_a_handler_does_not_take_is_masked_by_its_name(text: str, seen: str) -> None:
    assert masked_text(text) == seen


async def test_the_error_of_a_refused_act_is_masked_by_the_names_of_its_task(kit: Kit) -> None:
    """Its handler takes numbers since the job failed."""
    made = made_for(kit.app, "operator")
    mara = Surfer(made)
    given: dict[str, Any] = {"patient": "one", "diagnosis": ["gout"], "address": {"street": "Elm Row"}}
    job = await asyncio.to_thread(Holdfast(kit.url).send, "treat", given)
    await asyncio.to_thread(Operator(kit.database, "t").act_on, cancel_verb(), [job.id])
    wanted = {"id": str(job.id), "arguments": '{"patient": 1}'}
    answer = await mara.client.post(
        "/api/v1/acts/jobs-copy", json=wanted, headers={"authorization": "Bearer of-the-test"}
    )
    assert (answer.status_code, "diagnosis" in answer.text) == (400, True)
    assert "gout" not in answer.text
    text = await mara.page(f"/acts/jobs-copy?id={job.id}")
    assert "gout" not in text
    await made.close()
    await kit.database.aclose()


async def test_a_dashboard_without_the_code_masks_what_workers_say(kit: Kit) -> None:
    given = {"patient": 1, "diagnosis": "gout", "address": {"street": "Elm Row", "town": "Ayr"}}
    done = kit.app.send("treat", given)
    await asyncio.to_thread(kit.run_worker)  # it comes, says what its code masks, and goes
    waits = kit.app.send("treat", given, run_after=timedelta(hours=1))
    said = kit.sql("SELECT metadata -> 'masked' AS names FROM holdfast.workers")[0]["names"]
    assert said == ["diagnosis", "story", "street"]
    bare = Holdfast(kit.url)
    made = made_for(bare)
    mara = Surfer(made)
    try:
        for job in (done, waits):
            for path in (
                f"/jobs/{job.id}",
                f"/api/v1/jobs/{job.id}",
                f"/jobs?peek={job.id}",
                f"/acts/jobs-edit?id={job.id}",
            ):
                text = (await mara.get(path)).text
                assert leaks(text) == [], path
        assert "Ayr" in (await mara.get(f"/jobs/{waits.id}")).text  # what is no secret is shown
    finally:
        await made.close()
        await bare.database.aclose()
        bare.close()
