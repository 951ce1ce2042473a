"""Writes the tables of docs/reference/providers.md from each provider's `Capabilities`, when run as a script."""

import re
from pathlib import Path

from gateway.providers.anthropic_messages import ANTHROPIC, BEDROCK_INVOKE
from gateway.providers.bedrock_converse import BEDROCK
from gateway.providers.bedrock_nova import NOVA
from gateway.providers.capabilities import UNNAMED, Capabilities
from gateway.providers.cohere_chat import COHERE
from gateway.providers.gemini import GEMINI
from gateway.providers.media import form_name
from gateway.providers.openai_chat import OPENAI

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "providers.md"
TABLES = {
    "anthropic": ANTHROPIC,
    "bedrock-invoke": BEDROCK_INVOKE,
    "bedrock": BEDROCK,
    "nova": NOVA,
    "openai": OPENAI,
    "cohere": COHERE,
    "gemini": GEMINI,
}
FORMS = ("base64", "https", "s3", "gs")
KINDS = ("image", "document", "video", "audio")
VALUES = {
    True: "yes",
    False: "no",
    "prefill": "models known to, unless they think first; others where `allow_prefill` is on",
}


def tables(limits: Capabilities) -> str:
    rows = [
        "| | " + " | ".join(form_name(form) for form in FORMS) + " |",
        "|---" * (len(FORMS) + 1) + "|",
        *(_row(kind, limits.media.get(kind, {}), limits) for kind in KINDS),
        *(_row(f"{kind} in a tool result", limits.tool_media.get(kind, {}), limits) for kind in KINDS),
        "",
        "| rule | |",
        "|---|---|",
        *(f"| {rule} | {value} |" for rule, value in _rules(limits)),
    ]
    return "\n".join(rows)


def _row(title: str, forms: object, limits: Capabilities) -> str:
    assert isinstance(forms, dict)
    return f"| {title} | " + " | ".join(_cell(title, form, forms.get(form, ()), limits) for form in FORMS) + " |"


def _cell(title: str, form: str, formats: tuple[str, ...], limits: Capabilities) -> str:
    as_text = (
        limits.text_documents | limits.text_sources
        if title.startswith("document") and form == "base64"
        else frozenset()
    )
    named = " ".join(f"{fmt}*" if fmt in as_text else fmt for fmt in formats if fmt != UNNAMED)
    return (f"{named} †" if UNNAMED in formats else named) or "✗"


def _rules(limits: Capabilities) -> list[tuple[str, str]]:
    native = [f"`{kind}` ({', '.join(sorted(roles))})" for kind, roles in limits.native.items()]
    characters = f"`[{limits.tool_id_characters}]`, {limits.tool_id_length} at most"
    last = {"yes": True, "no": False}.get(limits.assistant_last, limits.assistant_last)
    return [
        ("roles whose turns may hold media", ", ".join(sorted(limits.media_roles))),
        ("Converse-only blocks", ", ".join(native) or "✗"),
        ("system text has a member of its own", VALUES[limits.hoists_system]),
        ("turns of one role in a row become one", VALUES[limits.merges_turns]),
        ("may start with the assistant", VALUES[limits.assistant_first]),
        ("may end with the assistant", VALUES[last]),
        ("tool names", f"`{limits.tool_name}`"),
        ("tool call ids", characters if limits.tool_id_characters else "any"),
        ("tool calls come after a turn's other blocks", VALUES[limits.calls_apart]),
        ("a document needs a text beside it", VALUES[limits.document_needs_text]),
        ("a JSON tool result must be an object", VALUES[limits.object_results]),
    ]


def filled(page: str) -> str:
    """`page` with the text between its markers generated again."""
    for name, limits in TABLES.items():
        begin, end = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
        new = f"{begin}\n{tables(limits)}\n{end}"
        page, count = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, new=new: new, page, flags=re.DOTALL)
        assert count == 1, begin
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
