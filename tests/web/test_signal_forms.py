"""A signal on the dashboard: the form comes from the type that the code declares, and what does not fit it is not sent."""

from dataclasses import dataclass
from typing import Any, Literal

from tests.conftest import QUICK
from tests.web.surfing import Surfer, fields, made_for

from holdfast import Holdfast, Signal, Workflow


@dataclass
class Decision:
    by: str
    cents: int
    how: Literal["card", "cash"]
    urgent: bool = False
    note: str | None = None
    tags: list[str] | None = None


DECIDED = Signal("decided", Decision)
NAMED = Signal("named", str)


@dataclass
class Line:
    text: str
    note: str | None = "none"


COUNTED = Signal("counted", int | None)  # type: ignore[arg-type]
SAID = Signal("said", str | None)  # type: ignore[arg-type]
WRITTEN = Signal("written", Line)


def shop() -> Holdfast:
    app = Holdfast("postgresql://unused.invalid/none")

    @app.workflow(name="approval")
    async def approval(wf: Workflow) -> int:
        found = await wf.signal(DECIDED)
        return found.cents

    @app.workflow(name="letter")
    async def letter(wf: Workflow) -> list[Any]:
        counted, said = await wf.signal(COUNTED), await wf.signal(SAID)
        line = await wf.signal(WRITTEN)
        return [counted, said, line.text, line.note]

    app.approval = approval  # type: ignore[attr-defined]
    app.letter = letter  # type: ignore[attr-defined]
    return app


async def test_a_form_has_a_field_for_each_part_and_refuses_what_does_not_fit(
    holdfast_kit: Any,
) -> None:
    app = holdfast_kit(shop(), QUICK).app
    run = app.approval.using(id="order:1").start()
    await app.run_worker(until_idle=True)
    made = made_for(app)
    surfer = Surfer(made)
    base = f"/acts/workflow-signal?run={run.run_id}"
    text = await surfer.page(base)
    assert text.index(">decided<") < text.index(">named<")  # what it waits for comes first
    form = await surfer.look(base, signal="decided")
    asked = fields(form)
    parts = {name: value for name, value in asked.items() if name.startswith("payload.")}
    assert parts == {
        "payload.by": "", "payload.cents": "", "payload.how": "card", "payload.urgent": "false", "payload.note": "",
    }  # fmt: skip
    assert 'name="payload.tags"' in form
    typed = {**asked, "payload.by": "mara", "payload.cents": "4.5", "payload.how": "card"}
    wrong = await surfer.post("/acts/workflow-signal", typed)
    assert "cents" in wrong.text
    assert 'name="seal"' not in wrong.text
    good = await surfer.post("/acts/workflow-signal", {**typed, "payload.cents": "4200"})
    assert "which it waits for" in good.text
    assert (await surfer.post("/acts/workflow-signal", fields(good.text))).status_code == 303
    await app.run_worker(until_idle=True)
    assert run.result() == 4200
    await made.site.close()


async def test_what_may_be_null_is_asked_for_and_null_when_left_out(holdfast_kit: Any) -> None:
    app = holdfast_kit(shop(), QUICK).app
    run = app.letter.using(id="letter:1").start()
    await app.run_worker(until_idle=True)
    made = made_for(app)
    surfer = Surfer(made)
    for name, parts in (
        ("counted", ["value"]), ("said", ["value"]), ("written", ["payload.text", "payload.note"]),
    ):  # fmt: skip
        link = f"/acts/workflow-signal?run={run.run_id}&signal={name}"
        asked = await surfer.page(link)
        assert [part for part in parts if f'name="{part}"' in asked] == parts
        seen = await surfer.look(link, **dict.fromkeys(parts, ""))
        assert "which it waits for" in seen
        assert (await surfer.post("/acts/workflow-signal", fields(seen))).status_code == 303
        await app.run_worker(until_idle=True)
    assert run.result() == [None, None, "", None]
    await made.site.close()
