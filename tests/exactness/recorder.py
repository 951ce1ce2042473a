"""Relays bytes between a client and a server on loopback unchanged, and records them."""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from tests.wire import Parsed

BODYLESS = (b"204", b"304")


@dataclass(frozen=True)
class Exchange:
    """A request, the interim answers to it (their heads), and its answer."""

    request: Parsed
    interim: tuple[Parsed, ...]
    answer: Parsed


@dataclass
class _Line:
    """One connection. marks: (bytes sent before, moment) of each piece that the client sent."""

    sent: bytearray = field(default_factory=bytearray)
    came: bytearray = field(default_factory=bytearray)
    marks: list[tuple[int, int]] = field(default_factory=list)


class Recorder:
    """Listens on `url` and relays to 127.0.0.1:`port`, in a thread with a loop of its own; a context manager."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lines: list[_Line] = []
        self._moment = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        serving = asyncio.start_server(self._relay, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line()
        self._lines.append(line)
        upstream, onward = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(self._pump(reader, onward, line, True), self._pump(upstream, writer, line, False))
        finally:
            onward.close()
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line, sent: bool) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 18):
                if sent:
                    self._moment += 1
                    line.marks.append((len(line.sent), self._moment))
                (line.sent if sent else line.came).extend(data)
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    def exchanges(self) -> list[Exchange]:
        """All exchanges since the last call, in the order in which the requests began; to be asked between them."""
        found = [pair for line in self._lines for pair in _exchanges(line)]
        return [exchange for _, exchange in sorted(found, key=lambda pair: pair[0])]

    def forget(self) -> None:
        """Drop what was recorded; to be asked between exchanges."""
        for line in self._lines:
            line.sent.clear()
            line.came.clear()
            line.marks.clear()


def _exchanges(line: _Line) -> list[tuple[int, Exchange]]:
    """Return what the line carried, and remove it from the record; a connection may carry more later."""
    sent, came = bytes(line.sent), bytes(line.came)
    starts = [start for start, _ in line.marks]
    found = []
    asked = answered = 0
    while answered < len(came):
        moment = line.marks[bisect_right(starts, asked) - 1][1]
        request, asked = take(sent, asked)
        interim: tuple[Parsed, ...] = ()
        while came[answered + 9 : answered + 10] == b"1":
            head, answered = take(came, answered, bodyless=True)
            interim += (head,)
        bodyless = request.line.startswith(b"HEAD ") or came[answered + 9 : answered + 12] in BODYLESS
        answer, answered = take(came, answered, bodyless=bodyless, to_end=True)
        found.append((moment, Exchange(request, interim, answer)))
    del line.sent[:asked], line.came[:answered]
    line.marks.clear()
    return found


def take(raw: bytes, at: int, *, bodyless: bool = False, to_end: bool = False) -> tuple[Parsed, int]:
    """The message that begins at `at`, and where it ends. to_end: one without a length goes on until the end."""
    head = raw.index(b"\r\n\r\n", at)
    line, *lines = raw[at:head].split(b"\r\n")
    headers = tuple((name, value.strip(b" \t")) for name, _, value in (item.partition(b":") for item in lines))
    message = Parsed(line, headers, b"")
    at = head + 4
    if bodyless:
        return message, at
    if message.values("transfer-encoding"):
        body, at = _chunks(raw, at)
    elif lengths := message.values("content-length"):
        at += int(lengths[0])
        body = raw[at - int(lengths[0]) : at]
    else:
        body, at = (raw[at:], len(raw)) if to_end else (b"", at)
    return Parsed(line, headers, body), at


def _chunks(raw: bytes, at: int) -> tuple[bytes, int]:
    pieces = []
    while True:
        end = raw.index(b"\r\n", at)
        size = int(raw[at:end].partition(b";")[0], 16)
        at = end + 2
        if not size:
            break
        pieces.append(raw[at : at + size])
        at += size + 2
    while not raw.startswith(b"\r\n", at):  # trailers
        at = raw.index(b"\r\n", at) + 2
    return b"".join(pieces), at + 2
