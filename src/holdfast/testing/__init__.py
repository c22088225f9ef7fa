"""The test kit: a real database per test, a worker in process, a clock you can move.

def test_receipt(holdfast_kit):
    kit = holdfast_kit(app)                      # your app, on a fresh database
    send_receipt.enqueue(order_id=1)
    kit.assert_enqueued(send_receipt, order_id=1)
    kit.run_worker()                             # until nothing is due
    kit.clock.advance(3600)                      # in Python and in SQL
    kit.assert_published("order.paid", order_id=1)
    kit.run_projections()                        # until all events are read; runs no job
"""

from ..shapes.workflows.checking import Divergence
from .broker import Broker
from .conformance import transport_conformance
from .kit import Kit
from .servers import TestServer
from .workflows import CrashReport, StillWaiting, WorkflowKit

__all__ = [
    "Broker",
    "CrashReport",
    "Divergence",
    "Kit",
    "StillWaiting",
    "TestServer",
    "WorkflowKit",
    "transport_conformance",
]
