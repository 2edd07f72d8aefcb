"""Debian's Chromium for the tests of the page: found, else installed; driven through playwright."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

VARIABLE = "CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL_WITHIN_S = 600.0
LOCK = Path(tempfile.gettempdir(), "refold-chromium-install.lock")
NOT_NEEDED = ("IsolateOrigins", "site-per-process", "Translate", "OptimizationHints", "MediaRouter")
"""Features that cost time and look at nothing that the page does: one site is all there is."""
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--disable-extensions", "--disable-default-apps"),
    *("--disable-software-rasterizer", "--renderer-process-limit=1"),
    f"--disable-features={','.join(NOT_NEEDED)}",
    # No name is ever looked up: whatever leaves this machine fails, and a test hears of it.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


def chromium() -> Path:
    """The browser's program: that of `CHROMIUM`, of PATH, else installed by apt, as root."""
    found = _found()
    if found is None:
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one test process installs, the others wait for it
            found = _found() or _install()
    return found


def _found() -> Path | None:
    if named := os.environ.get(VARIABLE, "").strip():
        if not os.access(named, os.X_OK):
            raise AssertionError(f"{VARIABLE}={named} is no program that can be started")
        return Path(named)
    for name in NAMES:
        if place := shutil.which(name):
            return Path(place)
    return None


def _install() -> Path:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise AssertionError(
            "the tests of the page need a Chromium, and there is none on PATH. Next: install one "
            f"(Debian: apt-get install chromium), or name its program in {VARIABLE}"
        )
    install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    said = ""
    for command in (install, ["apt-get", "update"], install):  # its lists may be missing or old
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_WITHIN_S,
            check=False,
        )
        said = (done.stderr.strip() or done.stdout.strip())[-600:]
        if command is install and done.returncode == 0:
            break
    found = _found()
    if found is None:
        raise AssertionError(f"`{' '.join(install)}` brought no Chromium: {said}")
    return found


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser with a profile of its own, which is removed with it."""
    with sync_playwright() as driver:
        one = driver.chromium.launch(
            executable_path=str(chromium()), headless=True, args=list(QUIET)
        )
        try:
            yield one
        finally:
            one.close()
