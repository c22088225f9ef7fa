"""The guard: reads URLs strictly, and decides which addresses may be called.

A URL that two programs could read differently is refused: such URLs are how guards are bypassed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

from ..errors import ConfigurationError
from .addresses import Address, Network, embedded, not_public
from .settings import Egress, NotAllowed

LONGEST_URL = 2048
_BAD_CHARACTER = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\<>\"^`{|}]")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_TOP = r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])"  # a letter first: no number is a name
_NAME = re.compile(rf"(?=.{{1,253}}\Z)(?:{_LABEL}\.)+{_TOP}\Z")
_INWARD = (
    ".internal",
    ".intranet",
    ".local",
    ".localhost",
    ".localdomain",
    ".lan",
    ".corp",
    ".home",
    ".home.arpa",
    ".private",
    ".svc",
    ".onion",
)
_PORTS = {"https": 443, "http": 80}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE = re.compile(r"[\x20-\x7e\t]*\Z")
_OURS = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, read."""

    scheme: str
    host: str  # a name in lower case without a last dot, or an address without brackets
    port: int
    path: str  # with the query
    literal: bool  # the host is an address

    @property
    def origin(self) -> tuple[str, str, int]:
        return (self.scheme, self.host, self.port)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse(url: str, egress: Egress) -> Target:
    """The URL, or NotAllowed with a text for its author. Nothing is resolved."""
    parts = _split(url)
    schemes = ("https", "http") if egress.allow_http else ("https",)
    if parts.scheme not in schemes or not url.startswith(
        (f"{parts.scheme}://", f"{parts.scheme.upper()}://")
    ):
        raise NotAllowed(f"the URL must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    if "@" in parts.netloc:
        raise NotAllowed("the URL must not have a user or password")
    if parts.fragment or "#" in url:
        raise NotAllowed("the URL must not have a fragment")
    port = _port(parts)
    if port not in egress.ports:
        raise NotAllowed(f"the port must be {' or '.join(map(str, sorted(egress.ports)))}, not {port}")
    host = (parts.hostname or "").lower()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    address = _literal(parts, host)
    if address is not None:
        try:
            found = vet(address, egress)
        except NotAllowed:
            raise NotAllowed(f"{host} may not be called") from None
        return Target(parts.scheme, str(found), port, path, True)
    return Target(parts.scheme, _name(host, egress), port, path, False)


def _split(url: str) -> SplitResult:
    if not isinstance(url, str) or len(url) > LONGEST_URL:
        raise NotAllowed(f"a URL is text of at most {LONGEST_URL} characters")
    if bad := _BAD_CHARACTER.search(url):
        raise NotAllowed(
            f"the URL has the character {bad[0]!a}: write it percent-encoded, and names as xn--..."
        )
    try:
        return urlsplit(url)
    except ValueError:
        raise NotAllowed("the host cannot be read") from None


def _port(parts: SplitResult) -> int:
    text = parts.netloc.rpartition("]")[2].partition(":")
    if not text[1]:
        return _PORTS[parts.scheme]
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text[2]) or int(text[2]) > 65535:
        raise NotAllowed("the port must be a number from 1 to 65535")
    return int(text[2])


def _literal(parts: SplitResult, host: str) -> Address | None:
    """The address that a host is; a host in brackets must be one."""
    if "[" in parts.netloc or "]" in parts.netloc:
        if not re.fullmatch(r"\[[0-9A-Fa-f:.]+\](:[0-9]+)?", parts.netloc):
            raise NotAllowed("the host cannot be read")
        try:
            return IPv6Address(host)
        except ValueError:
            raise NotAllowed("the host cannot be read") from None
    try:
        return IPv4Address(host)  # four decimal numbers and nothing else
    except ValueError:
        return None


def _name(host: str, egress: Egress) -> str:
    name = host.removesuffix(".")
    if not _NAME.match(name):  # also 127.1, 0x7f000001, 2130706433, 0177.0.0.1 and names of one label
        raise NotAllowed(
            "the host must be a full name such as hooks.example.com, or an address in its usual form"
        )
    if not egress.allow_networks and f".{name}".endswith(_INWARD):
        raise NotAllowed(f"{name} is a name of an inner network")
    return name


def vet(address: Address | str, egress: Egress) -> Address:
    """The address to dial, or NotAllowed. An IPv6 address that holds an IPv4 address is judged by it."""
    if isinstance(address, str):
        try:
            address = ip_address(address)
        except ValueError:
            raise NotAllowed(f"{address!r} is no address") from None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            raise NotAllowed(f"{address} is an address of one link")
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        else:
            for prefix in egress.nat64:
                if address in prefix:
                    _judge(embedded(address, prefix), egress)
                    _refuse_denied(address, egress)
                    return address
    _judge(address, egress)
    return address


def _judge(address: Address, egress: Egress) -> None:
    _refuse_denied(address, egress)
    if not _within(address, egress.allow_networks) and (why := not_public(address)):
        raise NotAllowed(f"{address} is not public: {why}")


def _refuse_denied(address: Address, egress: Egress) -> None:
    if _within(address, egress.deny_networks):
        raise NotAllowed(f"{address} is in deny_networks")


def _within(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers that are not text of one line, or that only the client may set."""
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.match(name):
            raise ConfigurationError(f"{name!a} is no name of a header")
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            raise ConfigurationError(f"the header {name} is set by the client")
        if not isinstance(value, str) or not _VALUE.match(value):
            raise ConfigurationError(f"the header {name} must be one line of ASCII text")
