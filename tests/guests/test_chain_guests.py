"""A handler that completes its job on a connection of its own, of every kind: what follows commits with it or not at all."""

from typing import Any

import pytest
from tests.guests.conftest import Open, orders
from tests.guests.kinds import Kind, Undo

from holdfast import Holdfast, Job, ReplaceConflict
from holdfast.tasks.task import Task
from holdfast.testing import Kit

Send = Task[[int], str]


def test_what_follows_commits_with_the_completion(opened: Open, app: Holdfast, kit: Kit, send: Send) -> None:
    seen: list[int] = []

    @app.task
    def work(job: Job) -> None:
        with opened() as kind:
            with pytest.raises(Undo), kind.block():
                kind.complete(job)
                raise Undo
            job._completed = False  # the same attempt tries again
            with kind.block():
                kind.write(1)
                kind.complete(job)
                # The follow-up is there; the callback of the group comes with the commit.
                assert kind.one("SELECT count(*) FROM holdfast.work WHERE task = 'send'") == 1
                seen.append(len(kit.jobs(send)))
            seen.append(len(kit.jobs(send)))

    texts: dict[str, Any] = {"tags": ["ä"], "metadata": {"quote": '"}\\'}}
    group = app.group([work.using(then=send.using(**texts).job(1)).job()], then=send.job(2))
    kit.run_worker()
    assert (seen, orders(kit)) == ([0, 2], [1])
    assert group.status().state == "finished"
    one, two = kit.jobs(send)
    assert {one["status"], two["status"]} == {"completed"}
    assert (one["tags"], one["metadata"]) == (["ä"], {"quote": '"}\\'})
    assert one["parent_id"] == group.jobs[0].id


def test_groups_and_replacements_are_part_of_the_callers_transaction(
    kind: Kind, app: Holdfast, kit: Kit, send: Send
) -> None:
    options: dict[str, Any] = {"replace_key": "k", "run_after": 3600}
    first = send.using(**options).enqueue(1)
    with pytest.raises(Undo), kind.block():
        assert not kind.enqueue(send, 2, **options).created
        raise Undo
    assert kit.job(first.id)["payload"] == {"order_id": 1}
    with kind.block():
        assert kind.enqueue(send, 3, then=send.job(9), **options).id == first.id
    assert kit.job(first.id)["payload"] == {"order_id": 3}

    @app.task
    def other() -> None: ...

    with kind.block():
        kind.write(1)
        with pytest.raises(ReplaceConflict):
            kind.enqueue(other, replace_key="k")
        kind.write(2)  # the transaction stays usable
    assert orders(kit) == [1, 2]
