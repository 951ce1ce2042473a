"""Changes a standalone connector whose models are always in use.

The cluster refuses to change a connector that a loaded model uses, and requests load it as fast as it is undeployed.
What a model uses is found by a search of its document. So the documents name another connector while the real one is
changed, and the loaded models go on as they are (docs/evidence/facts.md, "Deploy states and connector changes").

The other connector is made for this, with no valid credential. If a model is loaded again at the wrong moment, as when
a node restarts, the LLM refuses its calls; it never gets a request that is not meant for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.agents.lookup import document_path, read_switch
from gateway.migrate.backup import UNKNOWN, Journal
from gateway.migrate.connection import Cluster
from gateway.migrate.reading import Missing, read_part
from gateway.migrate.steps import Call, attach, create_connector, credential_names, deploy, undeploy
from gateway.migrate.writer import InUse, StepFailed, Writer

SETTLE = 1.0
"""Seconds after which a load that began before a write is over."""


def is_loaded(cluster: Cluster, model: str) -> bool:
    """Return True if a node has the model loaded. An account that may not read profiles never sees one."""
    status, answer = cluster.call("GET", document_path("profile/models", model))
    nodes = answer.get("nodes") if status == 200 else None
    return bool(nodes)


def unload(writer: Writer, models: Sequence[str]) -> None:
    """Undeploy models. The next request that uses one loads it.

    Raises:
        StepFailed: the cluster refuses it.
    """
    writer.insist(undeploy(models))


def reload(writer: Writer, models: Sequence[str]) -> None:
    """Let models be loaded again, with their connectors as they are now.

    Raises:
        StepFailed: the cluster refuses it.
    """
    try:
        unload(writer, models)
        # A load that began before the write may have ended after the first call, with the old connector.
        writer.clock.sleep(SETTLE)
    finally:  # also if the user interrupts it
        unload(writer, models)


def deploy_again(writer: Writer, models: Iterable[str]) -> None:
    """Deploy the models that are not deployed: undeploying changed their state. A loaded one is not loaded again.

    Raises:
        StepFailed: the cluster refuses it.
        ClusterError: a model can't be read.
    """
    for model in models:
        place = f"models/{model}/deployed"
        try:
            if read_part(writer.cluster, place):
                continue
        except Missing:
            continue  # somebody deleted it
        call = deploy(model)
        writer.insist(call)
        if not writer.reached(place, (True,), writer.patience):
            raise StepFailed(f"{call.method} {call.path}: the model is still not deployed")


def is_automatic(cluster: Cluster) -> bool:
    """Return False if the cluster does not load models on their first use, so that requests would get no answer."""
    status, answer = cluster.call("GET", _SETTING_PATH)
    if status != 200:
        return True
    return read_switch(answer, _SETTING) is not False


_SETTING = "plugins.ml_commons.model_auto_deploy.enable"
_SETTING_PATH = f"/_cluster/settings?include_defaults=true&filter_path=*.{_SETTING}"


class Parking:
    """Lets the models of one journal name another connector for a while."""

    def __init__(self, writer: Writer, journal: Journal) -> None:
        self._writer = writer
        self._journal = journal
        self._record = journal.record

    def put(self, call: Call, place: str, goals: tuple[object, ...]) -> None:
        """Change the connector at `place` while the documents of its loaded models name another one.

        The models must not be deployed by their documents, otherwise they load the other connector at once.

        Raises:
            StepFailed: the cluster refuses a call, or time is up.
            ClusterError: a document can't be read.
        """
        end = self._writer.clock.monotonic() + self._writer.patience
        try:
            self._open(place)
            while True:
                self._park(place)
                try:
                    return self._writer.put(call, place, goals)
                except InUse:
                    if self._writer.clock.monotonic() >= end:
                        raise
                self._writer.pause()
        finally:
            self.close()

    def close(self) -> None:
        """Let the models name their own connector again, and remove the other one. It may be called at any time.

        Raises:
            StepFailed: the cluster refuses a call.
            ClusterError: a document can't be read.
        """
        parked = self._record.parked
        if not parked:
            return
        others = self._writer.find(self._record.tag) if parked == UNKNOWN else [parked]
        own = self._record.key.partition("/")[2]
        for model in self._record.models:
            named = f"models/{model}/connector_id"
            if read_part(self._writer.cluster, named) in others:
                self._writer.put(attach(model, own), named, (own,))
        for other in others:
            why = self._writer.remove(other)
            if why:
                self._journal.note_unremoved(other, why)
        self._journal.park("")

    def remaining(self) -> list[Call]:
        """Return the calls that `close` would send. They do not remove a connector whose id is unknown."""
        parked = self._record.parked
        if not parked:
            return []
        calls = [attach(model, self._record.key.partition("/")[2]) for model in self._record.models]
        return calls if parked == UNKNOWN else [*calls, Call("DELETE", document_path("connectors", parked))]

    def _open(self, place: str) -> None:
        document = read_part(self._writer.cluster, place)
        self._journal.park(UNKNOWN)
        credential = dict.fromkeys(credential_names(document), "none")
        call = create_connector(document, self._record.tag)
        self._journal.park(self._writer.create(call, credential, self._record.tag))

    def _park(self, place: str) -> None:
        """Park every model that is loaded. One that is not would be loaded with the other connector."""
        own = place.partition("/")[2]
        for model in self._record.models:
            named = f"models/{model}/connector_id"
            if read_part(self._writer.cluster, named) == own and is_loaded(self._writer.cluster, model):
                self._writer.put(attach(model, self._record.parked), named, (self._record.parked,))
