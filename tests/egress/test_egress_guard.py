"""The guard without a network: which URLs and addresses, and the settings."""

import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from tests.egress.support import certificates
from tests.egress.vectors import INSIDE_4, INSIDE_6, SCOPED

from holdfast import ConfigurationError, Egress
from holdfast.egress import NotAllowed, Target, check_headers, parse, vet
from holdfast.egress.addresses import _NOT_PUBLIC_4, _NOT_PUBLIC_6

PUBLIC = (
    "1.1.1.1",
    "93.184.216.34",
    "8.8.8.8",
    "100.63.255.255",
    "172.32.0.1",
    "2606:4700::1111",
    "2a00:1450::1",
)


@pytest.mark.parametrize("address", [*INSIDE_4, *INSIDE_6, *SCOPED])
def test_every_address_of_the_inside_is_refused(address: str) -> None:
    with pytest.raises(NotAllowed):
        vet(address, Egress())


@pytest.mark.parametrize("network", [*_NOT_PUBLIC_4, *_NOT_PUBLIC_6])
def test_addresses_beside_each_network_of_the_table_are_public(network: str) -> None:
    """The first and last of each network are refused; those before and behind are not, unless another network has them."""
    of = ip_network(network)
    for inside in (of[0], of[-1]):
        with pytest.raises(NotAllowed, match="not public"):
            vet(inside, Egress())
    others = [ip_network(one) for one in (*_NOT_PUBLIC_4, *_NOT_PUBLIC_6) if one != network]
    for number in (int(of[0]) - 1, int(of[-1]) + 1):
        if number < 0 or number >= 2**of.max_prefixlen:
            continue
        beside = ip_address(number.to_bytes(of.max_prefixlen // 8, "big"))
        if not any(beside in one for one in others if one.version == of.version):
            assert vet(beside, Egress()) == beside


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_returned(address: str) -> None:
    assert str(vet(address, Egress())) == address
    assert str(vet(ip_address(address), Egress())) == address


def test_a_mapped_address_is_called_as_what_it_is() -> None:
    assert str(vet("::ffff:1.1.1.1", Egress())) == "1.1.1.1"


def test_networks_are_allowed_and_denied_and_a_denial_wins() -> None:
    egress = Egress(
        allow_networks=["10.1.0.0/16", "fd00:1::/32"],
        deny_networks=["10.1.2.0/24", "93.184.216.0/24", "2606:4700::/32"],
    )
    for good in ("10.1.0.1", "fd00:1::1", "::ffff:10.1.0.1", "1.1.1.1"):
        vet(good, egress)
    for bad in (
        "10.2.0.1",
        "10.1.2.3",
        "::ffff:10.1.2.3",
        "93.184.216.34",
        "::ffff:93.184.216.34",
        "2606:4700::1",
    ):
        with pytest.raises(NotAllowed):
            vet(bad, egress)


@pytest.mark.parametrize(
    ("prefix", "of_public", "of_inside"),
    [
        ("64:ff9b::/96", "64:ff9b::101:101", "64:ff9b::7f00:1"),
        ("2606:1::/32", "2606:1:101:101::", "2606:1:7f00:1::"),
        ("2606:1:ff00::/40", "2606:1:ff01:101:1::", "2606:1:ff7f:0:1::"),
        ("2606:1:2::/48", "2606:1:2:101:1:100::", "2606:1:2:7f00:0:100::"),
        ("2606:1:2:ff00::/56", "2606:1:2:ff01:1:101::", "2606:1:2:ff7f:0:1::"),
        ("2606:1:2:3::/64", "2606:1:2:3:1:101:100:0", "2606:1:2:3:7f:0:100:0"),
    ],
)
def test_nat64_is_judged_by_the_address_inside(prefix: str, of_public: str, of_inside: str) -> None:
    egress = Egress(nat64=[prefix])
    assert vet(of_public, egress) == ip_address(of_public)
    with pytest.raises(NotAllowed, match=r"127\.0\.0\.1"):
        vet(of_inside, egress)
    with pytest.raises(NotAllowed):
        vet(of_public, Egress(nat64=[prefix], deny_networks=["1.1.1.0/24"]))
    with pytest.raises(NotAllowed):
        vet(of_public, Egress(nat64=[prefix], deny_networks=[prefix]))


def test_a_url_is_read() -> None:
    egress = Egress(allow_http=True)
    read = {
        "https://hooks.example.com": Target("https", "hooks.example.com", 443, "/", False),
        "https://Hooks.EXAMPLE.com./a/../b?c=%2F#"[:-1]: Target(
            "https", "hooks.example.com", 443, "/a/../b?c=%2F", False
        ),
        "http://xn--bcher-kva.example:443/": Target("http", "xn--bcher-kva.example", 443, "/", False),
        "https://[2606:4700::1111]/": Target("https", "2606:4700::1111", 443, "/", True),
        "https://[::ffff:1.1.1.1]//x": Target("https", "1.1.1.1", 443, "//x", True),
        "https://_a.b-c.example:80?x": Target("https", "_a.b-c.example", 80, "/?x", False),
    }
    for url, target in read.items():
        assert parse(url, egress) == target
    assert parse("https://[2606:4700::1111]:80/x", egress).url == "https://[2606:4700::1111]:80/x"
    assert parse("http://a.example:443/x?y", egress).url == "http://a.example:443/x?y"
    assert parse("https://a.example:443/", egress).authority == "a.example"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://a.example/", "the URL must begin with https://"),
        ("HTTPS:/a.example/", "the URL must begin with https://"),
        ("https://u:p@a.example/", "the URL must not have a user or password"),
        ("https://a.example/#x", "the URL must not have a fragment"),
        ("https://a.example:8443/", "the port must be 443, not 8443"),
        ("https://a.example:/", "the port must be a number from 1 to 65535"),
        ("https://a.example:0443/", "the port must be a number from 1 to 65535"),
        (
            "https://127.1/",
            "the host must be a full name such as hooks.example.com, or an address in its usual form",
        ),
        (
            "https://hooks/",
            "the host must be a full name such as hooks.example.com, or an address in its usual form",
        ),
        ("https://10.0.0.1/", "10.0.0.1 may not be called"),
        ("https://[fd00::1]/", "fd00::1 may not be called"),
        ("https://db.internal/", "db.internal is a name of an inner network"),
        ("https://kubernetes.default.svc/", "kubernetes.default.svc is a name of an inner network"),
        ("https://router.home.arpa/", "router.home.arpa is a name of an inner network"),
        ("https://hidden.onion/", "hidden.onion is a name of an inner network"),
        ("https://[::1/", "the host cannot be read"),
        ("https://[::zz]/", "the host cannot be read"),
        ("https://[1::2::3]/", "the host cannot be read"),
        (
            "https://bücher.example/",
            "the URL has the character '\\xfc': write it percent-encoded, and names as xn--...",
        ),
        (
            "https://a.example/ x",
            "the URL has the character ' ': write it percent-encoded, and names as xn--...",
        ),
        ("https://a.example/" + "x" * 2048, "a URL is text of at most 2048 characters"),
    ],
)
def test_a_url_is_refused_in_words(url: str, text: str) -> None:
    with pytest.raises(NotAllowed) as raised:
        parse(url, Egress())
    assert str(raised.value) == text


