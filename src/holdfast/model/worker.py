"""The identity of a worker: host, pid and a boot uuid. A pid repeats, an identity never does."""

import os
import socket
import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    host: str
    pid: int
    boot: str
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"{self.host}:{self.pid}:{self.boot[:12]}")

    @classmethod
    def create(cls) -> "WorkerIdentity":
        return cls(socket.gethostname()[:200], os.getpid(), uuid.uuid4().hex)

    def __str__(self) -> str:
        return self.id
