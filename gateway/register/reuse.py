"""Makes one agent for one registration, however often and through however many gateways it is sent.

Every attempt tags what it makes. Before it makes anything, it searches for an agent with the tag. After it has made its
own, it waits until a search finds it. The index writes the agents one after the other, and a search never finds one
without those before it. So concurrent attempts all find the same first agent: it is used, and the other attempts undo
theirs. The first attempt also removes what killed attempts left. An attempt that is still running can't need that,
because it will find that it is not the first.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.agents.lookup import AUTH_HEADERS, document_path
from gateway.errors import GatewayError, IdempotencyKeyReused, Problem, RegistrationFailed
from gateway.register.calls import Calls
from gateway.register.documents import METADATA_PARAMETER, REGISTRATION_PARAMETER
from gateway.register.parts import Found, Made, SearchRefused, metadata_of, remove, tagged, users_of
from gateway.register.steps import ATTEMPT_PARAMETER, Steps

BODY_PARAMETER = "mlc_gateway_body"
KEY = "Idempotency-Key"

_COST = {"n": 2**14, "r": 8, "p": 1}
"""Parameters of scrypt. Anyone who may read the agent can read the tag, so guessing a secret from it must be slow."""
_WITHOUT_GROUP = (404, 500)
"""Statuses for a model whose group was deleted (docs/evidence/facts.md, "Agents without tools, and registrations at
once")."""
_WHO = AUTH_HEADERS - {"x-forwarded-for"}


class Identity(msgspec.Struct, frozen=True):
    """Identity of a registration. tag: 32 hex digits. digest: of the body. keyed: the client sent a key."""

    tag: str
    digest: str
    keyed: bool


def identify(headers: Mapping[str, str], body: bytes) -> Identity:
    """Return the identity of a caller's registration, which takes about 100 ms of CPU. body: JSON."""
    caller = "\n".join(f"{name.lower()}:{_who(value)}" for name, value in headers.items() if name.lower() in _WHO)
    key = headers.get(KEY, "")
    canonical = json.dumps(json.loads(body), sort_keys=True)
    digest = _slow_hash(f"body\n{caller}", canonical)
    return Identity(_slow_hash(f"key\n{caller}", key) if key else digest, digest, bool(key))


def _who(value: str) -> str:
    """Return what identifies the caller in a header: the name of basic credentials, because passwords change."""
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


class Settled(msgspec.Struct, frozen=True):
    """The agent to use. own: this attempt made it. checked: a search found it. left: problems with removals."""

    agent_id: str
    own: bool
    checked: bool = True
    left: tuple[Problem, ...] = ()


class Reuse:
    """Finds agents of other attempts of a registration. window: seconds for which one without a key is reused."""

    def __init__(self, calls: Calls, identity: Identity, window: float) -> None:
        self._calls = calls
        self._identity = identity
        self._window = window
        self._looks = identity.keyed or window > 0

    async def existing(self) -> str | None:
        """Return the agent of an earlier attempt, if it can run.

        Raises:
            IdempotencyKeyReused: its body was different. RegistrationFailed: there is a key, and searching is not
            allowed. UpstreamUnavailable, UpstreamTimeout: there was no response.
        """
        if not self._looks:
            return None
        try:
            found = await tagged(self._calls, "agents", self._identity.tag)
        except SearchRefused as refused:
            if self._identity.keyed:
                text = f"The {KEY} can't be honoured, as the cluster refused to search for agents: {refused}"
                raise RegistrationFailed(text, refused.reply.status, repeats=str(refused)) from refused
            self._looks = False
            return None
        for one in filter(self._counts, found):
            if await self._runs(one):
                self._check(one)
                return one.made.id
            await remove(self._calls, [one.made])
        return None

    async def settle(self, steps: Steps) -> Settled:
        """Return the agent to use, after this attempt has made its own.

        Raises:
            IdempotencyKeyReused: another attempt with a different body was first; this one must be undone.
        """
        own = steps.made[-1]
        found = await self._find_with("agents", own) if self._looks else None
        if found is None:
            return Settled(own.id, own=True, checked=not self._looks and self._window == 0)
        for one in found:
            if one.made == own:
                break
            if self._counts(one) and await self._runs(one):
                self._check(one)
                return Settled(one.made.id, own=False, left=tuple(await steps.undo()))
        return Settled(own.id, own=True, left=tuple(await self._tidy(steps, found)))

    async def superseded(self, steps: Steps, failed: RegistrationFailed) -> Settled:
        """Return the agent of another attempt that has removed what this one still needed, and undo this one.

        failed: why this attempt failed.

        Raises:
            RegistrationFailed: `failed` itself, as there is no such agent. IdempotencyKeyReused: it was registered with
            a different body. In both cases this attempt must be undone.
        """
        if failed.status not in _WITHOUT_GROUP or any(one.kind == "agents" for one in steps.made):
            raise failed
        try:
            found = await self.existing()
        except IdempotencyKeyReused:
            raise
        except GatewayError:
            found = None
        if found is None:
            raise failed
        return Settled(found, own=False, left=tuple(await steps.undo()))

    async def _find_with(self, kind: str, own: Made) -> list[Found] | None:
        """Search for all with the tag until `own` is among them; None if it is never found."""

        async def look() -> list[Found] | None:
            found = await tagged(self._calls, kind, self._identity.tag)
            return found if any(one.made == own for one in found) else None

        try:
            return await self._calls.until(look)
        except SearchRefused:
            return None

    def _counts(self, found: Found) -> bool:
        """Return True if it was made for this registration, not for an equal one long ago."""
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
        """Return True if the agent still has its model, which a failed attempt may have removed."""
        model_id = metadata_of(found.source).model_id
        if not model_id or not _mentions(found.source, model_id):
            return True
        return (await self._calls("GET", document_path("models", model_id))).status != 404

    async def _tidy(self, steps: Steps, agents: list[Found]) -> list[Problem]:
        """Remove documents of attempts that made no agent. Return a problem for each that remains."""
        own = {one.id for one in steps.made}
        executors = {one.parameters.get("executor_agent_id") for one in agents}
        stray = [one.made for one in agents if one.is_executor and one.made.id not in own | executors]
        for kind in ("models", "model_groups", "connectors"):
            tagged_ones = (one for one in reversed(steps.made) if one not in steps.made_by_cluster)
            latest = next((one for one in tagged_ones if one.kind == kind), None)
            shown = await self._find_with(kind, latest) if latest is not None else None
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
    """Return True if an agent uses a document, without regard to the gateway's notes."""
    return json.dumps(id) in json.dumps(without_notes(source))


def without_notes(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's document without the gateway's own parameters."""
    notes = (METADATA_PARAMETER, REGISTRATION_PARAMETER, BODY_PARAMETER, ATTEMPT_PARAMETER)
    parameters = {name: value for name, value in (source.get("parameters") or {}).items() if name not in notes}
    return {**source, "parameters": parameters}
