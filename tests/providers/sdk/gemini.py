"""generateContent requests against google-genai's types (which forbid unknown members) and the v1beta protos.

Neither is enough alone: pydantic misses two members of one oneof, the protos take snake_case and lack what is new.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from pydantic import TypeAdapter, ValidationError

from . import Rejected

# Members of `Part` that decide its kind; exactly one may be there (v1beta proto, oneof `data`).
_DATA = {"text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode", "codeExecutionResult"}
_SNAKE = re.compile(r"_")


@cache
def _schemas() -> tuple[TypeAdapter[Any], Callable[[], Any]]:
    """The contents, and what makes an empty request; imported late, which every other test saves."""
    from google.ai import generativelanguage_v1beta as v1beta
    from google.genai import types

    return TypeAdapter(list[types.Content]), v1beta.GenerateContentRequest.pb()


def check(fields: dict[str, Any]) -> None:
    if not {"contents"} <= set(fields) <= {"contents", "systemInstruction"}:
        raise Rejected(f"members {sorted(fields)}")
    contents = [*fields["contents"], *([fields["systemInstruction"]] if "systemInstruction" in fields else [])]
    adapter, new_request = _schemas()
    try:
        adapter.validate_json(json.dumps(contents), strict=True)
        ParseDict(fields, new_request())
    except (ValidationError, ParseError) as error:
        raise Rejected(str(error)) from None
    if not fields["contents"]:
        raise Rejected("no contents")
    for content in fields["contents"]:
        if content.get("role") not in ("user", "model"):
            raise Rejected(f"role {content.get('role')!r}")
    for content in contents:
        if not content.get("parts"):
            raise Rejected("no parts")
        for part in content["parts"]:
            _check_part(part)


def _check_part(part: dict[str, Any]) -> None:
    if any(_SNAKE.search(name) for name in part) or len(_DATA & set(part)) != 1:
        raise Rejected(f"a part with {sorted(part)}")
    response = part.get("functionResponse", {})
    blobs = [part["inlineData"]] if "inlineData" in part else [p["inlineData"] for p in response.get("parts", ())]
    for blob in blobs:
        _check_blob(blob)
    for member in ("functionCall", "functionResponse"):
        if member in part and not part[member].get("name"):
            raise Rejected(f"{member} without name")
    if "fileData" in part and not re.match(r"(https|gs)://", part["fileData"].get("fileUri", "")):
        raise Rejected(f"fileUri {part['fileData'].get('fileUri')!r}")


def _check_blob(blob: dict[str, Any]) -> None:
    if not re.fullmatch(r"(image|video|audio|application|text)/[a-z0-9.+-]+", blob.get("mimeType", "")):
        raise Rejected(f"mimeType {blob.get('mimeType')!r}")
    try:
        base64.b64decode(blob["data"], validate=True)
    except (KeyError, binascii.Error) as error:
        raise Rejected(f"inlineData: {error!r}") from None
