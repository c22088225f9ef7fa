"""What is not for everybody, and what was made to do harm: masked or made visible, in pages, JSON and streams."""

import json
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.web.conftest import Shop
from tests.web.surfing import Surfer

from holdfast.errors import TaskDefinitionError
from holdfast.model.masking import MASK, is_secret_name, masked, masked_text
from holdfast.operate.operator import Operator
from holdfast.pages import Problem
from holdfast.testing import Kit
from holdfast.web.drawing import environment, problem_text
from holdfast.web.live import values_of
from holdfast.web.masking import before_quote, class_of_error, for_role, form_of
from holdfast.web.plain import as_json
from holdfast.web.shown import MOST_CHARACTERS, json_pieces, trace_pieces, visible

EVIL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "\x1b[31mred\x1b[0m\x07",
    "\u202egnp.exe\u2066\u200b",
    "</textarea></title><svg/onload=alert(1)>",
)
PATHS = (
    "/jobs",
    "/jobs?state=dead_letter",
    "/dead",
    "/jobs/{id}",
    "/",
    "/doctor",
    "/audit",
    "/limits",
    "/api/v1/jobs/{id}",
)


@pytest.mark.parametrize("evil", EVIL)
async def test_text_made_to_do_harm_is_text(kit: Kit, mara: Surfer, evil: str) -> None:
    """In every field that a producer writes: payload, key, tag, error."""
    job = kit.app.send(
        "charge", {"order_id": 1, "card_token": "t", "note": evil}, tags=[evil[:60]], partition_key=evil
    )
    kit.app.send("nobody.knows", {evil: evil})
    await kit.app.run_worker(until_idle=True)
    for path in PATHS:
        text = await mara.page(path.format(id=job.id))
        for raw in (
            "<script>alert",
            "<img src=x",
            "<svg/onload",
            "\x1b",
            "\x07",
            "\u202e",
            "\u2066",
            "\u200b",
            "49{",
        ):
            assert raw not in text, (path, raw)
        assert 'href="javascript' not in text


async def test_a_name_in_the_audit_is_text(kit: Kit, mara: Surfer) -> None:
    """Whatever a command line was told to call itself."""
    await Operator(kit.database, "<b>bo</b>\x1b[31m\u202e").pause_queue.arun("mail")
    text = await mara.page("/audit")
    assert "&lt;b&gt;bo&lt;/b&gt;\\x1b[31m\\u202e" in text
    assert [raw for raw in ("<b>bo", "\x1b", "\u202e") if raw in text] == []


def test_whatever_a_template_writes_is_made_visible() -> None:
    """Also what nobody thought of on its way there."""
    drawn = environment().from_string("{{ it }}").render(it="<b>bo</b>\x1b[31m\u202e")
    assert drawn == "&lt;b&gt;bo&lt;/b&gt;\\x1b[31m\\u202e"


async def test_a_huge_payload_is_cut(kit: Kit, mara: Surfer) -> None:
    from holdfast.tasks.payload import PAYLOAD_BYTES

    job = kit.app.send("send", {"order_id": 1, "blob": "x" * (PAYLOAD_BYTES - 1000)})
    text = await mara.page(f"/jobs/{job.id}")
    assert "characters more" in text
    assert len(text) < 3 * MOST_CHARACTERS


def test_ten_megabytes_are_shown_in_part() -> None:
    pieces = json_pieces({"blob": "<" * 10_000_000})
    assert sum(len(piece.text) for piece in pieces) < MOST_CHARACTERS + 100
    assert pieces[-1].text.endswith("characters more")


def test_what_cannot_be_seen_is_written_out() -> None:
    assert visible("a\x00b\x1b\u202e\u200b\ufeff\U000e0041\ttab\nline") == (
        "a\\x00b\\x1b\\u202e\\u200b\\ufeff\\ue0041\ttab\nline"
    )


# Secrets -------------------------------------------------------------------------------------------------------------

SECRET = "hunter2secret"


