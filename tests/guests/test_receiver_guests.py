"""A received message over every kind of connection: part of the caller's transaction, and a refusal leaves it usable."""

from typing import Any

import pytest
from tests.guests.conftest import orders
from tests.guests.kinds import Kind, Undo
from tests.receiver.support import SECRET, body_of, standard

from holdfast import Holdfast, ReceivedMessage, StandardWebhooks, UnknownQueue
from holdfast.testing import Kit

VERIFY = StandardWebhooks(SECRET)
TEXT = "ü\\'\"{},NULL"


def test_a_message_is_there_exactly_when_the_transaction_commits(kind: Kind, app: Holdfast, kit: Kit) -> None:
    @app.receive("shop", dict[str, Any], verify=VERIFY, key="{text}")
    def paid(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    @app.receive("nowhere", dict[str, Any], verify=VERIFY, queue="nowhere")
    def lost(message: ReceivedMessage[dict[str, Any]]) -> None: ...

    body = body_of(text=TEXT)
    headers = dict(standard(body))
    with pytest.raises(Undo), kind.block():
        assert kind.accept(paid, headers, body).status == 202
        raise Undo
    assert kit.jobs() == []
    with kind.block():
        kind.write(1)
        made = kind.accept(paid, headers, body)
        assert (made.status, made.outcome) == (202, "new")
        again = kind.accept(paid, headers, body)
        assert (again.status, again.outcome, again.job_id) == (200, "repeat", made.job_id)
        refused = kind.accept(paid, headers, body + b" ")
        assert (refused.status, refused.outcome, refused.job_id) == (401, "refused", None)
        with pytest.raises(UnknownQueue):
            kind.accept(lost, headers, body)
        parked = kind.accept(paid, dict(standard(b"{}", "msg_2")), b"{}")
        assert (parked.status, parked.outcome) == (202, "parked")
        assert kit.jobs() == []
        kind.write(2)
    assert orders(kit) == [1, 2]
    job, dead = kit.jobs()
    assert (job["id"], job["payload"]["message"]["data"], job["partition_key"]) == (
        made.job_id,
        {"text": TEXT},
        TEXT,
    )
    assert (dead["id"], dead["status"]) == (parked.job_id, "dead_letter")
