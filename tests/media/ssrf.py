"""The SSRF table: ways to make a server connect to a forbidden address, and the check that prevents each.

``{port}`` is replaced by the port of a server on loopback that must not receive a connection.
"""

from __future__ import annotations

NO_NAME = "the URL's host is not a full domain name"
NOT_PUBLIC = "the URL's host has an address that is not a public one"
SCHEME = "media are not fetched from URLs of this scheme"
CREDENTIALS = "the URL holds credentials, which the gateway does not send"
NOT_ALLOWED = "the URL's host is not one that media may be fetched from"
UNREADABLE = "the URL can't be read"

# Refused by the URL itself. The settings of these rows allow every host, and the loopback server's port.
URLS: dict[str, tuple[str, str]] = {
    "loopback": ("https://127.0.0.1:{port}/", NO_NAME),
    "loopback, short": ("https://127.1:{port}/", NO_NAME),
    "loopback, decimal": ("https://2130706433:{port}/", NO_NAME),
    "loopback, octal": ("https://0177.0.0.1:{port}/", NO_NAME),
    "loopback, octal with zeros": ("https://00000177.0.0.01:{port}/", NO_NAME),
    "loopback, hex": ("https://0x7f000001:{port}/", NO_NAME),
    "loopback, dotted hex": ("https://0x7f.0x0.0x0.0x1:{port}/", NO_NAME),
    "loopback, mixed": ("https://0x7f.1:{port}/", NO_NAME),
    "loopback, circled digits": ("https://①②⑦.⓪.⓪.①:{port}/", NO_NAME),
    "loopback, fullwidth digits": ("https://１２７.０.０.１:{port}/", NO_NAME),
    "loopback, ideographic dots": ("https://127。0。0。1:{port}/", NO_NAME),
    "loopback, trailing dot": ("https://127.0.0.1.:{port}/", NO_NAME),
    "loopback, escaped": ("https://%31%32%37.0.0.1:{port}/", NO_NAME),
    "any address": ("https://0.0.0.0:{port}/", NO_NAME),
    "any address, short": ("https://0:{port}/", NO_NAME),
    "a public address": ("https://93.184.215.14/", NO_NAME),
    "IPv6 loopback": ("https://[::1]:{port}/", NO_NAME),
    "IPv6 any": ("https://[::]:{port}/", NO_NAME),
    "IPv4-mapped": ("https://[::ffff:127.0.0.1]:{port}/", NO_NAME),
    "IPv4-mapped, hex": ("https://[::ffff:7f00:1]:{port}/", NO_NAME),
    "IPv4-compatible": ("https://[::127.0.0.1]:{port}/", NO_NAME),
    "NAT64": ("https://[64:ff9b::7f00:1]:{port}/", NO_NAME),
    "6to4": ("https://[2002:7f00:1::]:{port}/", NO_NAME),
    "link-local with a zone": ("https://[fe80::1%25lo]:{port}/", NO_NAME),
    "metadata, IPv4": ("https://169.254.169.254/latest/meta-data/", NO_NAME),
    "metadata, IPv6": ("https://[fd00:ec2::254]/latest/meta-data/", NO_NAME),
    "localhost": ("https://localhost:{port}/", NO_NAME),
    "LOCALHOST.": ("https://LOCALHOST.:{port}/", NO_NAME),
    "a single label": ("https://metadata/computeMetadata/v1/", NO_NAME),
    "a trailing dot": ("https://media.test.:{port}/", NO_NAME),
    "two trailing dots": ("https://media.test..:{port}/", NO_NAME),
    "an empty label": ("https://media..test:{port}/", NO_NAME),
    "an escape in the host": ("https://media%2etest:{port}/", NO_NAME),
    "a NUL in the host": ("https://127.0.0.1%00.media.test:{port}/", NO_NAME),
    "no host": ("https:///etc/passwd", NO_NAME),
    "credentials": ("https://user:secret@media.test:{port}/", CREDENTIALS),
    "a user only": ("https://media.test@127.0.0.1:{port}/", CREDENTIALS),
    "an empty user": ("https://@media.test:{port}/", NOT_PUBLIC),
    "two at signs": ("https://media.test@x@127.0.0.1:{port}/", CREDENTIALS),
    "a backslash before an at sign": ("https://media.test\\@127.0.0.1:{port}/", UNREADABLE),
    "a fragment before an at sign": ("https://media.test:{port}#@127.0.0.1/", NOT_PUBLIC),
    "a port out of range": ("https://media.test:65536/", UNREADABLE),
    "a port that is no number": ("https://media.test:https/", UNREADABLE),
    "http": ("http://media.test:{port}/", SCHEME),
    "file": ("file:///etc/passwd", SCHEME),
    "ftp": ("ftp://media.test:{port}/", SCHEME),
    "gopher": ("gopher://media.test:{port}/_x", SCHEME),
    "data": ("data:image/png;base64,AAAA", SCHEME),
    "no scheme": ("//media.test:{port}/", SCHEME),
}

