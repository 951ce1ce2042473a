"""Each remedy that a refusal names is carried out, and then the input arrives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache

import pytest

from gateway.delivery.template_change import command
from gateway.errors import Problem
from gateway.migrate.upgrade import Documents, Offer, offers
from tests.conftest import mostly_slow
from tests.delivery.cases import CASES
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.matrix import agents
from tests.migrate.remedies import CHANGES, Attempt
from tests.oracle import Oracle, Outcome, Verdict

VERSIONS = ("2.19.0", "3.4.0", "3.6.0", "3.8.0")
MOST_REFUSALS = 3
ANOTHER_MODEL = re.compile(r"Use a model whose provider accepts (\w+)\.")
STEPS = [pytest.param(1, marks=pytest.mark.slow), 6]


def documents_of(cluster: SimulatedCluster) -> Documents:
    resources = cluster.core.resources
    return Documents(
        cluster.numbers,
        {id_: resources.agent(id_) for id_ in resources.agents},
        {id_: resources.model(id_) for id_ in resources.models},
        {id_: resources.connector(id_) for id_ in resources.connectors},
        unified_api=False,
    )


def offer_for(documents: Documents, id_: str) -> Offer:
    """Return the upgrade of one agent, as if no other used its connector."""
    (offer,) = offers(replace(documents, agents={id_: documents.agents[id_]}), [id_], "0" * 32)
    assert isinstance(offer, Offer), (documents.agents[id_], offer)
    return offer


def upgrade(cluster: SimulatedCluster, offer: Offer) -> None:
    resources = cluster.core.resources
    resources.connectors[offer.key.partition("/")[2]].update(offer.new)
    resources.undeploy_models(list(resources.models))
    cluster.profile.cache_clear()


@cache
def _cluster_to_upgrade(version: str) -> tuple[SimulatedCluster, Documents]:
    """Return a cluster, and its documents before any upgrade."""
    cluster = SimulatedCluster(version)
    return cluster, deepcopy(documents_of(cluster))


@cache
def upgraded(version: str, agent: str) -> SimulatedCluster:
    """Return a cluster where the connector of this agent is upgraded, as are those of agents from earlier calls."""
    cluster, documents = _cluster_to_upgrade(version)
    upgrade(cluster, offer_for(documents, cluster.agents[agent]))
    return cluster


@dataclass(frozen=True)
class Refused:
    """A cell of the matrix that is refused."""

    agent: str
    case: str
    problems: tuple[Problem, ...]

    @property
    def attempt(self) -> Attempt:
        case = CASES[self.case]
        return Attempt(case.input, case.parameters, case.pairs)


@cache
def refusals(version: str, step: int) -> list[Refused]:
    cluster = cluster_of(version)
    return [found for agent in agents(cluster) for found in _refused(cluster, agent, step)]


def _refused(cluster: SimulatedCluster, agent: str, step: int) -> Iterator[Refused]:
    for name in list(CASES)[::step]:
        error = cluster.send(agent, CASES[name].body, CASES[name].pairs).error
        if error is not None:
            assert error.problems, (agent, name)
            yield Refused(agent, name, error.problems)
    cluster.forget()


def remedies_of(problem: Problem, agent_id: str) -> list[str]:
    """The remedies in a problem's help: the words of `CHANGES`, "upgrade" and "another model"."""
    help = problem.help.lower()
    found = [words for words in CHANGES if words in help]
    found += ["upgrade"] if command(agent_id) in problem.help else []
    return found + (["another model"] if ANOTHER_MODEL.match(problem.help) else [])


def verdicts(version: str, refused: Refused, remedies: list[str]) -> Iterator[Verdict]:
    """Carry out remedies, one for each kind of problem; yield the verdict for every agent that they leave.

    The advice to upgrade is for the refused agent. An agent of another model is upgraded when its own refusal says so.
    """
    chosen = [refused.agent]
    if "another model" in remedies:
        chosen = [agent for agent in cluster_of(version).agents if agent.startswith(f"{refused.agent.split('-')[0]}-")]
    for agent in chosen:
        own = remedies if agent == refused.agent else [words for words in remedies if words != "upgrade"]
        yield _verdict(version, agent, refused.attempt, own)


def _verdict(version: str, agent: str, attempt: Attempt, remedies: list[str]) -> Verdict:
    """The verdict on an attempt. If it is refused for another reason, that refusal's first remedies follow."""
    cluster = cluster_of(version)
    for _ in range(MOST_REFUSALS):
        for words in remedies:
            attempt = CHANGES.get(words, lambda same: same)(attempt)
        if "upgrade" in remedies:
            cluster = upgraded(version, agent)
        sent = cluster.send(agent, attempt.body, attempt.pairs, attempt.policy, strict=attempt.strict)
        if sent.error is None:
            break
        remedies = [
            words for problem in sent.error.problems for words in remedies_of(problem, cluster.agents[agent])[:1]
        ]
        remedies = list(dict.fromkeys(remedies))
    verdict = Oracle(cluster).judge(agent, attempt.parameters, attempt.pairs, sent)
    cluster.forget()
    return verdict


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("version", mostly_slow(VERSIONS, 3))
def test_every_remedy_makes_the_input_arrive(version: str, step: int) -> None:
    """Where a refusal has several problems, the remedy of each is carried out."""
    failed: list[tuple[object, ...]] = []
    seen: set[str] = set()
    for refused in refusals(version, step):
        choices = [remedies_of(problem, cluster_of(version).agents[refused.agent]) for problem in refused.problems]
        if not all(choices):
            failed.append((refused.agent, refused.case, "no remedy", refused.problems))
            continue
        for number in range(max(map(len, choices))):
            remedies = list(dict.fromkeys(choice[min(number, len(choice) - 1)] for choice in choices))
            seen.update(remedies)
            found = list(verdicts(version, refused, remedies))
            if not any(verdict.outcome is Outcome.ARRIVED for verdict in found):
                failed.append((refused.agent, refused.case, remedies, found[0]))
    assert failed == []
    assert "upgrade" in seen
    assert step > 1 or "end the conversation with a user turn" in seen


@pytest.mark.parametrize(
    ("version", "agent", "kinds"),
    [("2.19.0", "flow-content", {"turns"}), ("3.4.0", "conv-openai_tutorial", {"image", "turns"})],
)
def test_what_memory_would_hold_or_the_template_leaves_out_is_a_reason_to_upgrade(
    version: str, agent: str, kinds: set[str]
) -> None:
    cluster = SimulatedCluster(version)
    (effect,) = offer_for(documents_of(cluster), cluster.agents[agent]).effects
    assert kinds & {*effect.gained, *effect.improved}
    assert not effect.differing
