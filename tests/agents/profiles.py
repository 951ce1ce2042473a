"""The profiles that the recorded documents of some agents make."""

from gateway.mlcommons.generations import Generation
from gateway.mlcommons.profile import AgentProfile, Connector, Model, Tool

CLAUDE = "us.anthropic.claude-3-7-sonnet-20250219-v1:0"
FILTER = "$.output.message.content[0].text"
ASSISTANT = "You are a helpful assistant."

CONNECTOR_B = Connector(
    id="fnXu_6EBm8w0PCMjYWLP",
    protocol="http",
    url="http://127.0.0.1:18080/openai/v1/chat/completions",
    request_body='{"model":"${parameters.model}","messages":${parameters.messages}}',
    parameters={"model": "gpt-4o"},
)
CONNECTOR_D = Connector(
    id="hnXu_6EBm8w0PCMjZ2Jy",
    protocol="http",
    url="http://127.0.0.1:18080/bedrock/model/${parameters.model}/converse",
    request_body='{"messages":[{"role":"user","content":[{"text":"${parameters.prompt}"}]}]}',
    parameters={"model": "claude-3"},
)
TUTORIAL_BODY = (
    '{ "system": [{"text": "${parameters.system_prompt}"}], "messages": [${parameters._chat_history:-}'
    '{"role":"user","content":[{"text":"${parameters.prompt}"}]}${parameters._interactions:-}]'
    "${parameters.tool_configs:-} }"
)
TUTORIAL_PARAMETERS = {"service_name": "bedrock", "model": CLAUDE, "region": "us-east-1"}
AUTO_BEDROCK = Connector(
    id="",
    protocol="aws_sigv4",
    url="https://bedrock-runtime.${parameters.region}.amazonaws.com/model/${parameters.model}/converse",
    request_body=(
        '{"system": [{"text": "${parameters.system_prompt}"}], "messages": [${parameters._chat_history:-}'
        "${parameters.body}${parameters._interactions:-}]${parameters.tool_configs:-} }"
    ),
    parameters={**TUTORIAL_PARAMETERS, "system_prompt": ASSISTANT},
)


def tutorial(connector_id: str, model_id: str) -> Model:
    url = "http://127.0.0.1:18083/model/${parameters.model}/converse"
    return Model(model_id, Connector(connector_id, "aws_sigv4", url, TUTORIAL_BODY, TUTORIAL_PARAMETERS))


