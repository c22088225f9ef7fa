"""The supervisor: it restarts who crashed, passes signals on once, replaces one by one, leaves nobody behind, and ends."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import wait_until
from tests.crash.supervision import Supervision, has_ended


@pytest.fixture
def supervision(tmp_path: Path) -> Iterator[Supervision]:
    supervision = Supervision(tmp_path)
    yield supervision
    supervision.end()


def pids(supervision: Supervision, what: str = "ready") -> list[int]:
    return [note["pid"] for note in supervision.notes(what)]


def test_a_crashed_child_is_started_again_after_growing_pauses(supervision: Supervision) -> None:
    supervision.behave("crash", place=0)
    supervision.start()
    died = supervision.until_event("supervisor.child_died", 5)
    assert [float(event["next_try_in"]) for event in died[:5]] == [0.05, 0.1, 0.2, 0.2, 0.2]
    assert died[0]["error"] == "the process was killed by signal 9 (SIGKILL)"
    supervision.behave("good", place=0)
    before = len(supervision.notes("ready", 0))
    wait_until(lambda: len(supervision.notes("ready", 0)) > before, "it runs again")
    assert len(supervision.notes("start", 1)) == 1  # the other one was left alone
    supervision.send(signal.SIGTERM)
    assert supervision.wait() == (0, "")


def test_a_child_that_lived_a_while_is_started_again_soon(supervision: Supervision) -> None:
    supervision.start(size=1, steady=0.0)
    for count in (1, 2, 3):
        child = supervision.until_noted("ready", count)[-1]["pid"]
        os.kill(child, signal.SIGKILL)
        supervision.until_event("supervisor.child_died", count)
    assert {e["next_try_in"] for e in supervision.events("supervisor.child_died")} == {"0.05"}


def test_a_mistake_at_the_start_is_made_once_and_ends_it(supervision: Supervision) -> None:
    supervision.behave("mistake")
    supervision.start(size=4)
    assert supervision.wait() == (2, "")  # the child has said what is wrong
    assert len(supervision.events("supervisor.child_started")) == 1


def test_what_cannot_start_at_all_is_given_up(supervision: Supervision) -> None:
    supervision.behave("broken")
    supervision.start(size=3)
    message = "no worker process gets ready, after 5 tries: the process ended with exit code 7"
    assert supervision.wait() == (1, message)
    assert len(supervision.notes("start")) == 5


def test_a_program_that_is_not_there_is_given_up_too(supervision: Supervision) -> None:
    supervision.start(program="/nowhere/python")
    code, message = supervision.wait()
    assert code == 1
    assert message == (
        "no worker process gets ready, after 5 tries: no process can be started: "
        "[Errno 2] No such file or directory: '/nowhere/python'"
    )


def test_a_mistake_of_one_that_starts_again_leaves_the_others_alone(supervision: Supervision) -> None:
    supervision.start()
    supervision.until_noted("ready", 2)
    supervision.behave("mistake", place=0)
    os.kill(supervision.notes("ready", 0)[0]["pid"], signal.SIGKILL)
    supervision.until_event("supervisor.child_died", 3)
    assert not has_ended(supervision.notes("ready", 1)[0]["pid"])
    supervision.behave("good", place=0)
    supervision.until_noted("ready", 2, place=0)
    supervision.send(signal.SIGTERM)
    assert supervision.wait() == (0, "")


def test_each_signal_is_passed_on_once_and_the_third_kills(supervision: Supervision) -> None:
    supervision.behave("deaf")
    supervision.start(size=3)
    children = [note["pid"] for note in supervision.until_noted("ready", 3)]
    supervision.send(signal.SIGTERM)
    supervision.until_noted("order 1", 3)
    assert [supervision.said_to(pid) for pid in children] == [["order 1"]] * 3
    supervision.send(signal.SIGINT)
    supervision.until_noted("order 2", 3)
    assert [supervision.said_to(pid) for pid in children] == [["order 1", "order 2"]] * 3
    supervision.send(signal.SIGTERM)
    assert supervision.wait()[0] == 1
    assert all(has_ended(pid) for pid in children)
    assert len(supervision.notes("start")) == 3  # nobody is started while it stops


def test_ctrl_c_reaches_the_children_once(supervision: Supervision) -> None:
    """The terminal signals the whole process group in front."""
    supervision.behave("slow")
    supervision.start()
    children = [note["pid"] for note in supervision.until_noted("ready", 2)]
    os.killpg(supervision.pid, signal.SIGINT)
    supervision.until_noted("order 1", 2)
    os.killpg(supervision.pid, signal.SIGINT)
    assert supervision.wait() == (0, "")
    assert [supervision.said_to(pid) for pid in children] == [["order 1", "order 2"]] * 2


def test_a_child_that_crashes_while_it_stops_is_not_started_again(supervision: Supervision) -> None:
    supervision.behave("slow")
    supervision.start()
    children = [note["pid"] for note in supervision.until_noted("ready", 2)]
    supervision.send(signal.SIGTERM)
    supervision.until_noted("order 1", 2)
    os.kill(children[0], signal.SIGKILL)
    supervision.until_event("supervisor.child_left")
    supervision.send(signal.SIGTERM)
    assert supervision.wait()[0] == 1  # not a clean drain
    assert len(supervision.notes("start")) == 2


def test_a_child_that_does_not_leave_in_time_is_killed(supervision: Supervision) -> None:
    supervision.behave("deaf", place=0)
    supervision.start(drain=0.2, last=0.2)
    children = [note["pid"] for note in supervision.until_noted("ready", 2)]
    supervision.send(signal.SIGTERM)
    assert supervision.wait()[0] == 1
    (late,) = supervision.events("supervisor.child_late")
    assert late["pid"] == str(supervision.notes("ready", 0)[0]["pid"])
    assert all(has_ended(pid) for pid in children)


def test_a_stop_while_children_start_ends_them(supervision: Supervision) -> None:
    supervision.behave("importing")
    supervision.start()
    (child,) = (note["pid"] for note in supervision.until_noted("start"))
    supervision.send(signal.SIGTERM)
    assert supervision.wait() == (0, "")
    assert has_ended(child)


def test_who_leaves_with_0_is_not_started_again(supervision: Supervision) -> None:
    supervision.behave("leave", place=0)
    supervision.start()
    supervision.until_event("supervisor.child_left")
    supervision.until_noted("ready", place=1)
    assert supervision.process.poll() is None
    os.kill(supervision.notes("ready", 1)[0]["pid"], signal.SIGKILL)  # a round later
    supervision.until_noted("ready", 2, place=1)
    assert len(supervision.notes("start", 0)) == 1
    supervision.behave("leave", place=1)
    os.kill(supervision.notes("ready", 1)[1]["pid"], signal.SIGKILL)
    assert supervision.wait() == (0, "")  # all have left


def test_children_see_that_the_supervisor_was_killed(supervision: Supervision) -> None:
    supervision.start()
    children = [note["pid"] for note in supervision.until_noted("ready", 2)]
    supervision.send(signal.SIGKILL)
    supervision.until_noted("alone", 2)
    wait_until(lambda: all(has_ended(pid) for pid in children), "nobody is left")


def test_sighup_replaces_one_after_the_other(supervision: Supervision) -> None:
    supervision.start(size=3)
    old = [note["pid"] for note in supervision.until_noted("ready", 3)]
    supervision.send(signal.SIGHUP)
    supervision.until_event("supervisor.rolled")
    story = [(n["what"], n["place"]) for n in supervision.notes() if n["what"] != "start"][3:]
    assert story == [(what, place) for place in range(3) for what in ("ready", "order 1")]
    fresh = pids(supervision)[3:]
    assert all(has_ended(pid) for pid in old)
    assert not any(has_ended(pid) for pid in fresh)
    supervision.send(signal.SIGTERM)
    assert supervision.wait() == (0, "")
    assert [supervision.said_to(pid) for pid in fresh] == [["order 1"]] * 3


def test_a_terminal_that_is_closed_drains(supervision: Supervision) -> None:
    """Its hangup is a SIGHUP too."""
    supervision.start(terminal=True)
    children = [note["pid"] for note in supervision.until_noted("ready", 2)]
    supervision.process.kill()
    (stopped,) = supervision.until_event("supervisor.stopped")
    assert stopped["code"] == "0"
    assert [supervision.said_to(pid) for pid in children] == [["order 1"]] * 2
    assert not supervision.events("supervisor.rolling")


def test_a_successor_that_does_not_start_ends_the_replacement_and_nothing_else(
    supervision: Supervision,
) -> None:
    supervision.start()
    old = [note["pid"] for note in supervision.until_noted("ready", 2)]
    supervision.behave("mistake")
    supervision.send(signal.SIGHUP)
    (failed,) = supervision.until_event("supervisor.roll_failed")
    assert failed["error"] == (
        "the new process did not get ready: the process ended with exit code 2. The others stay as they are"
    )
    assert not any(has_ended(pid) for pid in old)
    assert not any(supervision.said_to(pid) for pid in old)
    supervision.behave("good")
    supervision.send(signal.SIGHUP)
    supervision.until_event("supervisor.rolled")
    assert all(has_ended(pid) for pid in old)
    assert len(supervision.notes("start")) == 2 + 1 + 2  # the mistake was made once


def test_one_that_dies_while_its_successor_starts_is_replaced_by_it(supervision: Supervision) -> None:
    supervision.start()
    old = [note["pid"] for note in supervision.until_noted("ready", 2)]
    supervision.behave("importing", place=0)
    supervision.send(signal.SIGHUP)
    successor = supervision.until_noted("start", 2, place=0)[1]["pid"]
    os.kill(supervision.notes("ready", 0)[0]["pid"], signal.SIGKILL)
    supervision.until_event("supervisor.child_left")
    supervision.behave("good", place=0)
    os.kill(successor, signal.SIGKILL)  # now it is a child like every other, and is started again
    supervision.until_event("supervisor.child_died")
    supervision.until_noted("ready", 2, place=0)
    supervision.until_event("supervisor.rolled")
    assert all(has_ended(pid) for pid in old)
    assert len({note["pid"] for note in supervision.notes("start")} - set(old)) == 3
    supervision.send(signal.SIGTERM)
    assert supervision.wait() == (0, "")


def test_nobody_stays_a_zombie(supervision: Supervision) -> None:
    """Neither its own children nor what they left behind, when it is the first process of a container."""
    supervision.behave("stray")
    supervision.start(adopts=True)
    supervision.until_noted("ready", 2)
    strays = [note["pid"] for note in supervision.until_noted("stray", 2)]
    os.kill(pids(supervision)[0], signal.SIGKILL)
    supervision.until_noted("ready", 3)
    gone = [*strays, pids(supervision)[0]]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in gone), "all are reaped")
