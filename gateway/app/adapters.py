"""Opens the adapters' port, whose packages are optional, and imported only if the port is on."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from gateway.app.wiring import Runtime
from gateway.config.load import ConfigError, ConfigProblem
from gateway.observe.logs import Logger
from gateway.observe.metrics import Metrics

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
    except ModuleNotFoundError as error:
        reason = f"needs the package {error.name}, which is not installed: pip install 'mlc-gateway[adapters]'"
        raise ConfigError([ConfigProblem("listen.adapters_port", reason)]) from error
    return AdapterListener(place_of(runtime, metrics), routes, log, tls)


def place_of(runtime: Runtime, metrics: Metrics) -> Place:
    """Return what the adapters use of the parts under one set of settings.

    Raises:
        ConfigError: the use case can't read agents.
    """
    from gateway.adapters.agents import Profiles
    from gateway.adapters.requests import Place

    if not isinstance(runtime.profiles, Profiles):
        reason = "can't be used with this use case, which does not read agents (see docs/reference/embedding.md)"
        raise ConfigError([ConfigProblem("listen.adapters_port", reason)])
    return Place(runtime.settings, runtime.port, runtime.profiles, metrics, runtime.store)
