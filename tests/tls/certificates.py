"""Certificates of two authorities, as files: what both sides of the gateway are given."""

from __future__ import annotations

from pathlib import Path

import trustme


class Pki:
    """Writes authorities, certificates and keys into `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours = trustme.CA()
        self.other = trustme.CA()
        self.ca_file = self.write("ca.pem", self.ours.cert_pem.bytes())
        self.other_ca_file = self.write("other-ca.pem", self.other.cert_pem.bytes())

    def issue(self, name: str, *identities: str, by: trustme.CA | None = None) -> tuple[str, str]:
        """Certificate and key for `identities`, written over the files of that name; their paths."""
        leaf = (by or self.ours).issue_cert(*identities)
        chain = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
        return self.write(f"{name}.pem", chain), self.write(f"{name}.key", leaf.private_key_pem.bytes())

    def write(self, name: str, content: bytes) -> str:
        """Put a file in place at one stroke; its path."""
        path = self.folder / name
        beside = path.with_suffix(".new")
        beside.write_bytes(content)
        beside.rename(path)
        return str(path)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()
