"""Media formats that at least one provider accepts, with their aliases and MIME types.

The source is docs/internals/providers.md. Formats that no provider accepts are refused here; each provider refuses the
others that it does not accept.
"""

from __future__ import annotations

from gateway.unified.model import MediaKind

# Format → MIME type, by kind. A MIME type means the first format that has it.
FORMATS: dict[MediaKind, dict[str, str]] = {
    "image": {
        "png": "image/png",
        "jpeg": "image/jpeg",
        "gif": "image/gif",
        "webp": "image/webp",
    },
    "document": {
        "pdf": "application/pdf",
        "csv": "text/csv",
        "doc": "application/msword",
        "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls": "application/vnd.ms-excel",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "html": "text/html",
        "txt": "text/plain",
        "md": "text/markdown",
    },
    "video": {
        "mkv": "video/x-matroska",
        "mov": "video/quicktime",
        "mp4": "video/mp4",
        "webm": "video/webm",
        "flv": "video/x-flv",
        "mpeg": "video/mpeg",
        "mpg": "video/mpeg",
        "wmv": "video/x-ms-wmv",
        "three_gp": "video/3gpp",
    },
    "audio": {
        "mp3": "audio/mpeg",
        "opus": "audio/opus",
        "wav": "audio/wav",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "mp4": "audio/mp4",
        "ogg": "audio/ogg",
        "mkv": "audio/x-matroska",
        "mka": "audio/x-matroska",
        "x-aac": "audio/x-aac",
        "m4a": "audio/mp4",
        "mpeg": "audio/mpeg",
        "mpga": "audio/mpeg",
        "pcm": "audio/l16",
        "webm": "audio/webm",
    },
}

ALIASES = {
    "jpg": "jpeg",
    "markdown": "md",
    "htm": "html",
    "3gp": "three_gp",
    "3gpp": "three_gp",
    "3g2": "three_gp",
}

MIME_ALIASES = {
    "image/jpg": "image/jpeg",
    "text/x-markdown": "text/markdown",
    "application/csv": "text/csv",
    "video/3gpp2": "video/3gpp",
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/x-flac": "audio/flac",
    "audio/x-m4a": "audio/mp4",
}


def normalise(kind: MediaKind, written: str) -> str | None:
    """Return the format of a name (``JPG``) or MIME type (``image/jpeg; q=1``); None if no provider accepts it."""
    name = written.partition(";")[0].strip().lower()
    if "/" in name:
        return next((fmt for fmt, mime in FORMATS[kind].items() if mime == MIME_ALIASES.get(name, name)), None)
    name = ALIASES.get(name, name)
    return name if name in FORMATS[kind] else None


def from_path(kind: MediaKind, path: str) -> str | None:
    """Return the format of a file name's or URL path's extension; None if it is not one of `kind`."""
    _, dot, ending = path.rpartition(".")
    return normalise(kind, ending) if dot and "/" not in ending else None


def is_text(document: str) -> bool:
    """Return True if a document of this format is a text, which may be sent as one."""
    return FORMATS["document"][document].startswith("text/")


def contradicts(kind: MediaKind, fmt: str, mime: str) -> bool:
    """Return True if the MIME type of a `data:` URL is that of another format of this kind than `fmt`."""
    other = normalise(kind, mime)
    return other is not None and FORMATS[kind][other] != FORMATS[kind][fmt]
