"""Secrets in texts that are not JSON: assignments, header lines, authorization schemes, users and passwords in URLs."""

from __future__ import annotations

import re

from gateway.observe.secrets import KEY_OWNERS, Secrets, is_secret_name, marker

_NAME = (
    r"((?:authorization|cookie|passw(?:or)?d|secret|token|api[_-]?key|credential|access[_-]?key|private[_-]?key"
    rf"|passphrase|jwt|(?:{'|'.join(KEY_OWNERS)})[_-]?key)[\w.-]{{0,64}}+)"
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
    re.compile(rf"(?i){_NAME}\s{{0,3}}[=:]\s{{0,3}}([^\s&,;\"'<>{{}}\[\]\\()]{{1,4096}}+)"),
)
_ALONE = (
    re.compile(r"(?i)\b(?:bearer|basic)\s{1,3}(?=[A-Za-z._~+/-]{0,64}[0-9=])([A-Za-z0-9._~+/=-]{8,4096}+)"),
    re.compile(r"://([^\s/?#@\"'\\:]{0,256}+:[^\s/?#@\"'\\]{1,256}+)@"),
)
_SHOWN = re.compile(r"true|false|null|\[REDACTED.*", re.DOTALL)


def hide_assigned(text: str, found: Secrets) -> str:
    """Return `text` without such secrets. found: gets them."""

    def hide(match: re.Match[str]) -> str:
        *names, secret = match.groups()
        if _SHOWN.fullmatch(secret) or not all(map(is_secret_name, names)):
            return match[0]
        found.add(secret)
        at = match.start(len(names) + 1) - match.start()
        return match[0][:at] + marker(secret) + match[0][at + len(secret) :]

    for pattern in (*_ASSIGNED, *_ALONE):
        text = pattern.sub(hide, text)
    return text
