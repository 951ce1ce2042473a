"""Makes the upgrades that the gateway offers, all at once, in a simulated cluster."""

from __future__ import annotations

from functools import cache

from gateway.delivery.template_change import Code
from gateway.migrate.upgrade import Documents, Offer, Refused, offers
from tests.delivery.simulated_cluster import SimulatedCluster


def documents_of(cluster: SimulatedCluster) -> Documents:
    """Return all documents of the cluster as GET shows them."""
    resources = cluster.core.resources
    return Documents(
        cluster.numbers,
        {agent_id: resources.agent(agent_id) for agent_id in cluster.agents.values()},
        {model_id: resources.model(model_id) for model_id in resources.models},
        {connector_id: resources.connector(connector_id) for connector_id in resources.connectors},
        rules=cluster.rules,
        unified_api=False,
    )


def upgrade(cluster: SimulatedCluster) -> dict[str, Code]:
    """Change every connector whose upgrade is offered.

    Return why the other connectors stay as they are, by connector.
    """
    resources, refused = cluster.core.resources, {}
    documents = documents_of(cluster)
    for found in offers(documents, cluster.agents.values(), "0" * 32):
        match found:
            case Offer(key=key, new=new):
                document = resources.connectors[key.partition("/")[2]]
                document["parameters"], document["actions"] = new["parameters"], new["actions"]
            case Refused(key=key, code=code):
                refused[key] = code
    for model_id in resources.models:
        resources.undeploy_models([model_id])
    cluster.profile = cache(cluster._profile)
    return refused
