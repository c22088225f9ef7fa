"""The table of public addresses.

`ipaddress.is_global` differs between releases of Python, and has said yes to multicast, to 6to4 and NAT64 forms of
127.0.0.1, and to metadata services of two clouds. Sources: the IANA registries of special-purpose addresses.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NOT_PUBLIC_4 = {
    "0.0.0.0/8": "this host",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by carriers, and metadata of a cloud",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "metadata of a cloud",
    "169.254.0.0/16": "link-local, and metadata of clouds",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol assignments, and metadata of a cloud",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "AMT",
    "192.88.99.0/24": "6to4 relays",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "AS112",
    "198.18.0.0/15": "benchmarks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, and broadcast",
}
# Of IPv6 only global unicast is ever public. That refuses ::/8 with its mapped, compatible and NAT64 forms, fc00::/7,
# fe80::/10, fec0::/10, ff00::/8, 100::/64 and 5f00::/16 without naming them.
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = {
    "2001::/23": "protocol assignments, with Teredo and ORCHID",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "AS112",
    "3fff::/20": "documentation",
}
_TABLE: dict[int, tuple[tuple[Network, str], ...]] = {
    4: tuple((ip_network(network), what) for network, what in _NOT_PUBLIC_4.items()),
    6: tuple((ip_network(network), what) for network, what in _NOT_PUBLIC_6.items()),
}


def not_public(address: Address) -> str | None:
    """Why an address is not public; None: it is."""
    if address.version == 6 and address not in _PUBLIC_6:
        return f"outside of {_PUBLIC_6}"
    for network, what in _TABLE[address.version]:
        if address in network:
            return f"in {network} ({what})"
    return None


def embedded(address: IPv6Address, prefix: IPv6Network) -> IPv4Address:
    """The IPv4 address inside of a NAT64 address (RFC 6052): it follows the prefix, and byte 8 is no part of it."""
    places = [n for n in range(prefix.prefixlen // 8, 16) if n != 8]
    return IPv4Address(bytes(address.packed[n] for n in places[:4]))
