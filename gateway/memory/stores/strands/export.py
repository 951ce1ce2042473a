"""Exports a session in the layout of Strands' `FileSessionManager`."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path

from gateway.memory.copying import copy_session
from gateway.memory.model import Session
from gateway.memory.store import Store
from gateway.memory.stores.strands.files import StrandsFilesStore

_PIECE = 64 * 1024


async def export_session(store: Store, session: Session, directory: Path) -> None:
    """Write the session below `directory`. Messages that are there from an earlier export stay.

    Raises:
        StoreError: the session can't be read, or not be written in this layout.
    """
    target = StrandsFilesStore(directory)
    await target.start()
    try:
        await copy_session(store, target, session)
    finally:
        await target.close()


async def zip_session(store: Store, session: Session) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a ZIP file with what `export_session` writes.

    Raises:
        StoreError: as `export_session`, before the first piece.
    """
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="mlc-gateway-export-"))
    try:
        await export_session(store, session, folder / "sessions")
        archive = folder / "export.zip"
        await asyncio.to_thread(_zip, folder / "sessions", archive)
        with archive.open("rb") as file:
            while piece := await asyncio.to_thread(file.read, _PIECE):
                yield piece
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _zip(directory: Path, archive: Path) -> None:
    """Write what is in `directory` to a ZIP file, without the store's own directories: their names begin with a dot."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory)
            if not name.parts[0].startswith("."):
                file.write(path, name)