async def test_a_secret_is_in_no_page_json_or_stream(kit: Kit, mara: Surfer, shop: Shop) -> None:
    found = {shop.dead: ("tok_4242", SECRET), shop.done: ("sk-live-123456",)}
    for job, secrets in found.items():
        for path in (
            f"/jobs/{job}",
            f"/api/v1/jobs/{job}",
            "/jobs",
            "/api/v1/jobs",
            "/dead",
            "/api/v1/dead",
            "/",
            "/doctor",
        ):
            text = await mara.page(path)
            assert [secret for secret in secrets if secret in text] == [], path
    assert MASK in await mara.page(f"/jobs/{shop.dead}")
    stream = await values_of(mara.client._transport.app.site, ["overview", f"job:{shop.dead}"])  # type: ignore[attr-defined]
    assert SECRET not in json.dumps(stream)


async def test_what_a_task_masks_is_in_no_page_json_stream_or_audit(kit: Kit, mara: Surfer) -> None:
    given = {"patient": 1, "diagnosis": "gout of the toe", "address": {"street": "Elm Row", "town": "Ayr"}}
    done = kit.app.send("treat", given)
    await kit.app.run_worker(until_idle=True)
    waits = kit.app.send("treat", given, run_after=timedelta(hours=1))
    edit = {"id": str(waits.id), "arguments": {"diagnosis": "gout, worse", "patient": 2}}
    answer = await mara.client.post(
        "/api/v1/acts/jobs-edit", json=edit, headers={"authorization": "Bearer x"}
    )
    assert answer.status_code == 200, answer.text
    texts = [answer.text]
    for path in (
        f"/jobs/{done.id}",
        f"/jobs/{waits.id}",
        f"/acts/jobs-cancel?ids={waits.id}",
        "/jobs",
        "/audit",
    ):
        texts.append(await mara.page(path))
        texts.append((await mara.get(f"/api/v1{path}")).text)
    texts.append(json.dumps(await values_of(mara.client._transport.app.site, [f"job:{waits.id}"])))  # type: ignore[attr-defined]
    texts.append(str(kit.sql("SELECT * FROM holdfast.audit")))
    leaks = [re.search(".{0,60}(gout|Elm Row).{0,20}", text) for text in texts]
    assert [found[0] for found in leaks if found] == []
    for text in texts[1:5]:
        assert MASK in text or json.dumps(MASK)[1:-1] in text
        assert "Ayr" in text
    assert "ward" in texts[1]
    assert (kit.sql("SELECT after FROM holdfast.audit ORDER BY id DESC LIMIT 1")[0]["after"])["payload"] == {
        "diagnosis": MASK,
        "patient": 2,
    }
    with pytest.raises(TaskDefinitionError, match="masked must be a list of names"):
        kit.app.task(masked="diagnosis")(lambda: None)


async def test_a_viewer_sees_the_form_of_a_payload_and_the_class_of_an_error(
    surfer_of: Callable[..., Surfer], shop: Shop
) -> None:
    viewer, operator = surfer_of("viewer"), surfer_of("operator")
    for path in (
        f"/jobs/{shop.dead}",
        f"/api/v1/jobs/{shop.dead}",
        "/dead",
        "/api/v1/dead",
        "/jobs?state=dead",
        "/",
    ):
        text = await viewer.page(path)
        assert "psp.example did not answer" not in text, path
    assert "ConnectionError" in await viewer.page(f"/jobs/{shop.dead}")
    assert "psp.example did not answer" in await operator.page(f"/jobs/{shop.dead}")
    seen = json.loads(await viewer.page(f"/api/v1/jobs/{shop.dead}"))["data"]["report"]["job"]
    assert seen["payload"] == {"order_id": "number", "card_token": "text", "note": "text"}
    assert (seen["id"], seen["last_error"]) == (str(shop.dead), "ConnectionError")


