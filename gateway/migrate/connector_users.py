"""The models that a refused change of a connector names as its users, and whether they use it.

ML Commons searches models for the words of the connector's id. So a model of another connector counts as a user, if the
two ids have a word between dashes in common (docs/evidence/facts.md, "Deploy states and connector changes", 3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateway.migrate.connection import Cluster
from gateway.migrate.reading import Missing, read_part

_NAMED = re.compile(r"models are still using this connector, [^\[]*\[([^\]]*)\]")


def named_users(answer: object) -> list[str]:
    """Return the models that the cluster's refusal names as users of a connector; none if it is another refusal."""
    found = _NAMED.search(str(answer))
    return found[1].split(", ") if found else []


def explain_if_unused(cluster: Cluster, connector: str, models: Iterable[str]) -> str:
    """Return why the cluster names `models` as users, if there are any and none uses `connector`; otherwise "".

    Raises:
        ClusterError: a model can't be read.
    """
    named = list(models)
    if not named or any(_uses(cluster, model, connector) for model in named):
        return ""
    shown = ", ".join(f"models/{model}" for model in named)
    return (
        f"the cluster takes {shown} for its users, which use other connectors: their ids and this one have a word "
        "between dashes in common"
    )


def _uses(cluster: Cluster, model: str, connector: str) -> bool:
    try:
        return bool(read_part(cluster, f"models/{model}/connector_id") == connector)
    except Missing:
        return False
