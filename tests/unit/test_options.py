"""Options of enqueue, task and queue: accepted values and the text of every refusal."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_type_hints

import pytest

from holdfast.errors import InvalidOption, TaskDefinitionError
from holdfast.model.backoff import Backoff
from holdfast.model.queue import QueueRules, Rate
from holdfast.model.shown import shown
from holdfast.tasks.options import (
    EnqueueOptions,
    TaskOptions,
    TaskSettings,
    enqueue_values,
    task_settings,
)
from holdfast.tasks.queueing import QueueOptions, queue_rules

QUEUE_RULE = (
    "queue must be a name of 1 to 40 lower-case letters, digits and '_' that starts with a letter, not "
)
TAG_RULE = "each tag must be a string of 1 to 100 characters without NUL or lone surrogates, not "
ENQUEUE_REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"partition_kye": "x"},
        (
            "enqueue has no option 'partition_kye' (known: conn, idempotency_key, "
            "idempotency_lifetime, max_attempts, "
            "metadata, parent, partition_key, priority, queue, replace_key, run_after, tags, then). "
            "Did you mean 'partition_key'?"
        ),
    ),
    (
        {"zzz": 1},
        (
            "enqueue has no option 'zzz' (known: conn, idempotency_key, idempotency_lifetime, max_attempts, "
            "metadata, parent, partition_key, priority, queue, replace_key, run_after, tags, then)."
        ),
    ),
    ({"queue": "Mail"}, QUEUE_RULE + "str 'Mail'"),
    ({"queue": ""}, QUEUE_RULE + "str ''"),
    ({"queue": "mail\n"}, QUEUE_RULE + "str 'mail\\n'"),
    ({"queue": "a" * 41}, QUEUE_RULE + f"str '{'a' * 41}'"),
    ({"queue": 3}, QUEUE_RULE + "int 3"),
    ({"partition_key": 3}, "partition_key must be a string, not int 3. Use str(...)"),
    (
        {"partition_key": "a\x00"},
        "partition_key contains a NUL character or a lone surrogate: str 'a\\x00'. Remove it",
    ),
    (
        {"idempotency_key": "\ud800"},
        "idempotency_key contains a NUL character or a lone surrogate: str '\\ud800'. Remove it",
    ),
    ({"idempotency_key": ""}, "idempotency_key must not be empty. Leave it out for none"),
    (
        {"idempotency_key": "é" * 257},
        (
            "idempotency_key is 514 bytes, more than the limit of 512: str "
            f"'{'é' * 27}...{'é' * 28}'. Use a hash of it"
        ),
    ),
    ({"priority": 101}, "priority must be an integer from -100 to 100, not int 101"),
    ({"priority": True}, "priority must be an integer from -100 to 100, not bool True"),
    ({"priority": 1.0}, "priority must be an integer from -100 to 100, not float 1.0"),
    ({"max_attempts": 0}, "max_attempts must be an integer from 1 to 1000, not int 0"),
    ({"max_attempts": "3"}, "max_attempts must be an integer from 1 to 1000, not str '3'"),
    (
        {"run_after": datetime(2030, 1, 2)},  # noqa: DTZ001
        (
            "run_after must be a datetime with a time zone, not datetime.datetime(2030, 1, 2, 0, 0). "
            "Use datetime.now(UTC) + timedelta(...), or seconds"
        ),
    ),
    (
        {"run_after": datetime(2200, 1, 2, tzinfo=UTC)},
        "run_after must be at most 10 years ahead, not 2200-01-02T00:00:00+00:00",
    ),
    ({"run_after": "x"}, """run_after must be a duration like "90s", "15m" or "1h30m", not 'x'"""),
    (
        {"run_after": True},
        'run_after must be a datetime, a timedelta, seconds or text like "10m", not bool True',
    ),
    (
        {"run_after": float("nan")},
        "run_after must be 0 or more seconds, not float nan. For now, leave it out",
    ),
    ({"run_after": float("inf")}, "run_after must be at most 10 years ahead, not float inf"),
    (
        {"run_after": 10**400},
        f"run_after must be at most 10 years ahead, not int 1{'0' * 27}...{'0' * 29}",
    ),
    ({"run_after": 1e300}, "run_after must be at most 10 years ahead, not float 1e+300"),
    ({"run_after": "99999w"}, "run_after must be at most 10 years ahead, not str '99999w'"),
    (
        {"run_after": timedelta.max},
        f"run_after must be at most 10 years ahead, not {shown(timedelta.max)}",
    ),
    (
        {"run_after": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))},
        "run_after must be a time from year 1 to 9999 in UTC, not 0001-01-01T00:00:00+14:00",
    ),
    (
        {"run_after": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
        "run_after must be a time from year 1 to 9999 in UTC, not 9999-12-31T23:59:59.999999-12:00",
    ),
    (
        {"run_after": datetime.max.replace(tzinfo=UTC)},
        "run_after must be at most 10 years ahead, not 9999-12-31T23:59:59.999999+00:00",
    ),
    ({"run_after": -1}, "run_after must be 0 or more seconds, not int -1. For now, leave it out"),
    (
        {"run_after": float("nan")},
        "run_after must be 0 or more seconds, not float nan. For now, leave it out",
    ),
    (
        {"run_after": timedelta(days=4000)},
        "run_after must be at most 10 years ahead, not timedelta datetime.timedelta(days=4000)",
    ),
    ({"idempotency_lifetime": 0}, "idempotency_lifetime must be more than 0 seconds, not int 0"),
    (
        {"idempotency_lifetime": 0.5},
        'idempotency_lifetime must be 1 second or more, or "forever", not float 0.5',
    ),
    (
        {"idempotency_lifetime": b"1"},
        """idempotency_lifetime must be seconds, a timedelta or text like "10m", not bytes b'1'""",
    ),
    ({"tags": "urgent"}, "tags must be a list of strings, not str 'urgent'. Write tags=[...]"),
    ({"tags": {"a"}}, "tags must be a list of strings, not set {'a'}. Write tags=[...]"),
    (
        {"tags": ["a"] * 21},
        "tags has 21 entries, more than the limit of 20. Use metadata for the rest",
    ),
    ({"tags": [""]}, TAG_RULE + "str ''"),
    ({"tags": ["a", 1]}, TAG_RULE + "int 1"),
    ({"tags": ["a\x00"]}, TAG_RULE + "str 'a\\x00'"),
    ({"tags": ["x" * 101]}, TAG_RULE + f"str '{'x' * 27}...{'x' * 28}'"),
    ({"metadata": [1]}, "metadata must be a mapping of JSON values, not list [1]"),
    (
        {"metadata": {"a": float("inf")}},
        "metadata value a is inf, which JSON does not have. Pass None or a string",
    ),
    (
        {"metadata": {"a": "x" * 9000}},
        (
            "metadata is 9,009 bytes of JSON, more than the limit of 8,192 (8 KiB). Put the data "
            "into the payload"
        ),
    ),
]


@pytest.mark.parametrize(("options", "message"), ENQUEUE_REFUSED, ids=range(len(ENQUEUE_REFUSED)))
def test_enqueue_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        enqueue_values(options)
    assert str(caught.value) == message


def test_enqueue_values() -> None:
    conn = object()
    past = datetime(1999, 1, 1, tzinfo=UTC)
    assert enqueue_values(
        {
            "conn": conn,
            "queue": "mail_2",
            "partition_key": "",
            "idempotency_key": "k" * 512,
            "idempotency_lifetime": timedelta(days=7),
            "run_after": past,
            "priority": -100,
            "max_attempts": 1000,
            "tags": ["x" * 100],
            "metadata": {"a": [1]},
        }
    ) == {
        "conn": conn,
        "queue": "mail_2",
        "partition_key": "",
        "idempotency_key": "k" * 512,
        "idempotency_lifetime": 604_800.0,
        "run_after": past,
        "priority": -100,
        "max_attempts": 1000,
        "tags": ("x" * 100,),
        "metadata": '{"a":[1]}',
    }
    assert enqueue_values({"run_after": timedelta(minutes=1)}) == {"run_after": 60.0}
    assert enqueue_values({"run_after": 0}) == {"run_after": 0.0}


NAME_RULE = " must be 1 to 200 letters, digits, '_', '.' or '-', not "
TASK_REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"max_attempt": 3},
        (
            "task has no option 'max_attempt' (known: aliases, breaker, keep_completed, lease, masked, max_attempts, "
            "memory_limit, name, priority, process, "
            "queue, retry, timeout, upgrade, version). Did you mean 'max_attempts'?"
        ),
    ),
    ({"name": "a b"}, "name" + NAME_RULE + "str 'a b'"),
    ({"name": ""}, "name" + NAME_RULE + "str ''"),
    ({"name": "x" * 201}, "name" + NAME_RULE + f"str '{'x' * 27}...{'x' * 28}'"),
    ({"aliases": "old"}, "aliases must be a list of task names, not str 'old'. Write aliases=[...]"),
    ({"aliases": ["a/b"]}, "each alias" + NAME_RULE + "str 'a/b'"),
    ({"version": 0}, "version must be an integer from 1 to 2147483647, not int 0"),
    ({"queue": "Q"}, QUEUE_RULE + "str 'Q'"),
    ({"priority": -101}, "priority must be an integer from -100 to 100, not int -101"),
    ({"max_attempts": 1001}, "max_attempts must be an integer from 1 to 1000, not int 1001"),
    ({"retry": 5}, "retry must be a Backoff, not int 5. Write retry=Backoff(first=2, cap=600)"),
    ({"lease": 0}, "lease must be more than 0 seconds, not int 0"),
    ({"timeout": -1}, "timeout must be a finite number of at least 0 seconds, not -1"),
    ({"timeout": "6o"}, """timeout must be a duration like "90s", "15m" or "1h30m", not '6o'"""),
    ({"process": 1}, "process must be True or False, not int 1"),
    (
        {"memory_limit": 2**30},
        (
            "memory_limit needs process=True: only a process of its own can be limited. "
            "Add process=True, or leave memory_limit out"
        ),
    ),
    (
        {"process": True, "memory_limit": 512},
        (
            "memory_limit must be bytes, at least 67108864 (64 MB; a Python process needs about half of that for "
            "itself), not int 512. Write memory_limit=512 * 1024 * 1024"
        ),
    ),
    (
        {"process": True, "memory_limit": 2.5e9},
        (
            "memory_limit must be bytes, at least 67108864 (64 MB; a Python process needs about half of that for "
            "itself), not float 2500000000.0. Write memory_limit=512 * 1024 * 1024"
        ),
    ),
    ({"upgrade": [1]}, "upgrade must map a version to a function, not list [1]. Write upgrade={1: fn}"),
    ({"upgrade": {1: dict}}, "upgrade key 1 needs a newer version=; this task has version 1"),
    (
        {"version": 3, "upgrade": {3: dict}},
        "upgrade key 3 must be an older version than version=3, from 1 on",
    ),
    (
        {"version": 3, "upgrade": {"1": dict}},
        "upgrade key '1' must be an older version than version=3, from 1 on",
    ),
    ({"version": 2, "upgrade": {1: 5}}, "upgrade[1] must be a function of a dict, not int 5"),
    ({"version": 3, "upgrade": {1: dict}}, "upgrade has no step from version 2 to 3. Add upgrade[2]"),
]


@pytest.mark.parametrize(("options", "message"), TASK_REFUSED, ids=range(len(TASK_REFUSED)))
def test_task_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        task_settings(options)
    assert str(caught.value) == message


def test_task_settings() -> None:
    retry = Backoff()
    made = task_settings(
        {
            "name": "a.b-c_D1",
            "aliases": ["old"],
            "version": 3,
            "upgrade": {2: dict},
            "queue": "mail",
            "priority": 5,
            "max_attempts": 9,
            "retry": retry,
            "lease": 90,
            "timeout": timedelta(minutes=1),
            "process": True,
            "memory_limit": 2**26,
        }
    )
    assert made == TaskSettings(
        "a.b-c_D1", ("old",), 3, {2: dict}, "mail", 5, 9, retry, 90.0, 60.0, True, 2**26
    )
    assert task_settings({}).queue == "inbox"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"on_dead_letter": "park"},
            (
                "on_dead_letter='park' needs ordering='key': only there does a job wait for another. "
                "Add ordering='key', or leave on_dead_letter out"
            ),
        ),
        ({"ordering": "keys"}, "ordering must be one of none, key, not str 'keys'"),
        (
            {"ordring": "key"},
            (
                "queue has no option 'ordring' (known: affinity, aging, concurrency, fair, keep_completed, "
                "key_concurrency, key_rate, on_dead_letter, ordering, rate, weights). Did you mean 'ordering'?"
            ),
        ),
        (
            {"ordering": "key", "fair": True},
            "an ordered queue gives every key its turn already. Leave fair out",
        ),
        (
            {"ordering": "key", "key_concurrency": 2},
            "an ordered queue runs one job of a key at a time. Leave key_concurrency out",
        ),
        (
            {"weights": {"vip": 3}},
            "weights need fair=True: they say how often the turn of a key comes. Add fair=True",
        ),
        (
            {"fair": True, "aging": 5},
            "aging is for queues that are claimed by priority, not key by key. Leave aging out",
        ),
        ({"affinity": "yes"}, "affinity must be one of none, key, not str 'yes'"),
        (
            {"affinity": "key", "ordering": "key"},
            "an ordered queue keeps each key with one worker already. Leave affinity out",
        ),
        *(
            (
                {"affinity": "key", **by_key},
                (
                    "affinity='key' does not go with fair, key_concurrency or key_rate: there every worker claims from "
                    "every key, so that each gets its share. Leave affinity out, or those"
                ),
            )
            for by_key in ({"fair": True}, {"key_concurrency": 2}, {"key_rate": Rate(5)})
        ),
        (
            {"affinity": "key", "aging": 5},
            (
                "affinity='key' does not go with aging: which job has waited longest is a question to the whole queue, "
                "and each worker takes from its own keys. Leave one of them out"
            ),
        ),
        ({"rate": 5}, "rate must be a Rate, not int 5. Write rate=Rate(100, per=60)"),
        ({"concurrency": 0}, "concurrency must be an integer from 1 to 1000000, not int 0"),
        ({"fair": 1}, "fair must be True or False, not int 1"),
        (
            {"fair": True, "weights": {"vip": 0}},
            "the weight of 'vip' must be a number from 0.01 to 100, not int 0",
        ),
    ],
)
def test_queue_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        queue_rules(options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Rate(100, per=60), "100/m"),
        (Rate(5), "5/s"),
        (Rate(1, per=3600), "1/h"),
        (Rate(1, per=86_400), "1/d"),
        (Rate(0.3), "18/m"),
        (Rate(1.0001234), "1.00012/s"),
    ],
)
def test_a_rate_is_shown_as_it_is_written(rate: Rate, text: str) -> None:
    assert rate.text == text


def test_queue_rules() -> None:
    assert queue_rules({"ordering": "none", "on_dead_letter": "skip"}) == QueueRules()
    assert queue_rules({"ordering": "key", "on_dead_letter": "park"}) == QueueRules("key", "park")


def test_every_typed_option_has_a_check() -> None:
    for name in get_type_hints(EnqueueOptions):
        if name != "conn":
            with pytest.raises(InvalidOption):
                enqueue_values({name: object()})
    for name in get_type_hints(TaskOptions):
        with pytest.raises(TaskDefinitionError):
            task_settings({name: object()})
    for name in get_type_hints(QueueOptions):
        with pytest.raises(TaskDefinitionError):
            queue_rules({name: object()})
