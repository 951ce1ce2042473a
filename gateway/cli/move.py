"""``mlc-gateway move``: copy agents to another cluster, and give them a place in a route."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gateway.agents.documents import rule_for
from gateway.cli.cluster import (
    CredentialError,
    ask_credential,
    cluster_options,
    confirm,
    credentials_form,
    interrupted_by_signals,
    read_credentials,
    rules_of,
)
from gateway.cli.command import FILE, Command
from gateway.cli.memory_import import Imported, check_store, import_conversations, list_conversations
from gateway.cli.output import PlainConsole, fail, print_json, print_progress, show_rows, table_of, text_or_json
from gateway.cli.rehearse import rehearsal_options
from gateway.config.edit import EditError
from gateway.config.load import ConfigError
from gateway.config.schema import AgentRoute, AgentRule
from gateway.execute.build import check_rules
from gateway.memory.store import StoreError
from gateway.migrate.backup import DIRECTORY, BackupError, lock_directory
from gateway.migrate.connection import PASSWORD_THERE, ClusterError, ClusterOptions, Connected, connect, connect_named
from gateway.migrate.display import next_command, next_shift, request_line
from gateway.migrate.move import (
    PLANNED,
    Failure,
    Judged,
    LeftBehind,
    MoveJournal,
    Mover,
    RouteEdit,
    add_targets,
    check_counterparts,
    documents_of,
    group_names,
    judge_references,
    read_all,
    remove_targets,
)
from gateway.migrate.move_plan import CanNotMove, Copy, MovePlan, Note, Source, as_planned, notes_on_rules, plan_move
from gateway.migrate.reading import agent_ids, unified_api
from gateway.migrate.rehearse import Check, Kind, check_copy

_EXAMPLES = """\
mlc-gateway move -c config/gateway.yaml my-agent --to-cluster new --dry-run
mlc-gateway move -c config/gateway.yaml my-agent --to-cluster new --credential-file credential.json
mlc-gateway move -c config/gateway.yaml my-agent --to-cluster new --map OLD-MODEL=NEW-MODEL --map books=books-v2
mlc-gateway move -c config/gateway.yaml my-agent --to-cluster new --undo"""


class _Undone(Exception):
    """The move failed, and all that it had made was removed."""


class _Options(msgspec.Struct, frozen=True):
    """The command's own options."""

    agents: tuple[str, ...]
    to_cluster: str
    to_user: str | None
    mapped: tuple[str, ...]
    keep_ids: bool
    credential_file: Path | None
    dry_run: bool
    undo: bool
    json: bool
    backup_dir: Path
    conversations: bool

    @property
    def counterparts(self) -> dict[str, str]:
        """Old id → new id, as `--map` says.

        Raises:
            click.UsageError: one is not OLD=NEW.
        """
        pairs = [text.partition("=") for text in self.mapped]
        for old, equals, new in pairs:
            if not (old and equals and new):
                raise click.UsageError(f"--map {old}{equals}{new} is not OLD=NEW.")
        return {old: new for old, _, new in pairs}


@click.command("move", cls=Command, examples=_EXAMPLES)
@click.argument(
    "agents",
    nargs=-1,
    required=True,
    metavar="AGENT...",
    help="Ids, their beginnings, or names; write -- before what starts with a dash.",
)
@click.option("--to-cluster", required=True, metavar="NAME", help="The other cluster: a name in `clusters`.")
@click.option(
    "--to-user",
    metavar="NAME",
    help=f"Account there in place of its `auth`. The password is read from {PASSWORD_THERE}, or asked for.",
)
@click.option(
    "--map", "mapped", multiple=True, metavar="OLD=NEW", help="What an id or index is called there; repeatable."
)
@click.option("--keep-ids", is_flag=True, help="Go on although ids are named that only the old cluster has.")
@click.option("--credential-file", type=FILE, metavar="FILE", help="JSON: the credential of the connectors.")
@click.option(
    "--conversations",
    is_flag=True,
    help="Then import the account's conversations of the old cluster's memory as sessions of the agent's route.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be made, compared and written.")
