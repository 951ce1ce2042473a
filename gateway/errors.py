"""Every error the gateway itself answers with, in one tree.

    GatewayError                     status  type (stable code)
    ├── InvalidInput                 400     ValidationException
    │     the body or its `input` is wrong; carries every problem found, each with its place
    ├── UndeliverableContent         400     UndeliverableContent
    │     valid input that can't be delivered whole to this agent, connector or provider
    ├── UnresolvedAgent              400     UnresolvedAgent
    │     the agent, its model or its connector can't be read or recognised, so nothing can be proved
    ├── GuardrailRefused             403     GuardrailRefused
    │     a guardrail of the operator refused the request or the answer
    ├── GuardrailUnavailable         503     GuardrailUnavailable
    │     a guardrail could not check it
    ├── BudgetSpent                  429     BudgetSpent
    │     the budget of the agent or the caller is spent until its window ends
    ├── BudgetUnavailable            503     BudgetUnavailable
    │     the store of what was spent can't be read
    ├── SignatureConflict            400     SignatureConflict
    │     the client signed a request that the gateway changes or signs itself
    ├── SessionNotFound              404     SessionNotFound
    │     the caller has no session of this id with this agent
    ├── SessionBusy                  409     SessionBusy
    │     another request of the session is still running
    ├── IdempotencyKeyReused         422     IdempotencyKeyReused
    │     another registration was made under this key
    ├── RegistrationFailed           502     RegistrationFailed
    │     a step of a registration was refused; the status is that of the cluster's response
    ├── BodyTooLarge                 413     BodyTooLarge
    ├── UnsupportedEncoding          415     UnsupportedEncoding
    ├── TooManyRequests              429     TooManyRequests
    │     the client has reached its limit of requests
    ├── Overloaded                   503     Overloaded
    │     the gateway has reached its limit of requests
    ├── CredentialsUnavailable       503     CredentialsUnavailable
    │     the gateway must sign requests to the cluster, but has no credentials
    ├── MemoryUnavailable            503     MemoryUnavailable
    │     the store of sessions can't be used
    ├── UpstreamUnavailable          502     UpstreamUnavailable
    │   └── AnswerTooLarge           502     UpstreamUnavailable
    │         the answer to a request of the gateway's own is longer than the gateway reads
    └── UpstreamTimeout              504     UpstreamTimeout

`GatewayError.body` is the JSON; `gateway.proxy.error_responses` makes a response of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One fault of a request.

    place: its path from the body's root (``input[1].source.format``).
    reason: what is wrong, in one sentence.
    expected, received: what is allowed there, and what was received (a type name or a shortened value).
    code: the limitation's short code from ``docs/reference/limitations.md``, if it is one.
    help: what to do about it. The first remedy comes first; what follows a semicolon explains it, or is another one.
    repeats: the part of `reason` that is a text of the cluster's or the client's. It is not logged.
    """

    place: str
    reason: str
    expected: str = ""
    received: str = ""
    code: str = ""
    help: str = ""
    repeats: str = ""

    def as_dict(self, docs_url: str = "") -> dict[str, str]:
        """Return the problem as JSON data, without empty members. docs_url: as for `link`."""
        members = {
            "field": self.place,
            "reason": self.reason,
            "expected": self.expected,
            "received": self.received,
            "code": self.code,
            "help": self.help,
            "docs": link(docs_url, "reference/limitations", self.code) if self.code else "",
        }
        return {name: value for name, value in members.items() if value}


