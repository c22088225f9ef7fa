"""Mistakes of callers: each is an error of ours that says what is wrong, and never a wrong answer."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import ConfigurationError, Event, Holdfast, Registry, TaskDefinitionError, Transaction
from holdfast.testing import Kit


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"after": "x"}, "after must be a number, 0 or more, not str 'x'"),
        ({"after": -1}, "after must be a number, 0 or more, not int -1"),
        ({"after": True}, "after must be a number, 0 or more, not bool True"),
        ({"after": 1.5}, "after must be a number, 0 or more, not float 1.5"),
        ({"after": 2**63}, f"after must be a number, 0 or more, not int {2**63}"),
        ({"most": 0}, "most must be a number, 1 or more, not int 0"),
        (
            {"types": "order.paid"},
            "types are a list of names or patterns, such as [\"order.*\"], not str 'order.paid'",
        ),
        ({"types": [1]}, 'types are a list of names or patterns, such as ["order.*"], not list [1]'),
    ],
)
async def test_what_cannot_be_read_is_refused(
    app: Holdfast, akit: Kit, what: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await app.events.aread(**what)
    assert str(refused.value) == said
    with pytest.raises(ConfigurationError):
        app.events.read(**what)


@pytest.mark.parametrize("what", [None, "", "x", 1.5, True, [1], object])
def test_what_cannot_be_waited_for_is_refused(app: Holdfast, kit: Kit, what: Any) -> None:
    @app.projection("totals", on=["*"])
    def totals(tx: Transaction, event: Event[Any]) -> None: ...

    kit.run_worker()
    with pytest.raises(
        ConfigurationError, match="takes what publish\\(\\) returned, a list of that, or a position"
    ):
        totals.read_your_writes(what)


def test_a_table_is_of_one_projection(holdfast_kit: Callable[..., Kit]) -> None:
    """A rebuild of one would lose what the other wrote."""
    other = Registry("other")
    app = Holdfast("postgresql://unused.invalid/none", include=[other])
    kit = holdfast_kit(app)

    @app.projection("paid", on=["order.paid"], tables=["totals"])
    def paid(tx: Transaction, event: Event[Any]) -> None: ...

    kit.run_worker()

    @other.projection("refunded", on=["order.refunded"], tables=["sums", "totals"])
    def refunded(tx: Transaction, event: Event[Any]) -> None: ...

    with pytest.raises(TaskDefinitionError) as refused:
        kit.run_worker()
    assert str(refused.value) == (
        "projections 'paid' and 'refunded' both name the table 'totals': a rebuild or a reset of one would lose what the "
        "other wrote. Let one projection write it"
    )
