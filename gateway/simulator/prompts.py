"""Stand-ins for the prompts built into the cluster.

Those texts belong to another project, so only their placeholders are copied, with the same order and nesting. The texts
between them are different.
"""

TEMPLATE = (
    "<built-in prompt of the agent>\n${parameters.prompt.prefix}\n${parameters.prompt.suffix}\n"
    "[end of the built-in prompt]"
)
PREFIX = "[role of the agent]"
SUFFIX = (
    "[tools] ${parameters.tool_descriptions}\n[history] ${parameters.chat_history}\n"
    "${parameters.prompt.format_instruction}\n[question] ${parameters.question}\n[steps] ${parameters.scratchpad}"
)
FORMAT_INSTRUCTION = "[answer format; the tools are ${parameters.tool_names}]"
TOOL_RESPONSE = (
    "[asked] ${parameters.llm_tool_selection_response}\n[tool] ${parameters.tool_name}\n"
    "[input] ${parameters.tool_input}\n[output] ${parameters.observation}\n"
)
HISTORY_HEADING = "<built-in heading of the history>\n"
TOOL_LIST = ("<tools>\n", "<tool>\n{name}: {description}\n</tool>\n", "</tools>\n")

PLANNER_SYSTEM = "<built-in system prompt of the planner>"
EXECUTOR_SYSTEM = "<built-in system prompt of the executor>"
PLANNER_ROLE = "<built-in prompt of the planner>"
REFLECT_ROLE = "<built-in prompt of the reflection>"
RESPONSE_FORMAT = "[answer as JSON with the fields steps and result]"
PLANNER_TEMPLATE = (
    "${parameters.tools_prompt}\n${parameters.planner_prompt}\n[objective] ${parameters.user_prompt}\n"
    "${parameters.plan_execute_reflect_response_format}"
)
REFLECT_TEMPLATE = (
    "${parameters.tools_prompt}\n${parameters.planner_prompt}\n[objective] ${parameters.user_prompt}\n"
    "[plan] [${parameters.steps}]\n[done] [${parameters.completed_steps}]\n${parameters.reflect_prompt}\n"
    "${parameters.plan_execute_reflect_response_format}"
)
WITH_HISTORY_TEMPLATE = (
    "${parameters.tools_prompt}\n${parameters.planner_prompt}\n[objective] ${parameters.user_prompt}\n"
    "[done] [${parameters.completed_steps}]\n${parameters.plan_execute_reflect_response_format}"
)
