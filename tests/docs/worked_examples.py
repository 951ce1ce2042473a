"""Write the outputs of the commands that pages show, by running them: ``python -m tests.docs.worked_examples``.

A test compares.

An example is a block of a terminal after the comment ``<!-- run -->``: a line with ``$``, and what it prints at 80
columns. It runs in a folder with the files of its page (``<!-- file: gateway.yaml -->``), before a simulated cluster
with the usual agents.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.docs.first_minutes import Shell, simulated
from tests.docs.pages import DOCS, files_of

PAGES = ("start/quickstart.md", "operate/configuration.md", "operate/agents-table.md")
_EXAMPLE = re.compile(r"<!-- run -->\n```console\n\$ (.*)\n(?:.*\n)*?```\n")


def render(name: str) -> str:
    """Return a page with the outputs of its examples as they are now.

    Raises:
        ValueError: the page has no example.
    """
    text = (DOCS / name).read_text()
    if not _EXAMPLE.search(text):
        raise ValueError(f"{name} has no example")
    with tempfile.TemporaryDirectory() as place, simulated() as (cluster, ids):
        folder = Path(place)
        for file, content in files_of(name).items():
            (folder / file).write_text(content)
        shell = Shell(folder, cluster, ids)
        return _EXAMPLE.sub(lambda found: f"<!-- run -->\n{shell(found[1])}", text)


if __name__ == "__main__":
    for one in PAGES:
        (DOCS / one).write_text(render(one))
