"""Where a refusal tells people to upgrade, `upgrade` offers it, and then the input arrives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.delivery.template_change import command
from gateway.migrate.upgrade import Documents, Offer, offers
from tests.delivery.cases import CASES
from tests.delivery.simulated_cluster import SimulatedCluster
from tests.matrix import agents
from tests.oracle import Oracle, Outcome

VERSIONS = ("2.19.0", "3.4.0")


def documents_of(cluster: SimulatedCluster) -> Documents:
    resources = cluster.core.resources
    return Documents(
        cluster.numbers,
        {id_: resources.agent(id_) for id_ in resources.agents},
        {id_: resources.model(id_) for id_ in resources.models},
        {id_: resources.connector(id_) for id_ in resources.connectors},
        unified_api=False,
    )


def offer_for(cluster: SimulatedCluster, agent: str) -> Offer:
    """Return the upgrade of one agent, as if no other used its connector."""
    documents = documents_of(cluster)
    id_ = cluster.agents[agent]
    (offer,) = offers(replace(documents, agents={id_: documents.agents[id_]}), [id_], "0" * 32)
    assert isinstance(offer, Offer), (agent, offer)
    return offer


def upgrade(cluster: SimulatedCluster, offer: Offer) -> None:
    resources = cluster.core.resources
    resources.connectors[offer.key.partition("/")[2]].update(offer.new)
    resources.undeploy_models(list(resources.models))
    cluster.profile.cache_clear()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 6])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_upgrade_that_is_advised_is_offered_and_makes_the_input_arrive(version: str, step: int) -> None:
    cluster = SimulatedCluster(version)
    advised: list[tuple[str, str]] = []
    for agent in agents(cluster):
        for name in list(CASES)[::step]:
            error = cluster.send(agent, CASES[name].body, CASES[name].pairs).error
            problems = error.problems if error is not None else ()
            if problems and all(command(cluster.agents[agent]) in problem.help for problem in problems):
                advised.append((agent, name))
        cluster.forget()
    assert len(advised) > 2
    found = {agent: offer_for(cluster, agent) for agent in dict.fromkeys(agent for agent, _ in advised)}
    for offer in found.values():
        upgrade(cluster, offer)
    oracle = Oracle(cluster)
    failed = []
    for agent, name in advised:
        case = CASES[name]
        verdict = oracle.judge(agent, case.parameters, case.pairs, cluster.send(agent, case.body, case.pairs))
        if verdict.outcome is not Outcome.ARRIVED:
            failed.append((agent, name, verdict.detail))
    assert failed == []


@pytest.mark.parametrize(
    ("version", "agent", "kinds"),
    [("2.19.0", "flow-content", {"turns"}), ("3.4.0", "conv-openai_tutorial", {"image", "turns"})],
)
def test_what_memory_would_hold_or_the_template_leaves_out_is_a_reason_to_upgrade(
    version: str, agent: str, kinds: set[str]
) -> None:
    (effect,) = offer_for(SimulatedCluster(version), agent).effects
    assert kinds & {*effect.gained, *effect.improved}
    assert not effect.differing
