"""The models that the node has loaded. What their documents say of it is another matter.

Recorded on 2.19.0 (30_deploy_states, 31_deploy_states_remedies, 33_races_under_traffic): the first use of a model loads
it with its connector as it is then, and its document goes on saying REGISTERED or UNDEPLOYED. A loaded model does not
notice changes of its connector, unless its document says DEPLOYED and the model itself is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from gateway.simulator.errors import Json
from gateway.simulator.store import NODE


@dataclass
class Loaded:
    """A loaded model, with its connector as it was read. since: the time from which the node lists it."""

    model: Json
    connector: Json
    since: float
    calls: int = 0


@dataclass
class _State:
    """What a model's document says. deploys_at: the time from which it says DEPLOYED."""

    deploys_at: float | None = None
    undeployed: bool = False
    counted: bool = False
    """The document has the number of nodes that run it, which is zero."""


class Deployments:
    """The states of all models, and those that are loaded.

    Loading takes `load_seconds`. Until it is over the node does not list the model, so it can't be undeployed.
    read: returns a model and its connector as stored; None if one of them is missing.
    """

    def __init__(self, read: Callable[[str], tuple[Json, Json] | None]) -> None:
        self.load_seconds = 0.0
        self._read = read
        self._states: dict[str, _State] = {}
        self._loaded: dict[str, Loaded] = {}

    def add(self, model_id: str, deploys_at: float | None) -> None:
        """Add a new model. deploys_at: the time from which it is deployed, None for never."""
        self._states[model_id] = _State(deploys_at)

    def forget(self, model_id: str) -> None:
        """Forget the state of a deleted model. If it is loaded, it stays loaded."""
        self._states.pop(model_id, None)

    def is_deployed(self, model_id: str, now: float) -> bool:
        """Return True if the model's document says DEPLOYED."""
        due = self._state(model_id).deploys_at
        if due is None or due > now:
            return False
        if model_id not in self._loaded:
            self._load(model_id, due)
        return True

    def loaded(self, now: float) -> dict[str, Loaded]:
        """Return the models that the node lists as loaded."""
        for model_id in self._states:
            self.is_deployed(model_id, now)
        return {model_id: one for model_id, one in self._loaded.items() if one.since <= now}

    def use(self, model_id: str, now: float, auto_deploy: bool) -> Loaded | None:
        """Return the model for a call, loaded if need be; None if it is not loaded and can't be."""
        self.is_deployed(model_id, now)
        if model_id not in self._loaded and auto_deploy:
            self._load(model_id, now + self.load_seconds)
        found = self._loaded.get(model_id)
        if found is not None:
            found.calls += 1
        return found

    def deploy(self, model_id: str, now: float) -> None:
        """Deploy a model. One that is loaded is not loaded again."""
        self._states[model_id] = _State(now)
        self.is_deployed(model_id, now)

    def undeploy(self, model_id: str, now: float) -> bool:
        """Unload a model. Return False if the node does not list it."""
        if model_id not in self.loaded(now):
            return False
        del self._loaded[model_id]
        state = self._state(model_id)
        deployed = state.deploys_at is not None
        self._states[model_id] = _State(undeployed=deployed or state.undeployed, counted=True)
        return True

    def changed(self, model_id: str, now: float) -> None:
        """Apply a change of the model's document: one that says DEPLOYED is loaded again."""
        if self.is_deployed(model_id, now):
            self._load(model_id, now)

    def shown(self, model_id: str, now: float, deployed_time: int) -> Json:
        """Return the members of the model's document that are about its state."""
        state, deployed = self._state(model_id), self.is_deployed(model_id, now)
        workers = {"planning_worker_node_count": int(deployed), "current_worker_node_count": int(deployed)}
        if not deployed and not state.undeployed:
            return {"model_state": "REGISTERED", **(workers if state.counted else {})}
        shown: Json = {
            "model_state": "DEPLOYED" if deployed else "UNDEPLOYED",
            "last_deployed_time": deployed_time,
            "auto_redeploy_retry_times": 0,
            **workers,
            "deploy_to_all_nodes": True,
        }
        return {**shown, "planning_worker_nodes": [NODE]} if deployed else shown

    def profile(self, model_id: str, now: float) -> Json:
        """Return the answer of ``profile/models/{id}``: empty unless the model is loaded."""
        found = self.loaded(now).get(model_id)
        if found is None:
            return {}
        shown: Json = {
            "model_state": "DEPLOYED",
            "predictor": f"org.opensearch.ml.engine.algorithms.remote.RemoteModel@{id(found):x}",
            "target_worker_nodes": [NODE],
        }
        if self.is_deployed(model_id, now):
            shown["worker_nodes"] = [NODE]
        if found.calls:
            shown |= {"model_inference_stats": _stats(found.calls), "predict_request_stats": _stats(found.calls)}
        return {"nodes": {NODE: {"models": {model_id: shown}}}}

    def _state(self, model_id: str) -> _State:
        return self._states.get(model_id) or _State()

    def _load(self, model_id: str, since: float) -> None:
        documents = self._read(model_id)
        if documents is not None:
            model, connector = deepcopy(documents)
            calls = self._loaded[model_id].calls if model_id in self._loaded else 0
            self._loaded[model_id] = Loaded(model, connector, since, calls)


def _stats(count: int) -> Mapping[str, Any]:
    return {"count": count, **dict.fromkeys(("max", "min", "average", "p50", "p90", "p99"), 0.0)}
