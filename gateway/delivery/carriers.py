"""The ways a question's text can travel to the agent's prompt, most readable first.

Which of them works depends on the text, the agent's prompt and the cluster; the proof decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.delivery.anatomy import Anatomy
from gateway.delivery.coding import dollars, is_plain, pieces, raw_text
from gateway.delivery.template import PREFIX

Parameters = dict[str, str]

SKIP = "skip_validating_missing_parameters"


def carriers(anatomy: Anatomy, text: str, question: str) -> Iterator[Parameters]:
    """Request parameters that bring `text` to where the agent's prompt has the question.

    question: the plain text that memory should store, which is sent as `question` wherever `text` can travel
    apart from it.
    """
    if text == question and is_plain(text):
        yield {"question": text}
    if anatomy.holder is not None:
        yield {**in_holder(anatomy, referred(anatomy, "gw_t", text, deferral(anatomy))), "question": question}
    yield coded_question(anatomy, text)


def coded_question(anatomy: Anatomy, text: str) -> Parameters:
    """The text in `question` itself, so coded that the rendering gives it back (and memory stores the code)."""
    if anatomy.is_flow:
        reference, helpers = referred(anatomy, "gw_q", text, "")
        return {"question": reference, **helpers}
    coded, helpers = dollars(text, "gw_d", anatomy.defer)
    return {"question": coded, **helpers, **skip_if_needed(text)}


def deferral(anatomy: Anatomy) -> str:
    """What stands before a placeholder in the holder, so that it outlasts the agent's prompt passes."""
    return anatomy.defer if anatomy.holder is not None and anatomy.holder.name == "prompt" else ""


def in_holder(anatomy: Anatomy, referred_text: tuple[str, Parameters]) -> Parameters:
    """The agent's own prompt with a reference in the question's place, and the helpers it refers to."""
    assert anatomy.holder is not None
    reference, helpers = referred_text
    holder = anatomy.holder
    return {anatomy.key(holder.name): holder.before + reference + holder.after, **helpers}


def referred(anatomy: Anatomy, name: str, text: str, defer: str) -> tuple[str, Parameters]:
    """A reference to helper parameters that hold `text`, and those helpers.

    Inserted raw where the cluster can (3.0 and later), else in pieces that it escapes; these serve every LLM tool of
    a flow, while `no_escape_params` is sent to the first alone.
    """
    if anatomy.raw_parameters and not anatomy.later_llms:
        return raw_reference(anatomy, {name: raw_text(text)}, defer)
    parts = pieces(text)
    helpers = {f"{name}{index}": part for index, part in enumerate(parts)}
    return "".join(f"{defer}{PREFIX}{helper}}}" for helper in helpers), {**helpers, **skip_if_needed(text)}


def raw_reference(anatomy: Anatomy, fragments: Parameters, defer: str) -> tuple[str, Parameters]:
    """A reference to helpers that go in raw, one after the other, and the helpers with what makes them raw."""
    reference = "".join(f"{defer}{PREFIX}{name}}}" for name in fragments)
    return reference, {**fragments, **raw_names(anatomy, fragments)}


def raw_names(anatomy: Anatomy, names: Parameters) -> Parameters:
    """`no_escape_params` with what the agent has there already: sending one's own replaces it (FACTS.md, 3.4.0)."""
    own = anatomy.values.get("no_escape_params", "")
    return {anatomy.key("no_escape_params"): ",".join([*filter(None, [own]), *names])}


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
