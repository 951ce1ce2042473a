"""The settings of `agents.routes`: which agents answer for an agent's id, and how they share its requests."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.config.types import AgentId, Positive

ClusterName = Annotated[str, Meta(pattern=r"^([a-z0-9][a-z0-9_-]{0,62})?$")]
Weight = Annotated[float, Meta(ge=0, le=1_000_000)]


class RouteTarget(Struct, frozen=True, forbid_unknown_fields=True):
    """An agent that answers for the route's id."""

    agent: Annotated[AgentId, Meta(description="Its id on its cluster. No other target of the route has the same.")]
    cluster: Annotated[
        ClusterName, Meta(description="Its cluster, a name in `clusters`; empty: the one of `upstream`.")
    ] = ""
    weight: Annotated[
        Weight,
        Meta(
            description="Share of the new conversations that it gets, in proportion to the other weights. 0: none; it "
            "goes on with those that it began."
        ),
    ] = 0.0
    callers: Annotated[
        Literal["checked", "passed", "trusted"],
        Meta(
            description="Whose credentials a run on another cluster has. `checked`: those of its `auth`, if `upstream` "
            "lets the caller run agents. `passed`: the caller's. `trusted`: those of its `auth`, for "
            "everyone who reaches the gateway."
        ),
    ] = "checked"


class Mirror(Struct, frozen=True, forbid_unknown_fields=True):
    """Copies of requests that run on another target after the answer was sent. Nobody gets their answers."""

    agent: Annotated[
        str, Meta(description="The target that runs the copies: its `agent` in `targets`. Empty: no copies.")
    ] = ""
    ratio: Annotated[float, Meta(ge=0, le=1, description="Share of the runs that are copied.")] = 1.0
    tools: Annotated[
        Literal["none"] | list[str] | None,
        Meta(
            description="Tools of that agent that do no harm if they run twice, by name or type, and `mcp_connectors` "
            "or `executor_agent_id` for those that it has through that parameter; `none`: it has no tools. An agent "
            "with any other tool runs no copies. It has to be given."
        ),
    ] = None
    most_at_a_time: Annotated[
        Positive, Meta(description="Most copies that run at a time in each worker process. Those beyond are dropped.")
    ] = 4


class AgentRoute(Struct, frozen=True, forbid_unknown_fields=True):
    """Agents that share the requests to one agent's id. A conversation stays with the agent that began it."""

    agent: Annotated[AgentId, Meta(description="The id that clients send.")]
    targets: Annotated[
        list[RouteTarget],
        Meta(
            min_length=1,
            description="The agents that answer. The route's own agent is one of them, or gets no requests any more.",
        ),
    ]
    stick_by: Annotated[
        Literal["caller", "first_message"],
        Meta(
            description="What keeps requests that name no conversation with one target, for agents without memory: the "
            "caller (credentials, tenant and `admission.client_header`; without any of these, the first message), or "
            "the caller together with the first message of the conversation."
        ),
    ] = "caller"
    on_failure: Annotated[
        Literal["error", "next"],
        Meta(
            description="If a target can't be reached, has no such agent or begins no answer: the `error`, or a run on "
            "the `next` target, where that one knows the conversation. The tools of the first one may have run."
        ),
    ] = "error"
    mirror: Mirror = Mirror()
