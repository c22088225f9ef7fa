"""A deploy: ten workers under load are replaced one after the other, and no job notices."""

import itertools
import signal
import threading
from typing import Any

import pytest
from tests.crash.crash_app import app, record
from tests.crash.process import Scene, WorkerProcess

WORKERS = 10
BACKLOG = 40  # so that every worker always has something to do and something prefetched

# Whoever takes a lease away says so here, however soon the claim is gone afterwards. The sweep also revokes the empty claims
# of those that have left, and then takes them away.
WATCH = """
CREATE TABLE taken_away (token uuid, worker text, expired boolean, jobs int);
CREATE FUNCTION note_taken() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.taken_away
    SELECT NEW.token, NEW.worker, OLD.lease_expires_at < holdfast.now(), count(*)
    FROM holdfast.work w WHERE w.claim_token = NEW.token AND w.status = 'processing';
    RETURN NEW;
END $$;
CREATE TRIGGER note_taken AFTER UPDATE OF revoked_at ON holdfast.claims
    FOR EACH ROW WHEN (NEW.revoked_at IS NOT NULL) EXECUTE FUNCTION note_taken();
"""


class Load:
    """Short jobs and some longer ones, enqueued as fast as they are done."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main)
        self.enqueued = 0

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _main(self) -> None:
        lengths = itertools.cycle([0.2, 0.3, 0.2, 0.3, 0.2, 0.9])
        while not self._stop.wait(0.1):
            (row,) = self._scene.kit.sql(
                "SELECT count(*) AS n FROM holdfast.work WHERE status = 'pending' AND queue = 'inbox'"
            )
            jobs = [record.job(seconds=next(lengths)) for _ in range(max(0, BACKLOG - row["n"]))]
            self.enqueued += len(app.enqueue_many(jobs)) if jobs else 0


@pytest.fixture
def workers(scene: Scene) -> list[WorkerProcess]:
    scene.kit.sql(WATCH)
    return [_start(scene) for _ in range(WORKERS)]


def _start(scene: Scene) -> WorkerProcess:
    """Beats that a busy machine does not miss; nothing here waits for them."""
    timings: dict[str, Any] = {"lease": 20.0, "heartbeat": 1.0, "dead_after": 8.0, "drain": 15.0, "poll": 0.5}
    return scene.start(command_line=True, concurrency=2, ready=False, **timings)


@pytest.mark.slow
def test_a_rolling_restart_of_ten_workers_loses_no_lease_and_spends_no_attempt(
    scene: Scene, workers: list[WorkerProcess]
) -> None:
    for worker in workers:
        worker.until_ready()
    fresh: list[WorkerProcess] = []
    with Load(scene) as load:
        for old in workers:
            successor = _start(scene).until_ready()
            fresh.append(successor)
            old.kill(signal.SIGTERM)
        assert [old.wait() for old in workers] == [0] * WORKERS
    rows = scene.until_finished()
    for worker in fresh:
        worker.kill(signal.SIGTERM)
    assert [worker.wait() for worker in fresh] == [0] * WORKERS

    assert len(rows) == load.enqueued > 10 * WORKERS
    assert {(r["status"], r["attempts"], r["crashes"]) for r in rows} == {("completed", 1, 0)}
    assert set(scene.ledger().values()) == {1}
    assert len(scene.ledger()) == len(rows)
    starts = [note.job for note in scene.notes("start")]
    assert len(starts) == len(set(starts))  # what was handed back had not begun
    assert any(r["lease_generation"] > 1 for r in rows)  # and something was handed back
    assert scene.kit.sql("SELECT * FROM taken_away WHERE expired OR jobs > 0") == []
    assert scene.kit.sql("SELECT * FROM holdfast.errors") == []
    ended = scene.kit.sql("SELECT status, ended, count(*) AS n FROM holdfast.workers GROUP BY 1, 2")
    assert ended == [{"status": "gone", "ended": "left", "n": 2 * WORKERS}]
    said = {event["name"] for worker in (*workers, *fresh) for event in worker.every_event()}
    assert {"worker.draining", "worker.stopped", "job.released"} <= said
    assert not said & {"job.swept", "worker.gone", "worker.fenced", "job.lost", "drain.incomplete"}
