"""mitmproxy reads our HAR files. It has a virtual environment of its own: ``make mitmproxy``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gateway.inspector.har import write_har
from tests.recording.records import RECORD, get

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-mitmproxy/bin/python"


@pytest.mark.skipif(not PYTHON.exists(), reason="mitmproxy is not installed (make mitmproxy)")
def test_mitmproxy_reads_the_file(tmp_path: Path) -> None:
    file = tmp_path / "traffic.har"
    file.write_bytes(b"".join(write_har([RECORD, get("/a?b=1", '{"ä": 1}', status=404)])))
    command = [str(PYTHON), str(ROOT / "tests/inspector/mitmproxy/read_flows.py"), str(file)]
    flows = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    url = "http://127.0.0.1:9200"
    assert flows == [
        {
            "method": "POST",
            "url": f"{url}/_plugins/_ml/agents/a1/_execute",
            "sent": '{"input": "Hello"}',
            "status": 200,
            "received": '{"answer":1}',
        },
        {"method": "GET", "url": f"{url}/a?b=1", "sent": "", "status": 404, "received": '{"ä": 1}'},
    ]
