"""Named places where a test may stop, kill, delay or fail the program. Off by default, and then free.

`HOLDFAST_FAILPOINTS="settle.sent=kill;claim.after=sleep:2"` arms them in a process; `arm()` in the same one.
Actions: kill (SIGKILL), stop (SIGSTOP), exit, raise, sleep:SECONDS, hit:PATH (append a line to a file).
"""

import os
import signal
import time
from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}


class FailpointError(RuntimeError):
    """Raised by a failpoint armed with `raise`."""


def _action(name: str, spec: str) -> Callable[[], None]:
    verb, _, argument = spec.partition(":")

    def touch() -> None:
        with open(argument, "a", encoding="utf-8") as file:
            file.write(name + "\n")

    def fail() -> None:
        raise FailpointError(name)

    actions: dict[str, Callable[[], None]] = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "exit": lambda: os._exit(3),
        "raise": fail,
        "sleep": lambda: time.sleep(float(argument)),
        "hit": touch,
    }
    if verb not in actions:
        raise ValueError(f"failpoint {name}={spec}: unknown action {verb!r} (known: {', '.join(actions)})")
    return actions[verb]


def arm(name: str, action: str | Callable[[], None]) -> None:
    _armed[name] = _action(name, action) if isinstance(action, str) else action


def disarm(name: str | None = None) -> None:
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)


def point(name: str) -> None:
    if _armed and name in _armed:
        _armed[name]()


def _arm_from_environment() -> None:
    for item in filter(None, os.environ.get("HOLDFAST_FAILPOINTS", "").split(";")):
        name, _, spec = item.partition("=")
        arm(name.strip(), spec.strip())


_arm_from_environment()
