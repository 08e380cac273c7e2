"""A browser that looks at a page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def browse(page: Path, width: int, profile: Path, dark: bool = False, patience: int = 0) -> tuple[str, str]:
    """The page's DOM after loading, and the browser's log; `dark` is what a reader prefers.

    patience: milliseconds of the page's clock that its own work may take after loading.
    """
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    flags += " --disable-component-update --disable-quic --enable-logging=stderr --v=0 --dump-dom"
    flags += " --blink-settings=preferredColorScheme=0" if dark else ""
    flags += f" --virtual-time-budget={patience}" if patience else ""
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={profile}", f"--window-size={width},900"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr
