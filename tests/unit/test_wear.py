"""When a child process is replaced: after its jobs, or earlier when it keeps growing."""

from holdfast.runtime.processes.wear import Wear

MB = 1024 * 1024


def served(wear: Wear, jobs: int, begins_at: int, leaks: int) -> int:
    """After how many of so many jobs it was replaced; 0: never."""
    for job in range(1, jobs + 1):
        if wear.is_out(begins_at + job * leaks):
            return job
    return 0


def test_it_serves_so_many_jobs() -> None:
    assert served(Wear(1), 5, 40 * MB, 0) == 1
    assert served(Wear(1000), 2000, 40 * MB, 0) == 1000


def test_one_that_keeps_growing_is_replaced_at_its_second_look() -> None:
    assert served(Wear(1000), 2000, 40 * MB, 100 * 1024) == 100
    assert served(Wear(60), 2000, 40 * MB, 100 * 1024) == 60, "the limit holds all the same"


def test_one_that_grows_by_little_serves_on() -> None:
    assert served(Wear(1000), 2000, 40 * MB, 30 * 1024) == 1000


def test_what_the_first_jobs_load_is_no_leak() -> None:
    wear = Wear(1000)
    assert not any(wear.is_out(40 * MB) for _ in range(10))
    assert served(wear, 2000, 600 * MB, 0) == 990


def test_what_is_loaded_later_costs_one_process_and_no_more_than_that() -> None:
    wear = Wear(1000)
    assert not any(wear.is_out(40 * MB) for _ in range(60))
    assert served(wear, 2000, 600 * MB, 0) == 40, "at the next look"
