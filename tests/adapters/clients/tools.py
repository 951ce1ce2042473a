"""Tools of the client with LangChain and OpenAI's agents, called by an agent: tools.py URL AGENT.

Runs in `.venv-clients`. The LLM's answers are in the order in which it is asked here: a call of `warmth`, then a text,
and again. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

URL, AGENT = f"{sys.argv[1]}/v1", sys.argv[2]
QUESTION = "How warm is it in Paris?"


def warmth(city: str) -> str:
    """The temperature now."""
    return f"20 degrees in {city}"


def langchain() -> dict[str, Any]:
    """With a list of messages of its own."""
    offered = tool(warmth)
    chat = ChatOpenAI(base_url=URL, api_key="none", model=AGENT, max_retries=0).bind_tools([offered])
    messages: list[Any] = [HumanMessage(QUESTION)]
    messages.append(chat.invoke(messages))
    (call,) = messages[-1].tool_calls
    messages.append(ToolMessage(offered.invoke(call["args"]), tool_call_id=call["id"]))
    return {"langchain": chat.invoke(messages).content}


async def openai_agents() -> dict[str, Any]:
    """With both APIs, which run the loop."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    found = {}
    for name, model in (("chat", OpenAIChatCompletionsModel), ("responses", OpenAIResponsesModel)):
        agent = Agent(name="a", instructions="Be brief.", model=model(AGENT, client), tools=[function_tool(warmth)])
        found[f"openai-agents, {name}"] = (await Runner.run(agent, QUESTION)).final_output
    return found


print(json.dumps({**langchain(), **asyncio.run(openai_agents())}))
