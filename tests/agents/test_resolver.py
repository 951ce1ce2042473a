import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.agents import resolver as resolver_module
from gateway.agents.documents import Rule, read_profile
from gateway.agents.lookup import AgentNotFound, LookupDenied, LookupFailed, LookupUnavailable
from gateway.agents.resolver import Kind, Resolver
from gateway.errors import UnresolvedAgent, UpstreamUnavailable
from gateway.mlcommons.profile import AgentProfile

from .conftest import ML, Clock, FakeCluster, HttpLookup

AGENT = "p3Xu_6EBm8w0PCMjfmLM"  # conv-b: one of its tools has the same LLM
MODEL = "gHXu_6EBm8w0PCMjYmLt"
CONNECTOR = "fnXu_6EBm8w0PCMjYWLP"
OTHER = "onXu_6EBm8w0PCMjeGL4"  # flow-a: other model, other connector
AGENT_PATH, MODEL_PATH, CONNECTOR_PATH = f"{ML}agents/{AGENT}", f"{ML}models/{MODEL}", f"{ML}connectors/{CONNECTOR}"
ONE_OF_EACH = Counter({AGENT_PATH: 1, MODEL_PATH: 1, CONNECTOR_PATH: 1, "/": 1})
ALICE = {"Authorization": "Basic YWxpY2U6cGFzc3dvcmQ=", "X-Other": "1"}
BOB = {"Authorization": "Basic Ym9iOnBhc3N3b3Jk"}

Build = Callable[..., Resolver]


@pytest.fixture
async def build(lookup: HttpLookup, clock: Clock) -> AsyncIterator[Build]:
    built: list[Resolver] = []

    def _build(**options: Any) -> Resolver:
        arguments: dict[str, Any] = {"lookup": lookup, "ttl": 60.0, "clock": clock, **options}
        built.append(Resolver(**arguments))
        return built[-1]

    yield _build
    for resolver in built:
        await resolver.close()


async def test_a_profile_is_read_once_and_kept_for_its_ttl(build: Build, cluster: FakeCluster, clock: Clock) -> None:
    resolver = build()
    profile = await resolver.profile(AGENT, ALICE)
    assert (profile.id, profile.name, profile.version, profile.unified_api) == (AGENT, "conv-b", (2, 19, 0), False)
    assert profile.llm is not None
    assert (profile.llm.id, profile.llm.connector.id) == (MODEL, CONNECTOR)
    clock.now += 59.9
    assert await resolver.profile(AGENT, ALICE) is profile
    assert cluster.asked == ONE_OF_EACH
    clock.now += 0.1
    assert await resolver.profile(AGENT, ALICE) == profile
    assert cluster.asked == Counter({AGENT_PATH: 2, MODEL_PATH: 2, CONNECTOR_PATH: 2, "/": 1})
    clock.now += 300
    await resolver.profile(AGENT, ALICE)
    assert cluster.asked["/"] == 2


async def test_a_hundred_concurrent_requests_share_one_lookup(build: Build, cluster: FakeCluster) -> None:
    resolver = build()
    cluster.open.clear()
    waiting = [asyncio.create_task(resolver.profile(AGENT, ALICE)) for _ in range(100)]
    await cluster.entered.wait()
    cluster.open.set()
    profiles = await asyncio.gather(*waiting)
    assert cluster.asked == ONE_OF_EACH
    assert len({id(profile) for profile in profiles}) == 1


async def test_a_caller_that_gives_up_does_not_stop_the_others(build: Build, cluster: FakeCluster) -> None:
    resolver = build()
    cluster.open.clear()
    first, second = (asyncio.create_task(resolver.profile(AGENT, ALICE)) for _ in range(2))
    await cluster.entered.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    cluster.open.set()
    assert (await second).id == AGENT
    assert cluster.asked == ONE_OF_EACH


async def test_a_failure_reaches_all_who_waited_and_is_not_kept(build: Build, cluster: FakeCluster) -> None:
    resolver = build()
    cluster.answers[AGENT_PATH] = (503, {"error": "busy", "status": 503})
    cluster.open.clear()
    waiting = [asyncio.create_task(resolver.profile(AGENT, ALICE)) for _ in range(5)]
    await cluster.entered.wait()
    cluster.open.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [LookupUnavailable] * 5
    assert cluster.asked == Counter({AGENT_PATH: 1})
    cluster.answers.clear()
    assert (await resolver.profile(AGENT, ALICE)).id == AGENT


