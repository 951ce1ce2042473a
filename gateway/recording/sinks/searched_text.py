"""The words of a record that can be searched, without the escapes of JSON; and the query of a search. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gateway.recording.sinks.encoding import Content, decode_content
from gateway.recording.store import InvalidFilter

LONGEST = 1_048_576
"""Characters of each body that are indexed."""
_END = " \ue000 "
"""Between two bodies: FTS5 takes it for a word, so that no phrase matches across it."""
_ESCAPE = re.compile(r"(\\+)(?:u([0-9a-fA-F]{4})|([bfnrt])(\w*))?")


def searched_text(data: bytes) -> str:
    """Return the text of a record's bodies; "" if it can't be read."""
    try:
        content = decode_content(data)
    except msgspec.DecodeError:
        return ""
    return _END.join(unescape(text[:LONGEST]) for text in dict.fromkeys(_bodies(content)))


def _bodies(content: Content) -> Iterable[str]:
    for message in (content.request, content.forwarded, content.response, content.answered):
        if message is not None and message.body.text and not message.body.encoding:
            yield message.body.text
    if content.rendered:
        yield content.rendered


def unescape(text: str) -> str:
    """Return the words of a JSON text: escapes are replaced by what they stand for, or by a space.

    JSON in a string of JSON has its escapes escaped, so ``\\\\n`` may be the end of a line there, or a backslash before
    an ``n``: both readings of the word that follows are indexed.
    """
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_unescaped, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unescaped(match: re.Match[str]) -> str:
    backslashes, code, letter, word = match.groups()
    if code:
        return chr(int(code, 16))
    if letter is None:
        return " "
    return f" {word}" if len(backslashes) % 2 else f" {letter}{word} {word}"


_TERM = re.compile(r'"([^"]*)"?(\*?)|([^\s"]+)')
_PREFIX = 3
"""Least number of characters before a ``*``: shorter beginnings match too many words."""
_LONG_END = re.compile(rf"[^\W_]{{{_PREFIX}}}$")


def words_query(text: str) -> str:
    """Return the query of FTS5 (https://www.sqlite.org/fts5.html#full_text_query_syntax) for a user's words; "" for "".

    All words must be there: ``cat dog``. ``"black cat"`` is a phrase, ``cat*`` the beginning of a word. Case and
    accents do not count. Everything else has no meaning: each word is quoted, so no input is a syntax error.

    Raises:
        InvalidFilter: it has no letter or digit, or fewer than three before a ``*``.
    """
    terms = []
    for found in _TERM.finditer(text.replace("\0", " ")):
        phrase, star, word = found.groups()
        if word is not None:
            star = "*" if word.endswith("*") else ""
            phrase = word.rstrip("*")
        if star and not _LONG_END.search(phrase):
            raise InvalidFilter("text", f"{found[0]!r} needs at least {_PREFIX} letters or digits before the *")
        if any(map(str.isalnum, phrase)):
            terms.append(f'"{phrase}"{star}')
    if text.strip() and not terms:
        raise InvalidFilter("text", f"{text!r} has no letter or digit to search for")
    return " AND ".join(terms)