async def test_a_viewer_who_is_a_program_reads_states_and_numbers_and_goes_on(
    kit: Kit, surfer_of: Callable[..., Surfer], shop: Shop
) -> None:
    viewer, operator = surfer_of("viewer"), surfer_of("operator")
    seen = []
    for somebody in (viewer, operator):
        groups = (await somebody.get("/api/v1/dead")).json()["data"]["groups"]["groups"]
        seen.append([(one["id"], one["task"], one["count"]) for one in groups])
    assert seen[0] == seen[1] != []
    for n in range(60):
        kit.app.send("send", {"order_id": n})
    page = (await viewer.get("/api/v1/jobs?queue=inbox")).json()
    assert {one["queue"] for one in page["data"]["jobs"]} == {"inbox"}
    assert page["next"]["after"] == page["data"]["jobs"][-1]["id"]


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ({"response_body": "it said Mara"}, {"response_body": "text"}),
        ({"request_headers": {"x-user": "Mara"}}, {"request_headers": {"x-user": "text"}}),
        ({"response_headers": {"x-user": "Mara"}}, {"response_headers": {"x-user": "text"}}),
        ({"options": {"note": "Mara"}}, {"options": {"note": "text"}}),
        ({"before": {"n": 1}, "after": {"n": 2}}, {"before": {"n": "number"}, "after": {"n": "number"}}),
        ({"detail": "TimeoutError: of Mara"}, {"detail": "TimeoutError"}),
        ({"disabled_reason": "410 of Mara"}, {"disabled_reason": "an error"}),
        ({"kind": "KeyError", "message": "Mara"}, {"kind": "KeyError", "message": "an error"}),
        ({"message": "psp.example:443 is away", "trace": "Mara"}, {"message": "an error", "trace": "an error"}),
        ({"actor": "bo", "reason": "Mara"}, {"actor": "bo", "reason": "an error"}),
        ({"last_error": "psp.example: Mara"}, {"last_error": "an error"}),
        ({"breaker_error": "TimeoutError: of Mara"}, {"breaker_error": "TimeoutError"}),
        ({"fault": "TimeoutError: of Mara"}, {"fault": "TimeoutError"}),
        ({"left": [{"text": "the payload of Mara", "count": 1}]}, {"left": [{"text": "an error", "count": 1}]}),
    ],
)  # fmt: skip
def test_what_a_viewer_reads_of_content_and_errors_by_their_name(value: Any, seen: Any) -> None:
    assert for_role(value, "viewer") == seen
    assert for_role(value, "operator") == value


def test_a_number_under_the_name_of_a_secret_is_masked() -> None:
    value = {
        "payload": {"pin": 1234, "otp": True, "cvv": 0.5, "n": 1},
        "is_secret": True,
        "pin": 1,
        "token": "",
    }
    assert for_role(value, "admin") == {
        "payload": {"pin": MASK, "otp": MASK, "cvv": MASK, "n": 1}, "is_secret": True, "pin": MASK, "token": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["password", "card_token", "userPassword", "X-Api-Key", "API_KEY", "authorization", "sessionId", "PIN"],
)
def test_a_name_that_means_a_secret(name: str) -> None:
    assert is_secret_name(name)
    assert masked({name: "x", "deep": [{name: {"a": 1}}]}) == {name: MASK, "deep": [{name: MASK}]}


@pytest.mark.parametrize(
    "name", ["author", "tokens", "max_tokens", "pinned", "order_id", "key", "keyboard", "secretary"]
)
def test_a_name_that_does_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
        "4242 4242 4242 4242",
        "4242424242424242",
        "AKIAIOSFODNN7EXAMPLE",
    ],
)
def test_what_looks_like_a_secret_is_masked_wherever_it_stands(text: str) -> None:
    assert masked_text(f"before {text} after") == f"before {MASK} after"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("postgresql://bo:pw@host/db", f"postgresql://{MASK}@host/db"),
        ("Authorization: Bearer abcdefghijkl", f"Authorization: {MASK} {MASK}"),
        ("password=hunter2 next", f"password={MASK} next"),
        ("{'api_key': 'abc', 'n': 1}", f"{{'api_key': {MASK}, 'n': 1}}"),
        ("order 1234567890123456 of 2026", "order 1234567890123456 of 2026"),
    ],
)
def test_a_secret_in_a_sentence(text: str, seen: str) -> None:
    assert masked_text(text) == seen


def test_a_form_has_names_and_kinds() -> None:
    value: Any = {"a": 1, "b": "x", "c": [1, "x"], "d": {"e": None, "f": True}, "g": []}
    assert form_of(value) == {
        "a": "number", "b": "text", "c": "2 of number, text", "d": {"e": "null", "f": "true or false"}, "g": "empty list",
    }  # fmt: skip


