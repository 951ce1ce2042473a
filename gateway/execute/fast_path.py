"""The fast path: the frequent forms of an input, to an agent that was run before.

What is sent for bodies of one shape differs only in their texts and images (`gateway.execute.shape`). So a body of
specimens is planned and proved once, and the result is the template for every other body of that shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from gateway.agents.lookup import AUTH_HEADERS
from gateway.agents.resolver import ResolvedAgent, Resolver
from gateway.config.schema import Settings
from gateway.delivery.plan import Plan
from gateway.delivery.plan_cache import SPECIMEN_TURN
from gateway.execute.deliveries import describe_delivery
from gateway.execute.output import Outputs
from gateway.execute.rendered import Rendering
from gateway.execute.reporter import Reporter
from gateway.execute.response_headers import delivery_headers
from gateway.execute.rewrite import is_native
from gateway.execute.rewriter import Rewriter, new_turn_id
from gateway.execute.session_run import SessionRuns
from gateway.execute.shape import Shape, ShapedBody, read_plain_text, read_shaped
from gateway.execute.shaped_template import ShapedTemplate, specimen_body
from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile
from gateway.observe.record import Delivery
from gateway.ports import Forward
from gateway.recent import Recent
from gateway.unified.budget import SMALL_TEXT, Budget
from gateway.unified.payloads import Payload
from gateway.unified.request import read_execute

_JSON = frozenset({b"application/json", b"application/json; charset=utf-8"})
_IDENTITY_HEADERS = frozenset(name.encode() for name in AUTH_HEADERS)


@dataclass(frozen=True, slots=True)
class Prepared:
    """How bodies of one shape are delivered. template: None if each body needs a plan of its own."""

    plan: Plan | None = None
    template: ShapedTemplate | None = None
    response_headers: Mapping[str, str] = field(default_factory=dict)
    delivery: Delivery | None = None
    render: Rendering | None = None
    documents: Set[str] = frozenset()
    around_text: Sequence[bytes] = ()
    """What is around each place of the text, if there is one text and nothing else."""


_NO_TEMPLATE = Prepared()


class PreparedShapes:
    """What was prepared for one agent. The resolver's entry holds it with the profile, and drops both together."""

    MAX_ENTRIES = 64

    def __init__(self, _: AgentProfile) -> None:
        self.by_shape: Recent[Prepared] = Recent(self.MAX_ENTRIES)
        self.texts: dict[Shape, Prepared] = {}
        """By shape: the bodies of one text, where nothing else changes from request to request."""


class FastPath:
    """Fills templates; the implementation of `gateway.ports.FastHandler`."""

    def __init__(
        self,
        settings: Settings,
        resolver: Resolver,
        rewriter: Rewriter,
        reporter: Reporter,
        outputs: Outputs,
        sessions: SessionRuns | None = None,
    ) -> None:
        self._answers = settings.answers
        self._budget = Budget.from_limits(settings.limits)
        self._longest_text = min(self._budget.text, SMALL_TEXT)
        self._resolver = resolver
        self._rewriter = rewriter
        self._reporter = reporter
        self._outputs = outputs
        self._sessions = sessions
        self._enabled = settings.logs.level != "debug"  # at debug level, every step of every rewrite is logged

    def caller(self, lines: Iterable[bytes]) -> bytes:
        """See `gateway.ports.FastHandler`."""
        headers = read_headers(lines, _IDENTITY_HEADERS) if self._enabled else None
        return b"" if headers is None else self._resolver.caller(headers)

    def try_fast(self, agent_id: str, caller: bytes, body: bytes) -> Forward | None:
        """See `gateway.ports.FastHandler`."""
        agent = self._resolver.peek(agent_id, caller)
        if agent is None:
            return None
        prepared = agent.derive(PreparedShapes)
        if prepared.texts and len(body) <= self._longest_text and (plain := read_plain_text(body)) is not None:
            shape, text = plain
            found = prepared.texts.get(shape)
            if found is not None:
                return self._forward(found, [text.join(found.around_text)])
        return self._try_shaped(agent, prepared, body)

    def _try_shaped(self, agent: ResolvedAgent, prepared: PreparedShapes, body: bytes) -> Forward | None:
        if agent.profile.generation is Generation.UNIFIED_V2:
            return None
        shaped = read_shaped(body, self._budget)
        if shaped is None:
            return None
        if not agent.is_easy:
            return None  # preparing would delay others
        found = prepared.by_shape.get(shaped.shape, lambda: self._prepare(agent, shaped))
        if found.template is None:
            return None
        if found.around_text and len(prepared.texts) < PreparedShapes.MAX_ENTRIES:
            prepared.texts[shaped.shape] = found
        return self._forward(found, found.template.fill(shaped, new_turn_id))

    def _forward(self, prepared: Prepared, body: list[Payload]) -> Forward:
        assert prepared.plan is not None
        self._reporter.count(prepared.plan)
        return Forward(
            body,
            prepared.response_headers,
            delivery=prepared.delivery,
            render=prepared.render,
            documents=prepared.documents,
        )

    def _prepare(self, agent: ResolvedAgent, shaped: ShapedBody) -> Prepared:
        if self._outputs.converts(agent.profile):
            return _NO_TEMPLATE
        if self._sessions is not None and self._sessions.remembers(agent.profile):
            return _NO_TEMPLATE
        try:
            request = read_execute(specimen_body(shaped.shape), roles=self._rewriter.options.roles)
            if request.input is None or is_native(agent.profile, request.input):
                return _NO_TEMPLATE
            rewrite = self._rewriter.rewrite(agent, request, request.input, turn_id=SPECIMEN_TURN)
        except Exception:
            return _NO_TEMPLATE  # a refusal, or a fault, is reported for the client's own body
        template = ShapedTemplate.of(b"".join(rewrite.body or ()), shaped)
        input_type = request.input.type.value
        headers = delivery_headers(self._answers, rewrite.plan, input_type, both_sent=False)
        delivery = describe_delivery(agent.profile, input_type, rewrite.plan)
        around_text = template.around_text if template is not None else ()
        rendering, documents = agent.derive(Rendering), agent.profile.documents
        return Prepared(rewrite.plan, template, headers, delivery, rendering, documents, around_text)


def read_headers(lines: Iterable[bytes], wanted: Collection[bytes]) -> dict[str, str] | None:
    """Return the `wanted` fields of a JSON request, names in lower case.

    None where the fast path can't be used: another content type, a content-encoding, a repeated field, a signature.
    """
    found: dict[str, str] = {}
    is_json = False
    for line in lines:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name == b"content-type":
            is_json = not is_json and value.strip().lower() in _JSON
        elif name == b"content-encoding":
            return None
        elif name in wanted:
            if name.decode() in found or b"AWS4-" in value:
                return None
            found[name.decode()] = value.strip().decode("utf-8", "surrogateescape")
    return found if is_json else None
