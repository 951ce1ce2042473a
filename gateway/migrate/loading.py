"""Has models loaded again, so that they use their connectors as these are now.

docs/internals/facts.md, "Deploy states and connector changes": a loaded model goes on with the connector that it was
loaded with, and only `_profile` tells whether a model is loaded. After `_undeploy` the next request loads it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.agents.cluster import read_switch
from gateway.agents.lookup import document_path
from gateway.migrate.connection import Cluster
from gateway.migrate.reading import Missing, read_part
from gateway.migrate.steps import deploy, undeploy
from gateway.migrate.writer import StepFailed, Writer

SETTLE = 1.0
"""Seconds after which a load that began before a write is over."""


def is_loaded(cluster: Cluster, model: str) -> bool:
    """Return True if a node has the model loaded. An account that may not read profiles never sees one."""
    status, answer = cluster.call("GET", document_path("profile/models", model))
    nodes = answer.get("nodes") if status == 200 else None
    return bool(nodes)


def unload(writer: Writer, models: Sequence[str]) -> None:
    """Undeploy models. The next request that uses one loads it.

    Raises:
        StepFailed: the cluster refuses it.
    """
    writer.insist(undeploy(models))


def reload(writer: Writer, models: Sequence[str]) -> None:
    """Let models be loaded again, with their connectors as they are now.

    Raises:
        StepFailed: the cluster refuses it.
    """
    try:
        unload(writer, models)
        # A load that began before the write may have ended after the first call, with the old connector.
        writer.clock.sleep(SETTLE)
    finally:  # also if the user interrupts it
        unload(writer, models)


def deploy_again(writer: Writer, models: Iterable[str]) -> None:
    """Deploy the models that are not deployed: undeploying changed their state. A loaded one is not loaded again.

    Raises:
        StepFailed: the cluster refuses it.
        ClusterError: a model can't be read.
    """
    for model in models:
        place = f"models/{model}/deployed"
        try:
            if read_part(writer.cluster, place):
                continue
        except Missing:
            continue  # somebody deleted it
        call = deploy(model)
        writer.insist(call)
        if not writer.reached(place, (True,), writer.patience):
            raise StepFailed(f"{call.method} {call.path}: the model is still not deployed")


def is_automatic(cluster: Cluster) -> bool:
    """Return False if the cluster does not load models on their first use, so that requests would get no answer."""
    status, answer = cluster.call("GET", _SETTING_PATH)
    if status != 200:
        return True
    return read_switch(answer, _SETTING) is not False


_SETTING = "plugins.ml_commons.model_auto_deploy.enable"
_SETTING_PATH = f"/_cluster/settings?include_defaults=true&filter_path=*.{_SETTING}"
