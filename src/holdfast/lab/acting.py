"""Acts that many scenes share: buttons on a worker, and workers that come."""

from holdfast.lab.crew import Member
from holdfast.lab.scene import Act
from holdfast.lab.stage import Stage


def _kill(stage: Stage, member: Member) -> None:
    member.kill()
    stage.note(f"kill -9 {member.name}", "dead")


def _freeze(stage: Stage, member: Member) -> None:
    member.freeze()
    stage.note(f"freezes {member.name} (SIGSTOP)", "held")


def _wake(stage: Stage, member: Member) -> None:
    stage.note(f"wakes {member.name} (SIGCONT)", "run")
    member.wake()


def _drain(stage: Stage, member: Member) -> None:
    stage.note(f"asks {member.name} to leave (SIGTERM)", "held")
    member.drain()


def _join(stage: Stage) -> None:
    member = stage.start()
    stage.note(f"starts worker {member.name}")


KILL = Act("kill", "kill −9", _kill, "bolt", of_worker=True)
FREEZE = Act("freeze", "freeze", _freeze, "snow", of_worker=True)
WAKE = Act("wake", "wake", _wake, "play", of_worker=True)
DRAIN = Act("drain", "drain", _drain, "exit", of_worker=True)
JOIN = Act("join", "A worker joins", _join, "workers")
