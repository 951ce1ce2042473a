"""An emulator of AgentCore Memory over HTTP on loopback.

Requests are routed, and requests and responses are checked, by botocore's model of the service. Where the service's
behaviour is known it is followed: events of the main line have the branch ``main``, ids begin with the event's time in
milliseconds, unknown actors and sessions have no events, lists are newest first, and a client token counts once. Where
it is not known, or not promised, `Faults` makes it worse.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import unquote

from aiohttp import web

from tests.memory.agentcore.service_model import problems, service_model

_OPERATIONS = ["CreateEvent", "GetEvent", "ListEvents", "DeleteEvent", "ListSessions", "ListActors"]
_LARGEST_BODY = 6_000_000


@dataclass(frozen=True)
class Faults:
    """What goes wrong.

    shuffle: lists are in random order. tie: all events have the same time. lag: how many of the newest events lists
    filtered by metadata lack. stale: other lists lack each event once. throttle: every so many requests are refused.
    fail: every so many writes fail once, half of them after the event is stored. echo: a repeated write answers with an
    id that does not exist. pages: sizes of pages, in turn. down_after: from so many writes on, every request fails.
    denied: why every request is refused.
    """

    shuffle: bool = False
    tie: bool = False
    lag: int = 0
    stale: bool = False
    throttle: int = 0
    fail: int = 0
    echo: bool = False
    pages: tuple[int, ...] = ()
    down_after: int | None = None
    denied: str = ""


@dataclass
class _State:
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    writes: int = 0


class _Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Emulator:
    """Serves one memory in a thread, inside its `with` block. url, memory_id: what a client needs."""

    memory_id = "memory-abcdefghij"

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._routes = [_route(name) for name in _OPERATIONS]
        self.url = ""
        self.reset(Faults())

    def reset(self, faults: Faults) -> None:
        """Forget everything."""
        self.state = _State()
        self.faults = faults
        self._random = random.Random(1)
        self._start = int(time.time())

    def repair(self) -> None:
        """Work without faults from now on."""
        self.faults = Faults()

    def fail_after(self, writes: int) -> None:
        """Fail each request after so many more writes."""
        self.faults = replace(self.faults, down_after=self.state.writes + writes)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        application = web.Application(client_max_size=2 * _LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    # One request

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            body = await request.read()
        except ConnectionResetError:  # the client was killed
            return web.Response(status=400)
        try:
            if len(body) > _LARGEST_BODY:
                return web.Response(status=413)
            name, parameters = self._parse(request, body)
            return self._answer(name, getattr(self, f"_{_snake(name)}")(parameters))
        except _Refused as refusal:
            status = service_model().shape_for(refusal.code).metadata["error"]["httpStatusCode"]
            headers = {"x-amzn-ErrorType": refusal.code}
            return web.json_response({"message": str(refusal)}, status=status, headers=headers)

    def _parse(self, request: web.Request, body: bytes) -> tuple[str, dict[str, Any]]:
        for name, method, pattern in self._routes:
            match = pattern.fullmatch(request.raw_path)
            if match is None or method != request.method:
                continue
            labels = {label: unquote(value) for label, value in match.groupdict().items()}
            parameters = {**labels, **(json.loads(body) if body else {})}
            self.state.requests.append((name, parameters))
            self._maybe_throttle()
            if self.faults.denied:
                raise _Refused("AccessDeniedException", self.faults.denied)
            found = problems(service_model().operation_model(name).input_shape, parameters)
            if found:
                self.state.violations += found
                raise _Refused("ValidationException", "; ".join(found))
            if parameters["memoryId"] != self.memory_id:
                raise _Refused("ResourceNotFoundException", "memory not found")
            return name, parameters
        self.state.violations.append(f"no operation {request.method} {request.raw_path}")
        raise _Refused("ValidationException", "no such operation")

    def _maybe_throttle(self) -> None:
        if self.faults.down_after is not None and self.state.writes >= self.faults.down_after:
            raise _Refused("ServiceException", "down")
        if self.faults.throttle and len(self.state.requests) % self.faults.throttle == 0:
            raise _Refused("ThrottledException", "too many requests")

    def _answer(self, name: str, result: dict[str, Any]) -> web.Response:
        operation = service_model().operation_model(name)
        found = [text for text in problems(operation.output_shape, result) if not text.endswith(": payload is missing")]
        self.state.violations += found
        return web.json_response(result, status=operation.http.get("responseCode", 200))

    # Operations

    def _create_event(self, parameters: dict[str, Any]) -> dict[str, Any]:
        self.state.writes += 1
        event = self._event(parameters)
        token = parameters.get("clientToken", event["eventId"])
        broken = bool(self.faults.fail) and self.state.writes % self.faults.fail == 0 and token not in self.state.failed
        if broken:
            self.state.failed.append(token)
        if broken and len(self.state.failed) % 2:
            raise _Refused("ServiceException", "not written")
        first = self.state.tokens.setdefault(token, event["eventId"])
        if first == event["eventId"]:
            self.state.events[first] = event
            self.state.unseen.add(first)
        if broken:
            raise _Refused("ServiceException", "written, but the answer is lost")
        return {"event": event if self.faults.echo else self.state.events.get(first, event)}

    def _event(self, parameters: dict[str, Any]) -> dict[str, Any]:
        when = self._start if self.faults.tie else parameters["eventTimestamp"]
        event = {
            "memoryId": parameters["memoryId"],
            "actorId": parameters["actorId"],
            "sessionId": parameters["sessionId"],
            "eventId": f"{int(when * 1000):019d}#{self._random.getrandbits(32):08x}",
            "eventTimestamp": when,
            "payload": parameters["payload"],
            "branch": parameters.get("branch", {"name": "main"}),
        }
        self._check_branch(event)
        return {**event, **({"metadata": parameters["metadata"]} if "metadata" in parameters else {})}

    def _check_branch(self, event: dict[str, Any]) -> None:
        name, root = event["branch"]["name"], event["branch"].get("rootEventId")
        if name == "main":
            return
        if root not in (other["eventId"] for other in self._session(event)):
            raise _Refused("ValidationException", f"no event {root} to begin a branch after")
        roots = {e["branch"].get("rootEventId") for e in self._session(event) if e["branch"]["name"] == name}
        if roots - {root}:
            raise _Refused("ValidationException", f"branch {name} begins elsewhere")

    def _get_event(self, parameters: dict[str, Any]) -> dict[str, Any]:
        return {"event": self._find(parameters)}

    def _delete_event(self, parameters: dict[str, Any]) -> dict[str, Any]:
        del self.state.events[self._find(parameters)["eventId"]]
        return {"eventId": parameters["eventId"]}

    def _list_events(self, parameters: dict[str, Any]) -> dict[str, Any]:
        def select() -> list[Any]:
            found = self._filtered(self._session(parameters), parameters.get("filter", {}))
            if self.faults.stale:
                unseen = {event["eventId"] for event in found} & self.state.unseen
                self.state.unseen -= unseen
                found = [event for event in found if event["eventId"] not in unseen]
            return found if parameters.get("includePayloads") else [_without_payload(event) for event in found]

        return self._page("events", parameters, select)

    def _list_sessions(self, parameters: dict[str, Any]) -> dict[str, Any]:
        def select() -> list[Any]:
            events = [event for event in self.state.events.values() if event["actorId"] == parameters["actorId"]]
            first = {event["sessionId"]: event["eventTimestamp"] for event in events}
            return [
                {"sessionId": session, "actorId": parameters["actorId"], "createdAt": created}
                for session, created in first.items()
            ]

        return self._page("sessionSummaries", parameters, select)

    def _list_actors(self, parameters: dict[str, Any]) -> dict[str, Any]:
        actors = {event["actorId"] for event in self.state.events.values()}
        return self._page("actorSummaries", parameters, lambda: [{"actorId": actor} for actor in sorted(actors)])

    # Events

    def _session(self, where: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the events of a session, newest first."""
        found = [
            event
            for event in self.state.events.values()
            if (event["actorId"], event["sessionId"]) == (where["actorId"], where["sessionId"])
        ]
        return sorted(found, key=lambda event: (event["eventTimestamp"], event["eventId"]), reverse=True)

    def _find(self, parameters: dict[str, Any]) -> dict[str, Any]:
        for event in self._session(parameters):
            if event["eventId"] == parameters["eventId"]:
                return event
        raise _Refused("ResourceNotFoundException", f"no event {parameters['eventId']}")

    def _filtered(self, events: list[dict[str, Any]], condition: dict[str, Any]) -> list[dict[str, Any]]:
        found = events
        if "branch" in condition:
            names = _branches(events, condition["branch"])
            found = [event for event in found if event["branch"]["name"] in names]
        if "eventMetadata" in condition:
            newest = {event["eventId"] for event in events[: self.faults.lag]}
            found = [event for event in found if event["eventId"] not in newest]
            found = [event for event in found if all(_matches(event, one) for one in condition["eventMetadata"])]
        return found

    def _page(self, name: str, parameters: dict[str, Any], select: Callable[[], list[Any]]) -> dict[str, Any]:
        token = parameters.get("nextToken")
        if token is None:
            rest = select()
            if self.faults.shuffle:
                self._random.shuffle(rest)
        elif token in self.state.lists:
            rest = self.state.lists.pop(token)
        else:
            raise _Refused("ValidationException", "unknown nextToken")
        size = parameters.get("maxResults", 100)
        if self.faults.pages:
            size = min(size, self.faults.pages[len(self.state.requests) % len(self.faults.pages)])
        page, rest = rest[:size], rest[size:]
        if not rest:
            return {name: page}
        token = f"token-{len(self.state.requests)}"
        self.state.lists[token] = rest
        return {name: page, "nextToken": token}


def _branches(events: list[dict[str, Any]], wanted: dict[str, Any]) -> set[str]:
    """Return a branch, with those that it grew from if these are wanted. They are listed whole."""
    by_id = {event["eventId"]: event for event in events}
    names, name = set(), wanted["name"]
    while name not in names:
        names.add(name)
        roots = [e["branch"].get("rootEventId") for e in events if e["branch"]["name"] == name]
        root = by_id.get(next(filter(None, roots), ""))
        if root is None or not wanted.get("includeParentBranches"):
            break
        name = root["branch"]["name"]
    return names


def _matches(event: dict[str, Any], expression: dict[str, Any]) -> bool:
    value = event.get("metadata", {}).get(expression["left"]["metadataKey"])
    match expression["operator"]:
        case "EQUALS_TO":
            return bool(value == expression["right"]["metadataValue"])
        case "EXISTS":
            return value is not None
    return value is None


def _without_payload(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "payload"}


def _route(name: str) -> tuple[str, str, re.Pattern[str]]:
    http = service_model().operation_model(name).http
    return name, http["method"], re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", http["requestUri"]) + r"/?")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