async def test_lookups_carry_the_callers_credentials_and_nothing_else(build: Build, cluster: FakeCluster) -> None:
    headers = CIMultiDict(ALICE)
    headers.extend([("Cookie", "a=1"), ("cookie", "b=2"), ("securitytenant", "team"), ("Content-Length", "99")])
    await build().profile(AGENT, headers)
    for sent in cluster.headers:
        assert sent["authorization"] == ALICE["Authorization"]
        assert sent["cookie"] == "a=1; b=2"
        assert sent["securitytenant"] == "team"
        assert "x-other" not in sent
        assert "content-length" not in sent


async def test_what_one_caller_was_shown_is_not_used_for_another(build: Build, cluster: FakeCluster) -> None:
    resolver = build()
    cluster.denied[MODEL_PATH] = {BOB["Authorization"]}
    await resolver.profile(AGENT, ALICE)
    with pytest.raises(LookupDenied) as denied:
        await resolver.profile(AGENT, BOB)
    assert denied.value.cluster_status == 403
    assert "cluster:admin/opensearch/ml/models/get" in denied.value.hint
    assert denied.value.problems[0].place == f"models/{MODEL}"
    with pytest.raises(LookupDenied):
        await resolver.profile(AGENT, BOB)
    assert cluster.asked[AGENT_PATH] == 3


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"Authorization": ALICE["Authorization"], "Cookie": "a"},
        {"Authorization": ALICE["Authorization"], "securitytenant": "t"},
        {"Cookie": ALICE["Authorization"]},
    ],
    ids=["none", "cookie", "tenant", "moved"],
)
async def test_any_other_credentials_are_another_caller(
    build: Build, cluster: FakeCluster, other: dict[str, str]
) -> None:
    resolver = build()
    await resolver.profile(AGENT, ALICE)
    await resolver.profile(AGENT, other)
    assert cluster.asked == Counter(ONE_OF_EACH) + Counter(ONE_OF_EACH)


async def test_headers_that_are_no_credentials_do_not_matter(build: Build, cluster: FakeCluster) -> None:
    resolver = build()
    await resolver.profile(AGENT, ALICE)
    await resolver.profile(AGENT, {"authorization": ALICE["Authorization"], "X-Other": "2"})
    assert cluster.asked == ONE_OF_EACH


async def test_no_secret_is_kept_in_the_cache(build: Build) -> None:
    resolver = build()
    await resolver.profile(AGENT, ALICE)
    profiles = [entry.value.profile for entry in resolver._agents._entries.values()]
    cached = repr([profiles, *(vars(part) for part in (resolver, resolver._agents, resolver._clusters))])
    assert "conv-b" in cached
    assert "YWxpY2U6" not in cached


async def test_a_service_account_is_used_in_place_of_the_caller(build: Build, cluster: FakeCluster) -> None:
    cluster.denied[AGENT_PATH] = {BOB["Authorization"]}
    resolver = build(service_headers={"authorization": "Basic service"})
    assert await resolver.profile(AGENT, BOB) is await resolver.profile(AGENT, ALICE)
    assert cluster.asked == ONE_OF_EACH
    assert {sent["authorization"] for sent in cluster.headers} == {"Basic service"}


@pytest.mark.parametrize(
    ("kind", "id_", "dropped"),
    [
        ("agents", AGENT, {AGENT}),
        ("agents", "another", set()),
        ("agents", None, {AGENT, OTHER}),
        ("models", MODEL, {AGENT}),
        ("models", CONNECTOR, set()),
        ("models", None, {AGENT, OTHER}),
        ("connectors", CONNECTOR, {AGENT}),
        ("connectors", None, {AGENT, OTHER}),
        ("settings", None, {AGENT, OTHER}),
    ],
)
async def test_a_write_drops_the_profiles_it_may_have_changed(
    build: Build, cluster: FakeCluster, kind: Kind, id_: str | None, dropped: set[str]
) -> None:
    resolver = build()
    for agent in (AGENT, OTHER):
        await resolver.profile(agent, ALICE)
    cluster.asked.clear()
    resolver.invalidate(kind, id_)
    for agent in (AGENT, OTHER):
        await resolver.profile(agent, ALICE)
    assert {path.rpartition("/")[2] for path in cluster.asked if path.startswith(f"{ML}agents/")} == dropped
    assert cluster.asked["/"] == (kind == "settings")


