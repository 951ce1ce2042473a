"""Notices, and every code of a refusal or a notice; docs/reference/limitations.md explains each at length.

The code stands as a text where it is given. A test holds this list against these places and against that page.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Code(NamedTuple):
    """meaning: in one line. remedy: what would end such refusals, if that is the same for all of them."""

    meaning: str
    remedy: str = ""


UPGRADE = "Upgrade the agent's connector: `mlc-gateway upgrade --url <cluster> <agent id>`."
_RULE = "Name the provider in a rule of the agent: `agents.rules[].provider`."

CODES: dict[str, Code] = {
    # What the agent's connector can't carry
    "AGENT_NOT_CALLABLE": Code(
        "the agent's own prompt and connector render to no valid request",
        "First make the agent answer a plain `question` without the gateway.",
    ),
    "AGENT_TOO_LARGE": Code("the agent's documents are larger than the gateway reads"),
    "COMBINATION_NOT_DELIVERABLE": Code("each part could be delivered by itself, but not all together", UPGRADE),
    "DOCUMENT_TOO_LARGE": Code("a document of the agent is longer than the limits"),
    "HISTORY_NEEDS_UPGRADE": Code("the agent has no place for earlier turns", UPGRADE),
    "MEDIA_NEEDS_UPGRADE": Code("the connector has no place for media", UPGRADE),
    "MEMORY_NOT_SAFE": Code(
        "what the agent's memory holds would be changed on its way",
        'No upgrade is needed: start a new memory, or send `"message_history_limit": "0"`.',
    ),
    "MODEL_OVERRIDDEN": Code(
        "the request chooses another model, which the gateway does not know",
        "No upgrade is needed: leave the parameter out, or register an agent for that model.",
    ),
    "NATIVE_BLOCK_NEEDS_UPGRADE": Code("the connector has no place for a block of Bedrock's own", UPGRADE),
    "PROVIDER_AMBIGUOUS": Code("several providers claim the agent's connector", _RULE),
    "PROVIDER_UNKNOWN": Code(
        "the API of the connector's LLM is not known, so only text can be sent",
        "Name the provider in a rule, `agents.rules[].provider`; but no rule helps where the LLM completes a text.",
    ),
    "QUESTION_MISSING": Code(
        "the agent's prompt needs a question, and the input has none",
        "No upgrade is needed: end the conversation with a user turn.",
    ),
    "RESERVED_NAME": Code("a parameter begins with `gw_`, which is the gateway's"),
    "SYSTEM_NEEDS_SLOT": Code("the connector has no place for system text", UPGRADE),
    "TEXT_NOT_SAFE": Code("the cluster's template would change this text", UPGRADE),
    "TOOLS_REQUIRED": Code("the LLM must call a tool of the client's, which can't be declared to it"),
    "TOOLS_NEED_UPGRADE": Code("the connector can't carry tool calls and results", UPGRADE),
    # What the LLM's API does not take
    "ASSISTANT_FIRST": Code("the conversation begins with the assistant"),
    "ASSISTANT_LAST": Code("the conversation ends with the assistant"),
    "BLOCK_ROLE_UNSUPPORTED": Code("the API does not take this block in a turn of this role"),
    "DOCUMENT_NOT_TEXT": Code("the document would be sent as text, but is none"),
    "EMPTY_INPUT": Code("the input holds only system text or blanks"),
    "MEDIA_FORMAT_MISSING": Code("the API needs the format of media, and their URL does not show it"),
    "MEDIA_FORMAT_UNSUPPORTED": Code("the API does not take this format"),
    "MEDIA_KIND_UNSUPPORTED": Code("the API takes no media of this kind"),
    "MEDIA_NOT_FETCHED": Code("the medium could not be fetched"),
    "MEDIA_SOURCE_UNSUPPORTED": Code("the API does not take media from this source"),
    "MEDIA_URL_UNSUPPORTED": Code("the API does not take this URL"),
    "NATIVE_BLOCK_UNSUPPORTED": Code("only Bedrock has this block"),
    "TOOL_CALL_UNANSWERED": Code("a tool call has no result in the turn after it"),
    "TOOL_NAME_UNSUPPORTED": Code("the API takes no tool of this name"),
    "TOOL_RESULT_CONTENT_UNSUPPORTED": Code("the API takes no such media in a tool's result"),
    "TOOL_RESULT_MISSING": Code("a tool's turn does not name the call that it answers"),
    "TOOL_RESULT_UNMATCHED": Code("a tool's result answers no call of the turn before"),
    # What was changed on the way
    "BLANK_TEXT_DROPPED": Code("a text of white space alone was left out"),
    "BLOCKS_REORDERED": Code("blocks of a turn were put in the order that the API requires"),
    "DOCUMENT_AS_TEXT": Code("a document was sent as text"),
    "DOCUMENT_NAME_DROPPED": Code("a document's name was left out"),
    "DOCUMENT_RENAMED": Code("a document's name was changed to one that Bedrock allows"),
    "FORMAT_GUESSED": Code("the API of the connector's LLM is not known; plain chat was sent"),
    "GUARDRAIL_CHANGED": Code("a guardrail changed a text"),
    "HISTORY_FLATTENED": Code("earlier turns were written into the prompt's `chat_history`"),
    "HISTORY_IN_QUESTION": Code("earlier turns were written into the question"),
    "MEDIA_DESCRIBED": Code("a medium that can't be delivered was described"),
    "MEDIA_FETCHED": Code("a medium was fetched and sent inline"),
    "MEDIA_IN_SLOT": Code("a medium was sent in the part that the template has for it"),
    "MEMORY_ANSWERED_AGAIN": Code("a message of the session was answered once more"),
    "MEMORY_ANSWER_MISSING": Code("the answer could not be read; the turn is stored as failed"),
    "MEMORY_BLOCK_UNKNOWN": Code("a block of the answer is not stored, as its kind is not known"),
    "MEMORY_CONCURRENT": Code("another gateway added a turn to the session meanwhile"),
    "MEMORY_FORKED": Code("the session went on from an earlier message"),
    "MEMORY_MEDIA_LEFT_OUT": Code("a text stands for a medium of an earlier turn, as the LLM takes no more"),
    "MEMORY_HOLDS_CODE": Code("the agent's memory stores the question in the gateway's form"),
    "MEMORY_HOLDS_NOTE": Code("the agent's memory stores a note in place of a text"),
    "MEMORY_NOT_READ": Code("the agent's memory could not be read, so it was not checked"),
    "MEMORY_NOT_STORED": Code("the turn was not stored"),
    "MEMORY_REPAIRED": Code("open tool calls of the session were answered"),
    "MEMORY_RETOLD": Code("the agent's memory was sent as turns of this request"),
    "MEMORY_SHOWN_READABLE": Code("a memory was shown without the gateway's form"),
    "MEMORY_STEPS_LEFT_OUT": Code("tool calls and reasoning of earlier answers were left out"),
    "LLM_NOT_READ": Code("a tool calls an LLM that the gateway does not read"),
    "MEMORY_UNAVAILABLE": Code("the store of sessions can't be used; the agent answered without memory"),
    "NEUTRAL_TEXT_ADDED": Code("a neutral text was added where the API or the template needs one"),
    "NO_LLM": Code("the flow calls no LLM; its tools get the question"),
    "NOT_PROVED": Code("the agent could not be read; it was sent as the operator's rule says"),
    "ROLE_MAPPED": Code("a role was replaced by one that the API knows"),
    "IMAGE_DETAIL_LEFT_OUT": Code("how closely the model is to look at an image was left out"),
    "MESSAGES_LEFT_OUT": Code("messages that are for no LLM were left out (reasoning, activity, a front end's own)"),
    "SIGNATURE_LEFT_OUT": Code("a signature of the model's thoughts was left out, for which there is no place"),
    "TOOL_NOT_STRICT": Code("`strict` of a tool was left out, which this API does not have"),
    "TOOLS_LEFT_OUT": Code("the client's own tools were left out, as the agent can't call them"),
    "STREAM_IN_ONE_PIECE": Code("the answer came as a stream once all of it was there"),
    "ROUTE_HANDED_OVER": Code("a target of the route failed by itself, and another one ran"),
    "ROUTE_IDS_UNMARKED": Code("an answer of another target was sent as it came, so its ids lead nowhere"),
    "SYSTEM_FOLDED": Code("system text was put before the first user turn"),
    "SYSTEM_HOISTED": Code("system text was moved to the front"),
    "TEXT_JOINED": Code("several texts were joined"),
    "TOOL_ERROR_MARKED": Code("a failed tool is marked in its result's text"),
    "TOOL_ID_ADDED": Code("a tool call got an id"),
    "TOOL_ID_CLEANED": Code("the id of a tool call was changed to one that the API allows"),
    "TOOL_MEDIA_MOVED": Code("media of a tool's result were moved to the next turn"),
    "TOOL_RESULT_STRINGIFIED": Code("a JSON value of a tool's result was written as text"),
    "TOOLS_AS_TEXT": Code("tool calls and results were written as text"),
    "TOOLS_DECLARED": Code("declarations of the tools were added"),
    "TURNS_JOINED": Code("turns of one role were joined"),
    "USER_TURN_SPLIT": Code("a user turn was sent as several messages"),
    # Registrations
    "FLOW_MEMORY_SET": Code("`app_type` or `memory` was added to a flow"),
    "FLOW_MODEL_TOOL": Code("a tool that runs the model was added to a flow"),
    "GATEWAY_MEMORY": Code("the agent's memory is the gateway's"),
    "LEFT_BEHIND": Code("something that was made can't be removed"),
    "MCP_DISABLED": Code("the cluster's MCP connectors are switched off"),
    "MCP_NOT_ON_VERSION": Code("the cluster's version has no such MCP connector"),
    "MEMORY_AS_CONVERSATION_INDEX": Code("the agent's memory is the cluster's conversation index"),
    "OUTCOME_UNKNOWN": Code("a step got no answer, and what it would have made was not found"),
    "PLACEHOLDER_TOOL": Code("a tool was added to an agent without any"),
    "REGISTRATION_REUSED": Code("an equal registration made the agent before"),
    "REUSE_NOT_CHECKED": Code("whether there is an equal agent could not be checked"),
    "SAMPLING_LEFT_OUT": Code("a model parameter was left out"),
    "TOOL_RENAMED": Code("a tool has another name on this version"),
    "TYPE_NOT_ON_VERSION": Code("the cluster's version has no agents of this type"),
    "V2_AS_LEGACY": Code("a `conversational_v2` agent was made as a legacy one"),
    "V2_PARAMETER_IGNORED": Code("the cluster does not read this parameter of a `conversational_v2` agent"),
    # Clusters
    "VERSION_NOT_KNOWN": Code("the cluster is newer than every release that was tried"),
    "AGENT_TYPE_UNKNOWN": Code("agents of this type are not known to the gateway"),
    "AGENT_UNREADABLE": Code("the cluster did not show the agent"),
    "AGENT_UNRESOLVED": Code("the agent's model or connector can't be read"),
    "UNIFIED_API_OFF": Code("the cluster's unified agent API is switched off"),
    "ANSWER_NOT_READ": Code("the cluster can't read the LLM's answer"),
    "TOOL_CALL_BROKEN": Code("the cluster joined several tool calls of the LLM into one that can't be read"),
    "STREAM_UNSUPPORTED": Code("the cluster would stream to nobody, and never answer"),
    "TOOL_MISSING": Code("the agent has no tool, and can't run without one"),
    "MEMORY_MISSING": Code("the agent has no memory, without which it fails on OpenSearch 2"),
    # Limits
    "TOO_MANY_VALUES": Code("the body's JSON has more values than `limits.values`"),
    "TOO_MANY_ITEMS": Code("the input has more items than `limits.input_items`"),
}


NOTICE_HEADER = "X-MLC-Gateway-Notice"
"""The response header with the codes of a request's notices."""


class Notice(msgspec.Struct, frozen=True):
    """A change that is reported to the client: its short code (``SYSTEM_FOLDED``), its place and one sentence."""

    code: str
    reason: str
    place: str = ""