class GatewayError(Exception):
    """An error response of the gateway's own: an HTTP status, a stable type and one or more problems."""

    status: int = 500
    type: ClassVar[str] = "GatewayError"
    help: ClassVar[str] = ""
    says_expected: ClassVar[bool] = False
    """What the first problem expected is its remedy, where it has no other."""
    retry_after: int = 0
    """Seconds for the `Retry-After` header; 0 for no header."""
    docs_url: str = ""
    """Where the client finds the docs; see `link`. The port that answers sets it."""
    guardrails: Sequence[dict[str, Any]] = ()
    """What guardrails did with the request, for its record; see `gateway.observe.record.ExchangeRecord`."""

    def __init__(self, reason: str, problems: Sequence[Problem] = (), help: str = "", repeats: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.repeats = repeats
        self.problems = tuple(problems)
        self.hint = help or next((p.help for p in self.problems if p.help), "") or self.help

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> GatewayError:
        """Return the error for `problems`; its reason is that of the first, with a count of the others."""
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        place = f"[{first.place}] " if first.place else ""
        return cls(f"{place}{first.reason}{more}", problems, repeats=first.repeats)

    @property
    def code(self) -> str:
        """The short code of the first problem, "" if it has none."""
        return self.problems[0].code if self.problems else ""

    @property
    def summary(self) -> str:
        """The reason with the code and the first remedy: all that the exceptions of most clients show."""
        first = self.problems[0] if self.problems else Problem("", "")
        of_others = self.hint != first.help and any(self.hint == problem.help for problem in self.problems[1:])
        remedy = "" if of_others else first_remedy(self.hint)
        if not remedy and first.expected and self.says_expected:
            remedy = f"expected {first.expected}"
        if not remedy and not first.code:
            return self.reason
        reason = self.reason.rstrip(".") + (f" [{first.code}]" if first.code else "")
        return f"{reason}. {remedy[0].upper()}{remedy[1:]}{'' if remedy[-1] in '.?' else '.'}" if remedy else reason

    def body(self) -> dict[str, Any]:
        """Return the JSON body: OpenSearch's shape, with `message`, `details`, `problems`, `help` and `docs`."""
        cause = {"type": self.type, "reason": self.summary}
        error: dict[str, Any] = {"root_cause": [cause], **cause, "message": self.reason}
        if self.problems:
            first = self.problems[0]
            error["details"] = {
                "field": first.place,
                "expected": first.expected,
                "received": first.received,
            }
            error["problems"] = [problem.as_dict(self.docs_url) for problem in self.problems]
        if self.hint:
            error["help"] = self.hint
        if self.docs_url:
            page, part = ("limitations", self.code) if self.code else ("errors", "types")
            error["docs"] = link(self.docs_url, f"reference/{page}", part)
        return {"error": error, "status": self.status}


_FIRST = re.compile(r"(?:`[^`]*`|[^`;])*")


def first_remedy(help: str) -> str:
    """Return the first thing that `help` says to do: all before a semicolon that is not inside backquotes."""
    first = _FIRST.match(help)
    return (first[0] if first else help).strip()


def link(docs_url: str, page: str, part: str) -> str:
    """Return the absolute address of a part of a page of the docs; "" without `docs_url`.

    docs_url: the setting `answers.docs_url`; ``{page}`` in it stands for the page, else its Markdown file is appended.
    page: its path without ending, ``reference/errors``. part: the heading's anchor, or a code.
    """
    if not docs_url:
        return ""
    address = docs_url.replace("{page}", page) if "{page}" in docs_url else f"{docs_url.rstrip('/')}/{page}.md"
    return f"{address}#{part.lower()}"


def release_frames(error: BaseException) -> None:
    """Release the frames of an error, and the errors that caused it.

    Frames refer to the request's body, and often to a task or future that refers to the error. Such a cycle would keep
    the body in memory until the next garbage collection.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None


class InvalidInput(GatewayError):
    """The body is not JSON, or its `input` is invalid; `problems` lists every fault."""

    status = 400
    type = "ValidationException"
    says_expected = True


class UndeliverableContent(GatewayError):
    """The input is valid, but can't be delivered whole to this agent's LLM; each problem has a place and a code."""

    status = 400
    type = "UndeliverableContent"


class UnresolvedAgent(GatewayError):
    """The agent, its model or its connector can't be read, or no provider is known for it."""

    status = 400
    type = "UnresolvedAgent"


class CallerRefused(GatewayError):
    """The cluster of `upstream` does not let the caller run agents, so a route runs none elsewhere."""

    status = 403
    type = "CallerRefused"


class CallerUnknown(CallerRefused):
    """It does not know the caller."""

    status = 401


class GuardrailRefused(GatewayError):
    """A guardrail of the operator refused the request or the answer; each problem has a place and its reason."""

    status = 403
    type = "GuardrailRefused"


class GuardrailUnavailable(GatewayError):
    """A guardrail failed, took too long, or can't be shown the content, and its `on_failure` is refuse."""

    status = 503
    type = "GuardrailUnavailable"


class BudgetSpent(GatewayError):
    """A budget is spent. The agent did not run. retry_after: seconds until its window ends."""

    status = 429
    type = "BudgetSpent"

    def __init__(self, reason: str, problems: Sequence[Problem], help: str, retry_after: int) -> None:
        super().__init__(reason, problems, help)
        self.retry_after = retry_after


class BudgetUnavailable(GatewayError):
    """The store of what was spent can't be read, and `policy.on_store_failure` is refuse. The agent did not run."""

    status = 503
    type = "BudgetUnavailable"
    retry_after = 1


class SignatureConflict(GatewayError):
    """The client signed its request with SigV4, and the signature would not match what the cluster receives."""

    status = 400
    type = "SignatureConflict"


class SessionNotFound(GatewayError):
    """The caller has no session of this id with this agent. Another caller's session is not found either."""

    status = 404
    type = "SessionNotFound"


class SessionBusy(GatewayError):
    """Another request of the session is still running, and `memory.concurrent` says to refuse, or the wait was long."""

    status = 409
    type = "SessionBusy"
    help = "Wait for the answer to the other request, then send this one again."


class MemoryUnavailable(GatewayError):
    """The store of sessions can't be used, or holds what can't be read. An agent that was asked for did not run."""

    status = 503
    type = "MemoryUnavailable"
    retry_after = 1


class IdempotencyKeyReused(GatewayError):
    """The caller registered another agent under the same `Idempotency-Key`."""

    status = 422
    type = "IdempotencyKeyReused"


class RegistrationFailed(GatewayError):
    """The cluster refused a step of a registration. Earlier steps are undone; `problems` lists what remains."""

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
    """The gateway can't read the body's Content-Encoding."""

    status = 415
    type = "UnsupportedEncoding"


class TooManyRequests(GatewayError):
    """The client has reached its limit of running and waiting requests."""

    status = 429
    type = "TooManyRequests"


class Overloaded(GatewayError):
    """The gateway has reached its limit of running and waiting requests."""

    status = 503
    type = "Overloaded"


class CredentialsUnavailable(GatewayError):
    """Requests to the cluster must be signed, but boto3's credential chain has no credentials."""

    status = 503
    type = "CredentialsUnavailable"


class UpstreamUnavailable(GatewayError):
    """The cluster refused the connection or closed it before a response began."""

    status = 502
    type = "UpstreamUnavailable"


class AnswerTooLarge(UpstreamUnavailable):
    """The cluster's answer to a request of the gateway's own is longer, or has more values, than the gateway reads."""

    help = "Raise the gateway's settings limits.text and limits.values if this answer is meant to be so long."


class UpstreamTimeout(GatewayError):
    """The cluster did not respond in the configured time."""

    status = 504
    type = "UpstreamTimeout"
    help = "The gateway's settings upstream.timeouts say how long it waits."
