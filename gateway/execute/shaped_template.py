"""The template of all bodies of one shape: what is sent for a body of specimens, cut where these are.

A specimen is a text or an image that nothing else contains, so that its places in what is sent can be found.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gateway.delivery.escaping import raw_text
from gateway.delivery.plan_cache import SPECIMEN_TURN
from gateway.execute.shape import MARKS, MOST_PARTS, Shape, ShapedBody
from gateway.unified.budget import SMALL_TEXT
from gateway.unified.payloads import Payload

_FIRST, _LAST = "\uf8f3", "\uf8f4"
"""Around each specimen; characters of `MARKS`."""
_ESCAPED = '"\\\n'
"""What JSON escapes: the specimen of a text has it, so that one can tell how often each place is escaped."""


def _specimen_text(number: int) -> str:
    return f"{_FIRST}{number}{_ESCAPED}{_LAST}"


def _specimen_image(number: int) -> bytes:
    return base64.b64encode(f"specimen image {number:05}".encode())


def specimen_body(shape: Shape) -> bytes:
    """Return a body of `shape` with specimens as texts and images."""
    return json.dumps({"input": _Specimens().content(shape)}, ensure_ascii=False).encode()


class _Specimens:
    def __init__(self) -> None:
        self._texts = self._images = 0

    def content(self, shape: Shape) -> Any:
        if isinstance(shape, str):
            self._texts += 1
            return shape.replace("|", _specimen_text(self._texts - 1))
        if isinstance(shape[0], tuple) and len(shape[0]) == 2:
            return [{"role": role, "content": self.content(content)} for role, content in shape]
        return list(map(self._block, shape))

    def _block(self, shape: Shape) -> Any:
        if isinstance(shape, str):
            return {"type": "text", "text": self.content(shape)}
        self._images += 1
        data = _specimen_image(self._images - 1).decode()
        return {"type": "image", "source": {"type": "base64", "format": shape[0], "data": data}}


def _encoded(text: str) -> bytes:
    return msgspec.json.encode(text)[1:-1]


_ONCE, _TWICE = _encoded(_ESCAPED), _encoded(raw_text(_ESCAPED))
_TURN = -1
_SLOTS = {_specimen_image(number): number for number in range(MOST_PARTS)} | {SPECIMEN_TURN.encode(): _TURN}
_SPECIMEN = re.compile(
    rb"%b([0-9]+)(?:%b|(%b))%b|%b"
    % (_FIRST.encode(), re.escape(_ONCE), re.escape(_TWICE), _LAST.encode(), b"|".join(map(re.escape, _SLOTS)))
)

_Piece = bytes | tuple[int, bool] | int
"""Bytes as they are; the number of a text, and whether it is escaped twice; the number of an image, or `_TURN`."""


class ShapedTemplate:
    """A body to send for any body of one shape: the body for the specimens, cut where they are."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces
        parts = {piece for piece in pieces if not isinstance(piece, bytes)}
        only_text = parts <= {(0, False), (0, True)}
        self.around_text = [piece for piece in pieces if isinstance(piece, bytes)] if only_text else []
        """What is around each place of the text, if there is only one text."""

    @classmethod
    def of(cls, sent: bytes, shaped: ShapedBody) -> ShapedTemplate | None:
        """Return the template. None if a text or image of `shaped` is missing in `sent`, or stands there changed.

        sent: what is sent for `specimen_body(shaped.shape)`.
        """
        pieces = list(_cut(sent))
        texts = {piece[0] for piece in pieces if isinstance(piece, tuple)}
        images = {piece for piece in pieces if isinstance(piece, int) and piece != _TURN}
        if texts != set(range(len(shaped.texts))) or images != set(range(len(shaped.images))):
            return None
        if any(isinstance(piece, bytes) and MARKS.search(piece.decode()) for piece in pieces):
            return None
        return cls(pieces)

    def fill(self, shaped: ShapedBody, new_turn_id: Callable[[], str]) -> list[Payload]:
        """Return the body for `shaped`, in pieces. Images are not copied.

        new_turn_id: called if the body has a turn id, see `gateway.delivery.plan.plan`.
        """
        once = list(map(_encoded, shaped.texts))
        turn = new_turn_id().encode() if _TURN in self._pieces else b""
        filled: list[Payload] = []
        for piece in self._pieces:
            if isinstance(piece, bytes):
                filled.append(piece)
            elif isinstance(piece, int):
                filled.append(turn if piece == _TURN else shaped.images[piece])
            else:
                number, twice = piece
                text = once[number]
                filled.append(_encoded(raw_text(shaped.texts[number])) if twice and b"\\" in text else text)
        return [b"".join(filled)] if sum(map(len, filled)) <= SMALL_TEXT else filled


def _cut(sent: bytes) -> Iterator[_Piece]:
    done = 0
    for found in _SPECIMEN.finditer(sent):
        yield sent[done : found.start()]
        done = found.end()
        slot = _SLOTS.get(found[0])
        yield slot if slot is not None else (int(found[1]), found[2] is not None)
    yield sent[done:]
