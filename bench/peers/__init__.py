"""The `peers` scenario: other job queues on the same server, each in its own environment, with its own best settings."""

from .install import PeerFailed
from .run import Measure, PeerResult, job_count, measure, once
from .table import DROPPED, OWN, PEERS, Mode, Peer

__all__ = [
    "DROPPED",
    "OWN",
    "PEERS",
    "Measure",
    "Mode",
    "Peer",
    "PeerFailed",
    "PeerResult",
    "job_count",
    "measure",
    "once",
]
