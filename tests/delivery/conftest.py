from collections import OrderedDict

import pytest

from gateway.delivery import reuse


@pytest.fixture(autouse=True)
def _no_plans_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test plans for itself: some change how plans are made."""
    monkeypatch.setattr(reuse, "_kept", OrderedDict())
