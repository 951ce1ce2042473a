"""Tells running gateways that templates were changed, so that they drop the profiles they have cached."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import requests

from gateway.config.schema import Settings
from gateway.migrate.connection import without_credentials

ADMIN_TOKEN = "MLC_ADMIN_TOKEN"
_PATH = "/profiles/drop"
_SECONDS = 5


def tell(urls: Iterable[str], settings: Settings) -> Iterator[str]:
    """Tell each gateway, and yield a line on each: that it dropped its profiles, or why not and what that means."""
    token = os.environ.get(ADMIN_TOKEN) or settings.listen.admin_token.reveal()
    session = requests.Session()
    session.trust_env = False  # ~/.netrc would replace the token
    headers = {"Authorization": f"Bearer {token}".encode()} if token else {}
    for url in urls:
        name = f"gateway {without_credentials(url)}"
        try:
            answer = session.post(url.rstrip("/") + _PATH, headers=headers, timeout=_SECONDS, allow_redirects=False)
            problem = "" if answer.status_code == 200 else f"answers {answer.status_code}"
        except requests.RequestException as error:
            problem = f"can't be reached ({type(error).__name__})"
        if problem:
            seconds = f"{settings.agents.cache_ttl:g}"
            yield f"{name}: {problem}. If it runs, it may use old templates for up to {seconds} seconds"
        else:
            yield f"{name}: uses the changed templates from now on"
