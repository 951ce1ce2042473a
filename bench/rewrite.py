"""What the rewrite itself costs, by the size of the body, without any network.

It reads, validates, maps, plans and serialises. Beside it stands what any rewriting in Python has to do at least,
without validation: parse the body and write it again, with the fastest JSON library there is.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.proxies import PEERS
from bench.upstream import AGENT, documents
from gateway.agents.documents import read_profile
from gateway.delivery.plan_cache import PlanCache
from gateway.execute.rewrite import Policy, rewrite_input
from gateway.mlcommons.profile import AgentProfile
from gateway.unified.request import read_execute

SIZES = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
TEXT = "Where did my order of last week go, and when will it be here? "


def profile() -> AgentProfile:
    """The agent of `bench.upstream`, as the gateway reads it."""
    found = {path.decode(): json.loads(body) for path, body in documents().items()}

    def of(kind: str) -> dict[str, Any]:
        start = f"/_plugins/_ml/{kind}/"
        return {path.removeprefix(start): document for path, document in found.items() if path.startswith(start)}

    return read_profile(AGENT, of("agents")[AGENT], of("models"), of("connectors"), (2, 19, 0))


def image_body(size: int) -> bytes:
    """An execute body of a text and an image, `size` bytes of base64 in it."""
    data = base64.b64encode(os.urandom(size * 3 // 4)).decode()
    image = {"type": "image", "source": {"type": "base64", "format": "png", "data": data}}
    return json.dumps({"input": [{"type": "text", "text": "What is this?"}, image]}).encode()


def conversation_body(turns: int) -> bytes:
    """An execute body of a conversation in which the user shows an image of 1 KB each time."""
    images = [json.loads(image_body(1000))["input"] for _ in range(turns)]
    answer = [{"type": "text", "text": TEXT}]
    earlier = [({"role": "user", "content": image}, {"role": "assistant", "content": answer}) for image in images]
    last = {"role": "user", "content": answer}
    return json.dumps({"input": [*(turn for pair in earlier for turn in pair), last]}).encode()


def turns_body(size: int) -> bytes:
    """An execute body of three turns of text, of about `size` bytes."""
    part = (TEXT * (size // len(TEXT) // 3 + 1))[: size // 3 - 60]
    roles = ("user", "assistant", "user")
    return json.dumps(
        {"input": [{"role": role, "content": [{"type": "text", "text": part}]} for role in roles]}
    ).encode()


def text_body(size: int) -> bytes:
    """An execute body of one text of about `size` bytes."""
    return json.dumps({"input": (TEXT * (size // len(TEXT) + 1))[: size - 20]}).encode()


def rewrite(plans: PlanCache, body: bytes) -> list[Any]:
    """The request that goes to the cluster for `body`, in pieces. plans: kept between requests, as the gateway does."""
    request = read_execute(body)
    assert request.input is not None
    return rewrite_input(plans.profile, request, request.input, Policy(), "0" * 32, plans=plans).body or []


def median(run: Callable[[], Any], seconds: float) -> float:
    """Seconds of CPU time of one run: the median of what fits in `seconds`, at least five."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def fastest_json() -> tuple[str, Callable[[bytes], bytes]]:
    """orjson's `loads` and `dumps`, installed beside the peers when first asked for; `json`'s where that fails."""
    folder = PEERS / "orjson"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]
        subprocess.run([*pip, str(folder), "orjson"], check=False, capture_output=True)
    sys.path.append(str(folder))
    try:
        import orjson
    except ImportError:
        return "json", lambda body: json.dumps(json.loads(body)).encode()
    return "orjson", lambda body: orjson.dumps(orjson.loads(body))


def beside_json(seconds: float) -> tuple[str, dict[str, tuple[float, float]]]:
    """The library's name; size → seconds of CPU time of the rewrite, and of the library. seconds: for each of them."""
    plans = PlanCache(profile())
    library, round_trip = fastest_json()
    times = {}
    for name, size in SIZES.items():
        body = image_body(size)
        mine = median(lambda body=body: rewrite(plans, body), seconds)  # type: ignore[misc]
        theirs = median(lambda body=body: round_trip(body), seconds)  # type: ignore[misc]
        times[name] = mine, theirs
    return library, times
