"""Memory of the gateway's process that the recorder's process reads, through a descriptor (proc_pid_mem(5)).

A process that has the descriptor can read, and only read. When the process that opened it has ended, nothing is read.
"""

from __future__ import annotations

import ctypes
import os

from gateway.proxy.capture import Data


class _Buffer(ctypes.Structure):
    """`Py_buffer`, of Python's stable ABI (https://docs.python.org/3/c-api/buffer.html)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_HEAD = bytes.__basicsize__ - 1
"""Size of what precedes the data in a `bytes` object. `__basicsize__` counts the null byte after the data too."""
_SIMPLE = 0
"""PyBUF_SIMPLE: contiguous bytes."""
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = (ctypes.POINTER(_Buffer),)


class MemoryGone(Exception):
    """The process whose memory is to be read has ended."""


def address_of(data: Data) -> int:
    """Return where bytes are in this process's memory. They stay there while somebody refers to them."""
    if type(data) is bytes:
        return id(data) + _HEAD  # in CPython; a buffer takes ten times as long
    buffer = _Buffer()
    _get_buffer(data, buffer, _SIMPLE)
    address: int = buffer.buf
    _release(buffer)
    return address


def open_own_memory() -> int:
    """Return a descriptor to read this process's memory.

    Raises:
        OSError: there is none, or the system does not allow that.
    """
    return os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)


def can_read_own_memory() -> bool:
    """Tell whether there is such a descriptor, and what is read with it is what is there."""
    sample = os.urandom(64)
    try:
        descriptor = open_own_memory()
    except OSError:
        return False
    try:
        samples = sample, memoryview(sample)
        return all(read_memory(descriptor, address_of(data), len(data)) == sample for data in samples)
    except (MemoryGone, OSError):
        return False
    finally:
        os.close(descriptor)


def read_memory(descriptor: int, address: int, size: int) -> bytes:
    """Return bytes of the process that opened the descriptor.

    Raises:
        MemoryGone: it has ended. OSError: they can't be read.
    """
    data = os.pread(descriptor, size, address)
    if len(data) != size:
        raise MemoryGone
    return data
