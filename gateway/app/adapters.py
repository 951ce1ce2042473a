"""Opens the adapters' port, and MCP on the standard streams. Their packages are optional, and imported only then."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from gateway.app.wiring import Runtime, build_use_case, running
from gateway.config.load import ConfigError, ConfigProblem
from gateway.config.schema import Settings
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics
from gateway.recording.recorder import Recording

if TYPE_CHECKING:
    from gateway.adapters.listener import AdapterListener
    from gateway.adapters.requests import Place


def adapters_of(runtime: Runtime, log: Logger, metrics: Metrics, tls: ssl.SSLContext | None) -> AdapterListener | None:
    """Return the adapters' port, not open; None if the settings ask for none.

    Raises:
        ConfigError: a package that it needs is not installed, or the use case can't read agents.
    """
    settings = runtime.settings
    if settings.listen.adapters_port is None:
        return None
    try:
        from gateway.adapters.listener import AdapterListener

        routes = []
        if settings.adapters.openai:
            from gateway.adapters import openai_chat, openai_responses

            routes += [openai_chat.routes, openai_responses.routes]
        if settings.adapters.ag_ui:
            from gateway.adapters import ag_ui

            routes.append(ag_ui.routes)
        if settings.adapters.mcp:
            from gateway.adapters import mcp

            routes.append(mcp.routes)
    except ModuleNotFoundError as error:
        raise _missing("listen.adapters_port", error, "adapters") from error
    return AdapterListener(place_of(runtime, metrics), routes, log, tls)


async def serve_standard_streams(settings: Settings, log: Logger, authorization: str) -> None:
    """Serve the tools of `adapters.mcp` on standard input and output, until the input ends. No port is opened.

    authorization: the caller's credentials for the cluster; "" for none.

    Raises:
        ConfigError: there are no tools, a package is not installed, or as `Gateway`. StoreError: as `running`.
    """
    if not settings.adapters.mcp:
        raise ConfigError([ConfigProblem("adapters.mcp", "names no agents, so there would be no tools")])
    try:
        from gateway.adapters import mcp
    except ModuleNotFoundError as error:
        raise _missing("adapters.mcp", error, "mcp") from error
    metrics = Metrics()
    recording = Recording(settings, log, metrics)
    runtime = Runtime(settings, build_use_case(), log, metrics, recording.recorder)
    place = place_of(runtime, metrics)
    async with running(runtime, recording):
        await mcp.serve_standard_streams(place, authorization)


def _missing(setting: str, error: ModuleNotFoundError, extra: str) -> ConfigError:
    package = (error.name or "").partition(".")[0]
    reason = f"needs the package {package}, which is not installed: pip install 'mlc-gateway[{extra}]'"
    return ConfigError([ConfigProblem(setting, reason)])


def place_of(runtime: Runtime, metrics: Metrics) -> Place:
    """Return what the adapters use of the parts under one set of settings.

    Raises:
        ConfigError: the use case can't read agents.
    """
    from gateway.adapters.agents import Profiles
    from gateway.adapters.requests import Place

    if not isinstance(runtime.profiles, Profiles):
        reason = "can't be used with this use case, which does not read agents"
        raise ConfigError([ConfigProblem("listen.adapters_port", reason)])
    return Place(runtime.settings, runtime.port, runtime.profiles, metrics, runtime.log, runtime.store)
