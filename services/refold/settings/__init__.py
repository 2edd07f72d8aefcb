"""The environment: what `REFOLD_*` variables say, checked by pydantic when all of it is wanted.

`log_url` answers the one question that every command asks without loading pydantic; it and
`load_settings` read the same variable in the same way.
"""

import os
from typing import TYPE_CHECKING

from refold_schemas.errors.cli import SettingInvalid
from refold_schemas.errors.tables import DatabaseUnset

if TYPE_CHECKING:
    from refold.settings.environment import Settings

LOG_DEFAULT = "sqlite:///.refold/log.db"
"""The log of a project on one machine; its directory is made with it."""
TIME_ZONE_DEFAULT = "UTC"

__all__ = [
    "LOG_DEFAULT",
    "TIME_ZONE_DEFAULT",
    "database_url",
    "load_settings",
    "log_url",
    "time_zone",
]


def log_url(given: str | None = None) -> str:
    """The log's URL: what was given, else `REFOLD_LOG`, else the default."""
    return given or os.environ.get("REFOLD_LOG", "").strip() or LOG_DEFAULT


def database_url(given: str | None = None) -> str:
    """The database's URL: what was given, else `REFOLD_DATABASE_URL`. Raises DatabaseUnset."""
    url = given or os.environ.get("REFOLD_DATABASE_URL", "").strip()
    if not url:
        raise DatabaseUnset
    return url


def time_zone(given: str | None = None, *, default: str = TIME_ZONE_DEFAULT) -> str:
    """The IANA name of the zone that people read: as given, `REFOLD_TIME_ZONE`, else `default`.

    Where there is an app, its zone is the default.
    """
    return given or os.environ.get("REFOLD_TIME_ZONE", "").strip() or default


def load_settings() -> "Settings":
    """All settings, checked. Raises SettingInvalid naming the variable."""
    from pydantic import ValidationError

    from refold.settings.environment import Settings

    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        variable = "REFOLD_" + "_".join(str(part) for part in first["loc"]).upper()
        raise SettingInvalid(variable, first["msg"].removeprefix("Value error, ")) from error
