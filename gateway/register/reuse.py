"""One agent for one registration, however often and through however many gateways it is sent.

Every attempt marks what it makes with the registration's tag. Before it makes anything it looks for an agent with that
tag; after it has made its own it waits until a search shows it. The index takes the agents one after the other and a
search shows none without those before it, so of attempts that ran at the same time all see the same first one: that
one counts, and the others undo their own. What attempts that were killed have left is removed by the one that counts;
it can't be needed by one that still runs, since that will find itself second.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.agents.lookup import AUTH_HEADERS, document_path
from gateway.errors import IdempotencyKeyReused, Problem, RegistrationFailed
from gateway.register.calls import Calls
from gateway.register.documents import METADATA_PARAMETER, REGISTRATION_PARAMETER
from gateway.register.parts import Found, Made, SearchRefused, metadata_of, remove, tagged, users_of
from gateway.register.steps import ATTEMPT_PARAMETER, Steps

BODY_PARAMETER = "mlc_gateway_body"
KEY = "Idempotency-Key"

_COST = {"n": 2**14, "r": 8, "p": 1}
"""Of scrypt: the tag can be read by whoever may read the agent, so guessing from it has to be slow."""
_WHO = AUTH_HEADERS - {"x-forwarded-for"}


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes two registrations the same. tag: 32 hex digits. digest: of the body. keyed: the client gave a key."""

    tag: str
    digest: str
    keyed: bool


def identify(headers: Mapping[str, str], body: bytes) -> Identity:
    """Return the identity of a caller's registration; takes some 100 ms of a processor. body: JSON."""
    caller = "\n".join(f"{name.lower()}:{_who(value)}" for name, value in headers.items() if name.lower() in _WHO)
    key = headers.get(KEY, "")
    canonical = json.dumps(json.loads(body), sort_keys=True)
    digest = _slow_hash(f"body\n{caller}", canonical)
    return Identity(_slow_hash(f"key\n{caller}", key) if key else digest, digest, bool(key))


def _who(value: str) -> str:
    """Return a header that tells the caller; of a name and password only the name, which the password outlives."""
    scheme, _, rest = value.partition(" ")
    if scheme.lower() != "basic":
        return value
    try:
        return base64.b64decode(rest, validate=True).partition(b":")[0].decode("latin-1")
    except ValueError:
        return value


def _slow_hash(salt: str, text: str) -> str:
    raw, spice = (part.encode("utf-8", "surrogatepass") for part in (text, salt))
    return hashlib.scrypt(raw, salt=spice, dklen=16, **_COST).hex()


@dataclass(frozen=True, slots=True)
class Settled:
    """The agent that counts. own: it is this attempt's. checked: a search has shown it. left: what is too much."""

    agent_id: str
    own: bool
    checked: bool = True
    left: tuple[Problem, ...] = ()


class Reuse:
    """What other attempts of the same registration have made. window: seconds in which one without a key counts."""

    def __init__(self, calls: Calls, identity: Identity, window: float) -> None:
        self._calls = calls
        self._identity = identity
        self._window = window
        self._looks = identity.keyed or window > 0

    async def existing(self) -> str | None:
        """Return the agent that an earlier attempt made, if it can run.

        Raises:
            IdempotencyKeyReused: its body was another. RegistrationFailed: there is a key, and no search is allowed.
            UpstreamUnavailable, UpstreamTimeout: no answer came.
        """
        if not self._looks:
            return None
        try:
            found = await tagged(self._calls, "agents", self._identity.tag)
        except SearchRefused as refused:
            if self._identity.keyed:
                said = f"The {KEY} can't be kept, as the cluster refused to search for agents: {refused}"
                raise RegistrationFailed(said, refused.reply.status, repeats=str(refused)) from refused
            self._looks = False
            return None
        for one in filter(self._counts, found):
            if await self._runs(one):
                self._check(one)
                return one.made.id
            await remove(self._calls, [one.made])
        return None

    async def settle(self, steps: Steps) -> Settled:
        """Return which agent counts, now that this attempt has made its own.

        Raises:
            IdempotencyKeyReused: it is another's, whose body was another; this attempt's is to be undone.
        """
        own = steps.made[-1]
        found = await self._shown("agents", own) if self._looks else None
        if found is None:
            return Settled(own.id, own=True, checked=not self._looks and self._window == 0)
        for one in found:
            if one.made == own:
                break
            if self._counts(one) and await self._runs(one):
                self._check(one)
                return Settled(one.made.id, own=False, left=tuple(await steps.undo()))
        return Settled(own.id, own=True, left=tuple(await self._tidy(steps, found)))

    async def _shown(self, kind: str, own: Made) -> list[Found] | None:
        """Return all with the tag, once a search shows `own`; None if none does."""

        async def look() -> list[Found] | None:
            found = await tagged(self._calls, kind, self._identity.tag)
            return found if any(one.made == own for one in found) else None

        try:
            return await self._calls.until(look)
        except SearchRefused:
            return None

    def _counts(self, found: Found) -> bool:
        """Return True if it was made for this registration, not for an equal one of long ago."""
        if found.is_executor:
            return False
        if self._identity.keyed:
            return True
        return time.time() - int(found.source.get("created_time") or 0) / 1000 < self._window

    def _check(self, found: Found) -> None:
        if found.parameters.get(BODY_PARAMETER) != self._identity.digest:
            raise IdempotencyKeyReused(
                f"Agent {found.made.id} was registered under this {KEY} with another body.",
                help="Send another key with another registration.",
            )

    async def _runs(self, found: Found) -> bool:
        """Return True if the agent still has its model: an attempt that failed may have undone that before the agent came."""
        model_id = metadata_of(found.source).model_id
        if not model_id or not _mentions(found.source, model_id):
            return True
        return (await self._calls("GET", document_path("models", model_id))).status != 404

    async def _tidy(self, steps: Steps, agents: list[Found]) -> list[Problem]:
        """Remove what attempts left that made no agent; what can't be removed."""
        own = {one.id for one in steps.made}
        executors = {one.parameters.get("executor_agent_id") for one in agents}
        stray = [one.made for one in agents if one.is_executor and one.made.id not in own | executors]
        for kind in ("models", "connectors"):
            tagged_ones = (one for one in reversed(steps.made) if one not in steps.made_by_cluster)
            latest = next((one for one in tagged_ones if one.kind == kind), None)
            shown = await self._shown(kind, latest) if latest is not None else None
            for one in shown or ():
                spare = (
                    one.made.id not in own and self._counts(one) and not any(_is_part(one, agent) for agent in agents)
                )
                if spare and await self._unused(one, stray):
                    stray.append(one.made)
        return await remove(self._calls, stray)

    async def _unused(self, found: Found, gone: list[Made]) -> bool:
        return await users_of(self._calls, found.made, {one.id for one in gone}) == []


def _is_part(found: Found, agent: Found) -> bool:
    return not agent.is_executor and found.made in metadata_of(agent.source).parts


def _mentions(source: Mapping[str, Any], id: str) -> bool:
    """Return True if an agent uses a document, apart from what the gateway noted."""
    return json.dumps(id) in json.dumps(without_notes(source))


def without_notes(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's document without the gateway's own parameters."""
    notes = (METADATA_PARAMETER, REGISTRATION_PARAMETER, BODY_PARAMETER, ATTEMPT_PARAMETER)
    parameters = {name: value for name, value in (source.get("parameters") or {}).items() if name not in notes}
    return {**source, "parameters": parameters}
