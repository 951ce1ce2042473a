"""Which provider a connector, model or agent speaks; recorded URLs among them."""

import pytest

from gateway.providers.base import ConnectorHints, Evidence
from gateway.providers.registry import provider, recognise

BEDROCK, OPENAI, GEMINI = "bedrock/converse", "openai/v1/chat/completions", "gemini/v1beta/generatecontent"
ANTHROPIC, INVOKE = "anthropic/v1/messages", "bedrock-invoke/anthropic"
COHERE = "cohere/v2/chat"
NOVA = "amazon-nova/invoke"
CLAUDE_BODY = (
    '{"anthropic_version":"bedrock-2023-05-31","messages":'
    '[{"role":"user","content":[{"type":"text","text":"${parameters.prompt}"}]}]}'
)
CONVERSE_BODY = '{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}'
CHAT_BODY = '{"model":"${parameters.model}","messages":[{"role":"user","content":"${parameters.prompt}"}]}'
GEMINI_BODY = '{"contents":[{"role":"user","parts":[{"text":"${parameters.prompt}"}]}]}'

COHERE_BODIES = [
    f'{{"model":"command-a-03-2025","messages":${{parameters.messages}},"{member}":1}}'
    for member in ("response_format", "frequency_penalty", "presence_penalty", "documents")
] + ['{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"${parameters.image}"}}]}]}']

