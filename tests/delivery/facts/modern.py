"""docs/evidence/facts.md, 3.4.0: A to G, and the bullets under the table."""

from __future__ import annotations

import json

from tests.delivery.facts.row import BEDROCK_IMAGE, DNE, FLOW, NEW, OPENAI_IMAGE, PAST, Row, assistant, openai, user

BRU, OAU = "bedrock_upgraded", "openai_upgraded"
SPLICED = 'what? \\"q\\""},' + json.dumps(BEDROCK_IMAGE) + ',{"text":"(end)'
BODY = json.dumps(user({"text": "a"}, BEDROCK_IMAGE))
THREE = ",".join(json.dumps(one) for one in [*PAST, user({"text": "now"})])


def modern() -> list[Row]:
    """docs/evidence/facts.md, 3.4.0: A to G, and the bullets under the table."""
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
            "no prompt: sending one helps",
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