def test_what_a_role_gets() -> None:
    value = {
        "payload": {"n": 1},
        "last_error": "ValueError: card 1",
        "token": "x",
        "sentence": "It failed: card 1",
        "n": 2,
    }
    assert for_role(value, "viewer") == {
        "payload": {"n": "number"}, "last_error": "ValueError", "token": MASK, "sentence": "It failed.", "n": 2,
    }  # fmt: skip
    assert for_role(value, "admin") == {**value, "token": MASK}
    assert (class_of_error("oh no"), before_quote("A sentence.")) == ("an error", "A sentence.")


def test_a_traceback_shows_the_frames_of_the_user() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/app/billing.py", line 41, in charge\n    psp.charge()\n'
        '  File "/venv/lib/python3.11/site-packages/httpx/a.py", line 1, in send\n    raise X\n'
        '  File "/venv/lib/python3.11/site-packages/httpx/b.py", line 1, in send\n    raise X\n'
        "httpx.ConnectTimeout: no answer\n"
    )
    text = "".join(piece.text for piece in trace_pieces(trace))
    assert "psp.charge()" in text
    assert "2 frames of libraries" in text
    assert "httpx/a.py" not in text
    assert [piece.text for piece in trace_pieces(trace) if piece.css == "e"] == [
        "httpx.ConnectTimeout: no answer\n"
    ]


def test_a_key_without_its_end_is_masked_to_the_end() -> None:
    assert masked_text("before -----BEGIN PRIVATE KEY-----\nMIIabc") == f"before {MASK}"
    assert masked_text('before password="hunter two') == f"before password={MASK}"


def test_what_is_said_to_a_program_is_masked() -> None:
    assert b"hunter2" not in as_json(
        {"done": {"password": "hunter2"}, "sentence": "password=hunter2"}, "admin"
    )


@pytest.mark.parametrize(
    "part", ["eyJ-", "token-", "eyJaaaaaaaa.", "1-", "a", ":a", "://a:", "token='", "-----BEGIN "]
)
def test_masking_takes_time_by_the_length_of_a_text_alone(part: str) -> None:
    text = part * (64 * 1024 // len(part))
    began = time.thread_time()
    masked_text(text)
    assert time.thread_time() - began < 1.0


def test_as_much_is_masked_as_is_shown() -> None:
    seen = masked({"a": "x y " * 1000, "b": ["z" * 5000, {"password": "p"}], "c": 1, "d": 2}, 100)
    assert seen == {
        "a": "x y " * 24 + "… and 3,904 characters more",
        "…": "3 more",
    }
    assert masked(["x"] * 10, 6) == ["x", "x", "… 8 more"]


@pytest.mark.parametrize(
    "secret", ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", 'password="hunter2"']
)
def test_no_half_of_a_secret_is_shown_where_a_text_is_cut(secret: str) -> None:
    for most in range(8, len(secret) + 7):
        seen = masked_text(f"before {secret} after", most)
        assert [half for half in ("eyJh", "hunt") if half in seen] == [], (most, seen)


def test_a_token_behind_other_letters_is_masked() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
    assert masked_text(f"session-{token} after") == f"session-{MASK} after"
    assert masked_text(f"aaaaaaaaaaaa.bbbbbbbb.{token}") == f"aaaaaaaaaaaa.bbbbbbbb.{MASK}"


def test_what_follows_a_job_is_masked_as_its_own_task_says() -> None:
    """And content that claims to be of another task shows no more for it."""
    names = {"bills": ["card"], "letters": ["diagnosis"]}
    value = {
        "task": "bills",
        "payload": {"card": 1, "task": "letters", "diagnosis": "flu"},
        "follow_ups": [{"task": "letters", "payload": {"diagnosis": "flu", "to": "ann"}}],
    }
    assert for_role(value, "admin", lambda task: names.get(task, ())) == {
        "task": "bills",
        "payload": {"card": MASK, "task": "letters", "diagnosis": MASK},
        "follow_ups": [{"task": "letters", "payload": {"diagnosis": MASK, "to": "ann"}}],
    }


def test_a_reason_of_one_word_is_not_for_viewers() -> None:
    assert problem_text(Problem("Fraud", words=True), "viewer") == "an error"
    assert problem_text(Problem("Fraud", words=True), "operator") == "Fraud"
    assert problem_text(Problem("TimeoutError: psp.example"), "viewer") == "TimeoutError"
    assert problem_text(Problem("psp.example: no answer"), "viewer") == "an error"
