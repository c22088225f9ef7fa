"""The process that worker processes are forked from: `python -m holdfast.lab.fork_server`.

It reads orders from its standard input, one JSON line each, and says in one line each which process came and how one
ended. When its input ends, that is with the lab, it ends its children and itself.
"""

import json
import os
import selectors
import signal
import sys
import traceback
from typing import Any, NoReturn

from holdfast.lab.scenes import all_scenes
from holdfast.lab.worker import main

_LOOK = 0.05  # seconds between two looks for children that ended


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _become(order: dict[str, Any]) -> NoReturn:
    """In the child: a worker, in a group of its own, with a log of its own."""
    os.setpgid(0, 0)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for place, file in ((0, nothing), (1, log), (2, log)):
        os.dup2(file, place)
    os.environ.update(order["environment"])
    code = 1
    try:
        main(order["scene"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 it goes into the log, and no further
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        children.discard(pid)
        _say(ended=pid, code=os.waitstatus_to_exitcode(status))


def run() -> None:
    all_scenes()  # imported once, for all workers
    children: set[int] = set()
    ready = selectors.DefaultSelector()
    ready.register(0, selectors.EVENT_READ)
    rest = b""
    while True:
        _reap(children)
        if not ready.select(_LOOK):
            continue
        piece = os.read(0, 65536)
        if not piece:
            break
        *orders, rest = (rest + piece).split(b"\n")
        for line in orders:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(order)
            children.add(pid)
            _say(order=order["order"], pid=pid)
    for pid in children:  # not reaped yet, so the number is theirs
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    run()
