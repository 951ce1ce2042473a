"""Every error the gateway itself answers with, in one tree.

    GatewayError                     status  type (stable code)
    ├── InvalidInput                 400     ValidationException
    │     the body or its `input` is wrong; carries every problem found, each with its place
    ├── UndeliverableContent         400     UndeliverableContent
    │     valid input that this agent, connector or provider can't be given whole
    ├── UnresolvedAgent              400     UnresolvedAgent
    │     what stands behind the agent can't be read or recognised, so nothing can be proved
    ├── SignatureConflict            400     SignatureConflict
    │     the client signed a request that the gateway changes, or signs itself
    ├── IdempotencyKeyReused         422     IdempotencyKeyReused
    │     another registration was made under this key
    ├── RegistrationFailed           502     RegistrationFailed
    │     a step of a registration was refused; the status is the one the cluster answered with
    ├── BodyTooLarge                 413     BodyTooLarge
    ├── UnsupportedEncoding          415     UnsupportedEncoding
    ├── TooManyRequests              429     TooManyRequests
    │     the client has as many requests running as it may
    ├── Overloaded                   503     Overloaded
    │     the gateway has as many requests running as it may
    ├── CredentialsUnavailable       503     CredentialsUnavailable
    │     the gateway is to sign requests to the cluster, but has no credentials for that
    ├── UpstreamUnavailable          502     UpstreamUnavailable
    └── UpstreamTimeout              504     UpstreamTimeout

`gateway.proxy.error_responses` turns one into a response; nothing else builds error bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a request.

    place: where it stands, as a path from the body's root (``input[1].source.format``).
    reason: what is wrong, in one sentence.
    expected, received: what was allowed there, and what came (a type name or a shortened value).
    code: the limitation's short code from ``docs/limitations.md``, when it is one.
    help: what to do about it.
    repeats: the part of `reason` that is not the gateway's own words, but the cluster's or the client's. The log leaves
    it out.
    """

    place: str
    reason: str
    expected: str = ""
    received: str = ""
    code: str = ""
    help: str = ""
    repeats: str = ""

    def as_dict(self) -> dict[str, str]:
        """The problem as JSON data, absent members left out."""
        members = {
            "field": self.place,
            "reason": self.reason,
            "expected": self.expected,
            "received": self.received,
            "code": self.code,
            "help": self.help,
        }
        return {name: value for name, value in members.items() if value}


class GatewayError(Exception):
    """An answer of the gateway's own: an HTTP status, a stable type and one or more problems."""

    status: int = 500
    type: ClassVar[str] = "GatewayError"
    help: ClassVar[str] = ""
    retry_after: int = 0
    """Seconds after which to try again, for the `Retry-After` header; 0: not said."""

    def __init__(self, reason: str, problems: Sequence[Problem] = (), help: str = "", repeats: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.repeats = repeats
        self.problems = tuple(problems)
        self.hint = help or next((p.help for p in self.problems if p.help), "") or self.help

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> GatewayError:
        """The error for `problems` (at least one); its reason is the first one's, with a count of the rest."""
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        place = f"[{first.place}] " if first.place else ""
        return cls(f"{place}{first.reason}{more}", problems, repeats=first.repeats)

    def body(self) -> dict[str, Any]:
        """The JSON body: OpenSearch's shape, with the design's `message` and `details` (DESIGN.md, decision 9)."""
        cause = {"type": self.type, "reason": self.reason}
        error: dict[str, Any] = {"root_cause": [cause], **cause, "message": self.reason}
        if self.problems:
            first = self.problems[0]
            error["details"] = {
                "field": first.place,
                "expected": first.expected,
                "received": first.received,
            }
            error["problems"] = [problem.as_dict() for problem in self.problems]
        if self.hint:
            error["help"] = self.hint
        return {"error": error, "status": self.status}


def release_frames(error: BaseException) -> None:
    """Let go of the frames that an error passed through, and of the errors it came from.

    Frames hold the request's body, and often a task or future that holds the error: the body would then stay until
    the next garbage collection.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None


class InvalidInput(GatewayError):
    """The body is not JSON, or its `input` breaks a rule; `problems` lists every breach."""

    status = 400
    type = "ValidationException"


class UndeliverableContent(GatewayError):
    """The input is valid, but can't reach this agent's LLM whole; each problem names a block and its code."""

    status = 400
    type = "UndeliverableContent"


class UnresolvedAgent(GatewayError):
    """The agent, its model or its connector can't be read, or no provider is known for it."""

    status = 400
    type = "UnresolvedAgent"


class SignatureConflict(GatewayError):
    """The client signed its request with SigV4, and that signature can't hold for what the cluster would get."""

    status = 400
    type = "SignatureConflict"


class IdempotencyKeyReused(GatewayError):
    """The caller registered another agent under the same `Idempotency-Key`."""

    status = 422
    type = "IdempotencyKeyReused"


class RegistrationFailed(GatewayError):
    """The cluster refused a step of a registration; what was made before is undone, or named by a problem."""

    status = 502
    type = "RegistrationFailed"

    def __init__(
        self, reason: str, status: int, problems: Sequence[Problem] = (), help: str = "", repeats: str = ""
    ) -> None:
        super().__init__(reason, problems, help, repeats)
        self.status = status


class BodyTooLarge(GatewayError):
    """The body, or what it decompresses to, is over the configured limit."""

    status = 413
    type = "BodyTooLarge"


class UnsupportedEncoding(GatewayError):
    """The body's Content-Encoding is none the gateway can read."""

    status = 415
    type = "UnsupportedEncoding"


class TooManyRequests(GatewayError):
    """The client has as many requests running, and waiting, as one client may."""

    status = 429
    type = "TooManyRequests"


class Overloaded(GatewayError):
    """The gateway has as many requests running, and waiting, as it may."""

    status = 503
    type = "Overloaded"


class CredentialsUnavailable(GatewayError):
    """Requests to the cluster are to be signed, but boto3's credential chain gives nothing to sign with."""

    status = 503
    type = "CredentialsUnavailable"


class UpstreamUnavailable(GatewayError):
    """The cluster refused the connection or broke it before an answer began."""

    status = 502
    type = "UpstreamUnavailable"


class UpstreamTimeout(GatewayError):
    """The cluster did not answer in the configured time."""

    status = 504
    type = "UpstreamTimeout"
