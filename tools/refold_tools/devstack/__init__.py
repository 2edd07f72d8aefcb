"""A real Kafka, schema registry and Postgres on this machine, without Docker: `refold devstack`."""

from refold_tools.devstack.layout import KAFKA, POSTGRES, REGISTRY, SERVICES, Ports, home
from refold_tools.devstack.stack import Stack, Standing

__all__ = ["KAFKA", "POSTGRES", "REGISTRY", "SERVICES", "Ports", "Stack", "Standing", "home"]
