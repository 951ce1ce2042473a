"""The call models of one agent, kept for later requests."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.delivery.call_model import CallModel
from gateway.mlcommons.profile import AgentProfile
from gateway.providers.base import Provider
from gateway.recent import Recent


class CallModelCache:
    """The call models of one agent, so that the same short parameters are not probed twice.

    Its owner stores it with the profile and drops the two together. Holds at most `MAX_ENTRIES`; the least
    recently used one is dropped first.
    """

    MAX_ENTRIES = 16
    MAX_LENGTH = 4096  # of all parameter values together

    def __init__(
        self,
        profile: AgentProfile,
        slot_names: frozenset[str] | None = None,
        before: CallModelCache | None = None,
    ) -> None:
        """Create an empty cache. slot_names, before: see `CallModel`."""
        self.profile = profile
        self._slot_names = slot_names
        self._before = before
        self._call_models: Recent[CallModel] = Recent(self.MAX_ENTRIES)
        self._after_upgrade: dict[tuple[str, ...], CallModelCache] = {}

    def get(self, provider: Provider, params: Mapping[str, str]) -> CallModel:
        """Return the agent's call model for these parameters.

        Raises:
            RenderFailure: the agent calls no LLM.
        """
        if sum(map(len, params.values())) > self.MAX_LENGTH:
            return self._create(provider, params)
        key = (provider.name, tuple(sorted(params.items())))
        return self._call_models.get(key, lambda: self._create(provider, params))

    def after_upgrade(self, profile: AgentProfile, slot_names: tuple[str, ...]) -> CallModelCache:
        """Return the call models of the agent after its connectors were changed to `profile`.

        Only `slot_names`, the variables that take messages then, are probed: the others did not help before. None are
        probed if the change adds no such variable, but only a slot that is empty by default.
        """
        found = self._after_upgrade.get(slot_names)
        if found is None:
            found = self._after_upgrade[slot_names] = CallModelCache(profile, frozenset(slot_names) or None, self)
        return found

    def _create(self, provider: Provider, params: Mapping[str, str]) -> CallModel:
        before = self._before.get(provider, params) if self._before is not None else None
        return CallModel(self.profile, provider, params, self._slot_names, before)