@pytest.mark.parametrize(
    ("kind", "id_"), [("agents", AGENT), ("agents", None), ("models", "m"), ("connectors", "c"), ("settings", None)]
)
async def test_a_lookup_under_way_while_something_is_written_is_not_kept(
    build: Build, cluster: FakeCluster, kind: Kind, id_: str | None
) -> None:
    resolver = build()
    cluster.open.clear()
    before = asyncio.create_task(resolver.profile(AGENT, ALICE))
    await cluster.entered.wait()  # the old document has been read, its answer is on the way
    cluster.documents[AGENT_PATH] = {**cluster.documents[AGENT_PATH], "name": "renamed"}
    resolver.invalidate(kind, id_)
    after = asyncio.create_task(resolver.profile(AGENT, ALICE))
    cluster.open.set()
    assert (await before).name == "conv-b"
    assert (await after).name == "renamed"
    assert (await resolver.profile(AGENT, ALICE)).name == "renamed"
    assert cluster.asked[AGENT_PATH] == 2


async def test_a_write_to_another_agent_does_not_disturb_a_lookup(build: Build, cluster: FakeCluster) -> None:
    resolver = build()
    cluster.open.clear()
    reading = asyncio.create_task(resolver.profile(AGENT, ALICE))
    await cluster.entered.wait()
    resolver.invalidate("agents", OTHER)
    cluster.open.set()
    await reading
    await resolver.profile(AGENT, ALICE)
    assert cluster.asked == ONE_OF_EACH


async def test_the_least_recently_used_profile_goes_first(build: Build, cluster: FakeCluster) -> None:
    resolver = build(max_entries=2)
    for caller in (ALICE, BOB, ALICE, {}, ALICE):
        await resolver.profile(AGENT, caller)
    assert cluster.asked[AGENT_PATH] == 3
    await resolver.profile(AGENT, BOB)
    assert cluster.asked[AGENT_PATH] == 4
    assert len(resolver._agents) == 2


async def test_an_unknown_agent(build: Build, cluster: FakeCluster) -> None:
    with pytest.raises(AgentNotFound) as missing:
        await build().profile("no such/agent?", ALICE)
    assert (missing.value.status, missing.value.cluster_status) == (404, 404)
    assert cluster.asked == Counter({f"{ML}agents/no%20such%2Fagent%3F": 1})


@pytest.mark.parametrize("id_", [".", "..", "../models/x", "a/../../b", "a?b#c", "%2e", "\ud800"])
async def test_an_id_can_not_lead_anywhere_else(build: Build, cluster: FakeCluster, id_: str) -> None:
    with pytest.raises(AgentNotFound):
        await build().profile(id_, ALICE)
    (path,) = cluster.asked
    assert path.startswith(f"{ML}agents/")
    assert path.count("/") == 4
    assert path.rpartition("/")[2] not in (".", "..")


@pytest.mark.parametrize("path", [AGENT_PATH, MODEL_PATH, CONNECTOR_PATH])
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, LookupDenied),
        (403, LookupDenied),
        (400, LookupFailed),
        (429, LookupUnavailable),
        (500, LookupUnavailable),
    ],
)
async def test_a_refused_document(
    build: Build, cluster: FakeCluster, path: str, status: int, error: type[LookupFailed]
) -> None:
    cluster.answers[path] = (status, {"error": {"reason": "because", "type": "t"}, "status": status})
    with pytest.raises(error) as caught:
        await build().profile(AGENT, ALICE)
    assert type(caught.value) is error
    assert caught.value.cluster_status == status
    assert caught.value.status == (502 if error is LookupUnavailable else 400)
    assert caught.value.problems[0].reason == f"the cluster answered {status}: because"
    assert caught.value.problems[0].place == path.removeprefix(ML)


@pytest.mark.parametrize(
    ("path", "place"),
    [(MODEL_PATH, f"agents/{AGENT}.llm.model_id"), (CONNECTOR_PATH, f"models/{MODEL}.connector_id")],
)
async def test_a_document_that_is_gone(build: Build, cluster: FakeCluster, path: str, place: str) -> None:
    del cluster.documents[path]
    with pytest.raises(UnresolvedAgent) as caught:
        await build().profile(AGENT, ALICE)
    assert caught.value.problems[0].place == place


@pytest.mark.parametrize("answer", [[], "text", None, 5])
async def test_an_answer_that_is_no_document(build: Build, cluster: FakeCluster, answer: Any) -> None:
    cluster.answers[AGENT_PATH] = (200, answer)
    with pytest.raises(LookupFailed):
        await build().profile(AGENT, ALICE)


