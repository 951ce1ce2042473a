"""Whom a session belongs to, and the ids of sessions and their turns.

A session id names its agent, so that a request without an agent id (``GET …/memory/{id}``) finds the session with one
lookup, and only among those of its own caller.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Mapping

import msgspec

from gateway.config.memory import Memory
from gateway.config.schema import Settings
from gateway.errors import InvalidInput, Problem
from gateway.memory.model import PREFIX, Owner, SessionKey
from gateway.offload import Worker
from gateway.recent import Recent

_SUBJECTS = ("ssl-client-subject-dn", "x-amzn-mtls-clientcert-subject", "x-ssl-client-s-dn")
_PROXY_USER = "x-proxy-user"
_CERTIFICATE = "x-forwarded-client-cert"
_IDENTITY = frozenset({"authorization", _PROXY_USER, _CERTIFICATE, *_SUBJECTS})
_ELEMENT = re.compile(r'([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^;,]*)')
"""A name and its value in `X-Forwarded-Client-Cert` (Envoy's documentation of that header)."""
_SUBJECT_NAMES = frozenset({"subject", "uri", "dns"})
"""The elements that say who it is; the others change with each certificate. SPIFFE's certificates have no subject."""
_ACCESS_KEY = re.compile(r"AWS4-[A-Z0-9-]+ Credential=([^/, ]+)/.*", re.DOTALL)
_ROUNDS = 20_000
"""Of the hash of a caller: 10 ms."""

_AGENT_ID = re.compile(r"[A-Za-z0-9_-]{1,70}")
_SESSION_ID = re.compile(re.escape(PREFIX) + r"([A-Za-z0-9_-]{1,70})-[0-9a-f]{24}")
_MESSAGE_ID = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9_-]{1,96}-[1-9][0-9]{0,8}")


class _Claims(msgspec.Struct):
    """Who a JWT is about, and who says so (RFC 7519, 4.1)."""

    sub: str = ""
    iss: str = ""


_HASHING = Worker("hashing")
_HASHES: Recent[str] = Recent(4096)


def knows_users(settings: Settings) -> bool:
    """Return True if callers are known by the user whom their credentials name.

    Nobody but the cluster checks that. So it has to get the client's own credentials, and to have accepted them before
    a session is opened: for the read of the agent, or of a memory (docs/operate/threat-model.md).
    """
    return settings.memory.by_user and settings.upstream.auth.mode == "pass" and settings.agents.lookup == "caller"


async def owner_of(headers: Mapping[str, str], agent_id: str, settings: Memory, by_user: bool = False) -> Owner:
    """Return the owner of the sessions that a request with these `headers` makes and reads.

    tenant: the value of `memory.tenant_header`. caller: see `caller_of`; "" without `memory.by_caller`. Credentials
    that were not seen lately are hashed on a thread of their own, so that other requests do not wait.

    Raises:
        InvalidInput: the tenant's header is missing, empty, or there are several.
    """
    tenant = _tenant(headers, settings.tenant_header) if settings.tenant_header else ""
    digest = identity_of(headers, by_user) if settings.by_caller else b""
    if not digest:
        return Owner(agent_id, tenant)
    caller = _HASHES.peek(digest)
    if caller is None:
        caller = await _HASHING.run(_slow_hash, digest)
        _HASHES.get(digest, lambda: caller)
    return Owner(agent_id, tenant, caller)


def _tenant(headers: Mapping[str, str], name: str) -> str:
    """Return the value of the header `name`.

    Raises:
        InvalidInput: it does not name one tenant. Without a name, all such requests would share their sessions.
    """
    values = [value.strip() for value in _values(headers, name.lower())]
    if len(values) == 1 and values[0]:
        return values[0]
    reason = f"The request does not name its tenant: the header {name} "
    if not values:
        reason += "is missing"
    else:
        reason += "is empty" if len(values) == 1 else "occurs more than once"
    help = f"Send {name} once, with the tenant's name. The proxy before the gateway usually adds it."
    problem = Problem(f"header {name}", reason, "the tenant's name, once", f"{len(values)} values", help=help)
    raise InvalidInput.of([problem])


def caller_of(headers: Mapping[str, str], by_user: bool = False) -> str:
    """Return a hash of who sent a request, equal in all processes; "" without credentials. It takes 10 ms.

    It covers `Authorization` as a whole, or by_user: of Basic credentials the user, of a JWT its subject and issuer, so
    that a new password or token is the same caller's. What a proxy in front reports (`X-Proxy-User`, the subject of a
    client certificate) is added. Of a SigV4 signature, which differs from request to request, only the access key
    counts: the cluster checks the signature.
    """
    digest = identity_of(headers, by_user)
    return _slow_hash(digest) if digest else ""


