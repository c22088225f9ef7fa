"""The app of the process tests. Children import it as this module; files in PROCESS_FOLDER tell what it did."""

import asyncio
import contextlib
import ctypes
import logging
import mmap
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from pydantic import BaseModel

from holdfast import (
    AsyncTransaction,
    Backoff,
    Cancel,
    DeadLetter,
    Holdfast,
    Job,
    Next,
    Outcome,
    Retry,
    Snooze,
    Transaction,
    telemetry,
)
from holdfast.runtime.processes import origin
from holdfast.runtime.processes.frames import pack

LIMIT = 128 * 1024 * 1024
SLOW = Backoff(first=3600, jitter=False)
log = logging.getLogger("crunch")


def note(kind: str, text: object = "") -> None:
    """A line `kind pid text`, whole or not there."""
    folder = os.environ.get("PROCESS_FOLDER")
    if folder is not None:
        file = os.open(Path(folder) / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{kind} {os.getpid()} {text}\n".encode())
        os.close(file)


@contextlib.asynccontextmanager
async def lifespan(app: Holdfast) -> AsyncIterator[None]:
    note("enter")
    if origin.in_child and "PROCESS_SLOW" in os.environ:
        await asyncio.sleep(600)
    if origin.in_child and "PROCESS_BROKEN" in os.environ:
        raise RuntimeError("no model file")
    yield
    note("exit")


async def agate(gate: str) -> None:
    while not (Path(os.environ["PROCESS_FOLDER"]) / gate).exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def layer(job: Job, call_next: Next) -> Outcome:
    note("middleware", job.task)
    outcome = await call_next()
    if job.metadata.get("linger"):
        note("lingers")
        await agate("linger")
    return outcome


app = Holdfast(lifespan=lifespan, middleware=[layer])
app.queue("in_order", ordering="key")


@app.around
@contextlib.contextmanager
def surrounding() -> Iterator[None]:
    note("hook", threading.current_thread().name)
    yield


@app.task(process=True)
def pid() -> int:
    return os.getpid()


@app.task(process=True)
def family(job: Job, tx: Transaction) -> list[str | None]:
    return [str(job.parent_id), str(job.group_id), tx.execute("SELECT current_database()").fetchone()[0]]  # type: ignore[index]


@app.task(process=True)
async def apid() -> int:
    assert asyncio.current_task() is not None
    return os.getpid()


class Order(BaseModel):
    id: int
    lines: list[str]


@app.task(process=True)
def total(order: Order, note: str) -> list[object]:
    return [order.id, len(order.lines), note]


@app.task(process=True, max_attempts=3, retry=SLOW)
def signals(job: Job, how: str) -> str:
    if how == "retry":
        raise Retry("the bank was busy", after=60)
    if how == "snooze":
        raise Snooze(60)
    if how == "dead":
        raise DeadLetter("no such order")
    if how == "cancel":
        raise Cancel("not needed")
    if how == "error":
        raise ValueError("out of range")
    if how == "exit":
        sys.exit(3)
    return f"{job.task} {job.attempt} {job.metadata['tenant']} {job.fence}"


@app.task(process=True)
def write(job: Job, tx: Transaction, text: str) -> str:
    tx.execute("INSERT INTO notes VALUES (%s)", [text])
    pid.using(conn=tx).enqueue()
    return text


@app.task(process=True)
async def awrite(job: Job, tx: AsyncTransaction, text: str) -> str:
    await tx.execute("INSERT INTO notes VALUES (%s)", [text])
    return text


@app.task(process=True, max_attempts=2, retry=Backoff(first=0, jitter=False))
def steps(job: Job) -> int:
    value = job.once("draw", os.getpid)
    if job.attempt == 1:
        raise RuntimeError("again")
    return value


@app.task(process=True)
def command() -> list[str]:
    return Path("/proc/self/cmdline").read_text().strip("\0").split("\0")


@app.task(process=True)
def context() -> dict[str, object]:
    return dict(telemetry.job_context.get())


@app.task(process=True)
def far(job: Job, gate: str) -> None:
    job.progress(0.25, "a quarter")
    job.progress(0.5, "half way")
    wait_for(gate)


def wait_for(gate: str) -> None:
    while not (Path(os.environ["PROCESS_FOLDER"]) / gate).exists():
        time.sleep(0.01)


@app.task(process=True)
def behind(gate: str) -> int:
    note("start", gate)
    wait_for(gate)
    return os.getpid()


@app.task(process=True)
def behind_in_transaction(tx: Transaction, gate: str) -> None:
    tx.execute("INSERT INTO notes VALUES (%s)", [gate])
    note("start", gate)
    wait_for(gate)


@app.task(process=True)
def careful(job: Job) -> None:
    """Looks whether it should go on."""
    note("start")
    try:
        while True:
            job.check()
            time.sleep(0.01)
    except Cancel:
        note("told")
        raise


@app.task(process=True)
async def acareful() -> None:
    note("start")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note("told")
        raise


@app.task(process=True, timeout=0.5, max_attempts=2, retry=SLOW)
def endless(how: str) -> None:
    note("start", how)
    while how == "python":
        pass
    while how == "print":
        print("x" * 1000)
    if how == "talk":  # faster than anybody can listen
        line = {"frame": "log", "logger": "crunch", "level": logging.DEBUG, "text": "x"}
        link, data = socket.socket(fileno=int(sys.argv[1])), pack(line) * 1000
        while True:
            link.sendall(data)
    if how == "a little":
        time.sleep(2.0)
    else:
        stay_in_c()


def stay_in_c() -> None:
    """In C code that never lets go of the interpreter, deaf to every signal that one can be deaf to."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(600)


def start_orphan() -> None:
    """A program with a session of its own, whose parent is gone."""
    code = (
        "import subprocess, sys; words = [sys.executable, '-c', 'import time; time.sleep(600)']; "
        "print(subprocess.Popen(words, start_new_session=True, stdout=-3, stderr=-3).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], start_new_session=True, check=True, capture_output=True, text=True
    )
    note("program", done.stdout.strip())


@app.task(process=True)
def deaf(how: str, gate: str = "never") -> None:
    """`family`: with a program of its own beside it; `session`: with one that has a session; `stuck`: in C code."""
    if how == "family":
        program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note("program", program.pid)
    if "session" in how:
        start_orphan()
    note("start", how)
    if "stuck" in how:
        stay_in_c()
    wait_for(gate)


@app.task(process=True, memory_limit=LIMIT, max_attempts=1)
def take(mb: int) -> int:
    note("start", mb)
    return len(bytearray(mb * 1024 * 1024))


@app.task(process=True, memory_limit=LIMIT, max_attempts=2, retry=SLOW)
def take_and_retry(mb: int) -> int:
    return len(bytearray(mb * 1024 * 1024))


@app.task(process=True, memory_limit=LIMIT, max_attempts=1)
def take_shared(mb: int) -> None:
    """Memory that RLIMIT_DATA does not count."""
    with mmap.mmap(-1, mb * 1024 * 1024) as shared:
        for page in range(0, len(shared), mmap.PAGESIZE):
            shared[page] = 1
        time.sleep(10)


@app.task(process=True, memory_limit=LIMIT, max_attempts=1)
def take_together(programs: int, mb: int) -> None:
    """Each below the limit, together above it."""
    code = f"import time; a = bytearray({mb} * 1024 * 1024); time.sleep(600)"
    for _ in range(programs):
        note("program", subprocess.Popen([sys.executable, "-c", code]).pid)
    time.sleep(10)


ballast: list[bytearray] = []


@app.task(process=True)
def keep(mb: int) -> int:
    ballast.append(bytearray(mb * 1024 * 1024))
    return os.getpid()


@app.task(process=True, memory_limit=LIMIT)
def small() -> int:
    return os.getpid()


@app.task(process=True, max_attempts=1)
def die(how: str) -> None:
    print("about to die", flush=False)
    note("start", how)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(7)
    if how == "exit 0":
        os._exit(0)
    if how == "abort":
        os.abort()
    if how in ("hang up", "babble"):
        link = socket.socket(fileno=int(sys.argv[1]))
        link.shutdown(socket.SHUT_RDWR) if how == "hang up" else link.sendall(b"\xff\xff\xff\xff")
    time.sleep(600)


@app.task(process=True, max_attempts=3, retry=Backoff(first=0, jitter=False))
def die_twice(job: Job) -> int:
    if job.attempt < 3:
        os._exit(7)
    return job.attempt


@app.task
async def in_the_loop(gate: str) -> int:
    await agate(gate)
    return os.getpid()


@app.task
def in_a_thread(gate: str) -> int:
    wait_for(gate)
    return os.getpid()


@app.task
async def block_the_loop(until_gone: int) -> bool:
    """Holds up the worker's event loop until that process is gone; whether it went."""
    began = time.monotonic()
    note("blocked")
    while Path(f"/proc/{until_gone}").exists() and time.monotonic() - began < 20:
        time.sleep(0.01)
    return not Path(f"/proc/{until_gone}").exists()


@app.task(process=True, timeout=1.0, max_attempts=1)
def sleep_long() -> None:
    note("start")
    time.sleep(600)


@app.task(process=True, max_attempts=1)
def talk(how: str) -> None:
    if how == "lines":
        print("first line")
        print("zweite Zeile: äöü", file=sys.stderr)
        sys.stdout.write("begun")
    if how == "much":
        line = b"x" * 99 + b"\n"
        for _ in range(1000):
            os.write(1, line * 1000)  # 100 MB in all
        print("the very last")
    if how == "endless line":
        os.write(1, b"y" * 5_000_000)
    if how == "bytes":
        os.write(1, b"\xff\x00\x1b[31m\n")
    raise ValueError("after all that")


@app.task(process=True)
def say() -> None:
    log.info("counting %s", "sheep")
    log.debug("not this")
    try:
        raise KeyError("k")
    except KeyError:
        log.exception("went wrong")
    fork = os.fork()
    if fork == 0:
        log.warning("from a fork")
        telemetry.emit("not.this")
        os._exit(0)
    os.waitpid(fork, 0)
    telemetry.emit("sheep.counted", level=logging.WARNING, count=3, when=time.gmtime)


LEAKED: list[bytes] = []


@app.task(process=True)
def leaky() -> int:
    LEAKED.append(b"x" * (4 * 1024 * 1024))
    return os.getpid()


@app.task(process=True)
def forgetful() -> int:
    """Leaves a thread behind that is no daemon."""
    threading.Thread(target=time.sleep, args=(600,)).start()
    return os.getpid()


@app.task(process=True, timeout=0.5, max_attempts=1)
def short() -> int:
    return os.getpid()


@app.task(process=True)
async def leave(how: str) -> int:
    """Leaves something behind in the event loop, or outside."""

    async def polite() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            note("told")
            raise

    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)

    def block() -> None:
        note("blocked")
        time.sleep(600)

    loop = asyncio.get_running_loop()
    if how == "blocked":
        loop.call_later(0.05, block)
    elif how == "program":
        start_orphan()
    else:
        ballast_tasks.append(loop.create_task(polite() if how == "polite" else stubborn()))
        await asyncio.sleep(0)
    return os.getpid()