GOLDEN = [
    AgentProfile(
        id="p3Xu_6EBm8w0PCMjfmLM",
        name="conv-b",
        type="conversational",
        version=(2, 19, 0),
        generation=Generation.TEXT,
        app_type="my_app",
        memory_type="conversation_index",
        llm=Model("gHXu_6EBm8w0PCMjYmLt", CONNECTOR_B),
        llm_parameters={
            "max_iteration": "5",
            "stop_when_no_tool_found": "true",
            "response_filter": "$.choices[0].message.content",
        },
        tools=(
            Tool("CatIndexTool", "CatIndexTool"),
            Tool(
                "MLModelTool",
                "ask_llm",
                parameters={
                    "response_filter": "$.choices[0].message.content",
                    "model_id": "gHXu_6EBm8w0PCMjYmLt",
                    "prompt": "Q: ${parameters.question}",
                },
                model=Model("gHXu_6EBm8w0PCMjYmLt", CONNECTOR_B),
            ),
        ),
        provider="openai/v1/chat/completions",
        provider_source="connector",
        unified_api=False,
    ),
    AgentProfile(
        id="wnXu_6EBm8w0PCMjj2Li",
        name="flow-d-config",
        type="flow",
        version=(2, 19, 0),
        generation=Generation.TEXT,
        tools=(
            Tool(
                "MLModelTool",
                "llm",
                parameters={"response_filter": FILTER, "model_id": "iHXu_6EBm8w0PCMjaGKp"},
                config={"prompt": "PINNED ${parameters.question}"},
                model=Model("iHXu_6EBm8w0PCMjaGKp", CONNECTOR_D),
            ),
        ),
        provider="bedrock/converse",
        provider_source="connector",
        unified_api=False,
    ),
    AgentProfile(
        id="zZz0_6EBqnFV9lEs0hmj",
        name="br_conv",
        type="conversational",
        version=(3, 4, 0),
        generation=Generation.FUNCTION_CALLING,
        app_type="test",
        memory_type="conversation_index",
        parameters={"_llm_interface": "bedrock/converse/claude"},
        llm=tutorial("ppz0_6EBqnFV9lEsuBkq", "rJz0_6EBqnFV9lEsvRnz"),
        llm_parameters={"max_iteration": "5", "system_prompt": ASSISTANT, "prompt": "${parameters.question}"},
        tools=(Tool("ListIndexTool", "ListIndexTool"),),
        provider="bedrock/converse",
        provider_source="_llm_interface",
        unified_api=False,
    ),
    AgentProfile(
        id="qeoCAKIBmjUj_f3tDXRb",
        name="leg_flow",
        type="flow",
        version=(3, 6, 0),
        generation=Generation.FUNCTION_CALLING,
        app_type="test",
        tools=(
            Tool(
                "MLModelTool",
                "llm",
                parameters={
                    "response_filter": FILTER,
                    "model_id": "beoBAKIBmjUj_f3t1HRi",
                    "system_prompt": "sp",
                    "prompt": "Human: ${parameters.question}",
                },
                model=tutorial("auoBAKIBmjUj_f3t0nT9", "beoBAKIBmjUj_f3t1HRi"),
            ),
        ),
        provider="bedrock/converse",
        provider_source="connector",
        unified_api=True,
    ),
    AgentProfile(
        id="9ern_6EBmjUj_f3tOXHk",
        name="u_bedrock_conv",
        type="conversational",
        version=(3, 6, 0),
        generation=Generation.UNIFIED_V1,
        memory_type="conversation_index",
        parameters={"max_iteration": "5", "_llm_interface": "bedrock/converse/claude"},
        llm=Model("9Orn_6EBmjUj_f3tOXGn", AUTO_BEDROCK),
        llm_parameters={"system_prompt": ASSISTANT},
        model_provider="bedrock/converse",
        provider="bedrock/converse",
        provider_source="model.model_provider",
        unified_api=True,
    ),
    AgentProfile(
        id="K-oAAKIBmjUj_f3ta3Iq",
        name="v2_bedrock",
        type="conversational_v2",
        version=(3, 6, 0),
        generation=Generation.UNIFIED_V2,
        memory_type="agentic_memory",
        memory_container="JuoAAKIBmjUj_f3tZnJ-",
        parameters={"max_iteration": "5", "_llm_interface": "bedrock/converse/claude"},
        llm=Model("KuoAAKIBmjUj_f3tanLE", AUTO_BEDROCK),
        llm_parameters={"system_prompt": ASSISTANT},
        tools=(Tool("ListIndexTool", "ListIndexTool"),),
        model_provider="bedrock/converse",
        provider="bedrock/converse",
        provider_source="model.model_provider",
        unified_api=True,
    ),
    AgentProfile(
        id="b_cHAKIBmxshbEQ7LC19",
        name="u_openai_per",
        type="plan_execute_and_reflect",
        version=(3, 8, 0),
        generation=Generation.UNIFIED_V1,
        memory_type="conversation_index",
        parameters={
            "max_iteration": "5",
            "executor_agent_id": "bvcHAKIBmxshbEQ7LC1s",
            "_llm_interface": "openai/v1/chat/completions",
        },
        llm=Model(
            "bfcHAKIBmxshbEQ7LC1Z",
            Connector(
                id="",
                protocol="http",
                url="https://api.openai.com/v1/chat/completions",
                request_body=(
                    '{"model":"${parameters.model}","messages":[${parameters._chat_history:-}${parameters.body}'
                    "${parameters._interactions:-}]${parameters.tool_configs:-},"
                    '"max_completion_tokens":${parameters.max_tokens:-4096},'
                    '"temperature":${parameters.temperature:-1.0}${parameters.top_p_field:-}}'
                ),
                parameters={"model": "gpt-4o", "system_prompt": ASSISTANT},
            ),
        ),
        llm_parameters={"system_prompt": ASSISTANT},
        tools=(Tool("ListIndexTool", "ListIndexTool"),),
        model_provider="openai/v1/chat/completions",
        provider="openai/v1/chat/completions",
        provider_source="model.model_provider",
        unified_api=True,
    ),
    AgentProfile(
        id="gPcHAKIBmxshbEQ7Mi0Q",
        name="u_conversational_flow",
        type="conversational_flow",
        version=(3, 8, 0),
        generation=Generation.UNIFIED_V1,
        memory_type="conversation_index",
        parameters={"max_iteration": "5", "_llm_interface": "bedrock/converse/claude"},
        llm_parameters={"system_prompt": ASSISTANT},
        tools=(Tool("ListIndexTool", "ListIndexTool"),),
        model_provider="bedrock/converse",
        provider="bedrock/converse",
        provider_source="model.model_provider",
        unified_api=True,
    ),
]
