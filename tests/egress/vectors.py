"""Attacks: addresses of the inside, and URLs that lead there by another spelling. PORT is replaced by the victim's port."""


def words(text: str) -> list[str]:
    return text.split()


# Each is used as a URL, as an answer of DNS, as one of several answers, and as the target of a redirect.
INSIDE_4 = words("""
127.0.0.1 127.0.0.3 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200
100.127.255.255 168.63.129.16 169.254.0.1 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.1
192.0.0.192 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.0.1 192.168.255.255 192.175.48.1
198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
""")
INSIDE_6 = words("""
:: ::1 ::2 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:0:127.0.0.1 ::ffff:10.0.0.1
::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b:1::7f00:1 100::1 100:0:0:1::1 2001::1
2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1 2001:20::1 2001:1ff::1 2001:db8::1
2001:db8::5efe:7f00:1 2002:7f00:1::1 2002:a9fe:a9fe::1 2620:4f:8000::1 3fff::1 4000::1 5f00::1 fc00::1 fd00::1
fd00:ec2::254 fd20:ce::254 fe80::1 febf::1 fec0::1 ff02::1 ff0e::1 0:0:0:0:0:0:0:1
""")
# Only answers of DNS look like these.
SCOPED = words("""
fe80::1%eth0 fe80::1%2 ::1%lo 2606:4700::1%eth0
""")

# 127.0.0.1 by another spelling, and hosts that two programs may read differently.
SPELLINGS = words("""
127.1 127.0.1 2130706433 0x7f000001 0x7f.0x0.0x0.0x1 0x7f.1 017700000001 0177.0.0.1 0177.0.0.01 00127.0.0.1
127.0.0.1. 127.0.0.1.. 127.0.0.01 127.0.0.0x1 127.0.0 0 0x0 00000000000000000000000000000177.0.0.1
127.0.0.1%00 127.0.0.1%2e 127%2e0%2e0%2e1 %31%32%37.0.0.1 localhost LOCALHOST localhost. foo.localhost
localhost.localdomain ip6-localhost metadata kubernetes metadata.google.internal kubernetes.default.svc
db.cluster.local printer.local router.lan [::1 ::1 [::1]x x[::1] [[::1]] [127.0.0.1] [v1.fe80] [::1%25lo]
[fe80::1%25eth0] [::1%lo] [0:0:0:0:0:ffff:127.0.0.1] [::ffff:0x7f.0.0.1] [::ffff:127.1] [:::1] user@127.0.0.1
user:pw@127.0.0.1 hooks.good.example@127.0.0.1 hooks.good.example%40127.0.0.1 127.0.0.1#@hooks.good.example
127.0.0.1?@hooks.good.example hooks.good.example%2f@127.0.0.1 hooks.good.example:80@127.0.0.1
hooks..good.example .hooks.good.example -hooks.good.example hooks.good.example.. hooks.good.1 hooks.good.0x7f
1.2.3.4.5 256.256.256.256 1.2.3.999
""")
SPELLINGS += [
    "127\u30020\u30020\u30021",
    "127\uff0e0\uff0e0\uff0e1",
    "\u2460\u2461\u2466.0.0.1",
    "\uff11\uff12\uff17.0.0.1",
    "\u24dbocalhost",
    "lo\xadcalhost",
    "127.0.0.1\\@hooks.good.example",
    "1.1.1.1 @127.0.0.1",
    "127.0.0.1 ",
    "127.0.0.1\t",
    "127.0.0.1\r\nx: y",
    "127.0.0.1\x00.good.example",
    "127.0.0.1\x7f",
    "hooks.good.example\n.evil.example",
]
SPELLINGS += ["a" * 64 + ".example", ".".join(["a" * 63] * 4) + ".example"]

WHOLE = words("""
http:///127.0.0.1:PORT/ http:127.0.0.1:PORT/ http:/127.0.0.1:PORT/ http:// http://:PORT/ http://? http://#
http http: PORT ftp://127.0.0.1:PORT/ gopher://127.0.0.1:PORT/_x file:///etc/passwd
file://127.0.0.1/etc/passwd dict://127.0.0.1:PORT/ ldap://127.0.0.1:PORT/ jar:http://127.0.0.1:PORT!/ data:,x
javascript:1 unix:///var/run/docker.sock http+unix://%2Fvar%2Frun%2Fdocker.sock/ ws://127.0.0.1:PORT/
hTTp://127.0.0.1:PORT/ http://127.0.0.1:0PORT/ http://127.0.0.1:+PORT/ http://127.0.0.1:PORT:PORT/
http://127.0.0.1:/ http://127.0.0.1:-1/ http://127.0.0.1:99999/ http://127.0.0.1:0/ http://127.0.0.1:22/
http://127.0.0.1:PORT/#x http://127.0.0.1:PORT/# url:http://127.0.0.1:PORT/
""")
WHOLE += [
    "",
    " ",
    "http:\\\\127.0.0.1:PORT/",
    "http://127.0.0.1: PORT/",
    "http://127.0.0.1:PORT/" + "a" * 2048,
]


def bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def urls(port: int) -> list[str]:
    """Every attack as a URL."""
    hosts = [bracketed(address) for address in (*INSIDE_4, *INSIDE_6)] + list(SPELLINGS)
    return [f"http://{host}:{port}/" for host in hosts] + [url.replace("PORT", str(port)) for url in WHOLE]