ballast_tasks: list["asyncio.Task[None]"] = []


@app.task(process=True, timeout=20, max_attempts=1)
async def afork(how: str) -> int:
    return fork(how)


@app.task(process=True, timeout=20, max_attempts=1)
def tfork(how: str) -> int:
    return fork(how)


def fork(how: str) -> int:
    """Two processes return from here."""
    child = os.fork()
    if child == 0:
        if how == "raise":
            raise ValueError("in the fork")
        if how == "exit":
            sys.exit(3)
        return -1
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@app.task(process=True, timeout=20, max_attempts=1)
def with_pool() -> list[int]:
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:  # its end terminates the processes
        squares = pool.map(abs, [-1, 2, -3])
    process = context.Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    process.join()
    return [*squares, process.exitcode or 0]


@app.task(process=True, timeout=0.5, max_attempts=1)
def log_and_hang() -> None:
    log.warning("about to hang")
    note("start")
    time.sleep(600)


@app.task(process=True, max_attempts=1)
def shout() -> int:
    telemetry.emit("shouted", text="x" * 20_000_000, many=["y" * 1000] * 1000, few=[1, 2])
    return os.getpid()


@app.task(process=True)
def babble_later(gate: str) -> int:
    """Breaks the rules when it has no job any more."""

    def babble() -> None:
        wait_for(gate)
        os.write(int(sys.argv[1]), b"\xff\xff\xff\xff")
        note("babbled")

    threading.Thread(target=babble, daemon=True).start()
    return os.getpid()


@app.task(process=True, queue="in_order", retry=Backoff(first=0, jitter=False))
def in_order(job: Job, key: str, n: int) -> None:
    note("begins", f"{key} {n}")
    time.sleep(0.002)
    note("ends", f"{key} {n}")
    if n == 2 and job.attempt == 1:
        raise ValueError(n)
    if n == 3 and job.generation < 4:
        os.kill(os.getpid(), signal.SIGKILL)
