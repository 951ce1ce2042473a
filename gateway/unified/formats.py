"""The media formats some provider knows, their other names and their MIME types (PROVIDERS.md).

Which provider takes which of them is the providers' business; here only what none of them knows is refused.
"""

from __future__ import annotations

from gateway.unified.model import MediaKind

# Format → MIME type, by kind. The first format with a MIME type is the one that the type stands for.
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
    """The format meant by a name (``JPG``) or a MIME type (``image/jpeg; q=1``); None when no provider knows it."""
    name = written.partition(";")[0].strip().lower()
    if "/" in name:
        return next((fmt for fmt, mime in FORMATS[kind].items() if mime == MIME_ALIASES.get(name, name)), None)
    name = ALIASES.get(name, name)
    return name if name in FORMATS[kind] else None


def from_path(kind: MediaKind, path: str) -> str | None:
    """The format that a file name or a URL's path ends in; None when it is not one of `kind`."""
    _, dot, ending = path.rpartition(".")
    return normalise(kind, ending) if dot and "/" not in ending else None


def contradicts(kind: MediaKind, fmt: str, mime: str) -> bool:
    """Whether a `data:` URL's MIME type names another format of this kind than `fmt`."""
    other = normalise(kind, mime)
    return other is not None and FORMATS[kind][other] != FORMATS[kind][fmt]
