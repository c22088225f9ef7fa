"""Which jobs an address or a form means. The names are those of the command line's options."""

from collections.abc import Collection
from dataclasses import replace
from uuid import UUID

from holdfast.cli.arguments import parse_span
from holdfast.errors import ConfigurationError
from holdfast.model.masking import is_secret_name, masked_text
from holdfast.pages import Given
from holdfast.store.dead import DeadFilter
from holdfast.store.search import JobFilter, read_field
from holdfast.web.masking import Declared

JOB_FIELDS = (
    "state", "queue", "task", "worker", "key", "tag", "min_attempts", "field", "error", "older_than", "newer_than",
)  # fmt: skip
JOB_SEARCHES = ("error", "field")  # in what a viewer does not read
BACKING_OFF = "backing_off"  # in place of a state: scheduled, after an attempt that failed
DEAD_FIELDS = ("group", "queue", "task", "error", "key", "tag", "older_than", "newer_than")


def text(given: Given, name: str) -> str | None:
    return given.get(name, "").strip() or None


def _age(given: Given, name: str) -> float | None:
    said = text(given, name)
    return None if said is None else parse_span(said, name)


def whole_number(given: Given, name: str) -> int | None:
    said = text(given, name)
    if said is None:
        return None
    try:
        return int(said)
    except ValueError:
        raise ConfigurationError(f"{name} must be a whole number, not {said[:40]!r}") from None


def job_filter(given: Given, masked_of: Declared) -> JobFilter:
    """`masked_of` says which names of a task's payload nobody is to read: they cannot be searched by either."""
    state = text(given, "state")
    queue, task, key, tag, error = (text(given, name) for name in ("queue", "task", "key", "tag", "error"))
    words = () if state is None else tuple(state.split())
    states = tuple(word for word in words if word != BACKING_OFF) or None
    ages = _age(given, "older_than"), _age(given, "newer_than")
    found = JobFilter(states, queue, task, key, tag, error, *ages, BACKING_OFF in words)
    attempts, field = whole_number(given, "min_attempts"), text(given, "field")
    if field is not None:
        _check_unmasked(field, masked_of(task or ""))
    found = replace(found, masked=_as_shown(error, task, masked_of))
    return replace(found, worker=text(given, "worker"), min_attempts=attempts, field=field)


def _as_shown(error: str | None, task: str | None, masked_of: Declared) -> tuple[str, ...] | None:
    """Errors are searched as they are shown. Searching masked text would reveal it letter by letter."""
    return None if error is None else tuple(masked_of(task or ""))


def _check_unmasked(said: str, masked: Collection[str]) -> None:
    """Learning which jobs have a value is reading it."""
    path, value = read_field(said)
    for name in path:
        if is_secret_name(name) or name in masked:
            raise ConfigurationError(
                f"{name[:40]!r} is masked, so that no job is found by it. Use another field"
            )
    check_no_secret(value, masked, "job")


def check_no_secret(value: str, masked: Collection[str], what: str) -> None:
    if masked_text(value, names=masked) != value:
        raise ConfigurationError(
            f"a value that looks like a secret is masked, so that no {what} is found by it"
        )


def dead_filter(given: Given, masked_of: Declared) -> DeadFilter:
    names = ("group", "queue", "task", "error", "key", "tag")
    group, queue, task, error, key, tag = (text(given, name) for name in names)
    ages = _age(given, "older_than"), _age(given, "newer_than")
    return DeadFilter(group, queue, task, error, key, tag, *ages, _as_shown(error, task, masked_of))


def words_of(given: Given) -> list[str]:
    """The ids that are given singly. An empty list is a slip: it must not come to mean all."""
    said = given.get("ids", "")
    found = said.replace(",", " ").split()
    if said and not found:
        raise ConfigurationError(f"ids names nothing: {said[:40]!r}. Say which, or leave it out")
    return found


def means_all(given: Given) -> bool:
    """Whether all are meant, explicitly."""
    said = given.get("all", "")
    if said not in ("", "1", "true"):
        raise ConfigurationError(f"all takes 1 or true, not {said[:40]!r}. Leave it out to say which")
    if said and given.get("ids"):
        raise ConfigurationError("say ids or all, not both")
    return bool(said)


def ids_of(given: Given) -> list[UUID]:
    """The jobs that are named singly."""
    return [job_id(word) for word in words_of(given)]


def job_id(word: str) -> UUID:
    try:
        return UUID(word)
    except ValueError:
        raise ConfigurationError(
            f"{word[:80]!r} is not the id of a job. It looks like 0199c0de-7a31-7c41-9182-5be0a31ec41f"
        ) from None


def options(given: Given, names: tuple[str, ...]) -> list[str]:
    """The same on the command line."""
    found: list[str] = []
    for name in names:
        if (said := text(given, name)) is not None:
            for word in said.split() if name == "state" else [said]:
                option = f"--{name.replace('_', '-')}"
                found += ["--backing-off"] if name == "state" and word == BACKING_OFF else [option, word]
    return found
