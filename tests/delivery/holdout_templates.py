"""The connectors of `tests.delivery.holdout`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.simulator.fixtures import Template

_RUNTIME = "https://bedrock-runtime.${parameters.region}.amazonaws.com/model"
_CONVERSE = f"{_RUNTIME}/${{parameters.model}}/converse"
_OPENAI = "https://api.openai.com/v1/chat/completions"
_GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/${parameters.model}:generateContent"

_OF_CONVERSE, _OF_CLAUDE = "$.output.message.content[0].text", "$.content[0].text"
_OF_OPENAI, _OF_GEMINI = "$.choices[0].message.content", "$.candidates[0].content.parts[0].text"
_AWS = {"region": "us-west-2", "service_name": "bedrock"}
_CLAUDE = {**_AWS, "anthropic_version": "bedrock-2023-05-31", "max_tokens": "8000", "temperature": "0.0001"}
_CHAT = "${parameters._chat_history:-}"
_ACTS = "${parameters._interactions:-}"


def _pretty(body: Any) -> str:
    """The body over many lines. A text ``raw:x`` is the placeholder ``${parameters.x}`` without quotes."""
    return re.sub(r'"raw:([\w.:-]+)"', r"${parameters.\1}", json.dumps(body, indent=2))


_FUNCTION = {"name": "find_book", "parameters": {"type": "object", "properties": {"title": {"type": "string"}}}}
_STATIC_TOOLS = json.dumps([{"type": "function", "function": _FUNCTION}])

TEMPLATES: Mapping[str, Template] = {
    # Bedrock Converse
    "nova_pretty": Template(
        _CONVERSE,
        _pretty(
            {
                "system": [{"text": "${parameters.system_prompt:-You help the readers of a library.}"}],
                "messages": [{"role": "user", "content": [{"text": "${parameters.user_prompt}"}]}],
                "inferenceConfig": {"maxTokens": "raw:max_tokens", "topP": "raw:top_p:-0.9"},
            }
        ),
        {**_AWS, "model": "us.amazon.nova-pro-v1:0", "max_tokens": "4096"},
        answer_filter=_OF_CONVERSE,
    ),
    "converse_typed": Template(
        f"{_RUNTIME}/us.anthropic.claude-sonnet-4-20250514-v1:0/converse",
        '{"system":[{"text":"${parameters.system_prompt}"}],'
        '"messages":[{"role":"user","content":[{"type":"text","text":"${parameters.user_prompt}"}]}]}',
        {**_AWS, "system_prompt": "Judge strictly."},
        answer_filter=_OF_CONVERSE,
    ),
    "llama_many": Template(
        _CONVERSE,
        '{"system":[{"text":"Answer from: ${parameters.context:-nothing}. Today is ${parameters.date:-unknown}."}],'
        '"messages":[{"role":"user","content":[{"text":"So far: ${parameters.chat_history:-}\\n\\n'
        'Question: ${parameters.question}\\n\\nReply in ${parameters.language:-English}."}]}],'
        '"inferenceConfig":{"maxTokens":512}}',
        {**_AWS, "model": "meta.llama3-1-70b-instruct-v1:0"},
        answer_filter=_OF_CONVERSE,
    ),
    "mistral_documents": Template(
        _CONVERSE,
        '{"system":[{"text":"You cite your sources."},{"cachePoint":{"type":"default"}}],'
        '"messages":[{"role":"user","content":[{"text":"Documents:\\n${parameters.documents:-none}"},'
        '{"text":"${parameters.prompt}"}]}],"inferenceConfig":{"temperature":${parameters.temperature}}}',
        {**_AWS, "model": "mistral.mistral-large-2407-v1:0", "temperature": "0.2"},
        answer_filter=_OF_CONVERSE,
    ),
    "thinking": Template(
        _CONVERSE,
        '{ "system": [{"text": "${parameters.system_prompt}"}], "messages": ${parameters.messages} , '
        '"inferenceConfig": {"maxTokens": ${parameters.max_tokens}}, "additionalModelRequestFields": '
        '{"thinking": {"type": "enabled", "budget_tokens": ${parameters.budget_tokens}}} }',
        {**_CLAUDE, "model": "us.anthropic.claude-3-7-sonnet-20250219-v1:0", "budget_tokens": "2000"}
        | {"system_prompt": "You are a helpful assistant."},
        answer_filter=_OF_CONVERSE,
    ),
    "chatbot": Template(
        _CONVERSE,
        '{"messages": [' + _CHAT + '{"role":"user","content":[{"text":"${parameters.prompt:-}"}]}' + _ACTS + "]"
        "${parameters.tool_configs:-}}",
        {**_AWS, "model": "us.anthropic.claude-sonnet-5"},
        answer_filter=_OF_CONVERSE,
        interface="bedrock/converse/claude",
    ),
    "r1_converse": Template(
        _CONVERSE,
        '{ "system": [{"text": "${parameters.system_prompt}"}], "messages": [' + _CHAT + '{"role":"user","content":'
        '[{"text":"${parameters.prompt}"}]}' + _ACTS + "] }",
        {**_AWS, "model": "us.deepseek.r1-v1:0"},
        answer_filter=_OF_CONVERSE,
        interface="bedrock/converse/deepseek_r1",
    ),
    # Bedrock InvokeModel
    "claude_35": Template(
        f"{_RUNTIME}/anthropic.claude-3-5-sonnet-20241022-v2:0/invoke",
        _pretty(
            {
                "anthropic_version": "${parameters.anthropic_version}",
                "max_tokens": "raw:max_tokens",
                "system": [{"type": "text", "text": "Use <answer> tags.", "cache_control": {"type": "ephemeral"}}],
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "<q>${parameters.prompt}</q>"}]},
                ],
                "stop_sequences": ["</answer>"],
            }
        ),
        _CLAUDE,
        answer_filter=_OF_CLAUDE,
    ),
    "claude_4": Template(
        f"{_RUNTIME}/us.anthropic.claude-opus-4-20250514-v1:0/invoke",
        '{ "anthropic_version": "${parameters.anthropic_version}", "max_tokens": ${parameters.max_tokens}, '
        '"messages": ${parameters.messages}, "thinking": {"type": "enabled", "budget_tokens": 1024 } }',
        _CLAUDE,
        answer_filter=_OF_CLAUDE,
    ),
    "claude_prefill": Template(
        f"{_RUNTIME}/anthropic.claude-3-haiku-20240307-v1:0/invoke",
        '{"anthropic_version":"bedrock-2023-05-31","max_tokens":1024,"system":"You speak JSON only.","messages":['
        '{"role":"user","content":"${parameters.prompt}"},{"role":"assistant","content":"{"}]}',
        _CLAUDE,
        answer_filter=_OF_CLAUDE,
    ),
    "nova_invoke": Template(
        f"{_RUNTIME}/amazon.nova-lite-v1:0/invoke",
        '{"schemaVersion":"messages-v1","system":[{"text":"Be kind."}],"messages":[{"role":"user","content":'
        '[{"text":"${parameters.prompt}"}]}],"inferenceConfig":{"max_new_tokens":500}}',
        _AWS,
        answer_filter=_OF_CONVERSE,
    ),
    "jamba": Template(
        f"{_RUNTIME}/ai21.jamba-1-5-large-v1:0/invoke",
        '{"messages":[{"role":"system","content":"You read contracts."},{"role":"user","content":'
        '"${parameters.inputs}"}],"max_tokens":1000}',
        _AWS,
        answer_filter=_OF_OPENAI,
    ),
    "mistral_messages": Template(
        f"{_RUNTIME}/mistral.mistral-large-2402-v1:0/invoke",
        '{"messages":${parameters.messages},"max_tokens":512}',
        _AWS,
        answer_filter=_OF_OPENAI,
    ),
    "command_r": Template(
        f"{_RUNTIME}/cohere.command-r-plus-v1:0/invoke",
        '{"message":"${parameters.prompt}","chat_history":[{"role":"USER","message":"Be brief."},{"role":"CHATBOT",'
        '"message":"I will."}],"preamble":"${parameters.preamble:-You help.}","max_tokens":400}',
        _AWS,
        answer_filter="$.text",
    ),
    "llama_3": Template(
        f"{_RUNTIME}/meta.llama3-8b-instruct-v1:0/invoke",
        '{"prompt":"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\\n${parameters.system_prompt}<|eot_id|>'
        "<|start_header_id|>user<|end_header_id|>\\n${parameters.prompt}<|eot_id|><|start_header_id|>assistant"
        '<|end_header_id|>\\n","max_gen_len":${parameters.max_gen_len:-512}}',
        {**_AWS, "system_prompt": "You are terse."},
        answer_filter="$.generation",
    ),
    "r1_invoke": Template(
        f"{_RUNTIME}/deepseek.r1-v1:0/invoke",
        '{ "prompt": "<\uff5cbegin\u2581of\u2581sentence\uff5c><\uff5cUser\uff5c>${parameters.inputs}'
        '<\uff5cAssistant\uff5c>", "temperature": ${parameters.temperature}, '
        '"max_gen_len": ${parameters.max_gen_len} }',
        {**_AWS, "temperature": "0", "max_gen_len": "4000"},
        answer_filter="$.choices[0].text",
    ),
    # OpenAI
    "json_mode": Template(
        _OPENAI,
        '{"model":"gpt-4o-mini","response_format":{"type":"json_object"},"messages":[{"role":"system","content":'
        '"You are an AI that speaks only JSON, such as {\\"response\\": [\\"question1\\", \\"C:\\\\\\\\temp\\"]}."},'
        '{"role":"user","content":"${parameters.prompt}\\nJSON:"}]}',
        {"temperature": "0"},
        answer_filter=_OF_OPENAI,
    ),
    "reasoning": Template(
        _OPENAI,
        '{ "model": "${parameters.model}", "messages": [{"role":"developer","content":"${parameters.system_prompt}"},'
        + _CHAT
        + '{"role":"user","content":"${parameters.user_prompt}"}'
        + _ACTS
        + '], "reasoning_effort":"low","max_completion_tokens":${parameters.max_completion_tokens:-9000}'
        "${parameters.tool_configs:-}}",
        {"model": "o4-mini"},
        answer_filter=_OF_OPENAI,
        interface="openai/v1/chat/completions",
    ),
    "own_tools": Template(
        _OPENAI,
        '{ "model": "${parameters.model}", "messages": [{"role":"developer","content":'
        '"${parameters.system_instruction}"},'
        + _CHAT
        + '{"role":"user","content":"${parameters.prompt}"}'
        + _ACTS
        + '], "tools": [${parameters._tools:-}],"parallel_tool_calls":${parameters.parallel_tool_calls},'
        '"tool_choice": "${parameters.tool_choice}" }',
        {"model": "gpt-4o"},
        answer_filter=_OF_OPENAI,
        interface="openai/v1/chat/completions",
    ),
    "static_tools": Template(
        _OPENAI,
        '{"model":"gpt-4.1","tools":' + _STATIC_TOOLS + ',"tool_choice":"none","messages":[{"role":"user","content":['
        '{"type":"text","text":"${parameters.prompt}"}]}]}',
        {},
        answer_filter=_OF_OPENAI,
    ),
    "messages_default": Template(
        _OPENAI,
        '{ "model": "${parameters.model}", "messages": ${parameters.messages} }',
        {
            "model": "gpt-3.5-turbo",
            "messages": json.dumps(
                [
                    {"role": "system", "content": 'Style: ${parameters.style:-plain}. "Quote" nothing.'},
                    {"role": "user", "content": "Example?"},
                    {"role": "assistant", "content": '{"answer": "like this"}'},
                    {"role": "user", "content": "${parameters.prompt}"},
                ]
            ),
        },
        answer_filter=_OF_OPENAI,
    ),
    "completions": Template(
        "https://api.openai.com/v1/completions",
        '{ "model": "${parameters.model}", "prompt": "${parameters.prompt}", "max_tokens": ${parameters.max_tokens} }',
        {"model": "gpt-3.5-turbo-instruct", "max_tokens": "7"},
        answer_filter="$.choices[0].text",
    ),
    # OpenAI's format elsewhere
    "azure": Template(
        "https://${parameters.endpoint}/openai/deployments/${parameters.deploy-name}/chat/completions"
        "?api-version=${parameters.api-version}",
        '{ "messages": ${parameters.messages}, "temperature": ${parameters.temperature} }',
        {"endpoint": "library.openai.azure.com", "deploy-name": "gpt-4", "api-version": "2024-02-15-preview"}
        | {"temperature": "0.7"},
        answer_filter=_OF_OPENAI,
    ),
    "gpt_oss": Template(
        "https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1/chat/completions",
        '{ "model": "${parameters.bedrock_model_id}", "messages": ${parameters.messages}, "stream": false }',
        {"service_name": "bedrock", "bedrock_model_id": "openai.gpt-oss-120b-1:0"},
        answer_filter=_OF_OPENAI,
    ),
    "vllm_qwen": Template(
        "http://vllm.internal:8000/v1/chat/completions",
        '{"model":"Qwen/Qwen2.5-VL-7B-Instruct","messages":[{"role":"system","content":"You see."},{"role":"user",'
        '"content":"${parameters.prompt}"}],"chat_template_kwargs":{"enable_thinking":false},"n":${parameters.n}}',
        {"n": "1"},
        answer_filter=_OF_OPENAI,
    ),
    "openrouter": Template(
        "https://openrouter.ai/api/v1/chat/completions",
        _pretty(
            {
                "model": "${parameters.model}",
                "provider": {"order": ["together"]},
                "messages": [{"role": "user", "content": [{"type": "text", "text": "${parameters.input_text}"}]}],
            }
        ),
        {"model": "mistralai/mixtral-8x7b-instruct"},
        answer_filter=_OF_OPENAI,
    ),
    "litellm": Template(
        "http://litellm:4000/chat/completions",
        '{"model":"claude","messages":[{"role":"system","content":"${parameters.system_prompt}"},'
        '{"role":"user","content":"${parameters.prompt}"}],"user":"${parameters.user:-nobody}",'
        '"metadata":{"tags":["${parameters.tag:-search}"]}}',
        {"system_prompt": 'Context of the shop: \\"${parameters.shop:-all}\\"'},
        answer_filter=_OF_OPENAI,
    ),
    # others
    "cohere_2": Template(
        "https://api.cohere.com/v2/chat",
        '{ "model": "${parameters.model}", "stream": false, "messages": ${parameters.messages} }',
        {"model": "command-r-plus"},
        answer_filter="$.message.content[0].text",
    ),
    "cohere_1": Template(
        "https://api.cohere.ai/v1/chat",
        '{ "message": "${parameters.inputs}", "model": "${parameters.model}" }',
        {"model": "command"},
        answer_filter="$.text",
    ),
    "ollama_native": Template(
        "http://localhost:11434/api/chat",
        '{"model":"llama3.2","stream":false,"messages":[{"role":"user","content":"${parameters.prompt}"}]}',
        {},
        answer_filter="$.message.content",
    ),
    "sagemaker": Template(
        "https://runtime.sagemaker.us-east-1.amazonaws.com/endpoints/mistral/invocations",
        '{ "inputs": "${parameters.inputs}", "parameters": {"do_sample": ${parameters.do_sample}, '
        '"max_new_tokens": ${parameters.max_new_tokens}} }',
        {"service_name": "sagemaker", "do_sample": "true", "max_new_tokens": "512"},
        answer_filter="$.generated_text",
    ),
    "gemini_snake": Template(
        _GEMINI,
        '{"system_instruction":{"parts":[{"text":"${parameters.system_prompt}"}]},"contents":[{"role":"user","parts":'
        '[{"text":"${parameters.prompt}"}]}],"generation_config":{"temperature":0},"tools":[{"google_search":{}}]}',
        {"model": "gemini-2.0-flash", "system_prompt": "You search."},
        answer_filter=_OF_GEMINI,
    ),
    "gemini_default": Template(
        _GEMINI,
        '{ "contents": ${parameters.contents} }',
        {"model": "gemini-1.5-pro", "contents": '[{"role":"user","parts":[{"text":"Hello. ${parameters.prompt}"}]}]'},
        answer_filter=_OF_GEMINI,
    ),
}
