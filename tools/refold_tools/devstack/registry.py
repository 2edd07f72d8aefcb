"""The schema registry, Apicurio: how it is started, and when it is ready.

Its store is in memory: schemas are registered again by those who need them, and ids start at 1.
"""

import http.client
from pathlib import Path

from refold_tools.devstack.java import Java
from refold_tools.devstack.layout import HOST, REGISTRY_PATH

ANSWER_WITHIN_S = 5.0


def command(java: Java, files: Path, port: int) -> list[str]:
    """What starts the registry."""
    return [
        str(java.path),
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # it is ready a third sooner, and never under load here
        f"-Dquarkus.http.host={HOST}",
        f"-Dquarkus.http.port={port}",
        # Health and metrics: nobody asks for them here, and 9000 on all addresses may be taken.
        f"-Dquarkus.management.host={HOST}",
        "-Dquarkus.management.port=0",
        "-jar",
        str(files / "quarkus-run.jar"),
    ]


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
