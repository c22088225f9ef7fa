"""Registry, its decorator, and TaskSet."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast.app import Holdfast
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError, DuplicateTask, TaskDefinitionError
from holdfast.model.clock import Clock
from holdfast.model.job import Enqueued, JobStatus, NewRow
from holdfast.registry import Registry
from holdfast.runtime.handler import Handlers
from holdfast.settings import Settings
from holdfast.store.show import Look
from holdfast.tasks.taskset import TaskSet


class Named:
    """A producer that answers with one id."""

    def __init__(self, number: int) -> None:
        self.number = number

    def enqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        return [Enqueued(str(UUID(int=self.number)), created=True)]

    async def aenqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        return self.enqueue(rows, conn)

    def status(self, job_id: UUID, queue: str) -> JobStatus:
        return JobStatus("waiting")

    async def astatus(self, job_id: UUID, queue: str) -> JobStatus:
        return JobStatus("waiting")

    def look(self, job_id: UUID) -> Look | None:
        return None

    async def alook(self, job_id: UUID) -> Look | None:
        return None

    def cancel(self, job_id: UUID, queue: str) -> bool:
        return False

    async def acancel(self, job_id: UUID, queue: str) -> bool:
        return False


def one() -> None: ...
def two() -> None: ...


def place(func: Callable[..., Any]) -> str:
    return f"{func.__qualname__} at {func.__code__.co_filename}:{func.__code__.co_firstlineno}"


def test_names() -> None:
    assert Registry("billing").task(one).name == "billing.one"
    assert Registry().task(one).name == "one"
    assert Registry("billing").task(name="other")(one).name == "other"
    assert Registry("billing").task(name="adder")(lambda: None).name == "adder"
    assert Registry("billing").task()(one).name == "billing.one"
    assert Registry("a").task(queue="mail")(priority=4)(one).job().row.queue == "mail"


def _two_rules() -> None:
    registry = Registry()
    registry.queue("orders", ordering="key", on_dead_letter="block")
    registry.queue("orders")


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Registry("a").task(lambda: None), 'a lambda has no name. Write a def, or task(name="...")'),
        (
            lambda: Registry("a b"),
            "the registry's name must be 1 to 200 letters, digits, '_', '.' or '-', not str 'a b'",
        ),
        (
            lambda: Registry("x" * 200).task(one),
            (
                "the task's name must be 1 to 200 letters, digits, '_', '.' or '-', "
                f"not str '{'x' * 27}...{'x' * 24}.one'"
            ),
        ),
        (
            lambda: Registry().task(one, queue="mail"),  # type: ignore[call-overload]
            "MIXED",
        ),
        (
            lambda: Registry().queue("Mail"),
            (
                "queue must be a name of 1 to 40 lower-case letters, digits and '_' that starts with "
                "a letter, "
                "not str 'Mail'"
            ),
        ),
        (
            _two_rules,
            "queue 'orders' is declared twice, with other ordering, on_dead_letter. Declare it once",
        ),
    ],
    ids=range(6),
)
def test_refusals(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        declare()
    if message == "MIXED":
        assert str(caught.value).startswith(
            "task takes a function or options, not both: function <function one"
        )
    else:
        assert str(caught.value) == message


def test_duplicates_name_both_places() -> None:
    registry = Registry("billing")
    registry.task(one)
    with pytest.raises(DuplicateTask) as caught:
        registry.task(name="billing.one")(two)
    assert str(caught.value) == (
        f"task 'billing.one' is declared twice: {place(one)}, and {place(two)}. "
        "Give one of them another name: task(name=...)"
    )
    assert [d.name for d in registry._definitions()] == ["billing.one"]


def test_aliases_count_as_names() -> None:
    registry = Registry()
    registry.task(aliases=["old"])(one)
    with pytest.raises(DuplicateTask, match="task 'old' is declared twice"):
        registry.task(name="old")(two)
    with pytest.raises(DuplicateTask, match="task 'one' is declared twice"):
        registry.task(aliases=["one"])(two)


def test_the_same_function_again_replaces_itself() -> None:
    registry = Registry()
    registry.task(aliases=["old"])(one)
    registry.task(aliases=["older"], queue="mail")(one)
    assert TaskSet([registry]).known() == [("older", 1), ("one", 1)]
    assert TaskSet([registry]).queues() == ["mail"]


def test_the_newest_app_wins() -> None:
    registry = Registry("billing")
    task = registry.task(one)
    registry._bind(Named(1), "first")
    assert task.enqueue().id == UUID(int=1)
    registry._bind(Named(2), "second")
    assert task.enqueue().id == UUID(int=2)
    assert task.using(queue="mail").enqueue().id == UUID(int=2)


def test_queues() -> None:
    registry = Registry()
    mail = registry.queue("mail", ordering="none", on_dead_letter="skip")
    assert (mail.name, repr(mail)) == ("mail", "Queue('mail')")
    assert registry.queue("mail") is mail
    registry.task(one)
    registry.task(queue="bulk")(two)
    assert TaskSet([registry]).queues() == ["bulk", "inbox", "mail"]
    assert TaskSet([]).queues() == []


def test_local_types_are_found_where_the_decorator_stands() -> None:
    class Local: ...

    registry = Registry()

    @registry.task
    def f(x: "Local") -> None: ...

    assert f.definition.signature.hint("x") is Local


def test_task_set_finds_by_name_alias_and_version() -> None:
    billing, shop = Registry("billing"), Registry("shop")
    billing.task(version=3, upgrade={2: dict}, aliases=["old.one"])(one)
    shop.task(two)
    tasks: Handlers = TaskSet([billing, shop, billing])
    assert tasks.known() == [
        ("billing.one", 2),
        ("billing.one", 3),
        ("old.one", 2),
        ("old.one", 3),
        ("shop.two", 1),
    ]
    found = tasks.find("old.one", 2)
    assert found is not None
    assert found is tasks.find("billing.one", 3)
    assert found.func is one
    assert tasks.find("billing.one", 1) is None
    assert tasks.find("nobody", 1) is None


def test_task_set_keeps_declarations() -> None:
    registry = Registry()
    task = registry.task(aliases=["old"])(one)
    tasks = TaskSet([registry])
    assert tasks.definition("old") is tasks.definition("one") is task.definition
    assert tasks.definition("none") is None


def test_duplicates_across_registries() -> None:
    first, second = Registry(), Registry()
    first.task(one)
    second.task(name="one")(two)
    with pytest.raises(DuplicateTask) as caught:
        TaskSet([first, second])
    assert str(caught.value) == (
        f"task 'one' is declared twice: {place(one)}, and {place(two)}. "
        "Give one of them another name: task(name=...)"
    )


def test_check_finds_types_without_json_form() -> None:
    class Plain: ...

    registry = Registry()

    @registry.task
    def f(x: Plain) -> None: ...

    tasks = TaskSet([registry])
    with pytest.raises(
        TaskDefinitionError, match="parameter 'x' of f has type Plain, which has no JSON form"
    ):
        tasks.check()


def test_repr() -> None:
    assert repr(Registry("billing")) == "Registry('billing')"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"url": Path("/db")}, "Holdfast() takes the address of the database as text, not "),
        (
            {"url": b"postgresql://ann:s3cret@h/d"},
            "as text, not bytes. Write str(url) for pydantic's, and url.render_as",
        ),
        ({"include": "shop.tasks"}, "include= takes a list. Write include=['shop.tasks']"),
        ({"settings": {"lease": 3}}, "settings= takes Settings(...), not dict"),
        ({"release": 14}, "release= must be text, not 14"),
    ],
)
def test_an_app_says_what_it_takes(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Holdfast(**given)
    assert why in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_an_app_shows_its_own_class_and_no_address() -> None:
    assert repr(Holdfast("postgresql://ann:s3cret@h/d")) == "Holdfast()"


def test_threads_that_need_an_app_first_at_the_same_moment_share_one_database() -> None:
    made: list[Database] = []
    both = threading.Barrier(2)

    class Shop(Holdfast):
        def _new_database(self, url: str, settings: Settings, clock: Clock | None = None) -> Database:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # for a second thread, which comes if it may
            made.append(super()._new_database(url, settings, clock))
            return made[-1]

    app = Shop("postgresql://127.0.0.1/shop")
    threads = [threading.Thread(target=lambda: app.database) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [app.database]
