"""The exit codes of all commands. Every command's help and the documentation are made from this table."""

from __future__ import annotations

from typing import NamedTuple


class ExitCode(NamedTuple):
    """What an exit code means. commands: those that use it so; none: all of them."""

    code: int
    commands: tuple[str, ...]
    meaning: str


EXIT_CODES = (
    ExitCode(0, (), "Success."),
    ExitCode(1, ("serve",), "A port can't be opened."),
    ExitCode(1, ("demo",), "Part of an input was lost, or the demo can't start."),
    ExitCode(1, ("rewrite",), "The gateway would refuse the request."),
    ExitCode(1, ("agents",), "An agent does not accept a kind of input that --require names."),
    ExitCode(1, ("upgrade",), "A connector that limits its agents can't be upgraded."),
    ExitCode(1, ("promote",), "The agent can't be promoted."),
    ExitCode(1, ("cleanup",), "Something can't be removed."),
    ExitCode(
        1,
        tuple(f"memory {name}" for name in ("show", "export", "delete", "pin", "unpin")),
        "There is no such session, or several owners have one.",
    ),
    ExitCode(
        1,
        ("memory export", "memory copy", "memory import-cluster", "memory import-agentcore"),
        "A session can't be exported, copied or imported.",
    ),
    ExitCode(1, ("replay",), "A request got no response, or with --compare, a response differs."),
    ExitCode(2, (), "An option, a setting or a file is wrong, or the cluster or the store can't be used."),
    ExitCode(3, ("agents",), "An agent can't be read, and --require was not given."),
    ExitCode(3, ("upgrade", "promote"), "A change failed and was undone."),
    ExitCode(4, ("upgrade", "rollback", "promote"), "A change could not be undone."),
    ExitCode(130, (), "It was interrupted with Ctrl-C."),
)


def exit_codes(command: str | None) -> list[ExitCode]:
    """Return the rows that apply to one command."""
    return [row for row in EXIT_CODES if not row.commands or command in row.commands]
