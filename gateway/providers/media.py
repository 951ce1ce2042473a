"""Checks media blocks against a provider's capability table, and reads documents that are sent as text."""

from __future__ import annotations

import binascii
import re

from gateway.providers.capabilities import UNNAMED, Capabilities, MediaTable, Role
from gateway.providers.values import Findings
from gateway.unified.model import Base64, Media, Text

_PLURALS = {"image": "images", "document": "documents", "video": "video", "audio": "audio"}
_FORM_NAMES = {
    "base64": "base64 data",
    "https": "an https URL",
    "http": "an http URL",
    "s3": "an s3:// URL",
    "gs": "a gs:// URL",
}


def form_of(block: Media) -> str:
    """Return the source form that selects a table row: ``base64`` or the URL's scheme."""
    return "base64" if isinstance(block.source, Base64) else block.source.scheme


def form_name(form: str) -> str:
    """Describe a source form."""
    return _FORM_NAMES.get(form, f"a {form}:// URL")


def check(block: Media, role: Role, limits: Capabilities, findings: Findings) -> bool:
    """Return True if a turn of `role` may hold `block`; otherwise refuse it in `findings`."""
    if role not in limits.media_roles:
        findings.refuse(
            "BLOCK_ROLE_UNSUPPORTED",
            block.at,
            f"{limits.label} does not accept {_PLURALS[block.kind]} in a turn of role {role}",
            expected=f"role {' or '.join(sorted(limits.media_roles))}",
            received=f"role {role}",
            help=f"Put the {block.kind} into a turn of role user.",
        )
        return False
    if block.kind not in limits.media:
        findings.refuse(
            "MEDIA_KIND_UNSUPPORTED",
            block.at,
            f"{limits.label} does not accept {_PLURALS[block.kind]}",
            expected=f"text, {', '.join(limits.media)}",
            received=block.kind,
            help=f"Use a model whose provider accepts {block.kind}.",
        )
        return False
    return _check_row(block, limits.media, limits, findings, "")


def check_in_result(block: Media, limits: Capabilities, findings: Findings) -> bool:
    """Return True if a tool result may hold `block`; otherwise refuse it in `findings`."""
    if block.kind not in limits.tool_media:
        findings.refuse(
            "TOOL_RESULT_CONTENT_UNSUPPORTED",
            block.at,
            f"{limits.label} does not accept {_PLURALS[block.kind]} in a tool result",
            expected=f"text, json, {', '.join(limits.tool_media)}",
            received=block.kind,
            help="Let the tool return text, or send the media in a user turn of its own.",
        )
        return False
    return _check_row(block, limits.tool_media, limits, findings, " in a tool result")


def _check_row(block: Media, table: MediaTable, limits: Capabilities, findings: Findings, where: str) -> bool:
    form, forms = form_of(block), table[block.kind]
    formats = forms.get(form)
    if formats is None:
        names = " or ".join(form_name(known) for known in forms)
        findings.refuse(
            "MEDIA_SOURCE_UNSUPPORTED",
            block.at,
            f"{limits.label} does not accept {_PLURALS[block.kind]} given as {form_name(form)}{where}",
            expected=names,
            received=form_name(form),
            help=f"Send the {block.kind} as {names}.",
        )
        return False
    if block.format not in formats:
        if block.format == UNNAMED:
            _refuse_unnamed(block, formats, limits, findings)
            return False
        findings.refuse(
            "MEDIA_FORMAT_UNSUPPORTED",
            block.at,
            f"{limits.label} does not accept {block.format} {_PLURALS[block.kind]} given as {form_name(form)}{where}",
            expected=", ".join(filter(None, formats)),
            received=block.format,
            help=f"Convert the {block.kind} to {' or '.join(filter(None, formats))}.",
        )
        return False
    if block.detail and block.detail not in limits.image_details:
        known = "no" if not limits.image_details else f"no {block.detail!r} as"
        findings.note("IMAGE_DETAIL_LEFT_OUT", block.at, f'{limits.label} knows {known} "detail" of an image')
    return _check_url(block, limits, findings)


def _refuse_unnamed(block: Media, formats: tuple[str, ...], limits: Capabilities, findings: Findings) -> None:
    findings.refuse(
        "MEDIA_FORMAT_MISSING",
        block.at,
        f"{limits.label} needs the format of {_PLURALS[block.kind]}, and this URL does not show it",
        expected=f"one of {', '.join(formats)}",
        received="a URL without a file extension that is known",
        help=f'Name the format: "source": {{"type": "url", "format": "{formats[0]}", "data": <URL>}}.',
    )


def _check_url(block: Media, limits: Capabilities, findings: Findings) -> bool:
    pattern = limits.url_patterns.get(form_of(block))
    if isinstance(block.source, Base64) or not pattern or re.fullmatch(pattern, block.source.url):
        return True
    findings.refuse(
        "MEDIA_URL_UNSUPPORTED",
        block.at,
        f"{limits.label} does not accept this {block.source.scheme} URL",
        expected=f"a URL that matches {pattern}",
        received=block.source.url.partition("?")[0][:80],  # a query may be a secret
        help="Check the bucket's name and the URL's length.",
    )
    return False


def decode(block: Media) -> str:
    """Return the text of an inline document.

    Raises:
        ValueError: its bytes are not UTF-8 text, or hold a NUL character.
    """
    assert isinstance(block.source, Base64)
    text = binascii.a2b_base64(block.source.data).decode("utf-8")
    if "\0" in text:
        raise ValueError("it holds a NUL character")
    return text


def read_text(block: Media, findings: Findings) -> str | None:
    """Return the text of an inline document, exactly; refuse the block and return None if its bytes are not text."""
    try:
        return decode(block)
    except ValueError as error:  # binascii.Error and UnicodeDecodeError are ValueErrors
        findings.refuse(
            "DOCUMENT_NOT_TEXT",
            block.at,
            f"The {block.format} document is sent as text, but its bytes are not UTF-8 text: {error}",
            expected="UTF-8 text without NUL",
            received=f"{block.format} document",
            help="Encode the document as UTF-8, or send it as pdf.",
        )
        return None


def as_text(block: Media, findings: Findings) -> Text | None:
    """Return an inline document as a text block; None if its bytes are not text.

    The document's name has no place in a text part, which is noted.
    """
    text = read_text(block, findings)
    if text is None:
        return None
    without = f", without its name {block.name!r}" if block.name else ""
    findings.note("DOCUMENT_AS_TEXT", block.at, f"The {block.format} document is sent as text{without}")
    return Text(text, block.at)
