"""Exports a session in the layout of Strands' `FileSessionManager`."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from gateway.memory.copying import copy_session
from gateway.memory.model import Session
from gateway.memory.store import Store
from gateway.memory.stores.strands_files import StrandsFilesStore


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


async def zip_session(store: Store, session: Session) -> bytes:
    """Return a ZIP file with what `export_session` writes.

    Raises:
        StoreError: as `export_session`.
    """
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="mlc-gateway-export-"))
    try:
        await export_session(store, session, folder / "sessions")
        return await asyncio.to_thread(_zip, folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _zip(folder: Path) -> bytes:
    return Path(shutil.make_archive(str(folder / "export"), "zip", folder / "sessions")).read_bytes()