@pytest.mark.parametrize("answer", [{}, {"hits": {"hits": []}}, {"type": "conversational", "tools": "x"}])
async def test_a_malformed_document(build: Build, cluster: FakeCluster, answer: Any) -> None:
    cluster.answers[AGENT_PATH] = (200, answer)
    with pytest.raises(UnresolvedAgent) as caught:
        await build().profile(AGENT, ALICE)
    assert caught.value.problems


async def test_a_cluster_that_is_down(dead_lookup: HttpLookup) -> None:
    with pytest.raises(UpstreamUnavailable):
        await Resolver(dead_lookup).profile(AGENT, ALICE)


async def test_rules_reach_the_profile(build: Build, cluster: FakeCluster) -> None:
    cluster.documents[CONNECTOR_PATH] = {
        "protocol": "http",
        "actions": [{"action_type": "PREDICT", "url": "https://llm.example/", "request_body": "${parameters.prompt}"}],
    }
    profile = await build(rules=[Rule("conv-*", "gemini/v1beta/generatecontent")]).profile(AGENT, ALICE)
    assert (profile.provider, profile.provider_source) == ("gemini/v1beta/generatecontent", "rule")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_root_that_is_denied_names_the_permission(build: Build, cluster: FakeCluster, status: int) -> None:
    cluster.answers["/"] = (status, {"error": "denied"})
    with pytest.raises(LookupDenied) as denied:
        await build().profile(AGENT, ALICE)
    assert "cluster:monitor/main" in denied.value.hint


async def test_a_version_that_is_not_opensearchs_own_is_not_believed(build: Build, cluster: FakeCluster) -> None:
    cluster.documents["/"] = {"version": {"number": "7.10.2"}}
    with pytest.raises(LookupFailed) as unknown:
        await build().profile(AGENT, ALICE)
    assert "compatibility.override_main_response_version" in unknown.value.hint


async def test_what_was_derived_of_a_profile_is_dropped_with_it(build: Build, clock: Clock) -> None:
    class Derived:
        def __init__(self, profile: AgentProfile) -> None:
            self.profile = profile

    resolver = build()
    for forget in (
        lambda: resolver.invalidate("agents", AGENT),
        lambda: resolver.invalidate("models", MODEL),
        lambda: resolver.invalidate("connectors", CONNECTOR),
        lambda: resolver.invalidate("settings"),
    ):
        agent = await resolver.agent(AGENT, ALICE)
        derived = agent.derive(Derived)
        assert agent.derive(Derived) is derived
        assert derived.profile is agent.profile
        freed = weakref.ref(agent), weakref.ref(derived)
        del agent, derived
        forget()
        await asyncio.sleep(0)  # the event loop holds the last awaited result until its next turn
        gc.collect()
        assert [found() for found in freed] == [None, None]


async def test_a_profile_that_is_too_old_is_freed_with_the_next_lookup(build: Build, clock: Clock) -> None:
    resolver = build()
    freed = weakref.ref(await resolver.agent(AGENT, ALICE))
    clock.now += 60 + 300
    await resolver.agent(OTHER, ALICE)
    await asyncio.sleep(0)
    gc.collect()
    assert freed() is None


async def test_what_was_derived_from_a_profile_stays_until_a_document_changes(
    build: Build, cluster: FakeCluster, clock: Clock
) -> None:
    resolver = build()
    agent = await resolver.agent(AGENT, ALICE)
    derived = agent.derive(lambda profile: [profile.id])
    clock.now += 61
    assert await resolver.agent(AGENT, ALICE) is agent
    cluster.documents[CONNECTOR_PATH] = {
        **cluster.documents[CONNECTOR_PATH],
        "parameters": {**cluster.documents[CONNECTOR_PATH].get("parameters", {}), "new": "value"},
    }
    clock.now += 61
    changed = await resolver.agent(AGENT, ALICE)
    assert changed is not agent
    assert changed.derive(lambda profile: [profile.id]) is not derived


