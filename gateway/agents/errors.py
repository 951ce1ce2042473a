"""Why an agent could not be read from the cluster: branches of `gateway.errors.UnresolvedAgent`.

    UnresolvedAgent            400
    ├── DocumentTooLarge       400  a document is longer than the gateway reads
    ├── AgentNotFound          404  the cluster has no such agent
    ├── LookupDenied           400  the credentials may not read a document
    └── LookupFailed           400  the cluster refused the lookup for another reason
        └── LookupUnavailable  502  the cluster failed while answering it (429 and 5xx)

A cluster that can't be reached at all raises `UpstreamUnavailable` or `UpstreamTimeout`, as for any other request.
"""

from __future__ import annotations

from typing import Any

from gateway.errors import Problem, UnresolvedAgent

PERMISSIONS = {
    "agents": "cluster:admin/opensearch/ml/agents/get",
    "models": "cluster:admin/opensearch/ml/models/get",
    "connectors": "cluster:admin/opensearch/ml/connectors/get",
    "memory": "cluster:admin/opensearch/ml/memory/interaction/list",
    "cluster": "cluster:monitor/main",
}
"""The cluster permission each kind of lookup needs."""

_ANSWER_LENGTH = 200


class FailedLookup(UnresolvedAgent):
    """A lookup that returned no document. cluster_status: the status the cluster sent."""

    def __init__(self, reason: str, cluster_status: int, problem: Problem, help: str = "") -> None:
        super().__init__(reason, [problem], help, problem.repeats)
        self.cluster_status = cluster_status


class DocumentTooLarge(UnresolvedAgent):
    """The document of an agent, model, connector or memory is longer, or has more values, than the gateway reads."""


class AgentNotFound(FailedLookup):
    """There is no such agent."""

    status = 404


class LookupDenied(FailedLookup):
    """401 or 403: the credentials of the lookup may not read the document."""


class LookupFailed(FailedLookup):
    """The cluster returned an error, or something that is not a document."""


class LookupUnavailable(LookupFailed):
    """The cluster failed for now (429, 5xx). The same request may work later."""

    status = 502


def lookup_error(kind: str, id_: str, status: int, answer: Any) -> FailedLookup:
    """Return the error for a lookup of `kind` ("agents", "models", …) and `id_` that got `status` and `answer`."""
    what = f"{kind}/{id_}" if id_ else kind
    cause = _cause(answer)
    expected = "200 with a JSON object" if status == 200 else "200"
    problem = Problem(what, f"the cluster answered {status}: {cause}", expected, str(status), repeats=cause)
    if status in (401, 403):
        permission = PERMISSIONS[kind]
        return LookupDenied(
            f"the gateway may not read {what} with the credentials it was given",
            status,
            problem,
            f"grant {permission} to the caller; or set `agents.lookup` to service_account, with an account that has "
            "it; or give the agent a rule (`agents.rules[].provider`) and set `agents.on_unproved` to assume",
        )
    if status == 404 and kind == "agents":
        return AgentNotFound(f"there is no agent {id_}", status, problem)
    error = LookupUnavailable if status == 429 or status >= 500 else LookupFailed
    return error(f"the cluster could not show {what}: {cause}", status, problem)


def _cause(answer: Any) -> str:
    """Return the cluster's own reason, shortened."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    reason = error.get("reason", "") if isinstance(error, dict) else error
    return (reason if isinstance(reason, str) and reason else "a response that is not a JSON document")[:_ANSWER_LENGTH]
