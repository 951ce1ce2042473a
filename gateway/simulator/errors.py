"""The two shapes of a cluster's errors (recorded in 07_errors).

A failed run responds with ``{"status", "error": {"type", "reason", "details"}}``; a request that was
refused before the run, with ``{"error": {"root_cause": [...], "type", "reason"}, "status"}``.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class Answer(Exception):
    """A failure that is already a response: `status` and the JSON `body`."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class ExecuteFailure(Answer):
    """A failure inside an agent's run; `kind` is the simple name of the Java exception."""

    def __init__(self, status: int, kind: str, details: str) -> None:
        reason = "Invalid Request" if status == 400 else "System Error"
        super().__init__(status, {"status": status, "error": {"type": kind, "reason": reason, "details": details}})
        self.kind = kind
        self.details = details


class RestFailure(Answer):
    """A request the REST layer refused; `more` are further fields of the error, such as `line` and `col`."""

    def __init__(self, status: int, kind: str, reason: str, **more: Any) -> None:
        error = {"type": kind, "reason": reason, **more}
        super().__init__(status, {"error": {"root_cause": [error], **error}, "status": status})


class NoAnswer(Exception):
    """The cluster never answers this request."""


def illegal_argument(details: str) -> ExecuteFailure:
    """Return a 400 IllegalArgumentException."""
    return ExecuteFailure(400, "IllegalArgumentException", details)


def null_pointer(details: str = "") -> ExecuteFailure:
    """Return the 500 NullPointerException for a missing `question`."""
    return ExecuteFailure(500, "NullPointerException", details)


def not_found(what: str, given: str) -> RestFailure:
    """Return the 404 for an agent, model or connector that isn't there."""
    return RestFailure(404, "status_exception", f"Failed to find {what} with the provided {what} id: {given}")


def no_handler(method: str, path: str) -> Answer:
    """Return the 400 for an unknown path."""
    return Answer(400, {"error": f"no handler found for uri [{path}] and method [{method}]"})


def wrong_method(method: str, uri: str, allowed: str) -> Answer:
    """Return the 405 for a known path with another method."""
    text = f"Incorrect HTTP method for uri [{uri}] and method [{method}], allowed: [{allowed}]"
    return Answer(405, {"error": text, "status": 405})
