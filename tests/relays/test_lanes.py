"""Lanes: which message of which key may be sent."""

from typing import Any

from holdfast.shapes.relays.lanes import Item, Lanes
from holdfast.transport import OutMessage

ROW: Any = None


def item(position: int) -> Item:
    message = OutMessage(str(position), position, "order.paid", "k", "shop", {}, b"{}", "application/json")
    return Item(position, position, ROW, message)


def test_a_lane_whose_messages_are_all_in_flight_has_none_to_try() -> None:
    """One that was behind them went another way, such as aside."""
    lanes = Lanes(0, 0, prefix=True)
    first, second = item(1), item(2)
    for one in (first, second):
        lanes.add(one, ("key", "k"))
    assert lanes.take(1, 0.0) == [first]
    assert lanes.has_untried()
    lanes.drop([second], [ROW])
    assert not lanes.has_untried()
