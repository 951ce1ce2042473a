"""Print as JSON what mitmproxy reads from a HAR file: ``python read_flows.py FILE``. It needs mitmproxy's packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mitmproxy.io import FlowReader


def main() -> None:
    with Path(sys.argv[1]).open("rb") as file:
        flows = [
            {
                "method": flow.request.method,
                "url": flow.request.url,
                "sent": flow.request.get_text(),
                "status": flow.response.status_code,
                "received": flow.response.get_text(),
            }
            for flow in FlowReader(file).stream()
        ]
    json.dump(flows, sys.stdout)


if __name__ == "__main__":
    main()
