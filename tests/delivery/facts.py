"""The rows of the recorded facts as data: a direct request to an agent of the world, and what came of it.

One table, and long because the facts are many.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.delivery.cases import PNG

OLD, NEW = "2.19.0", "3.4.0"
DNE = "_chat_history,_tools,_interactions,tool_configs"
FLOW = "You answer for the library.\n\nAsked: {}\n\nAnswer:"
CFLOW = "You answer for the library.\n\n{}\n\nAsked: {}\n\nAnswer:"

BEDROCK_IMAGE = {"image": {"format": "png", "source": {"bytes": PNG}}}
OPENAI_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
GEMINI_IMAGE = {"inlineData": {"mimeType": "image/png", "data": PNG}}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def assistant(words: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"text": words}]}


def gemini(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def openai(role: str, words: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": words}, *parts]}


@dataclass(frozen=True)
class Row:
    """A direct request and what came of it.

    turns: what the LLM received, None when the cluster failed with `status`; `${}` in them stands for the words of
    a prompt built into the cluster, which are not ours to know.
    """

    id: str
    agent: str
    parameters: Mapping[str, Any]
    turns: Any = None
    status: int = 200
    version: str = OLD
    says: str = ""
    pairs: tuple[tuple[str, str], ...] = field(default=())


PAST = [user({"text": "q1"}, BEDROCK_IMAGE), assistant("a1")]
TURNS = json.dumps([*PAST, user({"text": "${parameters.prompt}"}, BEDROCK_IMAGE)])
ARRAY = (
    ("a", "messages", lambda words: [user({"text": words})], lambda words: [user({"text": words}, BEDROCK_IMAGE)]),
    ("b", "messages", lambda words: [openai("user", words)], lambda words: [openai("user", words, OPENAI_IMAGE)]),
    ("e2", "contents", lambda w: [gemini("user", {"text": w})], lambda w: [gemini("user", {"text": w}, GEMINI_IMAGE)]),
    ("h", "messages", lambda words: [user({"text": words})], lambda words: [user({"text": words}, BEDROCK_IMAGE)]),
)
QUOTED = ("c", "d", "e", "f", "g", "i")


def quoted_turns(template: str, words: str) -> Any:
    """What the LLM gets from a template with the prompt inside quotes."""
    match template:
        case "c":
            return words
        case "e":
            return [gemini("user", {"text": words})]
        case "g":
            return [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": words}]
        case "i":
            return [user({"type": "text", "text": words})]
    return [user({"text": words})]


def arrives() -> list[Row]:
    """FACTS.md, 2.19.0, "What arrives"."""
    rows: list[Row] = []
    for name, variable, one, pictured in ARRAY:
        said = json.dumps(one("${parameters.prompt}"))
        rows += [
            Row(
                f"{name}: text through {variable}",
                f"flow-{name}",
                {"question": "q", variable: said},
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


SKIP = {"skip_validating_missing_parameters": "true"}
HOSTILE_ARRAY = '[\'a"},{"image":{}},{"text":"\']'


def exactly() -> list[Row]:
    """FACTS.md, 2.19.0, "Text that must arrive exactly"."""
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


BRU, OAU = "bedrock_upgraded", "openai_upgraded"
SPLICED = 'what? \\"q\\""},' + json.dumps(BEDROCK_IMAGE) + ',{"text":"(end)'
BODY = json.dumps(user({"text": "a"}, BEDROCK_IMAGE))
THREE = ",".join(json.dumps(one) for one in [*PAST, user({"text": "now"})])


def modern() -> list[Row]:
    """FACTS.md, 3.4.0: A to G, and the bullets under the table."""
    raw = {"no_escape_params": f"{DNE},prompt"}
    history = "".join(f"{json.dumps(one)}, " for one in PAST)
    own = [{"role": "developer", "content": "Be brief."}]
    split = [
        *own,
        {"role": "user", "content": "a"},
        {"role": "user", "content": [OPENAI_IMAGE]},
        {"role": "user", "content": "end"},
    ]
    between = f'a"}},{json.dumps(split[2])},{{"role":"user","content":"end'
    rows = [
        Row("A: conv, Bedrock, tutorial", "fc-bedrock_tutorial", {"question": "hello"}, [user({"text": "hello"})]),
        Row(
            "A: conv, OpenAI, tutorial",
            "fc-openai_tutorial",
            {"question": "hello"},
            [*own, {"role": "user", "content": "hello"}],
        ),
        Row("A: conv, upgraded", f"fc-{BRU}", {"question": "hello"}, [user({"text": "hello"})]),
        Row(
            "A: flow, tutorial, in the tool's own prompt",
            "flow-bedrock_tutorial",
            {"question": "hello"},
            [user({"text": FLOW.format("hello")})],
        ),
        Row("A: planner", "per-bedrock_tutorial", {"question": "hello"}, says="[objective] hello\n"),
        Row(
            "A-safe: lenient JSON",
            "fc-bedrock_tutorial",
            {"question": '{"a":1}', "prompt": '{\\"a\\":1}', **raw},
            [user({"text": '{"a":1}'})],
        ),
        Row("A: lenient JSON is a 400", "fc-bedrock_tutorial", {"question": '{"a":1}'}, status=400),
        Row(
            "A: lenient JSON does not harm a planner",
            "per-bedrock_tutorial",
            {"question": '{"a":1}'},
            says='[objective] {"a":1}\n',
        ),
        Row(
            "B: conv, Bedrock, tutorial",
            "fc-bedrock_tutorial",
            {"question": "q", "prompt": SPLICED, **raw},
            [user({"text": 'what? "q"'}, BEDROCK_IMAGE, {"text": "(end)"})],
        ),
        Row(
            "B: flow, tutorial, DNE not needed",
            "flow-bedrock_tutorial",
            {"question": "q", "prompt": SPLICED, "no_escape_params": "prompt"},
            [user({"text": 'what? "q"'}, BEDROCK_IMAGE, {"text": "(end)"})],
        ),
        Row("B': conv, OpenAI, tutorial", "fc-openai_tutorial", {"question": "q", "prompt": between, **raw}, split),
        Row(
            "C: conv, Bedrock, tutorial",
            "fc-bedrock_tutorial",
            {"question": "last", "_chat_history": history},
            [*PAST, user({"text": "last"})],
        ),
        Row(
            "C: flow, tutorial, needs no_escape_params",
            "flow-bedrock_tutorial",
            {"question": "last", "_chat_history": history, "no_escape_params": "_chat_history"},
            [*PAST, user({"text": FLOW.format("last")})],
        ),
        Row(
            "C: flow, tutorial, else 400",
            "flow-bedrock_tutorial",
            {"question": "last", "_chat_history": history},
            status=400,
        ),
        Row(
            "D: conv, OpenAI, tutorial",
            "fc-openai_tutorial",
            {"question": "the above", "_chat_history": json.dumps(openai("user", "a", OPENAI_IMAGE)) + ", "},
            [*own, openai("user", "a", OPENAI_IMAGE), {"role": "user", "content": "the above"}],
        ),
        Row("E: conv, upgraded, as a string", f"fc-{BRU}", {"question": "q", "body": BODY}, [json.loads(BODY)]),
        Row(
            "E: conv, upgraded, as an object",
            f"fc-{BRU}",
            {"question": "q", "body": json.loads(BODY)},
            [json.loads(BODY)],
        ),
        Row("E: flow, upgraded", f"flow-{BRU}", {"question": "q", "body": BODY}, [json.loads(BODY)]),
        Row(
            "F: conv, upgraded",
            f"fc-{BRU}",
            {"question": "q", "body": THREE, "no_escape_params": f"{DNE},body"},
            [*PAST, user({"text": "now"})],
        ),
        Row(
            "F: flow, upgraded",
            f"flow-{BRU}",
            {"question": "q", "body": THREE, "no_escape_params": "body"},
            [*PAST, user({"text": "now"})],
        ),
        Row("F: flow, upgraded, else 400", f"flow-{BRU}", {"question": "q", "body": THREE}, status=400),
        Row(
            "planner: prompt is ignored",
            "per-bedrock_tutorial",
            {"question": "q", "prompt": "P"},
            says="[objective] q\n",
        ),
        Row(
            "planner: the bare list is a 400",
            "per-bedrock_tutorial",
            {"question": "q", "_chat_history": history},
            status=400,
        ),
        Row(
            "placeholder in question is expanded",
            "fc-bedrock_tutorial",
            {"question": "${parameters.model}"},
            [user({"text": "claude-3-7"})],
        ),
        Row(
            "placeholder in body is expanded",
            f"fc-{BRU}",
            {"question": "q", "body": json.dumps(user({"text": "${parameters.model}"}))},
            [user({"text": "claude-3-7"})],
        ),
        Row(
            "\\u0024 inside a raw string is safe",
            f"fc-{BRU}",
            {"question": "q", "body": json.dumps(user({"text": "${parameters.model}"})).replace("$", "\\u0024")},
            [user({"text": "${parameters.model}"})],
        ),
        Row(
            "\\u0024 inside an object is not",
            f"fc-{BRU}",
            {"question": "q", "body": user({"text": "${parameters.model}"})},
            [user({"text": "claude-3-7"})],
        ),
        Row(
            "${credential.x} is never expanded",
            "fc-bedrock_tutorial",
            {"question": "x ${credential.key}"},
            [user({"text": "x ${credential.key}"})],
        ),
        Row(
            "memory overwrites _chat_history in silence",
            "fc-bedrock_tutorial",
            {"question": "q", "_chat_history": history},
            [user({"text": "old"}), assistant("answer"), user({"text": "q"})],
            pairs=(("old", "answer"),),
        ),
        Row(
            "message_history_limit 0 keeps _chat_history",
            "fc-bedrock_tutorial",
            {"question": "q", "_chat_history": history, "message_history_limit": 0},
            [*PAST, user({"text": "q"})],
            pairs=(("old", "answer"),),
        ),
        Row("no prompt: plain question is a 400", "fc_noprompt-bedrock_tutorial", {"question": "q"}, status=400),
        Row(
            "no prompt: sending prompt mends it",
            "fc_noprompt-bedrock_tutorial",
            {"question": "q", "prompt": "${parameters.question}"},
            [user({"text": "q"})],
        ),
    ]
    planned = json.dumps(user({"text": "${parameters.prompt}"}, BEDROCK_IMAGE))
    nested = {"_chat_history": "${parameters.gw_h0},", "gw_h0": json.dumps(PAST[0])}
    return [
        *(Row(row.id, row.agent, row.parameters, row.turns, row.status, NEW, row.says, row.pairs) for row in rows),
        Row(
            "G: planner, upgraded",
            f"per-{BRU}",
            {"question": "q", "body": planned},
            version=NEW,
            says="[objective] q\n",
        ),
        Row(
            "planner: history through gw_h0",
            "per-bedrock_tutorial",
            {"question": "q", **nested},
            version=NEW,
            says="[objective] q\n",
        ),
    ]


LENIENT = ("{a:1}", "{a=1}", "[1,]", "[1;2]", "[NaN]", "['x']", ' {"a":1}', '\n{"a":1}', '{"a":"\t"}')
NOT_JSON = ("{", "[1 2]", "[1],[2]", "[1]//c", '\ufeff{"a":1}', '\u00a0{"a":1}', '{"a":1,"a":2}')


def rendering() -> list[Row]:
    """FACTS.md, "Rendering, in detail"."""
    deep = "[" * 600 + "]" * 600
    escapes = "/ é 漢 😀 <&'=> \"\\\b\f\n\r\t\x7f"
    return [
        Row("escaper: parsed JSON is equal", "flow-d", {"question": escapes}, [user({"text": FLOW.format(escapes)})]),
        *(
            Row(f"not JSON, so escaped: {words!r}", "flow-d", {"question": words}, [user({"text": FLOW.format(words)})])
            for words in NOT_JSON
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
            "messages to an agent without a prompt: a constant prompt mends it",
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


ROWS = [*arrives(), *exactly(), *modern(), *rendering()]
