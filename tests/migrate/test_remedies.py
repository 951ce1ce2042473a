"""Each remedy that a refusal names is carried out, and then the input arrives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import pytest
from msgspec.structs import replace

from gateway.delivery.template_change import command
from gateway.errors import Problem
from gateway.migrate.upgrade import Documents, Offer, offers
from tests.conftest import mostly_slow
from tests.delivery.cases import CASES
from tests.delivery.simulated_cluster import SimulatedCluster, cluster_of
from tests.delivery.unseen import UnseenCluster
from tests.matrix import agents
from tests.migrate.remedies import CHANGES, Attempt
from tests.oracle import Oracle, Outcome, Verdict

VERSIONS = ("2.19.0", "3.4.0", "3.6.0", "3.8.0")
ANOTHER_MODEL = re.compile(r"Use a model whose provider accepts \w+\.|.*, or use an agent whose LLM takes messages")
STEPS = [pytest.param(1, marks=pytest.mark.slow), 6]
UNSEEN_STEPS = [pytest.param(1, marks=pytest.mark.slow), 9]


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
def deployed(version: str, unseen: bool) -> SimulatedCluster:
    """Return the cluster with the agents of the matrix, or with the unseen ones."""
    return UnseenCluster(version) if unseen else cluster_of(version)


@cache
def _cluster_to_upgrade(version: str, unseen: bool) -> tuple[SimulatedCluster, Documents]:
    """Return a cluster, and its documents before any upgrade."""
    cluster = UnseenCluster(version) if unseen else SimulatedCluster(version)
    return cluster, deepcopy(documents_of(cluster))


@cache
def upgraded(version: str, unseen: bool, agent: str) -> SimulatedCluster:
    """Return a cluster where the connector of this agent is upgraded, as are those of agents from earlier calls."""
    cluster, documents = _cluster_to_upgrade(version, unseen)
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


def refusals(cluster: SimulatedCluster, step: int) -> list[Refused]:
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


def verdicts(version: str, unseen: bool, agent: str, attempt: Attempt, remedies: list[str]) -> Iterator[Verdict]:
    """Carry out remedies; yield the verdict for every agent that they leave."""
    cluster = deployed(version, unseen)
    if "another model" in remedies:
        others = [name for name in agents(cluster) if name != agent]
        for other in sorted(others, key=lambda name: name.partition("-")[0] != agent.partition("-")[0]):
            rest = [words for words in remedies if words not in ("another model", "upgrade")]
            yield from verdicts(version, unseen, other, attempt, rest)
        return
    for words in remedies:
        attempt = CHANGES.get(words, lambda same: same)(attempt)
    if "upgrade" in remedies:
        cluster = upgraded(version, unseen, agent)
    sent = cluster.send(agent, attempt.body, attempt.pairs, attempt.policy, strict=attempt.strict)
    verdict = Oracle(cluster).judge(agent, attempt.parameters, attempt.pairs, sent)
    cluster.forget()
    yield verdict


def failed_remedies(version: str, unseen: bool, step: int) -> tuple[list[tuple[object, ...]], set[str]]:
    """Return the refusals whose remedies do not help, and all remedies that were carried out.

    Where a refusal has several problems, the remedy of each is carried out.
    """
    failed: list[tuple[object, ...]] = []
    seen: set[str] = set()
    cluster = deployed(version, unseen)
    for refused in refusals(cluster, step):
        choices = [remedies_of(problem, cluster.agents[refused.agent]) for problem in refused.problems]
        if not all(choices):
            failed.append((refused.agent, refused.case, "no remedy", refused.problems))
            continue
        for number in range(max(map(len, choices))):
            remedies = list(dict.fromkeys(choice[min(number, len(choice) - 1)] for choice in choices))
            seen.update(remedies)
            found = verdicts(version, unseen, refused.agent, refused.attempt, remedies)
            if not any(verdict.outcome is Outcome.ARRIVED for verdict in found):
                failed.append((refused.agent, refused.case, remedies, refused.problems))
    return failed, seen


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("version", mostly_slow(VERSIONS, 3))
@pytest.mark.slow
def test_every_remedy_makes_the_input_arrive(version: str, step: int) -> None:
    failed, seen = failed_remedies(version, False, step)
    assert failed == []
    assert version != "2.19.0" or "upgrade" in seen
    assert step > 1 or "end with a user turn" in seen


@pytest.mark.parametrize("step", UNSEEN_STEPS)
@pytest.mark.parametrize("version", mostly_slow(VERSIONS, 3))
@pytest.mark.slow
def test_every_remedy_makes_the_input_arrive_at_agents_as_users_have_them(version: str, step: int) -> None:
    failed, seen = failed_remedies(version, True, step)
    assert failed == []
    assert {"upgrade", "send text only"} <= seen


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
