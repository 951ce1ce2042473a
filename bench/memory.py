"""What a proxy's memory grows by."""

from __future__ import annotations

from bench.load import Connection
from bench.process import Process


def growth(process: Process, raw: bytes, pause: float = 0.0) -> int:
    """Bytes by which the peak rises over what is resident, for one request. pause: see `Connection`."""
    connection = Connection(process.port)
    before = process.memory()
    process.forget_peak()
    connection.exchange(raw, pause)
    grown = process.memory("VmHWM") - before
    connection.close()
    return max(0, grown)


def idle_connection(process: Process, raw: bytes, count: int) -> float:
    """Bytes of a connection that has been answered once and stays open, the mean of `count`."""
    connections: list[Connection] = []
    before = 0
    try:
        for number in range(-count // 5, count):  # the first fifth uses up what is free already
            if number == 0:
                before = process.memory()
            connections.append(Connection(process.port))
            connections[-1].exchange(raw)
        grown = process.memory() - before
        connections[0].exchange(raw)  # it is still there
    finally:
        for connection in connections:
            connection.close()
    return grown / count
