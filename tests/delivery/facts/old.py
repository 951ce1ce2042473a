"""docs/evidence/facts.md, 2.19.0: what arrives, and what must arrive exactly."""

from __future__ import annotations

import json
from typing import Any

from tests.delivery.facts.row import (
    ARRAY,
    BEDROCK_IMAGE,
    CFLOW,
    FLOW,
    PAST,
    QUOTED,
    SKIP,
    TURNS,
    Row,
    quoted_turns,
    user,
)


def arrives() -> list[Row]:
    """docs/evidence/facts.md, 2.19.0, "What arrives"."""
    rows: list[Row] = []
    for name, variable, one, pictured in ARRAY:
        literal = json.dumps(one("${parameters.prompt}"))
        rows += [
            Row(
                f"{name}: text through {variable}",
                f"flow-{name}",
                {"question": "q", variable: literal},
                one(FLOW.format("q")),
            ),
            Row(
                f"{name}: text and image through {variable}",
                f"cflow-{name}",
                {"question": "q", variable: json.dumps(pictured("${parameters.prompt}"))},
                pictured(CFLOW.format("", "q")),
            ),
            Row(
                f"{name}: literal text instead of the prompt arrives too, and drops the agent's template",
                f"flow-{name}",
                {"question": "q", variable: json.dumps(one("literally"))},
                one("literally"),
            ),
        ]
        plain = {"status": 400} if name != "h" else {"turns": one(FLOW.format("q"))}
        rows.append(Row(f"{name}: question alone", f"flow-{name}", {"question": "q"}, **plain))  # type: ignore[arg-type]
    rows += [
        Row(
            "a: many turns with images", "flow-a", {"question": "q", "messages": TURNS}, _with(TURNS, FLOW.format("q"))
        ),
        Row(
            "h: many turns with images",
            "cflow-h",
            {"question": "q", "messages": TURNS},
            _with(TURNS, CFLOW.format("", "q")),
        ),
    ]
    for name in QUOTED:
        rows += [
            Row(f"{name}: text as question", f"flow-{name}", {"question": "q"}, quoted_turns(name, FLOW.format("q"))),
            Row(
                f"{name}: messages are ignored in silence",
                f"flow-{name}",
                {"question": "q", "messages": TURNS},
                quoted_turns(name, FLOW.format("q")),
            ),
            Row(
                f"{name}: earlier turns as chat_history on cflow",
                f"cflow-{name}",
                {"question": "q", "chat_history": "Human:a\nAssistant:b"},
                quoted_turns(name, CFLOW.format("Human:a\nAssistant:b", "q")),
            ),
        ]
    first, second = (json.dumps(one) for one in PAST)
    nested = {"_chat_history": "${parameters.gw_h0},${parameters.gw_h1},", "gw_h0": first, "gw_h1": second}
    return [
        *rows,
        Row(
            "f: history through gw_hN", "flow-f", {"question": "q", **nested}, [*PAST, user({"text": FLOW.format("q")})]
        ),
        Row(
            "f: the bare list is a 400", "flow-f", {"question": "q", "_chat_history": f"{first},{second},"}, status=400
        ),
        Row(
            "f: the current image only as a user message before",
            "flow-f",
            {"question": "q", "_chat_history": "${parameters.gw_h0},", "gw_h0": json.dumps(user(BEDROCK_IMAGE))},
            [user(BEDROCK_IMAGE), user({"text": FLOW.format("q")})],
        ),
        Row(
            "own messages template: works with question alone",
            "own-messages",
            {"question": "q"},
            [user({"text": "Said: q (end)"})],
        ),
        Row(
            "own messages template: execute-time messages override it",
            "own-messages",
            {"question": "q", "messages": json.dumps([user({"text": "other"})])},
            [user({"text": "other"})],
        ),
        Row(
            "no prompt: ${parameters.question} serves",
            "bare-a",
            {"question": "q", "messages": json.dumps([user({"text": "${parameters.question}"})])},
            [user({"text": "q"})],
        ),
        Row(
            "stored memory overrides chat_history",
            "cflow-d",
            {"question": "q", "chat_history": "mine"},
            says="Human:earlier\nAssistant:answer",
            pairs=(("earlier", "answer"),),
        ),
        Row(
            "message_history_limit 0 keeps chat_history",
            "cflow-d",
            {"question": "q", "chat_history": "mine", "message_history_limit": "0"},
            [user({"text": CFLOW.format("mine", "q")})],
            pairs=(("earlier", "answer"),),
        ),
        Row("conv: chat_history", "conv-d", {"question": "q", "chat_history": "Human:a"}, says="[history] Human:a\n"),
        Row("rule 6: conv without question", "conv-a", {"messages": TURNS}, status=500),
        Row("rule 6: cflow without question", "cflow-a", {"messages": TURNS}, status=500),
        Row(
            "rule 5: a caller overrides the connector's parameters",
            "flow-b",
            {"question": "q", "messages": "[]", "model": "other"},
            [],
        ),
        Row("upgrade: old callers unaffected", "flow-h", {"question": "q"}, [user({"text": FLOW.format("q")})]),
        Row(
            "upgrade: the smaller one, content",
            "flow-content",
            {"question": "q", "content": json.dumps([{"text": "${parameters.prompt}"}, BEDROCK_IMAGE])},
            [user({"text": FLOW.format("q")}, BEDROCK_IMAGE)],
        ),
    ]