# Names with forbidden addresses. One forbidden address in a list is enough.
ADDRESSES: dict[str, list[str]] = {
    "loopback": ["127.0.0.1"],
    "all of loopback": ["127.255.255.254"],
    "this host": ["0.0.0.0"],
    "private, 10": ["10.0.0.1"],
    "private, 172.16": ["172.31.255.255"],
    "private, 192.168": ["192.168.1.1"],
    "carrier's NAT": ["100.64.0.1"],
    "link-local": ["169.254.1.1"],
    "metadata of AWS, Google, Azure": ["169.254.169.254"],
    "metadata of ECS tasks": ["169.254.170.2"],
    "metadata of Alibaba": ["100.100.100.200"],
    "metadata of Oracle": ["192.0.0.192"],
    "Azure's platform": ["168.63.129.16"],
    "multicast": ["224.0.0.1"],
    "broadcast": ["255.255.255.255"],
    "reserved": ["240.0.0.1"],
    "benchmarks": ["198.18.0.1"],
    "documentation": ["203.0.113.1"],
    "6to4 relay": ["192.88.99.1"],
    "IPv6 loopback": ["::1"],
    "IPv6 any": ["::"],
    "IPv6 link-local": ["fe80::1"],
    "IPv6 link-local with a zone": ["fe80::1%lo"],
    "IPv6 site-local": ["fec0::1"],
    "IPv6 private": ["fd00::1"],
    "IPv6 metadata of AWS": ["fd00:ec2::254"],
    "IPv6 metadata of Google": ["fd20:ce::254"],
    "IPv6 multicast": ["ff02::1"],
    "IPv6 discard": ["100::1"],
    "IPv6 documentation": ["2001:db8::1"],
    "IPv4-mapped loopback": ["::ffff:127.0.0.1"],
    "IPv4-mapped public": ["::ffff:93.184.215.14"],
    "IPv4-compatible": ["::127.0.0.1"],
    "NAT64": ["64:ff9b::7f00:1"],
    "NAT64, local": ["64:ff9b:1::7f00:1"],
    "6to4": ["2002:7f00:1::1"],
    "Teredo": ["2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "ISATAP": ["2a00:1450::5efe:7f00:1"],
    "ISATAP, universal": ["2a00:1450::200:5efe:7f00:1"],
    "a public and a private one": ["93.184.215.14", "10.0.0.1"],
    "a private one and a public": ["10.0.0.1", "93.184.215.14"],
    "IPv4 public, IPv6 private": ["93.184.215.14", "fd00::1"],
    "no address": ["not an address"],
}

PUBLIC = ["93.184.215.14", "1.1.1.1", "168.63.129.15", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "2a00:1450::5eff:1"]

# Forbidden redirects of an allowed server.
REDIRECTS: dict[str, tuple[str, str]] = {
    "an address": ("https://127.0.0.1:{port}/png", NO_NAME),
    "an address in decimal": ("//2130706433:{port}/png", NO_NAME),
    "IPv6 loopback": ("https://[::1]:{port}/png", NO_NAME),
    "localhost": ("https://localhost:{port}/png", NO_NAME),
    "a name with a private address": ("https://inside.media.test:{port}/png", NOT_PUBLIC),
    "metadata": ("https://169.254.169.254/latest/meta-data/", NO_NAME),
    "another host": ("https://elsewhere.test:{port}/png", NOT_ALLOWED),
    "another port": ("https://media.test:1/png", NOT_ALLOWED),
    "the scheme's own port": ("https://media.test/png", NOT_ALLOWED),
    "http": ("http://media.test:{port}/png", SCHEME),
    "file": ("file:///etc/passwd", SCHEME),
    "credentials": ("https://u:p@media.test:{port}/png", CREDENTIALS),
    "no URL": ("https://[", UNREADABLE),
}
