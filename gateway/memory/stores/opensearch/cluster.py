"""Requests of a store to an OpenSearch cluster, with an account of the store's own.

Writes go through ``_bulk`` and reads by id through ``_mget``, because these answer for each document. A read by id sees
every finished write; a search sees it only after a refresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from opensearchpy import AsyncHttpConnection, AsyncOpenSearch, AWSV4SignerAsyncAuth
from opensearchpy._async.http_aiohttp import OpenSearchClientResponse
from opensearchpy.exceptions import ConnectionError as NoConnection
from opensearchpy.exceptions import ConnectionTimeout, SerializationError, TransportError
from opensearchpy.serializer import JSONSerializer

from gateway.config.types import OpenSearchAccount
from gateway.memory.store import StoreThrottled, StoreUnavailable, TooLargeForStore

_PAUSE = 5.0
"""Seconds between two reads. boto3 fetches credentials that expire within 15 minutes with each read, and those of a
role may never last longer."""


class HeldCredentials:
    """The credentials of `source`, an object of boto3, as they were read last. clock: monotonic seconds."""

    def __init__(self, source: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._held: Any = None
        self._not_before = 0.0
        self._reading = asyncio.Lock()

    def get_frozen_credentials(self) -> Any:
        """Return what was read last, for opensearch-py's signer."""
        return self._held

    async def refresh(self) -> None:
        """Read the credentials if there are none yet, or they expire soon.

        Raises:
            StoreUnavailable: they can't be read.
        """
        async with self._reading:
            if self._held is None or (self._expires_soon() and self._clock() >= self._not_before):
                try:
                    self._held = await asyncio.to_thread(_read, self._source)
                finally:
                    self._not_before = self._clock() + _PAUSE

    def _expires_soon(self) -> bool:
        return bool(getattr(self._source, "refresh_needed", lambda: False)())


def _read(source: Any) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # slow to load

    try:
        return source.get_frozen_credentials()
    except (BotoCoreError, ClientError, RuntimeError) as error:  # RuntimeError: the new ones have expired, too
        raise StoreUnavailable(f"AWS credentials can't be refreshed: {error}") from None


def find_credentials(part: str) -> HeldCredentials:
    """Return the credentials that boto3 finds. part: of the settings. It blocks.

    Raises:
        StoreUnavailable: there are none, or they can't be loaded.
    """
    import boto3  # type: ignore[import-untyped]  # here, as it is slow to load
    from botocore.exceptions import BotoCoreError

    try:
        source = boto3.Session().get_credentials()
    except BotoCoreError as error:
        raise StoreUnavailable(f"AWS credentials can't be loaded: {error}") from None
    if source is None:
        raise StoreUnavailable(
            f"boto3 finds no AWS credentials for `{part}.opensearch`: run with a role, or name a profile"
        )
    return HeldCredentials(source)


BATCH = 8_000_000
"""Most bytes of documents in a request. Smaller domains of Amazon OpenSearch Service take 10 MiB."""
LONGEST_ANSWER = 100_000_000
"""Most bytes of an answer: ten times what the longest page of a session takes."""
_ERROR_TEXT = 300
_FIRST_WAIT = 0.1
_NO_SHARD = "no_shard_available_action_exception"
BLOCKED = "cluster_block_exception"
"""The error of a write to an index that takes none: if the disk is full, with status 429, but waiting does not help."""

# opensearch-py logs every failure with its traceback. Without a handler, Python prints it.
logging.getLogger("opensearch").addHandler(logging.NullHandler())


class ClusterError(StoreUnavailable):
    """The cluster answered with an error. status: of the answer. type: OpenSearch's name of the error."""

    def __init__(self, reason: str, status: int, type_: str) -> None:
        super().__init__(reason)
        self.status = status
        self.type = type_


class _Json(JSONSerializer):
    """JSON by msgspec. Bytes are JSON already."""

    def dumps(self, data: Any) -> Any:
        return data if isinstance(data, bytes | str) else msgspec.json.encode(data)

    def loads(self, s: str) -> Any:
        try:
            return msgspec.json.decode(s)
        except msgspec.DecodeError as error:
            raise SerializationError(error) from error


class _Response(OpenSearchClientResponse):
    """A response that is read up to `LONGEST_ANSWER`."""

    _body: bytes | None = None

    async def read(self) -> bytes:
        if self._body is None:
            body = bytearray()
            async for piece in self.content.iter_any():
                body += piece
                if len(body) > LONGEST_ANSWER:
                    self.close()
                    raise OSError(f"its answer is longer than {LONGEST_ANSWER} bytes")
            self._body = bytes(body)
        return self._body


