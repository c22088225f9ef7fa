"""A real PgBouncer in front of a test server."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.conftest import wait_until
from tests.pg_versions import bouncer_program, server_folder

_CONFIG = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
max_client_conn = 50
default_pool_size = 4
ignore_startup_parameters = extra_float_digits
logfile = {folder}/log
"""


@contextlib.contextmanager
def bouncer(url: str, mode: str) -> Iterator[str]:
    """The url of a pooler in front of the server behind `url`."""
    program = bouncer_program()
    assert program is not None
    info = conninfo_to_dict(url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = probe.getsockname()[1]
    folder = server_folder("hf-bouncer-")
    folder.chmod(0o777)  # as root it runs as somebody else
    config = folder / "pgbouncer.ini"
    config.write_text(
        _CONFIG.format(
            host=info["host"], port=info["port"], user=info["user"], listen=listen, mode=mode, folder=folder
        )
    )
    command = [program, str(config)]
    if os.geteuid() == 0:  # it refuses to run as root; the server's socket is open to its owner
        owner = Path(str(info["host"])).stat()
        command = [
            "setpriv",
            f"--reuid={owner.st_uid}",
            f"--regid={owner.st_gid}",
            "--clear-groups",
            *command,
        ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        pooled = make_conninfo(host="127.0.0.1", port=listen, user="anyone", dbname=str(info["dbname"]))
        wait_until(lambda: _answers(pooled), "the pooler answers")
        yield pooled
    finally:
        process.terminate()
        process.wait(50)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
