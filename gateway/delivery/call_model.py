"""Where an agent's first LLM call takes the question, history, system text and messages.

Found by probing: a probe word is inserted as the question or as a template variable, the call is rendered, and the
word's place in the body shows what the variable is for. This works for any template, whatever its variables are called.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.delivery.escaping import as_templates, dump
from gateway.delivery.slots import (
    MOST_PROBED,
    PROBE,
    QUESTION,
    QuestionPosition,
    Slot,
    SlotKind,
    SystemSlot,
    find_slots,
)
from gateway.delivery.target import text_of
from gateway.delivery.trees import Path, locate, value_at
from gateway.errors import Problem, UndeliverableContent
from gateway.mlcommons.agents import behaviour_of
from gateway.mlcommons.agents.flow import Flow, LlmStep
from gateway.mlcommons.expansion import RenderFailure, expand
from gateway.mlcommons.generations import ABILITIES, Generation
from gateway.mlcommons.profile import AgentProfile, Model
from gateway.mlcommons.rendering import call_values, first_call, is_strict_json
from gateway.mlcommons.template import PREFIX, SUFFIX, RuntimeValues, placeholder_names
from gateway.providers.base import Provider
from gateway.recent import Recent, computed_once

_PROMPTS = ("prompt", "inputs")  # the parameters that hold an agent's own prompt
_QUESTION = f"{PREFIX}question{SUFFIX}"

_MOST_NAMES = 200
_TOO_MANY_NAMES = Problem(
    "parameters",
    f"the connector's template and the parameters name more than {_MOST_NAMES} placeholders",
    f"at most {_MOST_NAMES}",
    code="AGENT_NOT_CALLABLE",
    help="write the texts themselves in place of placeholders",
)


class Missing(NamedTuple):
    """Parameters that a call can't do without. slots: those of its slots that need no probing with them."""

    parameters: dict[str, str]
    slots: tuple[Slot, ...] = ()


