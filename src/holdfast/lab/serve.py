"""`holdfast lab`, in a browser: on this machine alone, for users of the address that it prints."""

import sys

from holdfast.lab.hall import Hall
from holdfast.lab.place import open_place, refuse_database
from holdfast.lab.site import SESSION, lab_app
from holdfast.settings import default_actor
from holdfast.web.identity import Identity, OneTimeUrl
from holdfast.web.serve import asgi_server, listening, say

HOST = "127.0.0.1"  # there is no option for it


def serve(port: int) -> None:
    """Until it is asked to stop. Then its workers and its server are gone, and so is its folder."""
    refuse_database()
    where = (HOST, port)
    with listening(*where) as sock:
        print("The lab starts a server of its own.", file=sys.stderr, flush=True)  # noqa: T201
        with open_place() as place:
            login = OneTimeUrl(
                Identity(default_actor(), "admin"),
                lambda token: say(where, token, "Another browser"),
                SESSION,
            )
            say(where, login.token, "Holdfast lab")
            asgi_server(lab_app(Hall(place), login)).run(sockets=[sock])
