"""Conversations of LangChain, LlamaIndex and OpenAI's agents with the adapters' port: conversations.py URL AGENT PNG.

Runs in `.venv-clients`. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI

URL, AGENT, PNG = f"{sys.argv[1]}/v1", *sys.argv[2:]


def langchain() -> dict[str, Any]:
    """With an image, as a stream, with history and tools of its own, and with the Responses API."""
    common = {"base_url": URL, "api_key": "none", "model": AGENT, "max_retries": 0}
    chat = ChatOpenAI(**common)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    first = chat.invoke([HumanMessage([{"type": "text", "text": "what?"}, image])])
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    history = [("system", "Be brief."), ("human", "hi"), ("ai", first.content), ("human", "again")]
    return {
        "langchain": first.content,
        "langchain, stream": "".join(str(chunk.content) for chunk in chat.stream("hi")),
        "langchain, history": chat.bind_tools([tool]).invoke(history).content,
        "langchain, responses": ChatOpenAI(**common, use_responses_api=True).invoke("hi").content[0]["text"],
    }


def llama_index() -> dict[str, Any]:
    """Whole and as a stream."""
    chat = OpenAILike(api_base=URL, api_key="none", model=AGENT, is_chat_model=True, max_retries=0)
    question = [ChatMessage(role="user", content="hi")]
    stream = "".join(piece.delta or "" for piece in chat.stream_chat(question))
    return {"llama-index": chat.chat(question).message.content, "llama-index, stream": stream}


async def openai_agents() -> dict[str, Any]:
    """With both APIs, with history, and as a stream."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    responses = Agent(name="a", instructions="Be brief.", model=OpenAIResponsesModel(AGENT, client))
    chat = Agent(name="a", instructions="Be brief.", model=OpenAIChatCompletionsModel(AGENT, client))
    first = await Runner.run(responses, "hi")
    history = [*first.to_input_list(), {"role": "user", "content": "again"}]
    streamed = Runner.run_streamed(responses, "hi")
    async for _ in streamed.stream_events():
        pass
    return {
        "openai-agents": first.final_output,
        "openai-agents, history": (await Runner.run(responses, history)).final_output,
        "openai-agents, stream": streamed.final_output,
        "openai-agents, chat": (await Runner.run(chat, "hi")).final_output,
    }


print(json.dumps({**langchain(), **llama_index(), **asyncio.run(openai_agents())}))