class CallModel:
    """One agent's first LLM call, with the caller's own parameters in it.

    known: slots that need no probing. before: the same call before its connector was upgraded. upgraded_slots: the
    variables that take messages then; None if the template only got a slot that is empty by default.
    """

    _MOST_RENDERED = 6

    def __init__(
        self,
        profile: AgentProfile,
        provider: Provider,
        params: Mapping[str, str],
        known: tuple[Slot, ...] = (),
        upgraded_slots: tuple[Slot, ...] | None = None,
        before: CallModel | None = None,
    ) -> None:
        self._known = known
        self._upgraded_slots = upgraded_slots
        self._before = before
        self._rendered: Recent[tuple[Any]] = Recent(self._MOST_RENDERED)
        self.profile = profile
        self.provider = provider
        self.params = dict(params)
        self.behaviour = behaviour_of(profile)
        model, self.tool = self.behaviour.first_llm(profile, params)
        if model is None:
            raise RenderFailure("the agent calls no LLM")
        self.model = model
        self.raw_parameters = ABILITIES[profile.generation].raw_parameters and not self.behaviour.has_fixed_prompts
        self.is_flow = self.behaviour.runs_tools
        self.calls_functions = self.behaviour.calls_functions(profile, params)
        # A prompt that is substituted more than once needs its late placeholders escaped in the first pass.
        self.escape_prefix = "" if self.is_flow else "$"
        self.writes_turn = profile.generation is Generation.UNIFIED_V1 and not self.behaviour.has_fixed_prompts
        self._later = list(self._later_steps(params, RuntimeValues()))
        self.later_llms = [step.tool for step in self._later]
        self.later_models = [tool.model for tool in self.later_llms if tool.model is not None]

    def _later_steps(self, params: Mapping[str, str], env: RuntimeValues) -> Iterator[LlmStep]:
        """Yield the steps of a flow that call an LLM or a connector, without the first LLM call itself.

        The same tool may run again, in an agent that several AgentTools run.
        """
        steps = self.behaviour.llm_steps(self.profile, params, env) if isinstance(self.behaviour, Flow) else iter(())
        is_after = False
        for step in steps:
            if is_after or step.tool is not self.tool:
                yield step
            else:
                is_after = True

    def later_steps(self, params: Mapping[str, str], env: RuntimeValues) -> list[LlmStep | None]:
        """Return the steps of `later_llms` for other parameters; None where the flow fails before."""
        steps: list[LlmStep | None] = []
        with contextlib.suppress(RenderFailure):
            steps.extend(self._later_steps(params, env))
        return [*steps, *[None] * (len(self._later) - len(steps))]

    def key(self, name: str) -> str:
        """Return the request parameter that sets `name` for the first LLM call only."""
        if self.later_llms and self.tool is not None and name not in self.params:
            return f"{self.tool.key}.{name}"
        return name

    def inserts_raw(self, name: str) -> bool:
        """Return True if the cluster can insert the request's parameter `name` unescaped."""
        knows = ABILITIES[self.profile.generation].raw_parameters
        return self.raw_parameters or (knows and name in self.values.get("no_escape_params", "").split(","))

    @computed_once
    def url(self) -> str:
        """The address of the first call.

        Raises:
            RenderFailure: its placeholders can't be filled in.
        """
        return expand(self.model.connector.url, {**self.model.connector.parameters, **self.values})

    @computed_once
    def raw_name(self) -> str:
        """The parameter that an agent with fixed prompts inserts unescaped and does not use itself; "" if none is.

        Such an agent always sets `no_escape_params` itself, so no name can be added (docs/evidence/facts.md, PER).
        """
        names = self.values.get("no_escape_params", "").split(",") if self.behaviour.has_fixed_prompts else []
        used = {*self.names, *self.base_parameters}
        return next((name for name in names if name and name not in used), "")

    def render(self, extra: Mapping[str, str], env: RuntimeValues | None = None) -> Any:
        """Render the first call with `extra` parameters added to the caller's; return None if the cluster would fail.

        For parameters without text from the client. Strategies ask for the same few bodies repeatedly, so the most
        recent ones are cached. Don't change the result.
        """
        env = env or RuntimeValues()
        key = (env, *sorted(extra.items()))
        return self._rendered.get(key, lambda: self._render_as_before(extra, env) or (self.probe(extra, env),))[0]

    def _render_as_before(self, extra: Mapping[str, str], env: RuntimeValues) -> tuple[Any] | None:
        """Return what the call rendered to before an upgrade; None if it may render to something else now.

        An upgrade changes nothing for requests without its variables, except for those that could not be rendered.
        """
        if self._before is None:
            return None
        added = set(self.names) - set(self._before.names)
        if not added.isdisjoint(name.rpartition(".")[2] for name in extra):
            return None
        body = self._before.render(extra, env)
        return (body,) if body is not None or self._upgraded_slots is None else None

    def probe(self, extra: Mapping[str, str], env: RuntimeValues | None = None) -> Any:
        """Render as `render` does, without the cache."""
        try:
            return first_call(self.profile, {**self.params, **extra}, env or RuntimeValues())
        except RenderFailure:
            return None

    @computed_once
    def values(self) -> dict[str, str]:
        """The first call's parameters for the question `QUESTION`."""
        return call_values(self.profile, {**self.params, "question": QUESTION}, RuntimeValues())

    @computed_once
    def base_parameters(self) -> dict[str, str]:
        """The parameters of connector, agent, tool and caller before any prompt pass."""
        own = {**self.model.connector.parameters, **self.values}
        if not self.is_flow:
            own.pop("prompt", None)
            prompt = self.behaviour.prompt(self.profile, self.params)
            if prompt is not None:
                own["prompt"] = prompt
        own.pop("question", None)
        return own

    @computed_once
    def names(self) -> list[str]:
        """The variables of the template and of their values, in order, each once.

        Raises:
            UndeliverableContent: there are too many, and each of them would be probed.
        """
        found: dict[str, None] = {}
        queue = [self.model.connector.request_body]
        while queue:
            for name in placeholder_names(queue.pop(0)):
                if name not in found:
                    found[name] = None
                    queue.append(self.base_parameters.get(name, ""))
            if len(found) > _MOST_NAMES:
                raise UndeliverableContent.of([_TOO_MANY_NAMES])
        return list(found)

    @computed_once
    def prompt_parameter(self) -> PromptParameter | None:
        """The only parameter whose value contains the question, once; None if there is none, or several."""
        if self.behaviour.has_fixed_prompts:
            return None
        # In a template that takes whole messages, the prompt is reached only through the messages the gateway inserts.
        others = [name for name in _PROMPTS if name not in self.names]
        return find_prompt(self.base_parameters, self.names) or find_prompt(self.base_parameters, others)

    @computed_once
    def legacy_body(self) -> Any:
        """The body for a plain `question`; None if the agent can't be called that way."""
        return self.render({"question": QUESTION})

    def missing_parameters(self) -> Missing | None:
        """Return parameters that the agent can't do without and nobody sends: None for most agents.

        First the strings that its models' interfaces require, then the bare question as prompt, for an agent that has
        none and needs one (docs/evidence/facts.md, 3.4.0, and "Models that require inputs"), then the content of the
        user's turn, with the agent's prompt.
        """
        required = dict(self._required())
        if required or self.legacy_body is not None:
            return Missing(required) if required else None
        can_be_given = self.calls_functions or (self.is_flow and "prompt" in self.names)
        if can_be_given and "prompt" not in self.base_parameters:
            return Missing({self.key("prompt"): _QUESTION})
        for slot in self.slots:
            if slot.takes is SlotKind.CONTENT and slot.name not in self.params:
                # With its default, the same probe of this slot renders the same call.
                known = (slot,) if self.key(slot.name) == slot.name else ()
                return Missing({slot.name: dump(self.default_value(slot))}, known)
        return None

    def _required(self) -> Iterator[tuple[str, str]]:
        for name in self.model.required_inputs:
            if name not in self.values:
                yield self.key(name), _filler(self.model, name)
        for step in self._later:
            tool, values = step.tool, step.values()
            assert tool.target is not None
            for name in tool.target.required_inputs:
                if name not in values:
                    yield f"{tool.key}.{name}", _filler(tool.target, name)

    @computed_once
    def replays(self) -> bool:
        """True if the content of the agent's memory reaches its first LLM call."""
        body = self.probe(self.with_question({}), RuntimeValues(history=PROBE))
        return body is None or bool(list(locate(body, PROBE)))

    def position(self, body: Any) -> QuestionPosition | None:
        """Return where the question is in `body`; None if it is not in exactly one text of the provider's messages."""
        if not isinstance(body, dict):
            return None
        messages = self.provider.canonical(body.get(self.provider.messages_field))
        places = list(locate(messages, QUESTION))
        if len(places) != 1 or len(list(locate(body, QUESTION))) != 1:
            return None
        match places[0]:
            case (int() as turn, self.provider.content_field, int() as part, str() as leaf):
                return QuestionPosition(
                    body, messages, turn, part, messages[turn][self.provider.content_field][part][leaf]
                )
        return None

    @computed_once
    def slots(self) -> list[Slot]:
        """The bare variables of the template that take messages, whole-array ones first.

        After an upgrade they are those that the upgrade made, without probing: a proof would fail if they were not.
        """
        if self._before is None:
            return find_slots(self, self.names, self._known)
        return list(self._upgraded_slots) if self._upgraded_slots is not None else self._before.slots

    @computed_once
    def can_be_called(self) -> bool:
        """False if no candidate can be proved: the call fails for a plain question, and takes no turn in its place."""
        return self.legacy_body is not None or any(slot.takes is not SlotKind.HISTORY for slot in self.slots)

    @computed_once
    def system_slot(self) -> SystemSlot | None:
        """The quoted variable that ends the system text, so that more text can follow it."""
        if self.behaviour.has_fixed_prompts:
            return None
        prompt = self.prompt_parameter.name if self.prompt_parameter else ""
        for name in [name for name in self.names if name not in ("question", prompt)][:MOST_PROBED]:
            body = self.probe(self.with_question({self.key(name): PROBE}))
            places = list(locate(body, PROBE))
            if len(places) == 1 and self._is_system(body, places[0]):
                before, _, after = value_at(body, places[0]).partition(PROBE)
                if not after.strip():
                    return SystemSlot(name, places[0], before, after)
        return None

    def _is_system(self, body: Any, path: Path) -> bool:
        if path[0] in self.provider.system_fields([PROBE]):
            return True
        turn = value_at(body, path[:2]) if path[0] == self.provider.messages_field else None
        return isinstance(turn, dict) and self.provider.role_of(turn) in ("system", "developer")

    def with_question(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return parameters that render the call with `QUESTION` in it: `extra`, and a default for a required slot."""
        asked = {"question": QUESTION, **extra}
        if self.legacy_body is None:
            for slot in self.slots:
                if slot.takes is not SlotKind.HISTORY:
                    if slot.name not in asked:
                        asked.setdefault(self.key(slot.name), dump(self.default_value(slot)))
                    break
        return asked

    def default_value(self, slot: Slot) -> Any:
        """Return the content of `slot` for a plain question, as JSON data whose texts are `Template`s.

        That is the agent's or connector's own value, or else a user turn with the agent's prompt. If the agent can't be
        called without further parameters, the media that need one (a hard-coded image) are left out.
        """
        own = self.base_parameters.get(slot.name)
        if own is not None and is_strict_json(own):
            value = json.loads(own)
            if self.legacy_body is None:
                value = fillable_parts(self.provider, value, self.base_parameters)
            return as_templates(value)
        variable = next((name for name in _PROMPTS if name in self.values), "question")
        part = as_templates(self.provider.text_part(f"{PREFIX}{variable}}}"))
        turn = {"role": "user", self.provider.content_field: [part]}
        return {SlotKind.ARRAY: [turn], SlotKind.TURN: turn, SlotKind.CONTENT: [part], SlotKind.HISTORY: []}[slot.takes]


def _filler(model: Model, name: str) -> str:
    """Return a string for a parameter that only the model's interface needs, or the question if the template has it."""
    texts = (model.connector.request_body, *model.connector.parameters.values())
    return _QUESTION if any(f"{PREFIX}{name}" in text for text in texts) else "."


_QUESTION_PLACE = re.compile(r"\$\{parameters\.question(?:\.toString\(\))?(?=\}|:-)")


class PromptParameter(msgspec.Struct, frozen=True):
    """The parameter that holds the agent's own prompt: `before` + the question + `after`, as templates."""

    name: str
    before: str
    after: str


def find_prompt(parameters: Mapping[str, str], names: Collection[str]) -> PromptParameter | None:
    """Return the only one of `names` whose value contains the question, once; None if there is none, or several."""
    found = []
    for name in names:
        parts = _split_at_question(parameters.get(name, ""))
        if len(parts) > 2:
            return None
        if len(parts) == 2:
            found.append(PromptParameter(name, *parts))
    return found[0] if len(found) == 1 else None


def _split_at_question(text: str) -> list[str]:
    """Split a template at the placeholders of the question, in time proportional to its length."""
    parts, rest = [], 0
    while place := _QUESTION_PLACE.search(text, rest):
        end = text.find(SUFFIX, place.end())
        if end < 0:
            break
        parts.append(text[rest : place.start()])
        rest = end + len(SUFFIX)
    return [*parts, text[rest:]]


def fillable_parts(provider: Provider, value: Any, filled: Collection[str]) -> Any:
    """Return turns or parts without those parts that have an unfilled placeholder. Texts are never left out.

    filled: the names of the parameters that are set.
    """
    field = provider.content_field
    if isinstance(value, list):
        return [fillable_parts(provider, item, filled) for item in value if _is_fillable(provider, item, filled)]
    if isinstance(value, dict) and isinstance(value.get(field), list):
        return {**value, field: fillable_parts(provider, value[field], filled)}
    return value


def _is_fillable(provider: Provider, part: Any, filled: Collection[str]) -> bool:
    if not isinstance(part, dict) or provider.content_field in part or text_of(provider, part) is not None:
        return True
    needed = {name for path in locate(part, PREFIX) for name in required_names(value_at(part, path))}
    return needed <= {"question", *filled}


def required_names(template: str) -> list[str]:
    """Return the names of the placeholders without a default, in order, each once."""
    return list(dict.fromkeys(placeholder_names(template, with_default=False)))


class CallModelCache:
    """The call models of one agent, so that the same short parameters are not probed twice.

    Its owner stores it with the profile and drops the two together. Holds at most `MAX_ENTRIES`; the least
    recently used one is dropped first.
    """

    MAX_ENTRIES = 16
    MAX_LENGTH = 4096  # of all parameter values together

    def __init__(
        self,
        profile: AgentProfile,
        slots: tuple[Slot, ...] | None = None,
        before: CallModelCache | None = None,
    ) -> None:
        """Create an empty cache. slots, before: see `CallModel`."""
        self.profile = profile
        self._slots = slots
        self._before = before
        self._call_models: Recent[CallModel] = Recent(self.MAX_ENTRIES)
        self._after_upgrade: dict[tuple[Slot, ...], CallModelCache] = {}

    def get(self, provider: Provider, params: Mapping[str, str], known: tuple[Slot, ...] = ()) -> CallModel:
        """Return the agent's call model for these parameters. known: see `CallModel`.

        Raises:
            RenderFailure: the agent calls no LLM.
        """
        if sum(map(len, params.values())) > self.MAX_LENGTH:
            return self._create(provider, params, known)
        key = (provider.name, tuple(sorted(params.items())))
        return self._call_models.get(key, lambda: self._create(provider, params, known))

    def after_upgrade(self, profile: AgentProfile, slots: tuple[Slot, ...]) -> CallModelCache:
        """Return the call models of the agent after its connectors were changed to `profile`.

        slots: the variables that take messages then; the others did not help before. () if the change adds no such
        variable, but only a slot that is empty by default.
        """
        found = self._after_upgrade.get(slots)
        if found is None:
            found = self._after_upgrade[slots] = CallModelCache(profile, slots or None, self)
        return found

    def _create(self, provider: Provider, params: Mapping[str, str], known: tuple[Slot, ...]) -> CallModel:
        before = self._before.get(provider, params, known) if self._before is not None else None
        return CallModel(self.profile, provider, params, known, self._slots, before)