NAMED = [
    (ConnectorHints(model_provider="bedrock/converse"), BEDROCK),
    (ConnectorHints(model_provider="OpenAI/v1/chat/completions"), OPENAI),
    (ConnectorHints(model_provider="gemini/v1beta/generatecontent"), GEMINI),
    (ConnectorHints(llm_interface="bedrock/converse/claude"), BEDROCK),
    (ConnectorHints(llm_interface="bedrock/converse/deepseek_r1"), BEDROCK),
    (ConnectorHints(llm_interface="openai/v1/chat/completions"), OPENAI),
    (ConnectorHints(llm_interface="gemini/v1beta/generatecontent"), GEMINI),
    (ConnectorHints(llm_interface="nosuch/interface"), ""),
    (ConnectorHints(), ""),
    # The stronger hint wins, and one that tells nothing gives way.
    (ConnectorHints(model_provider="bedrock/converse", llm_interface="openai/v1/chat/completions"), BEDROCK),
    (ConnectorHints(llm_interface="bedrock/converse/claude", url="https://x/v1/chat/completions"), BEDROCK),
    (ConnectorHints(llm_interface="nosuch/interface", url="https://x/v1/chat/completions"), OPENAI),
    (ConnectorHints(model_provider="nosuch", llm_interface="bedrock/converse/claude"), BEDROCK),
]
URLS = [
    ("https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-3/converse", BEDROCK),
    ("https://bedrock-runtime.${parameters.region}.amazonaws.com/model/${parameters.model}/converse", BEDROCK),
    ("https://bedrock-runtime.us-east-1.amazonaws.com/model/x/converse-stream", BEDROCK),
    ("http://127.0.0.1:18080/bedrock/model/${parameters.model}/converse", BEDROCK),
    ("http://127.0.0.1:18080/fail/400/x/converse", BEDROCK),
    ("http://127.0.0.1:1/converse", BEDROCK),
    ("https://x/model/y/converse?trace=on", BEDROCK),
    ("https://api.openai.com/v1/chat/completions", OPENAI),
    ("http://127.0.0.1:18080/openai/v1/chat/completions", OPENAI),
    ("https://me.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=2024-06-01", OPENAI),
    ("https://generativelanguage.googleapis.com/v1beta/openai/chat/completions", OPENAI),
    ("https://bedrock-runtime.us-west-2.amazonaws.com/openai/v1/chat/completions", OPENAI),
    ("https://${parameters.endpoint}/v1/chat/completions", OPENAI),
    ("https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:generateContent?key=k", GEMINI),
    ("http://127.0.0.1:18080/gemini/v1beta/models/${parameters.model}:generateContent", GEMINI),
    ("http://127.0.0.1:18083/v1beta/models/x:streamGenerateContent", GEMINI),
    ("https://generativelanguage.googleapis.com/${parameters.path}", GEMINI),
    ("http://vllm.internal:8000/v1/chat/completions", OPENAI),
    ("https://api.deepseek.com/chat/completions", OPENAI),
    ("https://api.deepseek.com/v1/chat/completions", OPENAI),
    ("http://127.0.0.1:11434/v1/chat/completions", OPENAI),  # Ollama
    ("https://api.mistral.ai/v1/chat/completions", OPENAI),
    ("https://api.groq.com/openai/v1/chat/completions/", OPENAI),
    ("https://api.cohere.ai/compatibility/v1/chat/completions", OPENAI),
    ("https://bedrock-runtime.us-east-1.amazonaws.com/model/cohere.command-r-plus-v1:0/converse", BEDROCK),
    ("https://api.cohere.com/v2/chat", COHERE),
    ("http://127.0.0.1:18080/cohere/v2/chat/", COHERE),
    ("https://api.cohere.ai/v1/chat", ""),
    ("https://${parameters.endpoint}/v2/chat?x=1", COHERE),
    ("https://bedrock-runtime.us-east-1.amazonaws.com/model/cohere.command-r-plus-v1:0/invoke", ""),
    ("http://127.0.0.1:11434/api/chat", ""),
    ("https://generativelanguage.googleapis.com/v1beta/openai/embeddings", ""),
    ("http://127.0.0.1:18080/bedrock/model/anthropic.claude-v2/invoke", ""),
    ("https://api.anthropic.com/v1/messages", ANTHROPIC),
    ("https://api.anthropic.com/v1/messages/?beta=true", ANTHROPIC),
    ("http://127.0.0.1:18080/anthropic/v1/messages", ANTHROPIC),
    ("https://api.anthropic.com/v1/messages/count_tokens", ""),
    ("https://api.anthropic.com/v1/complete", ""),
    ("https://api.openai.com/v1/completions", ""),
    ("https://api.openai.com/v1/responses", ""),
    ("https://generativelanguage.googleapis.com/v1beta/models/x:embedContent", ""),
    ("https://generativelanguage.googleapis.com.evil.example/x", ""),
    ("http://x", ""),
    ("${parameters.url}", ""),
]
BODIES = [
    (CONVERSE_BODY, BEDROCK),
    ('{"messages": [{"role": "user", "content": [ {"text" : "x"} ]}]}', BEDROCK),
    (GEMINI_BODY, GEMINI),
    ('{"messages":${parameters.messages},"max_completion_tokens":9}', OPENAI),
    ('{"messages":${parameters.messages}, "stream_options" : {}}', OPENAI),
    ('{"messages":[{"role":"user","content":"max_completion_tokens"}]}', ""),
    ('{"schemaVersion":"messages-v1","messages":[{"role":"user","content":[{"text":"x"}]}]}', ""),  # Nova's own
    *((body, "") for body in COHERE_BODIES),
    ('{"messages":${parameters.messages},"safety_mode":"NONE"}', COHERE),
    ('{"messages":${parameters.messages},"citation_options":{"mode":"OFF"}}', COHERE),
    ('{"message":"${parameters.message}","safety_mode":"NONE"}', ""),  # its first API
    (CHAT_BODY, ""),  # Claude's messages look the same
    (CLAUDE_BODY, ""),
    ('{"messages":${parameters.messages}}', ""),
    ('{"prompt":"${parameters.prompt}"}', ""),
]


@pytest.mark.parametrize(("hints", "name"), NAMED)
def test_by_name(hints: ConnectorHints, name: str) -> None:
    assert recognise(hints) == name


@pytest.mark.parametrize(("url", "name"), URLS)
def test_by_url(url: str, name: str) -> None:
    assert recognise(ConnectorHints(url=url)) == name
    for other in (BEDROCK, OPENAI, GEMINI, ANTHROPIC, INVOKE):
        claim = provider(other).claims(ConnectorHints(url=url))
        assert (claim is not None and claim.evidence is Evidence.URL) == (other == name)


def test_service_name_bedrock_needs_converse_in_the_url() -> None:
    url = "https://gw.example/model/x/converse/"
    assert recognise(ConnectorHints(url=url, service_name="bedrock")) == BEDROCK
    assert recognise(ConnectorHints(url="https://gw.example/model/x/invoke", service_name="bedrock")) == ""


