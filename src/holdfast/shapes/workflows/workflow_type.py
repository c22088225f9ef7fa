"""A declared workflow, and the starts of its runs: one, or many in one statement."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, TypeVar
from uuid import uuid4

from ...errors import InvalidOption
from ...model.duration import Duration, seconds
from ...store.statement import Statement
from ...tasks import checks
from ...tasks.codec import Codec
from ...tasks.definition import Binding
from ...tasks.payload import shown
from ...tasks.writer import unknown_queue
from . import store
from .handles import Run, RunAccess, check_message
from .journal import Started, StartRun
from .messages import Message

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Starting:
    """Checked options of a start."""

    id: str | None = None
    conn: object = None
    if_exists: Literal["same", "restart_ended", "refuse"] = "same"
    delay: float = 0.0
    timeout: float | None = None
    priority: int = 0
    tags: tuple[str, ...] = ()
    signal_key: str | None = None


class NewRun(Generic[T_co]):
    """A run that is not started yet: `checkout.start_many(checkout.new(order_id, cents=5) for order_id in ids)`."""

    __slots__ = ("_conn", "_new", "_timeout")

    def __init__(self, new: StartRun, options: "Starting") -> None:
        self._new = new
        self._timeout = options.timeout
        self._conn = options.conn

    @property
    def id(self) -> str:
        """What it will be started with."""
        return self._new.id

    def __repr__(self) -> str:
        return f"NewRun({self._new.workflow} {self._new.id!r})"


class WorkflowUsing(Generic[P, T]):
    """A workflow with the options of a start: `checkout.using(id="checkout:9182", conn=conn).start(9182, cents=995)`."""

    __slots__ = ("_options", "_workflow")

    def __init__(self, workflow: "WorkflowType[P, T]", options: Starting) -> None:
        self._workflow = workflow
        self._options = options

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """Start a run, when the transaction of `conn` commits. The same id gives the same run."""
        flow, options = self._workflow, self._options
        new = self._new(args, kwargs)
        reach = flow._reach()
        reach.ready(flow.queue)
        made = reach.run(lambda: store.start(new, timeout=options.timeout), options.conn, "start")
        return self._run(reach, new, made)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """`await checkout.using(conn=tx).astart(9182, cents=995)`: see start()."""
        flow, options = self._workflow, self._options
        new = self._new(args, kwargs)
        reach = flow._reach()
        await reach.aready(flow.queue)
        made = await reach.astart(new, options.timeout, options.conn)
        return self._run(reach, new, made)

    def start_with_signal(self, message: Message, /, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """Start a run and send it a signal, both or neither: `cart.using(id="cart:7").start_with_signal(ADDED("pen"), 7)`.
        A run that is there is sent the signal alone; where it has ended, InvalidOption says so. `using(signal_key=)`: the
        same key twice is one signal."""
        reach, new, make = self._with_signal(message, args, kwargs)
        reach.ready(self._workflow.queue)
        made, sent = reach.run(make, self._options.conn, "start_with_signal")
        return self._sent(reach, new, made, sent)

    async def astart_with_signal(self, message: Message, /, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """`await cart.using(id="cart:7").astart_with_signal(ADDED("book"), 7)`: see start_with_signal()."""
        reach, new, make = self._with_signal(message, args, kwargs)
        await reach.aready(self._workflow.queue)
        made, sent = await reach.arun(make, self._options.conn, "start_with_signal")
        return self._sent(reach, new, made, sent)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewRun[T]:
        """A run to start with others: `checkout.start_many([checkout.using(id="checkout:1").new(1, cents=5)])`."""
        return NewRun(self._new(args, kwargs), self._options)

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, signals: bool = False) -> StartRun:
        flow, options = self._workflow, self._options
        if options.signal_key is not None and not signals:
            raise InvalidOption("signal_key is of the signal of start_with_signal(): leave it out")
        return StartRun(
            flow.name,
            flow.version,
            options.id or str(uuid4()),
            flow._encode(args, kwargs),
            flow.queue,
            options.delay,
            options.priority,
            options.tags,
            options.if_exists,
        )

    def _with_signal(
        self, message: Message, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[RunAccess, StartRun, Callable[[], Statement[tuple[Started, str | None]]]]:
        check_message(message, "start_with_signal")
        options, new = self._options, self._new(args, kwargs, signals=True)

        def make() -> Statement[tuple[Started, str | None]]:
            return store.start_with_signal(new, message, options.signal_key, options.timeout)

        return self._workflow._reach(), new, make

    def _sent(self, reach: RunAccess, new: StartRun, made: Started, sent: str | None) -> Run[T]:
        run = self._run(reach, new, made)
        if sent == "ended":
            raise InvalidOption(
                f"run {new.id!r} of {new.workflow} has ended: the signal was not sent, and nothing was started. "
                'To start a new one, write using(if_exists="restart_ended")'
            )
        return run

    def _run(self, reach: RunAccess, new: StartRun, made: Started) -> Run[T]:
        if made.conflict is not None:
            raise _refused(new, made.conflict)
        return self._workflow._handle(reach, new, made)


class WorkflowType(Generic[P, T]):
    """A declared workflow: `run = checkout.start(9182, cents=995)`. Made by `@app.workflow()`."""

    __slots__ = ("_binding", "_codec", "func", "name", "queue", "version")

    def __init__(
        self, name: str, version: int, queue: str, codec: Codec, binding: Binding, func: Callable[..., Any]
    ) -> None:
        self.name = name
        self.version = version
        self.queue = queue
        self.func = func  # as it was written
        self._codec = codec
        self._binding = binding

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """Start a run: `run = checkout.start(9182, cents=995)`."""
        return WorkflowUsing(self, Starting()).start(*args, **kwargs)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """`run = await checkout.astart(9182, cents=995)`."""
        return await WorkflowUsing(self, Starting()).astart(*args, **kwargs)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewRun[T]:
        """A run to start with others: `checkout.start_many(checkout.new(n, cents=5) for n in orders)`."""
        return WorkflowUsing(self, Starting()).new(*args, **kwargs)

    def start_many(self, runs: Iterable[NewRun[T]], *, conn: object = None) -> list[Run[T]]:
        """Start runs in one statement, all or none: `checkout.start_many(checkout.new(n, cents=5) for n in orders)`. They
        differ only in their input and id. An id that has a run returns that one, as start() does."""
        news, timeout = _alike(self, runs, conn, "start_many")
        if not news:
            return []
        reach = self._reach()
        reach.ready(self.queue)
        made = reach.run(lambda: store.start_many(news, timeout=timeout), conn, "start_many")
        return self._handles(reach, news, made)

    async def astart_many(self, runs: Iterable[NewRun[T]], *, conn: object = None) -> list[Run[T]]:
        """`await checkout.astart_many(checkout.new(n, cents=5) for n in orders)`: see start_many()."""
        news, timeout = _alike(self, runs, conn, "astart_many")
        if not news:
            return []
        reach = self._reach()
        await reach.aready(self.queue)
        made = await reach.arun(lambda: store.start_many(news, timeout=timeout), conn, "start_many")
        return self._handles(reach, news, made)

    def using(
        self,
        *,
        id: str | None = None,  # noqa: A002 the word for it everywhere
        conn: object = None,
        if_exists: Literal["same", "restart_ended", "refuse"] = "same",
        delay: Duration | None = None,
        timeout: Duration | None = None,
        priority: int = 0,
        tags: Sequence[str] = (),
        signal_key: str | None = None,
    ) -> WorkflowUsing[P, T]:
        """Options of a start: `checkout.using(id="checkout:9182", conn=conn).start(9182, cents=995)`.

        `id`: one run per id and workflow. `timeout`: of the whole run, which is cancelled then. `signal_key`: the
        idempotency key of the signal of start_with_signal()."""
        fail = InvalidOption
        if id is not None:
            checks.key(id, "id", fail, empty=False)
        if signal_key is not None:
            checks.key(signal_key, "signal_key", fail, empty=False)
        if if_exists not in ("same", "restart_ended", "refuse"):
            raise fail(f"if_exists must be same, restart_ended or refuse, not {shown(if_exists)}")
        options = Starting(
            id,
            conn,
            if_exists,
            0.0 if delay is None else _ahead(delay, "delay"),
            None if timeout is None else checks.period(_ahead(timeout, "timeout"), "timeout", fail),
            checks.integer(priority, "priority", -100, 100, fail),
            checks.tags(tags, fail),
            signal_key,
        )
        return WorkflowUsing(self, options)

    def get(self, id: str) -> Run[T]:  # noqa: A002 as above
        """A handle of the run with that id; it queries the database only when used."""
        checks.key(id, "id", InvalidOption, empty=False)
        return Run(self._reach(), self.name, None, id, self._decode, created=False)

    def __repr__(self) -> str:
        return f"WorkflowType({self.name!r}, version {self.version})"

    def _reach(self) -> RunAccess:
        return RunAccess(self._binding, self.name)

    def _handle(self, reach: RunAccess, new: StartRun, made: Started) -> Run[T]:
        return Run(reach, new.workflow, made.run_id, new.id, self._decode, created=made.created)

    def _handles(self, reach: RunAccess, news: Sequence[StartRun], made: Sequence[Started]) -> list[Run[T]]:
        for n, (new, one) in enumerate(zip(news, made, strict=True)):
            if one.conflict is not None:
                raise _refused(new, one.conflict, n)
        return [self._handle(reach, new, one) for new, one in zip(news, made, strict=True)]

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return self._codec.encode(args, kwargs)

    def _decode(self, text: str | None) -> Any:
        return self._codec.decode_result(text)


def _ahead(value: Duration, what: str) -> float:
    """Seconds from now on, as far as the database goes."""
    try:
        number = seconds(value, what)
    except (TypeError, ValueError) as error:
        raise InvalidOption(str(error)) from None
    if number > checks.MAX_DELAY.total_seconds():
        raise InvalidOption(f"{what} must be at most 10 years, not {shown(value)}")
    return number


def _alike(
    workflow: WorkflowType[Any, T], runs: Iterable[NewRun[T]], conn: object, verb: str
) -> tuple[list[StartRun], float | None]:
    """The rows of the runs: they belong to this workflow, and have the options of the first."""
    news: list[StartRun] = []
    first: tuple[object, ...] | None = None
    timeout = None
    for n, run in enumerate(runs):
        if not isinstance(run, NewRun):
            raise TypeError(
                f"{verb}() takes what {workflow.name}.new(...) returns; runs[{n}] is {shown(run)}"
            )
        new = run._new
        if (new.workflow, new.version) != (workflow.name, workflow.version):
            raise InvalidOption(
                f"runs[{n}] is of {new.workflow} version {new.version}, and this is {workflow.name} version "
                f"{workflow.version}. Start it with its own {verb}()"
            )
        if run._conn is not None and run._conn is not conn:
            raise InvalidOption(
                f"runs[{n}] was made with using(conn=...), which {verb}() does not read. "
                f"Pass it there: {verb}(runs, conn=conn)"
            )
        options = (new.if_exists, new.delay, run._timeout, new.priority, tuple(new.tags))
        first = first or options
        if options != first:
            raise _differs(n, options, first, verb)
        news.append(new)
        timeout = run._timeout
    return news, timeout


def _differs(n: int, options: Sequence[object], first: Sequence[object], verb: str) -> InvalidOption:
    names = ("if_exists", "delay", "timeout", "priority", "tags")
    name, its, other = next(
        found for found in zip(names, options, first, strict=True) if found[1] != found[2]
    )
    return InvalidOption(
        f"runs[{n}] has {name}={its!r}, and runs[0] has {name}={other!r}. The runs of one call differ in their input and "
        f"id alone: call {verb}() once for each"
    )


def _refused(new: StartRun, conflict: str, place: int | None = None) -> Exception:
    if conflict == "queue":
        return unknown_queue(new.queue, [])
    where = "" if place is None else f"runs[{place}]: "
    return InvalidOption(
        f"{where}there is a run {new.id!r} of {new.workflow} already. Take another id, or leave if_exists out to get it"
    )
