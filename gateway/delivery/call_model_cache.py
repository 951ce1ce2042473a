"""The call models of one agent, kept for later requests."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.delivery.call_model import CallModel
from gateway.delivery.slots import Slot
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
        slots: tuple[Slot, ...] | None = None,
        before: CallModelCache | None = None,
    ) -> None:
        """Create an empty cache. slots, before: see `CallModel`."""
        self.profile = profile
        self._slots = slots
        self._before = before
        self._call_models: Recent[CallModel] = Recent(self.MAX_ENTRIES)
        self._after_upgrade: dict[tuple[Slot, ...], CallModelCache] = {}

    def get(self, provider: Provider, params: Mapping[str, str], known: tuple[Slot, ...] = ()) -> CallModel:
        """Return the agent's call model for these parameters. known: see `CallModel`.

        Raises:
            RenderFailure: the agent calls no LLM.
        """
        if sum(map(len, params.values())) > self.MAX_LENGTH:
            return self._create(provider, params, known)
        key = (provider.name, tuple(sorted(params.items())))
        return self._call_models.get(key, lambda: self._create(provider, params, known))

    def after_upgrade(self, profile: AgentProfile, slots: tuple[Slot, ...]) -> CallModelCache:
        """Return the call models of the agent after its connectors were changed to `profile`.

        slots: the variables that take messages then; the others did not help before. () if the change adds no such
        variable, but only a slot that is empty by default.
        """
        found = self._after_upgrade.get(slots)
        if found is None:
            found = self._after_upgrade[slots] = CallModelCache(profile, slots or None, self)
        return found

    def _create(self, provider: Provider, params: Mapping[str, str], known: tuple[Slot, ...]) -> CallModel:
        before = self._before.get(provider, params, known) if self._before is not None else None
        return CallModel(self.profile, provider, params, known, self._slots, before)
