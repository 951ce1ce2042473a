"""What is recorded of an exchange, as plain values: redacted, so that it may be stored, shown and exported.

No value refers to itself, so none is tracked by the garbage collector (``gc=False``), which would cost a tenth of it.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Scheme = Literal["http", "https"]


class Body(Struct, frozen=True, omit_defaults=True, gc=False):
    """A body. size: its bytes as they were sent, in its content coding.

    text: the content without its content coding, redacted, each medium replaced by `gateway.observe.redaction`; None if
    it was not recorded. encoding: base64 if `text` is the base64 text of bytes that are not UTF-8.
    omitted: why `text` is None or cut, as a sentence; "" if it is whole.
    """

    size: int = 0
    text: str | None = None
    encoding: Literal["", "base64"] = ""
    omitted: str = ""


class HttpMessage(Struct, frozen=True, omit_defaults=True, gc=False):
    """A request or a response. headers: names as they were sent, values redacted, in their order."""

    headers: tuple[tuple[str, str], ...] = ()
    body: Body = Body()

    def header(self, name: str) -> str:
        """Return the first value of a header; "" without one. name: in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), "")


class Step(Struct, frozen=True, gc=False):
    """A step of handling a request: decode, resolve, fetch, plan, upstream, answer. In seconds; start is since the
    beginning of the exchange.
    """

    name: str
    start: float
    seconds: float


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens that the cluster or the LLM reported, of all LLM calls of a run; None: unknown. cost: by the settings."""

    input: int | None = None
    output: int | None = None
    cost: float | None = None
    currency: str = ""


class Delivery(Struct, frozen=True, omit_defaults=True, gc=False):
    """How an agent's input was delivered. Empty for what is not known.

    type, generation: the agent's. provider, model: of the agent's LLM. strategy: the plan's; "" if the request was not
    rewritten. input_type: text, content_blocks, messages, or question for a legacy request. notices: codes.
    proved: False if the agent could not be read. remembered: how many messages of the gateway's session were sent
    before the client's own. one_model: the agent calls one model only, so a flow's answer, its model's, has all tokens.
    """

    agent_name: str = ""
    type: str = ""
    generation: str = ""
    provider: str = ""
    model: str = ""
    strategy: str = ""
    input_type: str = ""
    notices: tuple[str, ...] = ()
    proved: bool = True
    remembered: int = 0
    one_model: bool = False


class Summary(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a list shows of an exchange as text, each on one line and cut.

    question: of a run, what it was asked last. answer: the end of the answer; of a failure, why in words.
    image: the SHA-256 of the first image of the input, if it is one that browsers show; "" for none. media: how many
    media the input has. broken: the answer to a run has a status of success, but reports an error or breaks off.
    """

    question: str = ""
    answer: str = ""
    image: str = ""
    media: int = 0
    broken: bool = False


class TraceContext(Struct, frozen=True, omit_defaults=True, gc=False):
    """A place in a W3C trace. trace_id: 32 hexadecimal digits.

    span: 16 hexadecimal digits, the span of the request to the cluster. sampled: the trace is recorded. parent: the
    client's span, "" if the trace began here. state: the client's `tracestate`.
    """

    trace_id: str
    span: str
    sampled: bool
    parent: str = ""
    state: str = ""


class RecordedProblem(Struct, frozen=True, omit_defaults=True, gc=False):
    """One problem of a refusal."""

    code: str
    place: str
    reason: str


class RecordedError(Struct, frozen=True, omit_defaults=True, gc=False):
    """Why the gateway refused or failed a request. The texts are redacted as in the log."""

    type: str
    reason: str
    problems: tuple[RecordedProblem, ...] = ()


class ExchangeRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """An exchange. `id` is the request id of logs and errors, unique over all gateways.

    started: seconds since the epoch. seconds: until its end. worker: the process. connection: a number of the client's
    connection within the process, so that a replay keeps its order. client: address.
    target: path and query, redacted. intent: see `gateway.proxy.routes.Intent`. agent_id: "" if the path has none.
    status: 0 if the response was cut, or the client was gone.
    waited: seconds from the request to the head of the cluster's response; None without one.
    request: what the client sent. forwarded: what the cluster got, None if that was the same, or nothing.
    rendered: the first LLM call's body as planned, as JSON text; "" if it is not known.
    response: what the cluster sent. answered: what the client got, None if that was the same.
    conversation: the memory or session id. trace_id: 32 hexadecimal digits of the W3C trace, "" without one. trace: for
    runs of agents, if traces are on. protocol: of the request. scheme: https if the client's connection was TLS.
    summary: None if the exchange has no text to show. route: the agent's id that the client named, if a route sent the
    run to `agent_id`, on the cluster `cluster` ("" for the one of `upstream`). mirror_of: the id of the exchange whose
    copy this run is, "" for a client's own.
    """

    id: str
    started: float
    seconds: float
    method: str
    target: str
    intent: str
    status: int
    worker: int = 0
    connection: int = 0
    client: str = ""
    user_agent: str = ""
    agent_id: str = ""
    waited: float | None = None
    delivery: Delivery | None = None
    error: RecordedError | None = None
    usage: Usage | None = None
    conversation: str = ""
    trace_id: str = ""
    steps: tuple[Step, ...] = ()
    request: HttpMessage = HttpMessage()
    forwarded: HttpMessage | None = None
    rendered: str = ""
    response: HttpMessage | None = None
    answered: HttpMessage | None = None
    guardrails: tuple[dict[str, Any], ...] = ()
    trace: TraceContext | None = None
    protocol: str = "HTTP/1.1"
    scheme: Scheme = "http"
    summary: Summary | None = None
    route: str = ""
    cluster: str = ""
    mirror_of: str = ""

    @property
    def answer(self) -> HttpMessage | None:
        """What the client got."""
        return self.response if self.answered is None else self.answered