@click.option("--undo", is_flag=True, help="Remove what a move of these agents has made.")
@text_or_json
@click.option(
    "--backup-dir",
    type=FILE,
    default=Path(DIRECTORY),
    metavar="DIR",
    help=f"Folder for the record of what was made (default: ./{DIRECTORY}).",
)
@cluster_options
def command(cluster: ClusterOptions, **options: Any) -> int:
    """Copy agents to another cluster, with all that they use, and add them to their routes with weight 0.

    The credential of each connector is asked for, as no cluster shows one. A move that fails is undone. It can be run
    again: what exists there already is used.
    """
    chosen = _Options(**options)
    if cluster.config is None:
        raise click.UsageError("Give -c FILE: the settings name the other cluster, and the route is written to them.")
    if chosen.undo and chosen.dry_run:
        raise click.UsageError("Give either --undo or --dry-run.")
    counterparts = chosen.counterparts
    try:
        old = connect(cluster)
        check_rules(old.settings)
        new = connect_named(old.settings, chosen.to_cluster, chosen.to_user)
        if old.identity == new.identity:
            raise ClusterError(f"clusters.{chosen.to_cluster} is the cluster of `upstream` itself.")
        if chosen.dry_run:
            return _Move(old, new, cluster.config, chosen, counterparts).show()
        with interrupted_by_signals(), lock_directory(chosen.backup_dir):
            run = _Move(old, new, cluster.config, chosen, counterparts)
            return run.undo() if chosen.undo else run.make()
    except CanNotMove as error:
        return fail("move", 1, str(error))
    except _Undone as error:
        return fail("move", 3, f"failed, and what it had made was removed: {error}")
    except LeftBehind as error:
        rest = f", or send these calls to {chosen.to_cluster} to remove the rest:" if error.calls else ""
        return fail(
            "move", 4, "\n  ".join([f"{error}; run this again to go on{rest}", *map(request_line, error.calls)])
        )
    except (ClusterError, ConfigError, BackupError, CredentialError, EditError, StoreError, OSError) as error:
        return fail("move", 2, str(error))


