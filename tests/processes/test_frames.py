"""What goes over the socket between a worker and its children: JSON, and nothing that is not expected."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from holdfast.model.job import ClaimedJob
from holdfast.model.outcome import (
    Cancelled,
    Completed,
    DeadLettered,
    ErrorText,
    Failed,
    Held,
    Lost,
    Misfit,
    Outcome,
    Released,
    SettledElsewhere,
    Snoozed,
    Suspended,
)
from holdfast.runtime.processes.frames import (
    BadFrame,
    Unpacker,
    job_from_json,
    job_to_json,
    outcome_from_json,
    outcome_to_json,
    pack,
)

ERROR = ErrorText("ValueError", "no \x1b ü", "Traceback ...")
OUTCOMES: list[Outcome] = [
    Completed(),
    Completed('{"a":1}'),
    Cancelled("not needed"),
    Failed(ERROR, 2.5),
    DeadLettered(ERROR),
    Snoozed(60.0),
    Released("later"),
    Held("unknown"),
    Misfit("does not fit", "0a1b"),
    Lost(),
    SettledElsewhere("1"),
    Suspended(),
]


def over(frame: dict[str, Any], step: int = 3) -> dict[str, Any]:
    """Through the socket, a few bytes at a time."""
    data, unpacker = pack(frame), Unpacker()
    parts = [data[i : i + step] for i in range(0, len(data), step)]
    (found,) = [frame for part in parts for frame in unpacker.feed(part)]
    return found


def test_every_kind_of_outcome_is_there() -> None:
    names = {kind.__name__ for kind in Outcome.__subclasses__()}
    assert {type(outcome).__name__ for outcome in OUTCOMES} == names


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda o: type(o).__name__)
def test_an_outcome_comes_back_as_it_was(outcome: Outcome) -> None:
    frame = over({"frame": "outcome", "outcome": outcome_to_json(outcome)})
    assert outcome_from_json(frame["outcome"]) == outcome


def test_a_job_comes_back_as_it_was() -> None:
    now = datetime.now(UTC)
    rest = '{"crashes": 1, "metadata": "{}"}'
    job = ClaimedJob(
        str(uuid4()), 3, 17, "t", 2, '{"s": "\\ud800"}', "k", -5, 1, 5, now.timestamp(), True, 2, rest,
        "mail", str(uuid4()), 1790.5, 1, 1,
    )  # fmt: skip
    assert job_from_json(over({"frame": "job", "job": job_to_json(job)})["job"]) == job


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "an outcome without a kind"),
        ({"kind": 1}, "an outcome without a kind"),
        ({"kind": "Outcome"}, "an outcome of unknown kind 'Outcome'"),
        ({"kind": "Settled", "id": "x"}, "an outcome of unknown kind 'Settled'"),
        ({"kind": "Completed"}, "Completed with the fields []"),
        ({"kind": "Lost", "result": None}, "Lost with the fields ['result']"),
        ({"kind": "Completed", "result": 1, "beside": False}, "int where a text belongs"),
        ({"kind": "Snoozed", "delay": "1"}, "'1' where seconds belong"),
        ({"kind": "Snoozed", "delay": True}, "True where seconds belong"),
        ({"kind": "Snoozed", "delay": -1}, "-1 where seconds belong"),
        ({"kind": "Snoozed", "delay": float("nan")}, "nan where seconds belong"),
        ({"kind": "Snoozed", "delay": float("inf")}, "inf where seconds belong"),
        ({"kind": "DeadLettered", "error": "x"}, "an error without kind, message and trace"),
        ({"kind": "Snoozed", "delay": 1, "rows": {}}, "rows that are no list of pairs"),
        ({"kind": "Snoozed", "delay": 1, "rows": [["notes"]]}, "rows that are no list of pairs"),
        ({"kind": "Snoozed", "delay": 1, "rows": [["notes", 1]]}, "int where a text belongs"),
        (
            {"kind": "DeadLettered", "error": {"kind": 1, "message": "", "trace": ""}},
            "int where a text belongs",
        ),
    ],
)
def test_an_outcome_that_nobody_sends_is_refused(data: object, text: str) -> None:
    with pytest.raises(BadFrame) as caught:
        outcome_from_json(data)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\x80\x04K\x01.", "a frame that is no JSON: UnicodeDecodeError"),
        (b"{", "a frame that is no JSON: JSONDecodeError"),
        (b"[" * 100_000, "a frame that is no JSON: RecursionError"),
        (b"[]", "a frame without a name"),
        (json.dumps({"frame": 1}).encode(), "a frame without a name"),
    ],
    ids=["pickle", "cut", "deep", "list", "number"],
)
def test_bytes_that_are_no_frame_are_refused(body: bytes, text: str) -> None:
    with pytest.raises(BadFrame) as caught:
        list(Unpacker().feed(len(body).to_bytes(4, "big") + body))
    assert str(caught.value) == text


def test_a_frame_larger_than_any_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadFrame) as caught:
        list(Unpacker().feed(b"\x7f\xff\xff\xff"))
    assert str(caught.value) == "a frame of 2147483647 bytes"


def test_several_frames_at_once() -> None:
    frames: list[dict[str, Any]] = [{"frame": "a"}, {"frame": "b", "n": 1}]
    assert list(Unpacker().feed(b"".join(pack(frame) for frame in frames))) == frames
