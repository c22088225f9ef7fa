"""Which addresses may be called, and for how long: `Egress`. It never changes; a client is given a new one."""

import ssl
from collections.abc import Iterable, Sequence
from ipaddress import IPv6Network, ip_network
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from ..model.duration import Duration, seconds
from .addresses import Network

NAT64_LENGTHS = (32, 40, 48, 56, 64, 96)
_MAPPED = IPv6Network("::ffff:0:0/96")


class NotAllowed(ConfigurationError):
    """The address may not be called."""


class Egress:
    """Where requests may go. By default: https, port 443, public addresses.

    `allow_networks`: networks that are not public but may be called. `deny_networks`: your own public addresses; they take
    precedence. `nat64`: the prefixes of your NAT64, whose addresses are judged by the embedded IPv4 address. `allow_http`:
    also http:// and port 80. `ca_file`: certificates to trust in addition to the system's. `connect_timeout`: for name,
    connection and TLS together; `timeout`: for the whole request. `proxy`: a proxy that filters, and resolves names.
    """

    __slots__ = (
        "allow_http",
        "allow_networks",
        "ca_file",
        "connect_timeout",
        "deny_networks",
        "nat64",
        "ports",
        "proxy",
        "timeout",
    )

    ports: frozenset[int]
    allow_networks: tuple[Network, ...]
    deny_networks: tuple[Network, ...]
    nat64: tuple[IPv6Network, ...]
    allow_http: bool
    ca_file: str | None
    connect_timeout: float
    timeout: float
    proxy: str | None

    def __init__(
        self,
        *,
        ports: Sequence[int] | None = None,
        allow_networks: Sequence[str] = (),
        deny_networks: Sequence[str] = (),
        nat64: Sequence[str] = (),
        allow_http: bool = False,
        ca_file: str | None = None,
        connect_timeout: Duration = 5.0,
        timeout: Duration = 20.0,
        proxy: str | None = None,
    ) -> None:
        if not isinstance(allow_http, bool):
            raise ConfigurationError(f"allow_http must be True or False, not {allow_http!r}")
        values = {
            "ports": _ports(ports if ports is not None else (80, 443) if allow_http else (443,)),
            "allow_networks": _networks("allow_networks", allow_networks),
            "deny_networks": _networks("deny_networks", deny_networks),
            "nat64": _prefixes(nat64),
            "allow_http": allow_http,
            "ca_file": _certificates(ca_file),
            "connect_timeout": _duration("connect_timeout", connect_timeout),
            "timeout": _duration("timeout", timeout),
            "proxy": _proxy(proxy),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.connect_timeout > self.timeout:
            raise ConfigurationError(
                f"connect_timeout ({self.connect_timeout:g} s) is a part of timeout ({self.timeout:g} s), "
                "so it cannot be longer"
            )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Egress never changes: make another one to have another {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an Egress never changes: make another one without {name}")

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Egress) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__slots__ if name != "proxy"}
        proxy = None if self.proxy is None else "(set)"  # it may hold a password
        return f"Egress({', '.join(f'{name}={value!r}' for name, value in shown.items())}, proxy={proxy})"


def _ports(ports: Iterable[int]) -> frozenset[int]:
    given = () if isinstance(ports, str | bytes) else tuple(ports)
    for port in given:
        if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
            raise ConfigurationError(f"a port is a number from 1 to 65535, not {port!r}")
    if not given:
        raise ConfigurationError(f"ports must be a list of at least one number, not {ports!r}")
    return frozenset(given)


def _networks(what: str, networks: Sequence[str]) -> tuple[Network, ...]:
    if isinstance(networks, str):
        raise ConfigurationError(f"{what} is a list of networks: [{networks!r}]")
    found: list[Network] = []
    for text in networks:
        try:
            network = ip_network(text)
        except (ValueError, TypeError):
            raise ConfigurationError(
                f"{what} has {text!r}, which is no network. Write it like 10.1.0.0/16 or fd00:1::/32, "
                "without bits behind the prefix"
            ) from None
        if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
            raise ConfigurationError(
                f"{what} has {text!r}. Mapped addresses are judged as IPv4: name its IPv4 network"
            )
        found.append(network)
    return tuple(found)


def _prefixes(nat64: Sequence[str]) -> tuple[IPv6Network, ...]:
    found: list[IPv6Network] = []
    for network in _networks("nat64", nat64):
        if not isinstance(network, IPv6Network) or network.prefixlen not in NAT64_LENGTHS:
            raise ConfigurationError(
                f"nat64 has {str(network)!r}. A NAT64 prefix is an IPv6 network of "
                f"{', '.join(map(str, NAT64_LENGTHS))} bits, such as 64:ff9b::/96"
            )
        found.append(network)
    return tuple(found)


def _duration(what: str, value: Duration) -> float:
    try:
        found = seconds(value, what)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from None
    if found <= 0:
        raise ConfigurationError(f"{what} must be more than 0 seconds, not {value!r}")
    return found


def _certificates(path: str | None) -> str | None:
    if path is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        except (OSError, TypeError) as error:  # an SSLError is an OSError
            raise ConfigurationError(
                f"ca_file {path!r} cannot be read as certificates in PEM form: {error}"
            ) from None
    return path


def _proxy(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        alone = parts.path in ("", "/") and not parts.query and not parts.fragment
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and alone
    except (ValueError, TypeError, AttributeError):
        good = False
    if not good:
        raise ConfigurationError(
            "proxy must be an address such as http://proxy.example:4750, without a path or query"
        )
    return url


DEFAULT = Egress()