class _Move:
    """One run. counterparts: as `--map` says."""

    def __init__(
        self, old: Connected, new: Connected, config: Path, options: _Options, counterparts: Mapping[str, str]
    ) -> None:
        self._old, self._new = old, new
        self._config = config
        self._options = options
        self._counterparts = counterparts
        self._rehearsal = rehearsal_options(old)
        self._source, self._plan = self._read()
        if options.conversations:
            self._require_one_that_remembers()
        journal = MoveJournal.open(options.backup_dir, options.to_cluster, old, new)
        self._mover = Mover(new, journal, self._plan, counterparts, self._report)

    def _read(self) -> tuple[Source, MovePlan]:
        listing = next_command(self._old.options, "agents")
        ids = agent_ids(self._old, self._options.agents, listing=listing)
        source = read_all(self._old, ids, self._counterparts)
        names, api = group_names(self._new), unified_api(self._new, self._new.version)
        identity, version = self._old.identity, self._new.version
        return source, plan_move(source, ids, identity, version, self._counterparts, names, api)

    def _require_one_that_remembers(self) -> None:
        if len(self._plan.agents) > 1:
            reason = "The cluster does not record which agent a conversation belongs to"
            raise ClusterError(f"{reason}: with --conversations, name one agent.")
        (agent,) = self._plan.agents
        if not self._source.agents[agent].get("memory"):
            raise ClusterError(f"{agent} has no memory in its cluster: leave out --conversations.")

    def show(self) -> int:
        """Show what a move would do. Nothing is sent but reads."""
        judged = self._judge()
        missing = self._mover.look()
        checks = self._check(as_planned(self._plan, self._source), {agent: agent for agent in self._plan.agents})
        new_ids = {agent: new or PLANNED for agent, new in self._new_ids().items()}
        edit = add_targets(self._config, self._options.to_cluster, new_ids, write=False)
        found = len(list(list_conversations(self._old))) if self._options.conversations else None
        self._print(_Result("planned", judged, missing, checks, edit, found=found))
        breaks = any(one.state == "unmapped" for one in judged) and not self._options.keep_ids
        if not self._options.json:
            sys.stdout.write("Nothing was changed. Run again without --dry-run to move.\n")
        return int(breaks or _loses(checks))

    def make(self) -> int:
        """Make the copies, compare them with the old agents, and write the routes; undo all that if it fails."""
        judged = self._judge()
        self._require_consent(judged)
        if self._options.conversations:
            asyncio.run(check_store(self._old))
        missing = self._mover.look()
        credentials = self._credentials(missing)
        planned = dict.fromkeys(self._plan.agents, PLANNED)
        add_targets(self._config, self._options.to_cluster, planned, write=False)  # before anything is made
        new_ids: dict[str, str] = {}
        try:
            self._mover.make(credentials)
            new_ids = self._new_ids()
            checks = self._check(read_all(self._new, list(new_ids.values())), new_ids)
            edit = add_targets(self._config, self._options.to_cluster, new_ids, write=True)
            self._mover.finish()
        except KeyboardInterrupt:
            self._complain("interrupted. Run this again to finish it, or with --undo to remove what it has made.")
            raise
        except (*Failure, EditError, ConfigError, OSError) as error:
            self._report(f"failed: {error}; removing what was made")
            self._take_back(new_ids)
            raise _Undone(str(error)) from None
        imported = self._import(edit) if self._options.conversations else None
        self._print(_Result("moved", judged, missing, checks, edit, imported))
        return int(_loses(checks) or bool(imported and imported.failed))

    def _import(self, edit: RouteEdit) -> Imported:
        (agent,) = self._plan.agents
        self._report("importing conversations")
        return asyncio.run(import_conversations(self._old, agent, edit.routes[agent].agent))

    def _take_back(self, new_ids: Mapping[str, str]) -> None:
        """Remove what was made. new_ids: the agents with targets that may have been written.

        Raises:
            LeftBehind: a target or a document could not be removed.
        """
        left = ""
        made = {old: new for old, new in new_ids.items() if new and not self._mover.is_finished(old)}
        try:
            if made:
                remove_targets(self._config, self._options.to_cluster, made)
        except (EditError, ConfigError, OSError) as error:
            left = f"{error}; routes may still name what was made"
        self._mover.undo()
        if left:
            raise LeftBehind(left, ())

    def undo(self) -> int:
        """Take the copies out of the routes, and remove them."""
        self._mover.look()
        ids = {agent: new for agent, new in self._new_ids().items() if new}
        edit = remove_targets(self._config, self._options.to_cluster, ids)
        removed = self._mover.undo(finished=True)
        if self._options.json:
            print_json({"result": "undone", "removed": removed, "settings": _edit_json(edit)})
        else:
            if removed:
                self._report(f"Removed from {self._options.to_cluster}: {', '.join(removed)}.")
            if edit.backup is not None:
                self._report(_reload_line(edit))
            if not removed and edit.backup is None:
                self._report("Nothing to do.")
        return 0

    def _new_ids(self) -> dict[str, str]:
        """Return the id of each agent's copy; "" if there is none."""
        return {agent: self._mover.new_id("agents", agent) for agent in self._plan.agents}

    def _judge(self) -> list[Judged]:
        wrong = check_counterparts(self._counterparts, self._plan.mapped, self._new)
        if wrong:
            raise ClusterError("\n".join(wrong))
        return judge_references(self._plan.kept, self._old, self._new)

    def _check(self, there: Source, ids: Mapping[str, str]) -> dict[str, tuple[Check, ...]]:
        """Compare agents with their copies. there: what the new cluster has, or would have. ids: agent → its copy."""
        here = documents_of(self._old, self._source, rules_of(self._old))
        copies = documents_of(self._new, there, rules_of(self._old))
        for copy in ids.values():
            if copy not in there.agents:
                raise ClusterError(f"agents/{copy} can't be read on {self._options.to_cluster}")
        return {agent: check_copy((here, agent), (copies, copy), self._rehearsal) for agent, copy in ids.items()}

    def _require_consent(self, judged: Sequence[Judged]) -> None:
        """Ask before a move that leaves ids which only the old cluster has.

        Raises:
            ClusterError: the answer is no, or there is no terminal to ask on.
        """
        broken = {one.reference[:2]: one.reference.place for one in judged if one.state == "unmapped"}
        if not broken or self._options.keep_ids:
            return
        named = "; ".join(f"{place} names {kind}/{id_}" for (kind, id_), place in broken.items())
        where = f"which {self._options.to_cluster} does not have, as far as can be seen"
        if confirm(f"{named}, {where}. Move all the same?"):
            return
        raise ClusterError(
            f"{named}, {where}: say what each is called there with --map OLD=NEW, or add --keep-ids. "
            "Nothing was changed."
        )

    def _credentials(self, missing: Sequence[Copy]) -> dict[str, Mapping[str, str]]:
        needing = {copy.place: copy.credential for copy in missing if copy.credential}
        if not needing:
            return {}
        if not self._options.credential_file and not sys.stdin.isatty():
            raise CredentialError(
                "Credentials can't be asked for without a terminal: give --credential-file FILE, which must hold "
                f"{credentials_form(needing)}"
            )
        if self._options.credential_file:
            return dict(read_credentials(self._options.credential_file, needing))
        names = {copy.place: copy.name for copy in missing}

        def ask(place: str) -> Callable[[str], str]:
            label = f"{place} ({names[place]}) "
            return lambda prompt: getpass.getpass(label + prompt)

        return {place: ask_credential(wanted, ask(place)) for place, wanted in needing.items()}

    def _report(self, line: str) -> None:
        print_progress(line, sys.stderr if self._options.json else sys.stdout)

    def _complain(self, line: str) -> None:
        print_progress(f"mlc-gateway move: {line}", sys.stderr)

    def _print(self, result: _Result) -> None:
        if self._options.json:
            print_json(self._as_json(result))
        else:
            self._show(PlainConsole(), result)

    def _as_json(self, result: _Result) -> dict[str, Any]:
        missing = {copy.tag for copy in result.missing}
        return {
            "result": result.name,
            "cluster": self._options.to_cluster,
            "agents": [
                {
                    "id": agent,
                    "new_id": self._mover.new_id("agents", agent),
                    "route": result.edit.routes[agent].agent,
                    "checks": [{"request": check.request, **check.verdict.as_json()} for check in result.checks[agent]],
                }
                for agent in self._plan.agents
            ],
            "copies": [
                {
                    "kind": copy.kind,
                    "id": copy.old,
                    "name": copy.name,
                    "new_id": self._mover.new_id(copy.kind, copy.old),
                    "exists_already": copy.tag not in missing,
                }
                for copy in self._plan.copies
            ],
            "references": [
                {"kind": r.kind, "id": r.id, "place": r.place, "state": state} for r, state in result.judged
            ],
            "notes": [note._asdict() for note in self._notes()],
            "settings": _edit_json(result.edit),
            **({"conversations": result.imported.as_json(self._rules())} if result.imported else {}),
            **({"conversations": {"found": result.found}} if result.found is not None else {}),
        }

    def _notes(self) -> tuple[Note, ...]:
        return (*self._plan.notes, *notes_on_rules(self._plan, self._new_ids(), self._old.settings.agents.rules))

    def _rules(self) -> list[str]:
        """Return the rules that the settings lack for the memory of the agents and their copies to be the gateway's."""
        ids = {old: self._source.agents[old].get("name", "") for old in self._plan.agents}
        ids |= {self._mover.new_id("agents", old): name for old, name in ids.items()}
        rules = self._old.settings.agents.rules
        found = {id_: rule_for(id_, str(name), rules) for id_, name in ids.items()}
        return [f"{{agent: {id_}, memory: gateway}}" for id_, rule in found.items() if not _remembers(rule)]

    def _show(self, console: Console, result: _Result) -> None:
        missing = {copy.tag for copy in result.missing}
        rows = []
        for copy in self._plan.copies:
            new_id = self._mover.new_id(copy.kind, copy.old)
            state = "existed" if copy.tag not in missing else "" if new_id else "would be made"
            rows.append((copy.name, copy.kind, copy.old, new_id, state))
        show_rows(console, ("name", "kind", "old id", "new id", ""), rows)
        for reference, state in result.judged:
            console.print(
                Text(f"{reference.place} names {reference.kind}/{reference.id}: {_STATES[state]}"), style="dim"
            )
        for note in self._notes():
            console.print(Text(f"{note.place}: {note.text}", "yellow"))
        for agent, checks in result.checks.items():
            self._show_checks(console, agent, checks)
        if result.edit.diff:
            console.print(Text(result.edit.diff), soft_wrap=True)
        if result.edit.backup is not None:
            console.print(Text(_reload_line(result.edit)), soft_wrap=True)
        if result.name == "moved":
            for agent, route in result.edit.routes.items():
                self._show_route(console, agent, route)
        if result.found is not None:
            console.print(Text(f"Conversations of the account that would be imported: {result.found}"))
        if result.imported is not None:
            self._show_imported(console, result.imported)

    def _show_route(self, console: Console, agent: str, route: AgentRoute) -> None:
        """Show what share the copy of an agent has in its route, and the next commands."""
        cluster, new_id = self._options.to_cluster, self._mover.new_id("agents", agent)
        weights = {target.agent: target.weight for target in route.targets}
        share = f"{100 * weights[new_id] / sum(weights.values()):.4g} % of new conversations"
        console.print(Text(f"{self._named(agent)} is {new_id} on {cluster}, and gets {share}.", "bold"), soft_wrap=True)
        compare = next_command(
            self._old.options, "rehearse", route.agent, options=("--as", new_id, "--in-cluster", cluster)
        )
        console.print(Text(f"To compare recorded requests: {compare}"), soft_wrap=True)
        if not weights[new_id]:
            is_alone = sum(target.cluster == cluster for target in route.targets) == 1
            shift = next_shift(self._config, route.agent, cluster if is_alone else new_id, 5)
            console.print(Text(f"To give it 5 %: {shift}"), soft_wrap=True)

    def _named(self, agent: str) -> str:
        """Return an agent's name with its id."""
        name = self._source.agents[agent].get("name")
        return f"{name} ({agent})" if name else agent

    def _show_imported(self, console: Console, imported: Imported) -> None:
        console.print(Text(imported.line()))
        for id_, reason in imported.failed.items():
            console.print(Text(f"{id_}: {reason}", "red"))
        if rules := self._rules():
            console.print(Text("They are used once the first of agents.rules are:"))
            for rule in rules:
                console.print(Text(f"  - {rule}"), soft_wrap=True)

    def _show_checks(self, console: Console, agent: str, checks: Sequence[Check]) -> None:
        others = [check for check in checks if not check.is_same]
        refused = [check.request for check in checks if check.verdict.kind is Kind.REFUSED_BY_BOTH]
        same = len(checks) - len(others) - len(refused)
        reach = "reaches" if same == 1 else "reach"
        line = f"{self._named(agent)}: {same} of {len(checks)} kinds of requests {reach} its LLM there as here"
        line += f"; both refuse {', '.join(refused)}" if refused else ""
        console.print(Text(line, "yellow" if others else "green"), soft_wrap=True)
        if not others:
            return
        table = table_of("request", "result", "what")
        for check in others:
            verdict = check.verdict
            what = ", ".join((*verdict.differences, *verdict.codes))
            style = "red" if check.is_lost else "yellow"
            table.add_row(
                check.request, Text(verdict.kind.value, style), Text("; ".join(filter(None, (what, verdict.reason))))
            )
        console.print(table)
        if self._old.version[:2] != self._new.version[:2]:
            console.print(Text("Prompts and tools that the cluster itself adds differ between versions.", "dim"))


class _Result(msgspec.Struct, frozen=True):
    """What a run has found or made, for the report. missing: copies that did not exist. checks: by agent.

    found: conversations that would be imported.
    """

    name: str
    judged: Sequence[Judged]
    missing: Sequence[Copy]
    checks: Mapping[str, tuple[Check, ...]]
    edit: RouteEdit
    imported: Imported | None = None
    found: int | None = None


_STATES = {
    "same": "the new cluster has it, too",
    "nowhere": "not even the old cluster has it",
    "unmapped": "only the old cluster has it, as far as can be seen",
}


def _reload_line(edit: RouteEdit) -> str:
    return (
        f"The settings before are in {edit.backup}. Reload the gateways to use the new ones: POST /reload of the admin "
        "port, or SIGHUP."
    )


def _remembers(rule: AgentRule | None) -> bool:
    return rule is not None and rule.memory == "gateway"


def _loses(checks: Mapping[str, Sequence[Check]]) -> bool:
    return any(check.is_lost for one in checks.values() for check in one)


def _edit_json(edit: RouteEdit) -> dict[str, Any]:
    return {"file": str(edit.path), "diff": edit.diff, "backup": str(edit.backup) if edit.backup else None}
