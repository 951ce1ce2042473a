"""The ways a question's text can travel to the agent's prompt, most readable first.

Which of them works depends on the text, the agent's prompt and the cluster; the proof decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.delivery.call_model import CallModel
from gateway.delivery.escaping import escape_placeholders, is_plain, raw_text, split_placeholders
from gateway.mlcommons.template import PREFIX

Parameters = dict[str, str]

SKIP = "skip_validating_missing_parameters"


def question_placements(call: CallModel, text: str, question: str) -> Iterator[Parameters]:
    """Request parameters that bring `text` to where the agent's prompt has the question.

    question: the plain text that memory should store, which is sent as `question` wherever `text` can travel
    apart from it.
    """
    if text == question and is_plain(text):
        yield {"question": text}
    if call.prompt_parameter is not None:
        yield {**in_prompt(call, reference_to(call, "gw_t", text, escape_prefix(call))), "question": question}
    yield coded_question(call, text)


def coded_question(call: CallModel, text: str) -> Parameters:
    """The text in `question` itself, so coded that the rendering gives it back (and memory stores the code)."""
    if call.is_flow:
        reference, helpers = reference_to(call, "gw_q", text, "")
        return {"question": reference, **helpers}
    coded, helpers = escape_placeholders(text, "gw_d", call.escape_prefix)
    return {"question": coded, **helpers, **skip_if_needed(text)}


def escape_prefix(call: CallModel) -> str:
    """What stands before a placeholder in the holder, so that it outlasts the agent's prompt passes."""
    return call.escape_prefix if call.prompt_parameter is not None and call.prompt_parameter.name == "prompt" else ""


def in_prompt(call: CallModel, referred_text: tuple[str, Parameters]) -> Parameters:
    """The agent's own prompt with a reference in the question's place, and the helpers it refers to."""
    assert call.prompt_parameter is not None
    reference, helpers = referred_text
    prompt_parameter = call.prompt_parameter
    return {call.key(prompt_parameter.name): prompt_parameter.before + reference + prompt_parameter.after, **helpers}


def reference_to(call: CallModel, name: str, text: str, escape_prefix: str) -> tuple[str, Parameters]:
    """A reference to helper parameters that hold `text`, and those helpers.

    Inserted raw where the cluster can (3.0 and later), else in pieces that it escapes; these serve every LLM tool of
    a flow, while `no_escape_params` is sent to the first alone.
    """
    if call.raw_parameters and not call.later_llms:
        return raw_reference(call, {name: raw_text(text)}, escape_prefix)
    parts = split_placeholders(text)
    helpers = {f"{name}{index}": part for index, part in enumerate(parts)}
    return "".join(f"{escape_prefix}{PREFIX}{helper}}}" for helper in helpers), {**helpers, **skip_if_needed(text)}


def raw_reference(call: CallModel, fragments: Parameters, escape_prefix: str) -> tuple[str, Parameters]:
    """A reference to helpers that go in raw, one after the other, and the helpers with what makes them raw."""
    reference = "".join(f"{escape_prefix}{PREFIX}{name}}}" for name in fragments)
    return reference, {**fragments, **raw_names(call, fragments)}


def raw_names(call: CallModel, names: Parameters) -> Parameters:
    """`no_escape_params` with what the agent has there already: sending one's own replaces it (FACTS.md, 3.4.0)."""
    own = call.values.get("no_escape_params", "")
    return {call.key("no_escape_params"): ",".join([*filter(None, [own]), *names])}


def skip_if_needed(text: str) -> Parameters:
    """The flag without which the cluster refuses a rendered body that has a placeholder's look in it."""
    return {SKIP: "true"} if PREFIX in text else {}


def merged(*parameters: Parameters) -> Parameters:
    """Parameters put together; lists of raw names are joined, each name once."""
    result: Parameters = {}
    for more in parameters:
        for name, value in more.items():
            if name.endswith("no_escape_params") and name in result:
                value = ",".join(dict.fromkeys([*result[name].split(","), *value.split(",")]))
            result[name] = value
    return result
