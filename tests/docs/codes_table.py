"""Write the list in `docs/reference/limitations.md`: ``python -m tests.docs.codes_table`` (a test compares)."""

from __future__ import annotations

from gateway.codes import CODES
from tests.docs.pages import DOCS

_BEGIN, _END = "<!-- codes -->\n", "<!-- /codes -->\n"


def with_table(text: str) -> str:
    """Return the page with the list as it is now."""
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    rows = "".join(f"| [{name}](#{name.lower()}) | {code.meaning} |\n" for name, code in sorted(CODES.items()))
    return f"{before}{_BEGIN}| code | meaning |\n|---|---|\n{rows}{_END}{after}"


if __name__ == "__main__":
    path = DOCS / "reference/limitations.md"
    path.write_text(with_table(path.read_text("utf-8")), "utf-8")
