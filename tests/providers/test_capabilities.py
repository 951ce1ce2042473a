"""The tables, cell by cell against the SDKs, and each switch for what differs from model to model."""

from typing import Any

import msgspec
import pytest

from gateway.providers.anthropic_messages import ANTHROPIC, BEDROCK_INVOKE, AnthropicMessages, BedrockInvokeAnthropic
from gateway.providers.base import Inexpressible, MappingOptions
from gateway.providers.bedrock_converse import BEDROCK, BedrockConverse
from gateway.providers.bedrock_nova import NOVA, BedrockNova
from gateway.providers.capabilities import UNNAMED
from gateway.providers.cohere_chat import COHERE, CohereChat
from gateway.providers.gemini import GEMINI, Gemini
from gateway.providers.openai_chat import OPENAI, OpenAIChat
from gateway.unified.formats import FORMATS

from .mapping import fill, parse
from .sdk import anthropic, bedrock, cohere, gemini, openai

TABLES = {
    "anthropic": (AnthropicMessages(), ANTHROPIC, anthropic.check),
    "invoke": (BedrockInvokeAnthropic(), BEDROCK_INVOKE, anthropic.check_on_bedrock),
    "bedrock": (BedrockConverse(), BEDROCK, bedrock.check),
    "nova": (BedrockNova(), NOVA, bedrock.check_nova),
    "openai": (OpenAIChat(), OPENAI, openai.check),
    "cohere": (CohereChat(), COHERE, cohere.check),
    "gemini": (Gemini(), GEMINI, gemini.check),
}
FORMS = ("base64", "https", "http", "s3", "gs")
CELLS = [
    (name, kind, form, fmt)
    for name in TABLES
    for kind in FORMATS
    for form in FORMS
    for fmt in (*FORMATS[kind], *(() if form == "base64" else (UNNAMED,)))
]


def block(kind: str, form: str, fmt: str) -> dict[str, Any]:
    if fmt == UNNAMED:
        return {"type": kind, "source": {"type": "url", "url": f"{form}://bucket/file"}}
    data = "aGVsbG8=" if form == "base64" else f"{form}://bucket/file.{fmt}"
    return {"type": kind, "source": {"type": "base64" if form == "base64" else "url", "format": fmt, "data": data}}


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_mapped_or_refused_as_the_table_says(name: str) -> None:
    """All kinds × source forms × formats, in a turn and in a tool result; what is mapped, the SDK takes."""
    provider, limits, check = TABLES[name]
    for _, kind, form, fmt in (cell for cell in CELLS if cell[0] == name):
        for table, conversation in (
            (limits.media, [{"type": "text", "text": "look"}, block(kind, form, fmt)]),
            (
                limits.tool_media,
                [
                    {"role": "user", "content": "go"},
                    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}]},
                    {
                        "role": "user",
                        "content": [{"toolResult": {"toolUseId": "t1", "content": [block(kind, form, fmt)]}}],
                    },
                ],
            ),
        ):
            agent_input = parse(conversation)
            if fmt in table.get(kind, {}).get(form, ()):
                request = provider.map(agent_input, MappingOptions())
                check(fill(provider.fields(request), agent_input))
            else:
                with pytest.raises(Inexpressible):
                    provider.map(agent_input, MappingOptions())


def test_every_format_a_table_names_is_one_the_gateway_knows() -> None:
    for _, limits, _ in TABLES.values():
        for table in (limits.media, limits.tool_media):
            for kind, forms in table.items():
                for formats in forms.values():
                    assert set(formats) <= {*FORMATS[kind], UNNAMED}


def test_where_a_format_is_needed() -> None:
    """By URL only, where the SDK's own type has no member for it."""
    free = {
        (name, kind, form)
        for name, (_, limits, _) in TABLES.items()
        for kind, forms in limits.media.items()
        for form, formats in forms.items()
        if UNNAMED in formats
    }
    images = {(name, "image", "https") for name in ("anthropic", "cohere", "openai")}
    assert free == {*images, ("anthropic", "document", "https")}


