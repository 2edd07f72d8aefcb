"""How this process may reach a Kafka cluster: security settings, for both client libraries."""

import logging
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.errors import (
    BrokerResponseError,
    KafkaConnectionError,
    KafkaError,
    KafkaStorageError,
)

# Its own lines about a lost connection go where the program logs to, not on the terminal's stderr
# beside the sentence that refold says.
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Access:
    """Security protocol, SASL and TLS, as `REFOLD_KAFKA_*` say. `password` is never shown."""

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    cafile: Path | None = None

    def of_aiokafka(self, servers: str) -> dict[str, Any]:
        """Arguments of an aiokafka client. Raises OSError, ssl.SSLError for a bad `cafile`."""
        settings: dict[str, Any] = {
            "bootstrap_servers": servers,
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.startswith("SASL"):
            settings["sasl_mechanism"] = self.sasl_mechanism
            settings["sasl_plain_username"] = self.username
            settings["sasl_plain_password"] = self.password
        if self.security_protocol.endswith("SSL"):
            settings["ssl_context"] = ssl.create_default_context(cafile=self.cafile)
        return settings

    def of_librdkafka(self, servers: str) -> dict[str, Any]:
        """The same for librdkafka."""
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "security.protocol": self.security_protocol,
        }
        if self.security_protocol.startswith("SASL"):
            settings["sasl.mechanism"] = self.sasl_mechanism
            settings["sasl.username"] = self.username or ""
            settings["sasl.password"] = self.password or ""
        if self.cafile is not None and self.security_protocol.endswith("SSL"):
            settings["ssl.ca.location"] = str(self.cafile)
        return settings


def access_from_settings() -> Access:
    """What the environment says. Raises SettingInvalid naming the variable."""
    if not any(name.upper().startswith("REFOLD_KAFKA_") for name in os.environ):
        return Access()  # a tenth of a second for a command line that needs none of it
    from refold.settings import load_settings

    settings = load_settings()
    password = settings.kafka_password
    return Access(
        settings.kafka_security_protocol,
        settings.kafka_sasl_mechanism,
        settings.kafka_username,
        None if password is None else password.get_secret_value(),
        settings.kafka_cafile,
    )


async def connect(settings: dict[str, Any]) -> AIOKafkaClient:
    """A client that has reached a broker. Raises what the connection to the last one ended with."""
    client = AIOKafkaClient(**settings)
    try:
        await client.bootstrap()
    except KafkaConnectionError:  # its reasons went to the logger: ask once more, for the answer
        await client.close()
        named = {name: value for name, value in settings.items() if name != "bootstrap_servers"}
        for host, port, _ in client.hosts[-1:]:
            (await create_conn(host, port, **named)).close()
        raise
    except BaseException:
        await client.close()
        raise
    return client


def told(error: BaseException) -> str:
    """What a client's error says, in a line, with its name: many have nothing but a name."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    name = type(error).__name__.removesuffix("Error")
    if isinstance(error, KafkaStorageError):  # all that a broker says of ENOSPC, EROFS and EIO
        return f"{name}: a broker cannot use its disk (full, read-only or broken; its log says why)"
    if isinstance(error, OSError):
        return error.strerror or str(error) or name
    text = " ".join(str(error).split())
    if isinstance(error, KafkaError):
        if isinstance(error, BrokerResponseError):
            text = text.removeprefix(f"[Error {error.errno}] ")
        text = text.removeprefix(type(error).__name__).lstrip(": ")
    return f"{name}: {text}" if text else name