def identity_of(headers: Mapping[str, str], by_user: bool) -> bytes:
    """Return a digest of what tells the caller; see `caller_of`. b"" without credentials. It is never stored."""
    found = sorted(
        f"{name.lower()}:{_identity(name.lower(), value.strip(), by_user)}"
        for name, value in headers.items()
        if name.lower() in _IDENTITY
    )
    return hashlib.sha256("\n".join(found).encode("utf-8", "surrogateescape")).digest() if found else b""


def is_signed(headers: Mapping[str, str]) -> bool:
    """Return True for a request that the client signed with SigV4: only the cluster can check who sent it."""
    return any(_ACCESS_KEY.match(value.strip()) for value in _values(headers, "authorization"))


def new_session_id(agent_id: str, seed: str = "") -> str:
    """Return an id for a session of the agent: random, or always the same one for a `seed`.

    It is at most 99 characters long. An agent id that does not fit is left out; the cluster's are 20 characters long.
    """
    end = hashlib.sha256(seed.encode()).hexdigest()[:24] if seed else secrets.token_hex(12)
    return f"{PREFIX}{agent_id}-{end}" if _AGENT_ID.fullmatch(agent_id) else f"{PREFIX}{end}"


def thread_key(owner: Owner, thread: str) -> SessionKey:
    """Return the session of a conversation that a client names in its own way: the same one for the same owner."""
    seed = json.dumps([owner.agent_id, owner.tenant, owner.caller, thread])
    return SessionKey(owner, new_session_id(owner.agent_id, seed))


def imported_key(owner: Owner, id: str, origin: str = "") -> SessionKey:
    """Return the session that a conversation becomes when it is imported: always the same one for an owner.

    So a request that still names the conversation by its old id finds it. id: in the memory where it was. origin: keeps
    apart conversations of the same id.
    """
    seed = " ".join(filter(None, (origin, id))) + f" {owner.tenant} {owner.caller}"
    return SessionKey(owner, new_session_id(owner.agent_id, seed))


def agent_of(session_id: str) -> str:
    """Return the agent id in an id of `new_session_id`; "" if there is none."""
    match = _SESSION_ID.fullmatch(session_id)
    return match[1] if match else ""


def message_id(session_id: str, turn: int) -> str:
    """Return the id under which clients read a turn's question and answer. turn: 1, 2, 3 …"""
    return f"{session_id}-{turn}"


def read_message_id(id: str) -> tuple[str, int] | None:
    """Return session id and turn of an id of `message_id`; None if it is not one."""
    if _MESSAGE_ID.fullmatch(id) is None:
        return None
    session_id, _, turn = id.rpartition("-")
    return session_id, int(turn)


def _values(headers: Mapping[str, str], wanted: str) -> list[str]:
    return [value for name, value in headers.items() if name.lower() == wanted]


def _identity(name: str, value: str, by_user: bool) -> str:
    """Return the part of a header that stays the same from request to request. by_user: also with new credentials."""
    if name == _CERTIFICATE:
        elements = [(key.lower(), text) for key, text in _ELEMENT.findall(value)]
        return ",".join(f"{key}={text}" for key, text in elements if key in _SUBJECT_NAMES and text.strip('"')) or value
    if name != "authorization":
        return value
    if match := _ACCESS_KEY.match(value):
        return f"AWS4 {match[1]}"
    return (by_user and _user_of(value)) or value


def _user_of(authorization: str) -> str:
    """Return the user whom Basic credentials or a JWT name, unchecked; "" if they name none. No header begins so."""
    scheme, _, token = authorization.partition(" ")
    parts = token.strip().split(".")
    try:
        if scheme.lower() == "basic":
            user, colon, _ = base64.b64decode(token.strip(), validate=True).decode().partition(":")
            return f"\0Basic {user}" if colon and user else ""
        if scheme.lower() == "bearer" and len(parts) == 3:
            claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), type=_Claims)
            return f"\0JWT {json.dumps([claims.iss, claims.sub])}" if claims.sub else ""
    except (ValueError, RecursionError, msgspec.DecodeError):
        return ""
    return ""


def _slow_hash(digest: bytes) -> str:
    """Return a hash from which a weak password can't be guessed quickly: stores hold it."""
    return hashlib.pbkdf2_hmac("sha256", digest, b"mlc-gateway caller", _ROUNDS, 16).hex()
