"""`refold live` under kills and a freeze: at the end it shows what a fresh fold shows."""

import asyncio
import time
from pathlib import Path

from chaos.play import Figures, Tell
from chaos.stage import Cluster
from support.live_play import LivePlay, killed_and_scaled
from support.otlp import collector


async def live(
    cluster: Cluster, folder: Path, *, seed: int, kills: int, length: int, tell: Tell
) -> Figures:
    """SIGKILLs while records come; of two processes one is frozen for longer than its session."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    begun = time.monotonic()
    with collector() as otlp:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp.endpoint}
        play = LivePlay(cluster.servers, folder, seed=seed, partitions=4, environment=environment)
        try:
            told = await killed_and_scaled(play, kills=kills, length=length, freeze=True, tell=tell)
        finally:
            await play.close()
        missing = told["spans"] - otlp.ids()
        assert not missing, f"{len(missing)} of {len(told['spans'])} spans were never sent"
        assert otlp.ids() == told["spans"], "spans that the log does not have"
    return {
        "kills": {"SIGKILL": kills, "SIGSTOP": 1},
        "records": told["records"],
        "windows": told["windows"],
        "spans": len(told["spans"]),
        "spans sent twice": len(otlp.spans) - len(otlp.ids()),
        "seconds": round(time.monotonic() - begun),
    }
