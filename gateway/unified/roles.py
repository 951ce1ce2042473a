"""The meaning of a client's role: one rule for the question, the validation and every provider.

Roles are compared case-insensitively, in the client's messages and in the operator's table (`agents.roles`). White
space around a role is part of its name. The operator's table is looked up first and may give a standard role another
meaning. A role in neither table is unknown: its turn counts as the user's, and the role's name is inserted before the
text. Every role that is sent as another one is reported (`ROLE_MAPPED`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from gateway.notices import Notice
from gateway.unified.model import Message

StandardRole = Literal["system", "developer", "user", "assistant", "tool"]
STANDARD_ROLES: tuple[StandardRole, ...] = get_args(StandardRole)

_STANDARD: Mapping[str, StandardRole] = {role: role for role in STANDARD_ROLES}
NO_ROLES: Mapping[str, str] = {}
"""A table of the operator's without an entry."""


@dataclass(frozen=True, slots=True)
class RoleMeaning:
    """The meaning of a role.

    name: the role as the client wrote it. standard: the role it is sent as. is_known: False for a role that is
    neither standard nor in the operator's table.
    """

    name: str
    standard: StandardRole
    is_known: bool = True

    @property
    def is_system(self) -> bool:
        """True if turns of this role are system text."""
        return self.standard in ("system", "developer")

    @property
    def is_renamed(self) -> bool:
        """True if the turn is sent with another role than the client's."""
        return not self.is_known or self.name.casefold() != self.standard

    @property
    def prefix(self) -> str:
        """The text that names an unknown role (``[reviewer]:``); "" for a known one."""
        return "" if self.is_known else f"[{self.name}]:"

    def notices(self, place: str) -> tuple[Notice, ...]:
        """Return the notices for a turn of this role at `place`."""
        if not self.is_renamed:
            return ()
        sent = self.standard if self.is_known else "user, its name before the text"
        return (Notice("ROLE_MAPPED", f"The role {self.name!r} is sent as {sent}", place),)


def meaning(name: str, table: Mapping[str, str] = NO_ROLES) -> RoleMeaning:
    """Return the meaning of the role `name`.

    Args:
        name: the role as the client wrote it.
        table: client role → standard role, as the operator mapped them (`MappingOptions.roles`).
    """
    folded = name.casefold()
    mapped = next((to for role, to in table.items() if role.casefold() == folded), folded)
    standard = _STANDARD.get(mapped.casefold())
    return RoleMeaning(name, "user", is_known=False) if standard is None else RoleMeaning(name, standard)


def meaning_of(message: Message, table: Mapping[str, str] = NO_ROLES) -> RoleMeaning:
    """Return the meaning of a message's role (`meaning`)."""
    return meaning(message.role, table)