@pytest.mark.parametrize(("body", "name"), BODIES)
def test_by_template(body: str, name: str) -> None:
    assert recognise(ConnectorHints(request_body=body)) == name
    assert recognise(ConnectorHints(request_body=body, url="http://x")) == name


def test_the_url_of_another_api_outweighs_the_template() -> None:
    url = "http://127.0.0.1:18080/bedrock/model/x/invoke"
    for body in (CONVERSE_BODY, GEMINI_BODY, CHAT_BODY):
        assert recognise(ConnectorHints(url=url, request_body=body, service_name="bedrock")) == ""
    for url, name in (("https://api.cohere.com/v2/chat", COHERE), ("https://x/model/cohere.command-r-v1:0/invoke", "")):
        for body in (*COHERE_BODIES, *(body for body, other in BODIES if other)):
            assert recognise(ConnectorHints(url=url, request_body=body)) == name
    assert recognise(ConnectorHints(url="http://x/openai/v1/chat/completions", request_body=CONVERSE_BODY)) == OPENAI


RUNTIME = "https://bedrock-runtime.us-east-1.amazonaws.com/model"
INVOKES = [
    (f"{RUNTIME}/anthropic.claude-sonnet-4-5-20250929-v1:0/invoke", CLAUDE_BODY, INVOKE),
    (f"{RUNTIME}/us.anthropic.claude-3-7-sonnet-20250219-v1:0/invoke-with-response-stream", CLAUDE_BODY, INVOKE),
    (f"{RUNTIME}/${{parameters.model}}/invoke", '{"messages":${parameters.messages},"anthropic_version":"x"}', INVOKE),
    (f"{RUNTIME}/arn%3Aaws%3Abedrock%3A1%3Ainference-profile%2Fmine/invoke", CLAUDE_BODY, INVOKE),
    (f"{RUNTIME}/anthropic.claude-v2/invoke", '{"prompt":"${parameters.prompt}"}', ""),
    (f"{RUNTIME}/anthropic.claude-v2/invoke", "${parameters.body}", ""),
    (f"{RUNTIME}/amazon.nova-lite-v1:0/invoke", '{"schemaVersion":"messages-v1","messages":[]}', NOVA),
    (f"{RUNTIME}/us.amazon.nova-2-lite-v1:0/invoke-with-response-stream", CONVERSE_BODY, NOVA),
    (f"{RUNTIME}/${{parameters.model}}/invoke", '{"schemaVersion": "messages-v1", "messages":[]}', NOVA),
    (f"{RUNTIME}/amazon.nova-canvas-v1:0/invoke", '{"taskType":"TEXT_IMAGE"}', ""),
    (f"{RUNTIME}/mine.amazon.nova-lite-v1:0x/y/invoke", CONVERSE_BODY, ""),
    (f"{RUNTIME}/anthropic.claude-3/converse", CLAUDE_BODY, BEDROCK),
    ("https://api.anthropic.com/v1/messages", CLAUDE_BODY, ANTHROPIC),
    ("https://x-aiplatform.googleapis.com/v1/models/claude:rawPredict", CLAUDE_BODY, ""),
]


@pytest.mark.parametrize(("url", "body", "name"), INVOKES)
def test_anthropics_body_on_bedrock(url: str, body: str, name: str) -> None:
    """`/invoke` takes another body for each model, so the template decides; no other provider claims it."""
    assert recognise(ConnectorHints(url=url, request_body=body, service_name="bedrock")) == name


@pytest.mark.parametrize("name", [BEDROCK, OPENAI, GEMINI])
def test_each_claim_has_a_reason(name: str) -> None:
    claims = [provider(name).claims(ConnectorHints(url=url)) for url, _ in URLS]
    claims += [provider(name).claims(ConnectorHints(request_body=body)) for body, _ in BODIES]
    made = [claim for claim in claims if claim is not None]
    assert {claim.evidence for claim in made} == {Evidence.URL, Evidence.TEMPLATE}
    assert all(claim.reason for claim in made)
