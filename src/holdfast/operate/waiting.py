"""What the limits of its queue have to do with a job that waits, in sentences."""

from collections.abc import Iterator

from ..model.queue import Rate
from ..store.explain import LimitsSeen
from .wording import command, cut, span

Said = tuple[str, str, list[str]]  # code, sentence, commands


def limit_reasons(queue: str, seen: LimitsSeen) -> Iterator[Said]:
    """Each limit that is in the way now, with the command that changes it."""
    show = command("holdfast", "queue", "show", queue)

    def change(option: str, value: object) -> list[str]:
        return [command("holdfast", "queue", "set", queue, option, f"{value}"), show]

    if seen.concurrency is not None and seen.running >= seen.concurrency:
        said = f"It waits for the limit of its queue {queue}: {seen.running:,} of {seen.concurrency:,} run."
        yield "queue_full", said, change("--concurrency", 2 * seen.concurrency)
    if seen.rate is not None and seen.next_in > 0:
        rate = Rate(seen.rate)
        said = f"The rate of queue {queue}, {rate.text}, allows the next start in {span(seen.next_in)}."
        yield "queue_rate", said, change("--rate", Rate(2 * seen.rate).text)
    key = cut(seen.key)
    if seen.key_concurrency is not None and seen.key_running >= seen.key_concurrency:
        said = (
            f"It waits for the limit of its key {key}: {seen.key_running:,} of {seen.key_concurrency:,} run."
        )
        yield "key_full", said, change("--key-concurrency", 2 * seen.key_concurrency)
    if seen.key_rate is not None and seen.key_next_in > 0:
        rate = Rate(seen.key_rate)
        said = f"The rate of its key {key}, {rate.text}, allows the next start in {span(seen.key_next_in)}."
        yield "key_rate", said, change("--key-rate", Rate(2 * seen.key_rate).text)
