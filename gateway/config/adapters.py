"""The settings of `adapters`: other protocols in which clients may run agents, on a port of their own."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.config.types import AgentId, HostGlob, PositiveSeconds, Secret


class AdapterKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key for clients that can send nothing but a bearer key, and the credentials that the cluster gets for it."""

    key: Annotated[
        Secret, Meta(description="The key, at least 16 characters, which the client sends as a bearer token.")
    ]
    authorization: Annotated[
        Secret, Meta(description="Value of the `Authorization` that the cluster gets, such as `Basic …`.")
    ]


class McpTool(Struct, frozen=True, forbid_unknown_fields=True):
    """An agent that is served as a tool of MCP."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.-]{1,128}$",
            examples=["ask_docs"],
            description="Name of the tool: 1 to 128 letters, digits, `_`, `.` and `-`.",
        ),
    ]
    agent: Annotated[
        str,
        Meta(
            min_length=1,
            description="Id or exact name of the agent; with `adapters.agents`, one of the names or ids there.",
        ),
    ]
    description: Annotated[
        str, Meta(min_length=1, description="What the tool does, from which the client's LLM decides when to call it.")
    ]
    text: Annotated[
        str, Meta(description="What the agent is asked by a call without `text`. Empty: a call has to have one.")
    ] = ""


class Adapters(Struct, frozen=True, forbid_unknown_fields=True):
    """Other protocols over the same agents, on `listen.adapters_port`."""

    ag_ui: Annotated[bool, Meta(description="Serve AG-UI at `/ag-ui/{agent}`.")] = True
    openai: Annotated[bool, Meta(description="Serve OpenAI's API below `/v1/`; the model is the agent.")] = True
    mcp: Annotated[
        list[McpTool],
        Meta(description="Agents to serve as tools of MCP, at `/mcp` and by `mlc-gateway mcp`. Empty: none."),
    ] = []
    agents: Annotated[
        dict[str, AgentId],
        Meta(
            description="Names of the agents to serve (`helper: agent-id`). Empty: every agent that the caller may "
            "read, by its id or its name."
        ),
    ] = {}
    keys: Annotated[
        list[AdapterKey],
        Meta(description="Keys that stand for credentials of the cluster. Other `Authorization` passes as it came."),
    ] = []
    hosts: Annotated[
        list[HostGlob],
        Meta(
            description="Names in `Host` that requests may be for, as globs, without a port. Empty: addresses and "
            "`localhost` if the port is on a loopback address; any name otherwise."
        ),
    ] = []
    origins: Annotated[
        list[str],
        Meta(
            description="Origins (`https://app.example.com`) whose pages may use the port; `*`: all. Requests of other "
            "pages are refused."
        ),
    ] = []
    comment_seconds: Annotated[
        PositiveSeconds, Meta(description="Between two comments in an event stream that has nothing else to send.")
    ] = 15.0