def test_names_of_an_inner_network_are_for_those_who_allow_one() -> None:
    egress = Egress(allow_networks=["10.0.0.0/8"])
    assert parse("https://db.internal/", egress).host == "db.internal"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ports": []}, "ports must be a list of at least one number, not []"),
        ({"ports": "443"}, "ports must be a list of at least one number, not '443'"),
        ({"ports": [0]}, "a port is a number from 1 to 65535, not 0"),
        ({"ports": [True]}, "a port is a number from 1 to 65535, not True"),
        ({"ports": ["443"]}, "a port is a number from 1 to 65535, not '443'"),
        ({"allow_networks": "10.0.0.0/8"}, "allow_networks is a list of networks: ['10.0.0.0/8']"),
        (
            {"allow_networks": ["10.0.0.1/8"]},
            (
                "allow_networks has '10.0.0.1/8', which is no network. Write it like 10.1.0.0/16 or fd00:1::/32, "
                "without bits behind the prefix"
            ),
        ),
        (
            {"deny_networks": ["::ffff:10.0.0.0/104"]},
            "deny_networks has '::ffff:10.0.0.0/104'. Mapped addresses are judged as IPv4: name its IPv4 network",
        ),
        (
            {"nat64": ["64:ff9b::/95"]},
            (
                "nat64 has '64:ff9b::/95'. A NAT64 prefix is an IPv6 network of 32, 40, 48, 56, 64, 96 bits, "
                "such as 64:ff9b::/96"
            ),
        ),
        ({"allow_http": 1}, "allow_http must be True or False, not 1"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, not 0"),
        ({"timeout": float("nan")}, "timeout must be a finite number of at least 0 seconds, not nan"),
        (
            {"connect_timeout": "30s"},
            "connect_timeout (30 s) is a part of timeout (20 s), so it cannot be longer",
        ),
        (
            {"proxy": "socks5://p:1"},
            "proxy must be an address such as http://proxy.example:4750, without a path or query",
        ),
        (
            {"proxy": "http://p:1/x"},
            "proxy must be an address such as http://proxy.example:4750, without a path or query",
        ),
        (
            {"proxy": "http://p:x"},
            "proxy must be an address such as http://proxy.example:4750, without a path or query",
        ),
    ],
)
def test_bad_settings_are_refused_in_words(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Egress(**options)  # type: ignore[arg-type]
    assert str(raised.value) == text


def test_a_file_of_certificates_is_read_when_it_is_named(tmp_path: Path) -> None:
    authority, _ = certificates("a.example")
    assert Egress(ca_file=authority).ca_file == authority
    (tmp_path / "empty.pem").write_text("nothing")
    for bad in (str(tmp_path / "missing.pem"), str(tmp_path / "empty.pem")):
        with pytest.raises(
            ConfigurationError, match=r"ca_file .* cannot be read as certificates in PEM form"
        ):
            Egress(ca_file=bad)


def test_an_egress_never_changes_and_shows_no_secret() -> None:
    egress = Egress(proxy="http://user:secret@proxy.example:4750", timeout="1m")
    with pytest.raises(AttributeError, match="never changes"):
        egress.timeout = 5
    with pytest.raises(AttributeError, match="never changes"):
        del egress.ports
    assert "secret" not in repr(egress)
    assert egress.timeout == 60
    assert Egress() == Egress(ports=[443])
    assert hash(Egress()) == hash(Egress(ports=[443]))
    assert Egress() != Egress(ports=[444])
    assert Egress(allow_http=True).ports == {80, 443}


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x y": "1"}, "'x y' is no name of a header"),
        ({"": "1"}, "'' is no name of a header"),
        ({"x\r\ny": "1"}, "'x\\r\\ny' is no name of a header"),
        ({"Host": "x"}, "the header Host is set by the client"),
        ({"Transfer-Encoding": "chunked"}, "the header Transfer-Encoding is set by the client"),
        ({"Proxy-Authorization": "x"}, "the header Proxy-Authorization is set by the client"),
        ({"x": "a\r\nb: c"}, "the header x must be one line of ASCII text"),
        ({"x": "\x00"}, "the header x must be one line of ASCII text"),
        ({"x": "ü"}, "the header x must be one line of ASCII text"),
    ],
)
def test_bad_headers_are_refused_in_words(headers: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_headers(headers)
    assert str(raised.value) == text


def test_the_client_is_loaded_when_it_is_opened_and_named_when_it_is_missing() -> None:
    code = """
import asyncio, sys
import holdfast.egress
assert not {"aiohttp", "cryptography"} & set(sys.modules), "loaded"
sys.modules["aiohttp"] = None
try:
    asyncio.run(holdfast.egress.Client().open())
except holdfast.ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "aiohttp is not installed. Run: pip install 'holdfast-pg[webhooks]'"


def test_a_worker_with_webhooks_has_loaded_the_client_before_its_first_delivery() -> None:
    """Loading takes a part of a second, in which no other job of the worker would go on."""
    code = """
import sys
from holdfast import Holdfast
from holdfast.shapes.webhooks.declare import services

app = Holdfast("postgresql://unused.invalid/none")
hooks = app.webhooks(on=["order.*"])
assert "aiohttp" not in sys.modules, "loaded by whoever declares"
if sys.argv[1] == "missing":
    sys.modules["aiohttp"] = None
print(len(services(app.database, app.tasks)), "holdfast.egress.wire" in sys.modules)
"""
    for how, wanted in (("there", "2 True"), ("missing", "2 False")):
        done = subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == wanted