class _Connection(AsyncHttpConnection):
    async def _create_aiohttp_session(self) -> None:
        await super()._create_aiohttp_session()
        assert self.session is not None
        self.session._response_class = _Response


class Cluster:
    """A cluster's REST API. url: its address, without credentials. part: the part of the settings, memory or inspector.

    refused: it answered with an error or can't be reached, so what it was asked to use may not exist any more.
    """

    def __init__(self, url: str, settings: OpenSearchAccount, part: str = "memory") -> None:
        self.url = url.rstrip("/")
        self._part = part
        self.refused = False
        self._settings = settings
        self._client: AsyncOpenSearch | None = None
        self._connecting = asyncio.Lock()
        self._credentials: HeldCredentials | None = None

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def call(self, method: str, path: str, body: Any = None, wanted: str = "", **params: str) -> dict[str, Any]:
        """Send a request and return the answer's JSON object. body: JSON values, or JSON as bytes. wanted: its member.

        An answer 429 is a reason to wait and to send the request again, for `seconds` in all, but not if the index
        takes no writes.

        Raises:
            ClusterError: the cluster answered with an error.
            StoreThrottled: it still answered 429 at the deadline.
            StoreUnavailable: it can't be reached, or did not answer in time.
            TooLargeForStore: it does not take a request of this size.
        """
        async for last in self.attempts():
            try:
                answer = await self._send(method, path, body, params)
            except StoreThrottled:
                if last:
                    raise
                continue
            if not isinstance(answer, dict) or (wanted and wanted not in answer):
                raise StoreUnavailable(f"{self.url} did not answer as OpenSearch does. Is it an OpenSearch cluster?")
            return answer
        raise AssertionError("unreachable")

    async def make(self, path: str, body: Any = None) -> None:
        """Make what `path` names, such as an index, unless it exists. Errors as `call`."""
        try:
            await self.call("PUT", path, body)
        except ClusterError as error:
            if error.type != "resource_already_exists_exception":
                raise

    async def get(self, index: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the ``_source`` of the documents that exist, by id."""
        return {id_: document["_source"] for id_, document in (await self.get_documents(index, ids)).items()}

    async def get_documents(self, index: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the documents that exist, by id, with ``_source``, ``_seq_no`` and ``_primary_term``.

        While the index has no shard to read from, because another gateway is just making it or a node has failed, the
        request is sent again, as after an answer 429.
        """
        if not ids:
            return {}
        async for last in self.attempts():
            answer = await self.call("POST", f"/{index}/_mget", {"ids": ids}, "docs", preference="_primary")
            failed = next((document for document in answer["docs"] if "error" in document), None)
            if failed is None:
                break
            if last or failed["error"]["type"] != _NO_SHARD:
                raise self._error(failed.get("status", 404), failed["error"])
        return {document["_id"]: document for document in answer["docs"] if document["found"]}

    async def write(self, operations: Iterable[tuple[dict[str, Any], Any]]) -> list[int]:
        """Send operations of ``_bulk``, each an action with its document (None: it has none). Return their statuses.

        Raises:
            ClusterError: the status of an operation is neither a success, nor 409, nor 404 of an update or a deletion.
                404 of a document to write: there is no index, and the cluster makes none (`action.auto_create_index`).
        """
        statuses: list[int] = []
        for batch in batches([operation_lines(action, document) for action, document in operations]):
            statuses += await self._write(batch)
        return statuses

    async def _write(self, batch: list[bytes]) -> list[int]:
        statuses = [0] * len(batch)
        waiting = list(range(len(batch)))
        async for last in self.attempts():
            answer = await self.call("POST", "/_bulk", b"".join(batch[i] for i in waiting), "items")
            throttled = []
            for i, item in zip(waiting, answer["items"], strict=True):
                [(operation, result)] = item.items()
                statuses[i] = status = result["status"]
                if is_throttled(status, result.get("error")):
                    throttled.append(i)
                elif status >= 400 and status != 409 and (status != 404 or operation in ("index", "create")):
                    raise self._error(status, result["error"])
            waiting = throttled
            if not waiting:
                return statuses
            if last:
                raise StoreThrottled(self._throttled())
        raise AssertionError("unreachable")

    async def attempts(self) -> AsyncIterator[bool]:
        """Yield for each attempt whether it is the last. The waits between them double, and last `seconds` in all."""
        left, wait = self._settings.seconds, _FIRST_WAIT
        while left > wait:
            yield False
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            left, wait = left - wait, wait * 2
        yield True

    async def _send(self, method: str, path: str, body: Any, params: Mapping[str, str]) -> Any:
        async with self._connecting:
            client = self._client = self._client or await self._connect()
        if self._credentials is not None:
            await self._credentials.refresh()
        try:
            return await client.transport.perform_request(method, path, params=dict(params), body=body)
        except ConnectionTimeout:
            reason = f"{self.url} did not answer within {self._settings.seconds:g} s. Is the cluster overloaded?"
            raise StoreUnavailable(reason) from None
        except NoConnection as error:
            self.refused = True
            reason = f"{self.url} can't be reached: {error.error}. Check `{self._part}.opensearch` and the cluster"
            raise StoreUnavailable(reason) from None
        except TransportError as error:
            raise self._refusal(error) from None
        except SerializationError:
            raise StoreUnavailable(f"{self.url} did not answer with JSON. Is it an OpenSearch cluster?") from None

    def _refusal(self, error: TransportError) -> Exception:
        """Return the store's error for an answer that is an error."""
        status = int(error.status_code)
        if status == 413:
            return TooLargeForStore(f"{self.url} does not take a request of this size (413)")
        reason: Any = error.error
        with contextlib.suppress(msgspec.DecodeError, TypeError, KeyError):
            reason = msgspec.json.decode(reason)["error"]
        if is_throttled(status, reason):
            return StoreThrottled(self._throttled())
        return self._error(status, reason)

    def _throttled(self) -> str:
        return f"{self.url} takes no more requests at present (429). Try again later, or give the cluster more capacity"

    def _error(self, status: int, error: Any) -> ClusterError:
        """Return the error for an answer's status and its ``error``."""
        self.refused = True
        type_, reason = "", error
        if isinstance(error, dict):
            type_, reason = str(error.get("type", "")), error.get("reason", "")
        text = " ".join(f"{type_} {reason}".split())[:_ERROR_TEXT]
        advice = _ADVICE.get(type_, _ADVICE.get(status, "")).format(self._part, _PAGES[self._part])
        return ClusterError(f"{self.url} answered {status}: {text}{advice}", status, type_)

    async def _connect(self) -> AsyncOpenSearch:
        settings = self._settings
        options: dict[str, Any] = {}
        if settings.sigv4_region:
            self._credentials = await asyncio.to_thread(find_credentials, self._part)
            options["http_auth"] = AWSV4SignerAsyncAuth(self._credentials, settings.sigv4_region)
        elif settings.username:
            account = f"{settings.username}:{settings.password.reveal()}".encode()
            options["headers"] = {"authorization": f"Basic {b64encode(account).decode()}"}
        if self.url.startswith("https:"):
            options["ssl_context"] = await asyncio.to_thread(_tls, settings.ca_file, self._part)
        return AsyncOpenSearch(
            [self.url],
            connection_class=_Connection,
            serializer=_Json(),
            serializers={"application/json": _Json()},
            timeout=settings.seconds,
            max_retries=0,
            **options,
        )


_PAGES = {"memory": "docs/operate/memory.md", "inspector": "docs/operate/inspector.md"}
_ADVICE: dict[int | str, str] = {
    BLOCKED: ". Free disk space, or remove the block from the index's settings (`index.blocks`)",
    401: ". Check `username` and `password` of `{0}.opensearch`, or its AWS credentials",
    403: ". Give the account of `{0}.opensearch` the permissions that {1} lists",
}


def is_throttled(status: int, error: Any) -> bool:
    """Return whether the same operation may succeed soon. error: of the answer, or of an operation of ``_bulk``."""
    return status == 429 and not (isinstance(error, dict) and error.get("type") == BLOCKED)


def _tls(ca_file: str, part: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise StoreUnavailable(f"`{part}.opensearch.ca_file` can't be read: {error}") from None


def operation_lines(action: dict[str, Any], document: Any) -> bytes:
    """Return the lines of an operation of ``_bulk``. document: JSON values, JSON as bytes, or None."""
    line = msgspec.json.encode(action) + b"\n"
    if document is None:
        return line
    return line + (document if isinstance(document, bytes) else msgspec.json.encode(document)) + b"\n"


def batches(operations: list[bytes]) -> list[list[bytes]]:
    """Divide operations into requests of at most `BATCH` bytes each, or one operation."""
    batches: list[list[bytes]] = []
    size = BATCH
    for operation in operations:
        if size + len(operation) > BATCH:
            batches.append([])
            size = 0
        batches[-1].append(operation)
        size += len(operation)
    return batches
