"""A PostgreSQL server in a local folder: started at first use, shared, stopped by its last user.

binaries    where the PostgreSQL programs are
owner       the system user that runs the server, and running programs as that user
place       which folder holds what
locks       which processes use the server, in locks that the kernel drops when a process dies
postmaster  is a server running, stop it; run as a script: the watcher that outlives its users
launch      make the data folder, start the server
server      one process's hold on the server
manage      status, stop and reset, for the command line
"""

from holdfast.db.embedded.binaries import Binaries, find_binaries
from holdfast.db.embedded.launch import EmbeddedOptions
from holdfast.db.embedded.manage import EmbeddedStatus, reset, status, stop
from holdfast.db.embedded.place import default_path, parse_embedded_url
from holdfast.db.embedded.server import EmbeddedServer, shared

__all__ = [
    "Binaries",
    "EmbeddedOptions",
    "EmbeddedServer",
    "EmbeddedStatus",
    "default_path",
    "find_binaries",
    "parse_embedded_url",
    "reset",
    "shared",
    "status",
    "stop",
]
