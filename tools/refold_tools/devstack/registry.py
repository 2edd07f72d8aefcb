"""The schema registry, Apicurio: how it is started, and when it is ready.

Its store is an H2 database in its folder: ids stand in logs, so they have to live as long.
"""

import http.client
from pathlib import Path
from typing import NamedTuple

from refold_tools.devstack.daemons import Launch
from refold_tools.devstack.java import Java
from refold_tools.devstack.layout import HOST, REGISTRY_PATH

ANSWER_WITHIN_S = 5.0
DATABASE = "registry-db"
"""Written at each commit: an id that was given out must be there after a crash."""


class Registry(NamedTuple):
    """The registry: a Java, the files of the application, where it runs and listens."""

    java: Java
    files: Path
    folder: Path
    port: int

    def make(self, log: Path) -> None:
        """It needs nothing."""

    def launch(self) -> Launch:
        """Listening on one port that others know, on this machine only."""
        options = (
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # it is ready a third sooner, and never under load here
            f"-Dquarkus.http.host={HOST}",
            f"-Dquarkus.http.port={self.port}",
            # Health and metrics: nobody asks for them, and 9000 on all addresses may be taken.
            f"-Dquarkus.management.host={HOST}",
            "-Dquarkus.management.port=0",
            f"-Dapicurio.datasource.url=jdbc:h2:file:{self.folder / DATABASE};WRITE_DELAY=0",
        )
        application = str(self.files / "quarkus-run.jar")
        return Launch([str(self.java.path), *options, "-jar", application], self.folder)


def ready(port: int) -> bool:
    """Whether the Confluent API answers."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_WITHIN_S)
    try:
        connection.request("GET", f"{REGISTRY_PATH}/subjects")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
