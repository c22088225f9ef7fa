"""Sources of messages in trouble: made so, found, and gone when the cause is."""

from tests.conftest import wait_until
from tests.doctor.case import Case
from tests.receiver.nats_server import nats_server

APP = """
from holdfast import Holdfast, ReceivedMessage, StandardWebhooks
from holdfast.contrib.nats_source import nats_source

app = Holdfast()


@app.consume("orders", nats_source({url!r}, stream="ORDERS", durable="shop"), dict)
async def ordered(message: ReceivedMessage[dict]) -> None: ...


@app.receive("bank", dict, verify=StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), keep_ids={keep!r})
async def paid(message: ReceivedMessage[dict]) -> None: ...
"""
HERE = ("-a", "sources_app:app")


def declare(case: Case, url: str = "nats://127.0.0.1:1", keep: str = "30d") -> None:
    (case.folder / "sources_app.py").write_text(APP.format(url=url, keep=keep))


def noted(case: Case, more: str = "") -> None:
    wait_until(lambda: len(case.sql("SELECT FROM holdfast.sources")) == 2, "a worker has noted its sources")
    if more:
        case.sql(f"UPDATE holdfast.sources SET {more}")


def test_a_broker_that_nobody_reads_is_found_until_a_worker_is_there(case: Case) -> None:
    declare(case)
    worker = case.start("sources_app:app")
    noted(case)
    assert case.found("unread_source", *HERE) is None
    worker.kill()
    worker.wait()
    case.sql(
        "UPDATE holdfast.sources SET seen_at = now() - interval '2 hours', read_at = now() - interval '3 hours'"
    )
    assert case.found("broken_source") is None  # one cause, one finding
    finding = case.cure("unread_source", *HERE)
    assert finding["level"] == "error"
    assert finding["what"] == "1 broker that no live worker reads: its messages wait there"
    assert finding["fix"] == ["holdfast worker sources_app:app"]
    assert finding["details"] == ["orders (task ordered), last read by a worker 3 h ago"]


def test_broken_source(case: Case) -> None:
    with nats_server() as server:
        server.kill()
        declare(case, server.url)
        case.start("sources_app:app")
        noted(case, "created_at = now() - interval '2 hours'")

        def why() -> str:
            found = case.found("broken_source")
            return "" if found is None else found["details"][0]

        wait_until(lambda: "NATS cannot be reached: " in why(), "the reason is noted", 30)
        finding = case.found("broken_source")
        assert finding is not None
        assert finding["what"] == "1 broker that workers cannot read"
        assert finding["details"][0].startswith("orders, for 2 h: ")
        case.sql(
            "UPDATE holdfast.sources SET read_at = now() WHERE broker"
        )  # as the worker does, when the broker replies
        assert case.found("broken_source") is None


def test_parked_messages(case: Case) -> None:
    declare(case)
    case.start("sources_app:app")
    noted(case)
    assert case.found("parked_messages") is None
    case.sql(
        "SELECT FROM holdfast.receive_many('bank', '{a,b}', ARRAY[repeat('0', 64), repeat('0', 64)], 'paid',"
        " ARRAY['{}', '{}'], faults => ARRAY['InvalidMessage: it does not fit', NULL])"
    )
    finding = case.found("parked_messages")
    assert finding is not None
    assert finding["details"] == ["bank (task paid): 1 message"]
    assert finding["fix"] == ["holdfast dead list --task paid"]
    case.run("holdfast dead discard --task paid --yes")
    assert case.found("parked_messages") is None


def test_forgetful_source(case: Case) -> None:
    declare(case, keep="1d")
    case.start("sources_app:app")
    noted(case)
    finding = case.found("forgetful_source")
    assert finding is not None
    assert finding["details"] == ["bank keeps ids for 1 d; senders retry for up to 76 hours"]
    assert finding["fix"] == ['@app.receive("bank", ..., keep_ids="30d")   (in the code)']
    case.sql("UPDATE holdfast.sources SET keep = interval '30 days'")
    assert case.found("forgetful_source") is None
