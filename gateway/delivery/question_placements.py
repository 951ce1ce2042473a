"""Request parameters that bring a question's text to the agent's prompt, the most readable ones first.

Which of them work depends on the text, the agent's prompt and the cluster. The proof decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.delivery.call_model import CallModel
from gateway.delivery.escaping import raw_text, split_placeholders
from gateway.delivery.target import Question
from gateway.mlcommons.template import PREFIX, UNFILLED

Parameters = dict[str, str]

SKIP = "skip_validating_missing_parameters"


def question_placements(call: CallModel, text: str, question: Question) -> Iterator[Parameters]:
    """Yield parameters that put `text` where the agent's prompt has the question."""
    if text == question.stored:
        yield {"question": text}
    if call.prompt_parameter is not None:
        yield {**in_prompt(call, reference_to(call, "gw_t", text, escape_prefix(call))), "question": question.stored}
    yield coded_question(call, question, text)


def coded_question(call: CallModel, question: Question, text: str) -> Parameters:
    """Return `question` in the form for memory, and helpers that replace it by `text` in this turn."""
    if call.raw_parameters and not call.later_llms:
        return raw_question(call, question, raw_text(text))
    reference, helpers = reference_to(call, f"{question.helper}_", text, call.escape_prefix)
    return {**helpers, "question": question.form, question.helper: reference}


def raw_question(call: CallModel, question: Question, fragment: str) -> Parameters:
    """Return `question` in the form for memory, and helpers that replace it by `fragment`, which is inserted raw."""
    name = question.helper
    if call.writes_turn:
        # The agent substitutes the question once itself, without any parameters.
        return {"question": f"${question.form}", name: fragment, **raw_names(call, {name: fragment})}
    if call.raw_name:
        reference = f"{call.escape_prefix}{PREFIX}{call.raw_name}}}"
        return {"question": question.form, name: reference, call.raw_name: fragment}
    reference, helpers = raw_reference(call, {f"{name}_": fragment}, call.escape_prefix)
    return {"question": question.form, name: reference, **helpers}


def escape_prefix(call: CallModel) -> str:
    """Return what to put before a placeholder in the prompt parameter so that it survives the agent's prompt passes."""
    return call.escape_prefix if call.prompt_parameter is not None and call.prompt_parameter.name == "prompt" else ""


def in_prompt(call: CallModel, text: tuple[str, Parameters]) -> Parameters:
    """Return the agent's own prompt with a reference in place of the question, and its helpers. text: those two."""
    assert call.prompt_parameter is not None
    reference, helpers = text
    prompt_parameter = call.prompt_parameter
    return {**helpers, call.key(prompt_parameter.name): prompt_parameter.before + reference + prompt_parameter.after}


def reference_to(call: CallModel, name: str, text: str, escape_prefix: str) -> tuple[str, Parameters]:
    """Return a reference to helper parameters that contain `text`, and those helpers.

    The text is inserted raw if the cluster can do that (3.0 and later), else in parts that it escapes. Parts work for
    every LLM tool of a flow, while `no_escape_params` is sent to the first one only.
    """
    if call.raw_parameters and not call.later_llms:
        return raw_reference(call, {name: raw_text(text)}, escape_prefix)
    parts = split_placeholders(text)
    helpers = {f"{name}{index}": part for index, part in enumerate(parts)}
    return "".join(f"{escape_prefix}{PREFIX}{helper}}}" for helper in helpers), {**helpers, **skip_if_needed(text)}


def raw_reference(call: CallModel, fragments: Parameters, escape_prefix: str) -> tuple[str, Parameters]:
    """Return a reference to helpers that are inserted raw, in order, and the helpers with `no_escape_params`."""
    reference = "".join(f"{escape_prefix}{PREFIX}{name}}}" for name in fragments)
    return reference, {**fragments, **raw_names(call, fragments)}


def raw_names(call: CallModel, names: Parameters) -> Parameters:
    """Return `no_escape_params` with the agent's own names, which it would replace (docs/evidence/facts.md, 3.4.0)."""
    own = call.values.get("no_escape_params", "")
    return {call.key("no_escape_params"): ",".join([*filter(None, [own]), *names])}


def skip_if_needed(text: str) -> Parameters:
    """Return the flag without which the cluster refuses a rendered body that contains a placeholder."""
    return {SKIP: "true"} if UNFILLED in text else {}


def merge(*parameters: Parameters) -> Parameters:
    """Merge parameters; lists of raw names are joined, each name once."""
    result: Parameters = {}
    for more in parameters:
        for name, value in more.items():
            if name.endswith("no_escape_params") and name in result:
                value = ",".join(dict.fromkeys([*result[name].split(","), *value.split(",")]))
            result[name] = value
    return result
