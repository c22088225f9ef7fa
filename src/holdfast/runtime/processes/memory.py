"""How much memory a process really uses, and the limit on it. Linux reports that in /proc; elsewhere nothing is known."""

import contextlib
import math
import re
import resource
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from .reaper import family

MB = 1024 * 1024
_PROC = Path("/proc")
_KB = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


class MemoryLimit(Exception):
    """The handler needed more memory than its task allows."""


@dataclass(frozen=True, slots=True)
class Used:
    data: int = 0  # bytes it may write to, touched or not: what RLIMIT_DATA counts
    resident: int = 0  # bytes of it that are in memory, without files


def used(pid: int | str = "self") -> Used:
    found = _kilobytes(_PROC / str(pid) / "status")
    resident = found.get("RssAnon", 0) + found.get("RssShmem", 0)
    return Used(found.get("VmData", 0) * 1024, resident * 1024)


def used_together(pid: int) -> int:
    """Resident bytes of a process and of all that it started; shared pages count once."""
    processes = family(pid)
    if len(processes) == 1:
        return used(pid).resident
    total = 0
    for each in processes:
        share = _kilobytes(_PROC / str(each) / "smaps_rollup")
        total += share.get("Pss_Anon", 0) + share.get("Pss_Shmem", 0)
    return total * 1024


def _kilobytes(file: Path) -> dict[str, int]:
    try:
        return {name: int(number) for name, number in _KB.findall(file.read_text())}
    except OSError:  # gone, or another system
        return {}


def out_of_memory_kills() -> int:
    """How often the kernel has killed a process because memory ran out."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


_looked = [(-math.inf, 0)]  # when, and what was found


def kills_so_far(now: float) -> int:
    """The same, at most a second old: for jobs that come quickly. The real number may be lower."""
    if now - _looked[0][0] >= 1.0:
        _looked[0] = (now, out_of_memory_kills())
    return _looked[0][1]


def exceeded(limit: int, detail: str = "") -> str:
    return f"used more than its memory_limit of {limit // MB} MB{detail}"


class limited:  # noqa: N801 used as a function; a generator would leave its frames in the handler's traceback
    """Limit this process to `limit` bytes in all; beyond that, MemoryLimit is raised instead of MemoryError.

    RLIMIT_DATA, not RLIMIT_AS: numerical libraries, thread stacks and mapped files reserve address space that they never
    touch. Memory that is reserved and untouched now is not counted either. None is no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit

    def __enter__(self) -> None:
        if self._limit is not None:
            self._before = resource.getrlimit(resource.RLIMIT_DATA)
            _limit_data(self._limit)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._limit is None:
            return
        resource.setrlimit(resource.RLIMIT_DATA, self._before)
        if isinstance(error, MemoryError):
            raise MemoryLimit(exceeded(self._limit)).with_traceback(trace) from None


def _limit_data(limit: int) -> None:
    now = used()
    if now.resident >= limit:
        raise MemoryLimit(
            f"its memory_limit of {limit // MB} MB is less than the {now.resident // MB} MB "
            "that the process takes before the handler begins. Raise memory_limit"
        )
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = now.data + limit - now.resident
    resource.setrlimit(
        resource.RLIMIT_DATA, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most)
    )