def _with(turns: str, prompt: str) -> Any:
    return json.loads(turns.replace("${parameters.prompt}", json.dumps(prompt)[1:-1]))


def exactly() -> list[Row]:
    """docs/evidence/facts.md, 2.19.0, "Text that must arrive exactly"."""
    safe = json.dumps([user({"text": "a $ ${parameters.model} b"})]).replace("$", "\\u0024")
    rows = [
        Row(
            f"$ as \\u0024 in messages: {kind}",
            f"{kind}-a",
            {"question": "q", "messages": safe},
            [user({"text": "a $ ${parameters.model} b"})],
        )
        for kind in ("flow", "cflow", "conv")
    ]
    halves = {"question": "${parameters.gw_q1}${parameters.gw_q2}", "gw_q1": "{", "gw_q2": '"a":1}'}
    return [
        *rows,
        Row(
            "${} in messages, not guarded",
            "flow-a",
            {"question": "q", "messages": json.dumps([user({"text": "${parameters.x}"})])},
            status=400,
        ),
        Row(
            "${} in question: flow, guarded",
            "flow-d",
            {"question": "$${parameters.x}", **SKIP},
            [user({"text": FLOW.format("${parameters.x}")})],
        ),
        Row(
            "${} in question: cflow, guarded",
            "cflow-d",
            {"question": "$${parameters.x}", **SKIP},
            [user({"text": CFLOW.format("", "${parameters.x}")})],
        ),
        Row("${} in question: flow, no flag", "flow-d", {"question": "$${parameters.x}"}, status=400),
        Row("${} in question: flow, plain", "flow-d", {"question": "${parameters.x}"}, status=400),
        Row(
            "${} in question: known name is expanded",
            "flow-d",
            {"question": "${parameters.model}"},
            [user({"text": FLOW.format("claude-3")})],
        ),
        Row("${} in question: itself is a 500", "flow-d", {"question": "${parameters.question}"}, status=500),
        Row(
            "${} in question: conv, $$ alone is expanded",
            "conv-d",
            {"question": "$${parameters.model}", **SKIP},
            says="[question] claude-3\n",
        ),
        Row(
            "${} in question: conv, guarded",
            "conv-d",
            {"question": "$${parameters.gw_d}{parameters.x}", "gw_d": "$", **SKIP},
            says="[question] ${parameters.x}\n",
        ),
        Row("lenient JSON in question: flow, plain", "flow-d", {"question": '{"a":1}'}, status=400),
        Row(
            "lenient JSON in question: flow, plain, rewrites the request",
            "flow-d",
            {"question": '[\'a"},{"text":"\']'},
            [user({"text": FLOW.format("['a").removesuffix("\n\nAnswer:")}, {"text": "']\n\nAnswer:"})],
        ),
        Row("lenient JSON in question: flow, two halves", "flow-d", halves, [user({"text": FLOW.format('{"a":1}')})]),
        Row(
            "lenient JSON in question: cflow, two halves in the prompt",
            "cflow-d",
            {**halves, "question": '{"a":1}', "prompt": f"<{halves['question']}>"},
            [user({"text": '<{"a":1}>'})],
        ),
        Row("lenient JSON in question: conv is safe", "conv-d", {"question": '{"a":1}'}, says='[question] {"a":1}\n'),
    ]
