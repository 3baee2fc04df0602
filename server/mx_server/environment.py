"""What the environment says in place of an option, and complaints in the words of whoever gave the value.

Used by `arguments` and `cli`. Everything behind the door speaks of options; the door alone knows which of them were
variables. The names are the upstream server's.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

_SECURITY: Final = "MODEL_EXPRESS_SECURITY_"
#: Options that may be variables; of several names the first that is set counts.
VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "--log-level": ("MODEL_EXPRESS_LOG_LEVEL",),
    "--backend": ("MX_METADATA_BACKEND",),
    "--redis-url": ("REDIS_URL",),
    "--namespace": ("MX_METADATA_NAMESPACE", "POD_NAMESPACE"),
    "--heartbeat-timeout": ("MX_HEARTBEAT_TIMEOUT_SECS",),
    "--reaper-interval": ("MX_REAPER_SCAN_INTERVAL_SECS",),
    "--gc-timeout": ("MX_GC_TIMEOUT_SECS",),
    "--security-mode": (f"{_SECURITY}MODE",),
    "--token-audiences": (f"{_SECURITY}TOKEN_AUDIENCES",),
    "--allowed-service-accounts": (f"{_SECURITY}ALLOWED_SERVICE_ACCOUNTS",),
    "--token-cache-ttl": (f"{_SECURITY}CACHE_TTL_SECS",),
}
#: Options that several variables make together (see `arguments`).
COMPOSED: Final[Mapping[str, tuple[str, ...]]] = {
    "--listen": ("MODEL_EXPRESS_SERVER_HOST", "MODEL_EXPRESS_SERVER_PORT"),
    "--redis-url": ("MX_REDIS_HOST", "REDIS_HOST", "MX_REDIS_PORT", "REDIS_PORT"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """What the server was told.

    Attributes:
        values: Option to its text, from the command line or else from the environment; without those nobody gave.
        origins: Option to the name of the variable it came from; without those of the command line.
        environment: All variables.
    """

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    environment: Mapping[str, str]

    @property
    def options(self) -> tuple[str, ...]:
        """The options that stood on the command line."""
        return tuple(option for option in self.values if option not in self.origins)

    def get(self, option: str) -> Any:
        """An option's value; None where nobody gave one."""
        return self.values.get(option)

    def words(self, complaint: str) -> str:
        """A complaint about options, with the variable's name for each option that came from one."""
        for option, variable in (self._composed() | dict(self.origins)).items():
            complaint = re.sub(rf"{option}(?![\w-])", variable, complaint)
        return complaint

    def _composed(self) -> dict[str, str]:
        named = {
            option: ", ".join(name for name in names if self.environment.get(name))
            for option, names in COMPOSED.items()
            if option not in self.values
        }
        return {option: names for option, names in named.items() if names}


def given(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Given:
    """Arguments, completed from the environment; an empty variable is none."""
    options = {f"--{name.replace('_', '-')}": value for name, value in vars(arguments).items() if value is not None}
    found = {
        option: name
        for option, names in VARIABLES.items()
        for name in reversed(names)
        if option not in options and environment.get(name)
    }
    return Given(options | {option: environment[name] for option, name in found.items()}, found, environment)