async def test_documents_that_have_not_changed_are_not_understood_again(
    build: Build, cluster: FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    understood: list[str] = []

    def read(agent_id: str, *documents: Any) -> AgentProfile:
        understood.append(agent_id)
        return read_profile(agent_id, *documents)

    monkeypatch.setattr(resolver_module, "read_profile", read)
    resolver = build()
    for _ in range(3):
        await resolver.agent(AGENT, ALICE)
        clock.now += 61
    assert (understood, cluster.asked[AGENT_PATH]) == ([AGENT], 3)
    cluster.documents[AGENT_PATH] = {**cluster.documents[AGENT_PATH], "description": "new"}
    await resolver.agent(AGENT, ALICE)
    assert understood == [AGENT, AGENT]


class TestUnifiedApi:
    AGENT = "9ern_6EBmjUj_f3tOXHk"
    SETTINGS = "/_cluster/settings"

    @pytest.fixture
    def cluster(self) -> FakeCluster:
        cluster = FakeCluster("3.6.0")
        self.switch(cluster, "false")
        return cluster

    def switch(self, cluster: FakeCluster, value: str) -> None:
        setting = {"plugins": {"ml_commons": {"unified_agent_api_enabled": value}}}
        cluster.documents[self.SETTINGS] = {"persistent": setting}

    async def read(self, resolver: Resolver) -> AgentProfile:
        return await resolver.profile(self.AGENT, ALICE)

    async def test_is_read_once_and_again_after_the_settings_were_written(
        self, build: Build, cluster: FakeCluster
    ) -> None:
        resolver = build()
        assert (await self.read(resolver)).unified_api is False
        self.switch(cluster, "true")
        assert (await self.read(resolver)).unified_api is False
        resolver.invalidate("settings")
        assert (await self.read(resolver)).unified_api is True
        assert cluster.asked[self.SETTINGS] == 2

    async def test_is_read_anew_on_demand(self, build: Build, cluster: FakeCluster) -> None:
        resolver = build()
        assert (await self.read(resolver)).unified_api is False
        self.switch(cluster, "true")
        assert (await resolver.refresh(self.AGENT, ALICE)).profile.unified_api is True
        assert (await self.read(resolver)).unified_api is True
        assert cluster.asked[self.SETTINGS] == 2

    async def test_is_asked_for_without_flat_settings(self, build: Build, cluster: FakeCluster) -> None:
        """With `flat_settings` a real 3.6.0 answers {} to this filter (recorded: flagoff.settings)."""
        await self.read(build())
        query = "?include_defaults=true&filter_path=*.plugins.ml_commons.unified_agent_api_enabled"
        assert self.SETTINGS + query in cluster.raw_paths

    async def test_is_unknown_when_it_can_not_be_read(self, build: Build, cluster: FakeCluster) -> None:
        cluster.denied[self.SETTINGS] = {ALICE["Authorization"]}
        assert (await self.read(build())).unified_api is None

    async def test_an_embedded_connector_needs_no_lookup(self, build: Build, cluster: FakeCluster) -> None:
        await self.read(build())
        paths = (f"{ML}agents/{self.AGENT}", f"{ML}models/9Orn_6EBmjUj_f3tOXGn", "/", self.SETTINGS)
        assert cluster.asked == Counter(paths)


ROOT = "root"
ROOT_DOCUMENT = {"name": "root", "type": "flow", "tools": [{"type": "AgentTool", "parameters": {"agent_id": OTHER}}]}


async def test_the_agent_that_a_flow_runs_is_read_with_it_and_its_changes_are_seen(
    build: Build, cluster: FakeCluster
) -> None:
    cluster.documents[f"{ML}agents/{ROOT}"] = ROOT_DOCUMENT
    resolver = build()
    profile = await resolver.profile(ROOT, ALICE)
    assert (profile.agent_ids, len(profile.models)) == ((ROOT, OTHER), 1)
    (model,) = profile.models
    for kind, id_ in (("agents", OTHER), ("models", model.id), ("connectors", model.connector.id)):
        resolver.invalidate(kind, id_)  # type: ignore[arg-type]
        assert len(resolver) == 0
        assert await resolver.profile(ROOT, ALICE) == profile


@pytest.mark.parametrize("status", [403, 404])
async def test_an_agent_that_the_caller_may_not_read_is_left_out(
    build: Build, cluster: FakeCluster, status: int
) -> None:
    cluster.documents[f"{ML}agents/{ROOT}"] = ROOT_DOCUMENT
    cluster.answers[f"{ML}agents/{OTHER}"] = (status, {"error": {"reason": "no"}, "status": status})
    profile = await build().profile(ROOT, ALICE)
    assert profile.tools[0].calls_unread_llm


async def test_a_failure_to_read_it_is_one_to_read_the_agent(build: Build, cluster: FakeCluster) -> None:
    cluster.documents[f"{ML}agents/{ROOT}"] = ROOT_DOCUMENT
    cluster.answers[f"{ML}agents/{OTHER}"] = (503, {"error": "busy", "status": 503})
    with pytest.raises(LookupUnavailable):
        await build().profile(ROOT, ALICE)
