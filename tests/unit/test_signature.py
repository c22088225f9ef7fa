"""Which parameters are injected, which are the payload, and the corrected `def` line of every refusal."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import pytest

import holdfast.runtime.job
from holdfast.db.transaction import AsyncTransaction, Transaction
from holdfast.errors import TaskDefinitionError
from holdfast.runtime.job import Job
from holdfast.tasks.signature import analyse, call_line

if TYPE_CHECKING:
    from elsewhere import Thing  # type: ignore[import-not-found]


async def none() -> None: ...
async def job_only(job: Job, order_id: int) -> str: ...  # type: ignore[empty-body]
async def tx_only(tx: AsyncTransaction, order_id: int) -> str: ...  # type: ignore[empty-body]
async def both(job: Job, tx: AsyncTransaction, /, order_id: int, *, note: str = "") -> str: ...  # type: ignore[empty-body]
def sync_both(job: Job, tx: Transaction, order_id: int) -> str: ...  # type: ignore[empty-body]
def dotted(job: holdfast.runtime.job.Job, x: int) -> None: ...
def bare(a, b=3): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("func", "is_async", "wants_job", "transaction", "params"),
    [
        (none, True, False, "none", []),
        (job_only, True, True, "none", ["order_id"]),
        (tx_only, True, False, "async", ["order_id"]),
        (both, True, True, "async", ["order_id", "note"]),
        (sync_both, False, True, "sync", ["order_id"]),
        (dotted, False, True, "none", ["x"]),
        (bare, False, False, "none", ["a", "b"]),
    ],
)
def test_what_is_injected(
    func: Callable[..., Any], is_async: bool, wants_job: bool, transaction: str, params: list[str]
) -> None:
    found = analyse(func)
    assert found.is_async is is_async
    assert found.wants_job is wants_job
    assert found.transaction == transaction
    assert list(found.params) == params


def test_hints_are_resolved_and_missing_ones_are_any() -> None:
    assert analyse(job_only).hint("order_id") is int
    assert analyse(job_only).hint("return") is str
    assert analyse(none).hint("return") is type(None)
    assert analyse(bare).hint("a") is Any
    assert analyse(bare).hint("return") is Any


def test_annotated_keeps_its_metadata() -> None:
    def f(x: Annotated[int, "meta"]) -> None: ...

    assert analyse(f).hint("x") == Annotated[int, "meta"]


def test_names_that_only_the_type_checker_knows_are_known_by_their_text() -> None:
    space: dict[str, Any] = {}
    source = "async def f(job: 'Job', tx: 'hf.AsyncTransaction', x: int): ..."
    exec(source, space)
    found = analyse(space["f"])
    assert found.wants_job
    assert found.transaction == "async"
    assert list(found.params) == ["x"]


def test_a_users_own_class_named_job_is_payload() -> None:
    class Job: ...

    def f(x: int, job: Job) -> None: ...

    found = analyse(f, locals())
    assert not found.wants_job
    assert found.hint("job") is Job


def test_a_local_type_is_found_at_decoration() -> None:
    class Local: ...

    def f(x: Local, y: list[Local]) -> None: ...

    found = analyse(f, locals())
    assert found.hint("x") is Local
    assert found.hint("y") == list[Local]


def test_a_name_defined_later_is_found_later() -> None:
    space: dict[str, Any] = {}
    exec("def f(x: 'Later'): ...", space)
    found = analyse(space["f"])
    space["Later"] = int
    assert found.hint("x") is int


def test_a_name_never_defined_is_named() -> None:
    def f(x: Thing) -> Thing: ...

    found = analyse(f)
    for name, which in (("x", "parameter 'x'"), ("return", "its return value")):
        with pytest.raises(TaskDefinitionError) as caught:
            found.hint(name)
        assert str(caught.value) == (
            f"the annotation 'Thing' of {which} is unknown: NameError: name 'Thing' is not defined. "
            "Import or define the name at module level, outside `if TYPE_CHECKING`"
        )


def test_a_wrapped_function_shows_its_own_signature() -> None:
    @functools.wraps(job_only)
    async def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    found = analyse(wrapper)
    assert found.wants_job
    assert found.is_async
    assert found.hint("order_id") is int


def test_call_line() -> None:
    assert call_line("both", analyse(both).call) == "both(order_id: int, note: str = '')"


def after(invoice_id: int, job: Job, tx: Transaction) -> None: ...
async def swapped(tx: AsyncTransaction, job: Job, invoice_id: int = 3) -> None: ...
async def wrong_tx(job: Job, tx: Transaction, invoice_id: int) -> None: ...
def wrong_async(tx: AsyncTransaction, rows: list[int]) -> None: ...
def star(job: Job, *args: int, note: str = "") -> None: ...
def stars(a, **kwargs): ...  # type: ignore[no-untyped-def]
def positional(a: int, /, b: int) -> None: ...
def keyword(*, job: Job, a: int) -> None: ...
def twice(job: Job, again: Job, a: int) -> None: ...
def two(tx: Transaction, atx: AsyncTransaction) -> None: ...
def optional(job: Job | None, a: int) -> None: ...
def generator() -> Iterator[int]:
    yield 1


async def agenerator() -> AsyncIterator[int]:
    yield 1


class Cls:
    def __call__(self) -> None: ...


REFUSED: list[tuple[Any, str]] = [
    (after, "after: put injected parameters first: def after(job: Job, tx: Transaction, invoice_id: int)"),
    (
        swapped,
        (
            "swapped: put Job before the transaction: "
            "async def swapped(job: Job, tx: AsyncTransaction, invoice_id: int = 3)"
        ),
    ),
    (
        wrong_tx,
        (
            "wrong_tx: an async handler takes AsyncTransaction: "
            "async def wrong_tx(job: Job, tx: AsyncTransaction, invoice_id: int)"
        ),
    ),
    (
        wrong_async,
        "wrong_async: a sync handler takes Transaction: def wrong_async(tx: Transaction, rows: list[int])",
    ),
    (
        star,
        (
            "star: payloads are stored by name, so name every parameter instead of *args and **kwargs: "
            "def star(job: Job, *, note: str = '')"
        ),
    ),
    (
        stars,
        (
            "stars: payloads are stored by name, so name every parameter instead of *args and **kwargs: "
            "def stars(a)"
        ),
    ),
    (
        positional,
        "positional: payloads are stored by name, so remove the '/': def positional(a: int, b: int)",
    ),
    (keyword, "keyword: put injected parameters first: def keyword(job: Job, *, a: int)"),
    (twice, "twice: take one Job and one transaction at most: def twice(job: Job, a: int)"),
    (two, "two: take one Job and one transaction at most: def two(tx: Transaction)"),
    (
        optional,
        (
            "optional: parameter 'job' is annotated holdfast.runtime.job.Job | None; "
            "an injected parameter is annotated plainly: job: Job"
        ),
    ),
    (generator, "generator is a generator; a task returns its result once. Replace yield by return"),
    (agenerator, "agenerator is a generator; a task returns its result once. Replace yield by return"),
    (Cls, "Cls is a class; a task is a function. Write: def cls(...)"),
    (Cls(), "a task is a function, not a Cls object. Write a def that calls it"),
    (functools.partial(none), "a task is a function, not a partial object. Write a def that calls it"),
    ("mail", "a task is a function, not str 'mail'. Write @registry.task or @registry.task(name=...)"),
]


@pytest.mark.parametrize(("func", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refusals_print_the_corrected_line(func: Any, message: str) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        analyse(func)
    assert str(caught.value) == message
