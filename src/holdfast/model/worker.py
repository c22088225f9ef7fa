"""Who a worker is: host, pid and a boot uuid. A pid repeats, an identity never does."""

import os
import socket
import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    host: str
    pid: int
    boot: str

    @classmethod
    def create(cls) -> "WorkerIdentity":
        return cls(socket.gethostname()[:200], os.getpid(), uuid.uuid4().hex)

    @property
    def id(self) -> str:
        return f"{self.host}:{self.pid}:{self.boot[:12]}"

    def __str__(self) -> str:
        return self.id
