"""Fetches the media of a conversation that a provider accepts only inline, and inserts their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from gateway.codes import Notice
from gateway.errors import Problem, UndeliverableContent
from gateway.observe.logs import Logger, mask_place, step
from gateway.offload import run_here_if
from gateway.ports import MediaContent, MediaFetcher
from gateway.providers import registry
from gateway.providers.base import Inexpressible, MappingOptions, Provider
from gateway.unified.model import AgentInput, Base64, ContentBlock, Media, MediaKind, ToolResult, Url
from gateway.unified.request import ExecuteRequest

_SCHEMES = ("http", "https")
_SAMPLE = b"eA=="
"""Small base64 data, in place of media that have not been fetched yet."""
_SAMPLE_FORMATS: Mapping[MediaKind, str] = {"image": "png", "document": "pdf", "video": "mp4", "audio": "wav"}
"""Where the format is not known before it is fetched: one that every API takes that takes the kind inline."""
_ALLOW = "or let the gateway fetch it: settings media.fetch and media.hosts"


class Inliner:
    """Inserts media by URL into a conversation. fetch: None where fetching is off."""

    def __init__(self, options: MappingOptions, fetch: MediaFetcher | None, log: Logger) -> None:
        self._options = options
        self._fetch = fetch
        self._log = log

    async def inline(
        self,
        provider: str | None,
        request: ExecuteRequest,
        agent_input: AgentInput,
        check: Callable[[AgentInput], object],
        small: bool,
        describes: bool = False,
    ) -> tuple[AgentInput, tuple[Notice, ...]]:
        """Return `agent_input` with the media fetched that `provider` accepts only inline, and a notice for each.

        Nothing is fetched for an input that can't be delivered anyway: it is tried with small samples first. check:
        raises UndeliverableContent for such an input. small: that takes little time. describes: what can't be delivered
        is described instead; the input is returned unchanged.

        Raises:
            UndeliverableContent: a medium can't be fetched, or fetching is off; or the input can't be delivered with
                the media inline either. Then its problems are those of both.
        """
        blocks = [block for block in _media(agent_input) if isinstance(block.source, Url)] if provider else []
        problems: Sequence[Problem] = ()
        if blocks and provider:
            problems = await run_here_if(small, _find_problems, registry.provider(provider), agent_input, self._options)
        blocks = [block for block in blocks if any(block.at == problem.place for problem in problems)]
        if not blocks or not provider:
            return agent_input, ()
        new_token = request.extracted.new_token
        samples = [MediaContent(block.format or _SAMPLE_FORMATS[block.kind], _SAMPLE) for block in blocks]
        sample = _with_contents(agent_input, blocks, samples, new_token)
        try:
            await run_here_if(small, check, sample)
        except UndeliverableContent as error:
            of_sample = await run_here_if(small, _find_problems, registry.provider(provider), sample, self._options)
            takes_inline = not any(block.at == problem.place for block in blocks for problem in of_sample)
            if describes or not takes_inline:
                return agent_input, ()
            raise UndeliverableContent.of(self._both(problems, blocks, error.problems)) from None
        fetchable = [block for block in blocks if _is_fetchable(block)]
        if not describes and (self._fetch is None or len(fetchable) < len(blocks)):
            raise UndeliverableContent.of(self._with_fetch(problems, blocks))
        blocks = fetchable
        if self._fetch is not None and blocks:
            contents = await self._fetch(blocks)
            step(
                self._log,
                "fetched",
                media=[mask_place(block.at) for block in blocks],
                base64_bytes=sum(len(content.text) for content in contents),
            )
            return _with_contents(agent_input, blocks, contents, new_token), tuple(map(_notice, blocks))
        return agent_input, ()

    def _with_fetch(self, problems: Sequence[Problem], blocks: Sequence[Media]) -> list[Problem]:
        """Return the `problems` that fetching the `blocks` does not solve; those that it would solve say so."""
        fetchable = {block.at for block in blocks if _is_fetchable(block)}
        if self._fetch is not None:
            return [problem for problem in problems if problem.place not in fetchable]
        return [
            replace(one, help=f"{one.help.rstrip('.')}, {_ALLOW}.") if one.place in fetchable else one
            for one in problems
        ]

    def _both(self, problems: Sequence[Problem], blocks: Sequence[Media], inline: Sequence[Problem]) -> list[Problem]:
        """Return the problems of an input that can't be delivered as it is, nor with its media inline.

        problems: of the input as it is. inline: with the `blocks` inline.
        """
        places = {block.at for block in blocks}
        by_url = [problem for problem in self._with_fetch(problems, blocks) if problem.place in places]
        return [*by_url, *inline]


def _is_fetchable(block: Media) -> bool:
    return isinstance(block.source, Url) and block.source.scheme in _SCHEMES


def _find_problems(provider: Provider, agent_input: AgentInput, options: MappingOptions) -> Sequence[Problem]:
    try:
        provider.map(agent_input, options)
    except Inexpressible as error:
        return error.problems
    return ()


def _with_contents(
    agent_input: AgentInput, blocks: Sequence[Media], contents: Sequence[MediaContent], new_token: Callable[[], str]
) -> AgentInput:
    """Return `agent_input` with the `contents` in place of the URLs of `blocks`."""
    inline = {
        block.at: replace(block, format=content.format, source=Base64(content.text, new_token()))
        for block, content in zip(blocks, contents, strict=True)
    }
    messages = (
        replace(message, content=tuple(_inline(block, inline) for block in message.content))
        for message in agent_input.messages
    )
    return replace(agent_input, messages=tuple(messages))


def _notice(block: Media) -> Notice:
    return Notice("MEDIA_FETCHED", f"The {block.kind} was fetched by the gateway and is sent inline", block.at)


def _media(agent_input: AgentInput) -> Iterator[Media]:
    for message in agent_input.messages:
        for block in message.content:
            for part in block.content if isinstance(block, ToolResult) else (block,):
                if isinstance(part, Media):
                    yield part


def _inline(block: ContentBlock, inline: Mapping[str, Media]) -> ContentBlock:
    match block:
        case ToolResult():
            parts = (inline.get(part.at, part) if isinstance(part, Media) else part for part in block.content)
            return replace(block, content=tuple(parts))
        case Media():
            return inline.get(block.at, block)
    return block
