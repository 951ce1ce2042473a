"""docs/evidence/facts.md, "Rendering, in detail": both versions."""

from __future__ import annotations

import json

from tests.delivery.facts.row import FLOW, NEW, SKIP, Row, user

LENIENT = ("{a:1}", "{a=1}", "[1,]", "[1;2]", "[NaN]", "['x']", ' {"a":1}', '\n{"a":1}', '{"a":"\t"}')
NOT_JSON = ("{", "[1 2]", "[1],[2]", "[1]//c", '\ufeff{"a":1}', '\u00a0{"a":1}', '{"a":1,"a":2}')


def rendering() -> list[Row]:
    """docs/evidence/facts.md, "Rendering, in detail"."""
    deep = "[" * 600 + "]" * 600
    escapes = "/ é 漢 😀 <&'=> \"\\\b\f\n\r\t\x7f"
    return [
        Row("escaper: parsed JSON is equal", "flow-d", {"question": escapes}, [user({"text": FLOW.format(escapes)})]),
        *(
            Row(f"not JSON, so escaped: {text!r}", "flow-d", {"question": text}, [user({"text": FLOW.format(text)})])
            for text in NOT_JSON
        ),
        Row(
            "payload: duplicate keys are a 400",
            "flow-a",
            {"question": "q", "messages": '[{"role":"user","role":"user"}]'},
            status=400,
        ),
        Row("payload: 600 levels are fine on 2.19", "flow-a", {"question": "q", "messages": deep}, json.loads(deep)),
        Row(
            "payload: 600 levels fail on 3.x",
            "flow-bedrock_messages",
            {"question": "q", "messages": deep},
            status=400,
            version=NEW,
        ),
        Row(
            "a $ that ends a value escapes the next placeholder",
            "flow-d",
            {"question": "${parameters.d}${parameters.e}", "d": "$", "e": "$", **SKIP},
            [user({"text": FLOW.format("${parameters.e}")})],
        ),
        Row(
            "one parameter per run of $",
            "flow-d",
            {"question": "${parameters.gw_d2}{parameters.x}", "gw_d2": "$$", **SKIP},
            [user({"text": FLOW.format("$${parameters.x}")})],
        ),
        Row("an unclosed placeholder is a 400", "flow-d", {"question": "${parameters.x"}, status=400),
        Row("an empty placeholder is a 500", "flow-d", {"question": "${parameters.}"}, status=500),
        Row(
            "an empty placeholder with the flag",
            "flow-d",
            {"question": "${parameters.}", **SKIP},
            [user({"text": FLOW.format("${parameters.}")})],
        ),
        Row(
            "memory replays: a stored placeholder is expanded",
            "cflow-d",
            {"question": "q"},
            says="Human:claude-3\n",
            pairs=(("${parameters.model}", "yes"),),
        ),
        Row(
            "memory replays: a stored ${parameters.question} is expanded",
            "cflow-d",
            {"question": "q"},
            says="Human:say q\n",
            pairs=(("say ${parameters.question}", "yes"),),
        ),
        Row(
            "messages to an agent without a prompt: a cycle",
            "conv-a",
            {"question": "${parameters.question}", "messages": "[]"},
            status=500,
        ),
        Row(
            "messages to an agent without a prompt: a constant prompt helps",
            "conv-a",
            {"question": "${parameters.question}", "messages": "[]", "prompt": "."},
            [],
        ),
        Row(
            "the tool before the LLM: its output is in the prompt", "lister-d", {"question": "q"}, says="Indices:\nrow"
        ),
        Row(
            "whole-message templates take no tool history without toolConfig",
            "flow-a",
            {"question": "q", "messages": "[]"},
            [],
        ),
    ]