def test_bedrock_formats_are_the_sdk_models() -> None:
    for kind in BEDROCK.media:
        shape = bedrock.operation().service_model.shape_for(f"{kind.capitalize()}Format")
        for formats in BEDROCK.media[kind].values():
            assert set(formats) == set(shape.enum)


def test_mime_types() -> None:
    """docs/evidence/providers.md: the static table, and Gemini's own word for wmv."""
    assert GEMINI.mime_type("video", "wmv") == "video/wmv"
    assert BEDROCK.mime_type("video", "wmv") == "video/x-ms-wmv"
    assert [GEMINI.mime_type("video", fmt) for fmt in ("mov", "mpg", "flv", "three_gp", "mkv")] == [
        *("video/quicktime", "video/mpeg", "video/x-flv", "video/3gpp", "video/x-matroska")
    ]
    assert [GEMINI.mime_type("audio", fmt) for fmt in ("mp3", "wav", "flac", "ogg", "aac", "m4a")] == [
        *("audio/mpeg", "audio/wav", "audio/flac", "audio/ogg", "audio/aac", "audio/mp4")
    ]


PDF = block("document", "base64", "pdf")
TWO_USER_TURNS = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
TOOLS = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}]},
    {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"json": [1]}]}}]},
]


def bedrock_with(conversation: Any, **changes: Any) -> list[dict[str, Any]]:
    agent_input = parse(conversation)
    provider = BedrockConverse(msgspec.structs.replace(BEDROCK, **changes))
    messages: list[dict[str, Any]] = fill(provider.map(agent_input, MappingOptions()).messages, agent_input)
    return messages


def test_switch_merges_turns() -> None:
    assert bedrock_with(TWO_USER_TURNS) == [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}]
    assert bedrock_with(TWO_USER_TURNS, merges_turns=False) == [
        {"role": "user", "content": [{"text": "a"}]},
        {"role": "user", "content": [{"text": "b"}]},
    ]


def test_switch_document_needs_text() -> None:
    document = {"document": {"format": "pdf", "name": "document-1", "source": {"bytes": "aGVsbG8="}}}
    assert bedrock_with([PDF], document_needs_text=False) == [{"role": "user", "content": [document]}]


def test_switches_of_tool_results() -> None:
    result = {"toolUseId": "t1", "content": [{"text": "[1]"}]}
    assert bedrock_with(TOOLS)[2]["content"] == [{"toolResult": result}]
    assert bedrock_with(TOOLS, success_status=True)[2]["content"] == [{"toolResult": {**result, "status": "success"}}]
    assert bedrock_with(TOOLS, object_results=False)[2]["content"] == [
        {"toolResult": {**result, "content": [{"json": [1]}]}}
    ]


def test_switches_of_the_ends() -> None:
    conversation = [{"role": "assistant", "content": "hello"}]
    assert bedrock_with(conversation, assistant_first=True, assistant_last="yes") == [
        {"role": "assistant", "content": [{"text": "hello"}]}
    ]


def test_a_refusal_in_full() -> None:
    """Every member of a problem, as a client reads it."""
    with pytest.raises(Inexpressible) as refusal:
        BedrockConverse().map(parse([block("image", "https", "png")]), MappingOptions())
    [problem] = refusal.value.problems
    assert problem.as_dict() == {
        "field": "input[0]",
        "reason": "Bedrock Converse does not accept images given as an https URL",
        "expected": "base64 data or an s3:// URL",
        "received": "an https URL",
        "code": "MEDIA_SOURCE_UNSUPPORTED",
        "help": "Send the image as base64 data or an s3:// URL.",
    }


def test_the_query_of_a_refused_url_is_not_repeated() -> None:
    source = {"type": "url", "format": "png", "data": "s3://Not_A_Bucket/a.png?signature=secret"}
    with pytest.raises(Inexpressible) as refusal:
        BedrockConverse().map(parse([{"text": "look"}, {"type": "image", "source": source}]), MappingOptions())
    (problem,) = refusal.value.problems
    assert (problem.code, problem.received) == ("MEDIA_URL_UNSUPPORTED", "s3://Not_A_Bucket/a.png")
