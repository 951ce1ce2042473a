"""Which bare variables of a template are probed, and that leaving out the rest loses no slot."""

from __future__ import annotations

import pytest

from gateway.delivery.call_model import CallModel
from gateway.delivery.plain_chat import TextOnly
from gateway.delivery.slots import BareVariables, Slot, SlotKind
from gateway.delivery.template_change import NotOffered, find_change, with_upgrades
from gateway.mlcommons.generations import ABILITIES
from gateway.mlcommons.rendering import first_llm
from gateway.mlcommons.template import placeholder_names
from gateway.providers import registry
from tests.conftest import mostly_slow
from tests.delivery.simulated_cluster import cluster_of
from tests.delivery.unseen import UnseenCluster
from tests.matrix import VERSIONS

CASES: dict[str, tuple[str, dict[str, str], set[str], set[str]]] = {
    "quoted": ('{"a": "${parameters.x}", "b": "say ${parameters.y} \\"${parameters.z}"}', {}, set(), set()),
    "a quote in a quoted default": ('{"a": "${parameters.x:-"}", "b": ${parameters.y}}', {}, {"y"}, set()),
    "a value": ('{"a": ${parameters.x}, "b": [${parameters.y}, ${parameters.z:-1}]}', {}, {"x", "y", "z"}, set()),
    "before a turn": ('{"a": [${parameters.x:-}{"role": "user"}]}', {}, set(), {"x"}),
    "after a turn": ('{"a": [{"role": "user"}${parameters.x:-}]${parameters.y:-}}', {}, set(), set()),
    "side by side": (
        '{"a": [${parameters.x:-}${parameters.y}${parameters.z:-}]}',
        {},
        {"x", "y", "z"},
        {"x", "y"},
    ),
    "in a value": ('{"a": ${parameters.x}}', {"x": '[${parameters.y}, "${parameters.z}"]'}, {"x", "y"}, set()),
    "in a quoted value": ('{"a": "${parameters.x}"}', {"x": "${parameters.y}"}, set(), set()),
    "quoted and bare": ('{"a": "${parameters.x}", "b": ${parameters.x}}', {}, {"x"}, set()),
    "values that name each other": (
        "${parameters.x}",
        {"x": "${parameters.y}", "y": "${parameters.x}"},
        {"x", "y"},
        {"x", "y"},
    ),
    "a number": ('{"a": {"b": ${parameters.x}, "c": ${parameters.y}}}', {"x": " -0.5 ", "y": "8000"}, set(), set()),
    "a number and an element": ('{"a": ${parameters.x}, "b": [${parameters.x}]}', {"x": "1"}, {"x"}, set()),
    "a number in a string": (
        '{"a": ${parameters.x}, "b": ${parameters.y}}',
        {"x": '"1"', "y": "[1]"},
        {"x", "y"},
        set(),
    ),
    "an open quote": ('{"a": "${parameters.x}', {}, set(), set()),
}


@pytest.mark.parametrize("name", CASES)
def test_which_variables_may_take_json(name: str) -> None:
    template, values, whole, before = CASES[name]
    found = BareVariables.of(template, values)
    assert (found.whole, found.before) == (whole, before)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "' + "${parameters.x}" * 100_000,
        "${parameters.x} " * 100_000,
        "${parameters." * 100_000,
        '{"a": "' + "${parameters." * 100_000,
        '"' + '\\"' * 500_000,
        "[" * 1_000_000,
        " " * 1_000_000 + "${parameters.x}" * 2 + " " * 1_000_000,
    ],
    ids=["quoted", "bare", "open", "open and quoted", "escaped quotes", "brackets", "spaces"],
)
def test_a_long_text_takes_time_proportional_to_its_length(text: str) -> None:
    """A pattern that reads on to the end of the text at each placeholder would take more than ten minutes."""
    assert BareVariables.of("${parameters.y}", {"y": text}).whole <= {"x", "y"}
    assert set(placeholder_names(text)) <= {"x"}


@pytest.mark.parametrize("value", ["1" * 1_000_000, " " * 1_000_000 + "1"], ids=["digits", "spaces"])
def test_a_long_value_is_not_read_at_each_of_its_placeholders(value: str) -> None:
    assert BareVariables.of('"a": ${parameters.x},' * 100_000, {"x": value}).whole == {"x"}


def all_slots(call: CallModel, monkeypatch: pytest.MonkeyPatch) -> list[Slot]:
    """The slots that are found if every variable is probed in both forms."""
    names = frozenset(call.names)
    with monkeypatch.context() as patch:
        patch.setattr(BareVariables, "of", lambda *_: BareVariables(names, names))
        return call.slots


@pytest.mark.parametrize("version", VERSIONS)
def test_no_slot_is_lost(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quoted variable that looks like a slot is text inside the string content of a turn."""
    cluster = cluster_of(version)
    for agent in cluster.agents:
        profile = cluster.profile(agent)
        provider = registry.provider(profile.provider) if profile.provider else TextOnly()
        call = CallModel(profile, provider, {})
        bare = BareVariables.of(call.model.connector.request_body, call.base_parameters)
        every = all_slots(CallModel(profile, provider, {}), monkeypatch)
        assert call.slots == [slot for slot in every if slot.name in bare.whole | bare.before], agent
        assert not any(call.base_parameters.get(slot.name, "").isdecimal() for slot in every), agent


def test_a_variable_of_each_kind() -> None:
    cluster = cluster_of("3.4.0")
    profile = cluster.profile("flow-bedrock_upgraded")
    found = CallModel(profile, registry.provider(profile.provider), {}).slots
    assert {slot.name: slot.takes for slot in found} == {"body": SlotKind.TURN, "_chat_history": SlotKind.HISTORY}
    assert [slot.separator for slot in found] == ["", ","]


@pytest.mark.parametrize(
    ("version", "unseen"), mostly_slow([(v, unseen) for v in VERSIONS for unseen in (True, False)], 4)
)
def test_the_slots_of_an_upgrade_are_those_that_probing_finds(version: str, unseen: bool) -> None:
    cluster = UnseenCluster(version) if unseen else cluster_of(version)
    kinds = set()
    for agent in cluster.agents:
        profile = cluster.profile(agent)
        model, _ = first_llm(profile, {})
        if not profile.provider or model is None:
            continue
        provider = registry.provider(profile.provider)
        try:
            change = find_change(model.connector, provider, ABILITIES[profile.generation].raw_parameters)
        except NotOffered:
            continue
        probed = CallModel(with_upgrades(profile, provider), provider, {}).slots
        assert [slot for slot in probed if slot in change.message_slots] == list(change.message_slots), agent
        kinds |= {slot.takes for slot in change.message_slots}
    assert kinds >= {SlotKind.ARRAY, SlotKind.TURN}
