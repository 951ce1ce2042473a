"""Secrets in texts that are not JSON: assignments, header lines, schemes, passwords and signatures in URLs."""

from __future__ import annotations

import re

from gateway.observe.secrets import KEY_WORDS, Secrets, is_secret_name, is_secret_parameter, marker

_NAME = (
    r"((?:authorization|cookie|passw(?:or)?d|secret|token|api[_-]?key|credential|access[_-]?key|private[_-]?key"
    rf"|passphrase|jwt|(?<![a-z])pwd|conn(?:ection)?[_-]?str(?:ing)?|(?:{'|'.join(sorted(KEY_WORDS))})[_-]?key)"
    r"[\w.-]{0,64}+)"
)
_ASSIGNED = (
    re.compile(rf"(?i){_NAME}\s{{0,3}}[=:]\s{{0,3}}\"([^\"\\]{{1,4096}}+)"),
    re.compile(rf"(?i){_NAME}'?\s{{0,3}}[=:]\s{{0,3}}'([^'\\\r\n]{{1,4096}}+)"),
    re.compile(
        r"(?i)((?:authorization|cookie)[\w.-]{0,64}+)\s{0,3}[=:]\s{0,3}([^\s\"'\\{}\[\],][^\r\n\"\\{}\[\],]{0,4096}+)"
    ),
    re.compile(  # a part of multipart/form-data (RFC 7578): lines of its head, an empty line, its value
        rf"(?i)form-data;[^\r\n]{{0,128}}name=\"{_NAME}\"[^\r\n]{{0,128}}"
        r"(?:\r?\n[^\r\n]{1,128}){0,8}\r?\n\r?\n([^\r\n]{1,4096}+)"
    ),
    re.compile(rf"(?i){_NAME}(?:\s{{0,3}}[=:]\s{{0,3}}|%3d)([^\s&,;\"'<>{{}}\[\]\\()]{{1,4096}}+)"),
)
_ALONE = (
    re.compile(r"(?i)\b(?:bearer|basic)\s{1,3}(?=[A-Za-z._~+/-]{0,64}[0-9=])([A-Za-z0-9._~+/=-]{8,4096}+)"),
    re.compile(  # a private key (RFC 7468), whole or cut
        r"-----BEGIN [A-Z0-9 ]{0,32}PRIVATE KEY(?: BLOCK)?-----([^-\"]*+(?:-(?!----END )[^-\"]*+)*)"
    ),
    re.compile(  # the hash of a password, as crypt(3) and OpenSearch's security plugin write it
        r"(\$(?:2[abxy]?\$[0-9]{2}\$[./A-Za-z0-9]{22,53}+|(?:argon2|pbkdf2|scrypt)[\w-]{0,16}\$[^\s\"'\\<>&]{16,512}+))"
    ),
    re.compile(r"://([^\s/?#@\"'\\:]{0,256}+:[^\s/?#@\"'\\]{1,256}+)@"),
)
_PARAMETER = re.compile(r"(?i)(?<![\w.%-])([a-z][\w.-]{0,64}+)=([^\s&;,\"'<>{}\[\]\\()]{1,4096}+)")
"""A parameter of a URL or a form. In other texts, names such as `code` say little, so no white space may be there."""
_ELEMENT = re.compile(
    r"<(?:[\w.-]{1,64}+:)?([a-zA-Z][\w.-]{0,64}+)(?:\s[^<>]{0,512}+)?>(?:<!\[CDATA\[)?([^<>]{1,4096}?)(?:\]\]>)?<\\?/"
)
_CURL_USER = re.compile(
    r"(?<![\w-])(?:-[uU]|--(?:proxy-)?user)(?:\s{1,3}|=)?(?:\\?[\"'])?[^\s\"'\\:]{0,256}+:([^\s\"'\\]{1,1024}+)"
)
_SHOWN = re.compile(r"true|false|null|\[REDACTED.*", re.DOTALL)


def hide_assigned(text: str, found: Secrets) -> str:
    """Return `text` without such secrets. found: gets them."""

    def hide(match: re.Match[str]) -> str:
        *names, secret = match.groups()
        if _SHOWN.fullmatch(secret) or not all(map(is_secret, names)):
            return match[0]
        found.add(secret)
        at = match.start(len(names) + 1) - match.start()
        return match[0][:at] + marker(secret) + match[0][at + len(secret) :]

    is_secret = is_secret_name
    for pattern in (*_ASSIGNED, *_ALONE, _ELEMENT):
        text = pattern.sub(hide, text)
    if "curl" in text.lower():
        text = _CURL_USER.sub(hide, text)
    is_secret = is_secret_parameter
    return _PARAMETER.sub(hide, text)
