"""The dashboard: a surface like the command line. Its questions and acts are in holdfast.operate and the shapes.

application  holdfast_web(): the ASGI app, to be run or mounted
serve        `holdfast web`
databases    several databases, and the switcher between them
site         one database's dashboard: pages, acts
identity     the person or program that asks
attempts     how many wrong sign-ins are allowed
guard        the checks of every request: host, origin, headers
calls        one request; `needs` decides about access
acting       an act, from its preview to its result
acts         acts on the engine's own things
views        pages of the engine, a file each
findings     what the doctor says, with buttons
filters      which jobs an address means
masking      what is not shown
shown        values as people read them
plain        values as programs read them
charts       pictures of numbers
drawing      templates
users        a file of names, and the sessions of those who signed in by it
signing_in   the pages of sign-in
assets       style sheet and script
finder       where a word or an id leads
live         numbers that change while somebody looks
naming       what pages are called
swapping     which parts of a page change in place
watching     pages of tables while somebody looks at them
parts        what is shown in place of a part that cannot be read
statements   the SQL of a page
enqueueing   the act that enqueues one job
openapi      the description of the JSON API
reading      the database, read-only
snapshots    one query for all viewers
"""

from holdfast.distribution import install
from holdfast.errors import ConfigurationError

try:
    from holdfast.web.application import holdfast_web
    from holdfast.web.databases import database_of
    from holdfast.web.identity import Authorize, BearerTokens, Identity, ProxyHeader, first_of, hashed
except ModuleNotFoundError as error:
    if (error.name or "").startswith("holdfast"):
        raise
    raise ConfigurationError(f"the dashboard needs {error.name}. Install it: {install('web')}") from None

__all__ = [
    "Authorize",
    "BearerTokens",
    "Identity",
    "ProxyHeader",
    "database_of",
    "first_of",
    "hashed",
    "holdfast_web",
]
