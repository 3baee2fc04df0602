"""What this package raises.

Exception
├── BackendUnavailable: the store cannot be asked; callers are told UNAVAILABLE
├── RegistrationRefused: the store cannot hold this worker; the message names the field
└── ApiError: the API server refused a request for what is in it
ValueError
└── BadSetting (in settings)
"""


class BackendUnavailable(Exception):  # noqa: N818 - a state of the backend, named as it is said
    """The store could not be asked or did not answer; the caller is told UNAVAILABLE, never an empty answer."""


class RegistrationRefused(Exception):  # noqa: N818
    """The store cannot hold this registration; the message names the field."""


class ApiError(Exception):
    """The API server refused a request for what is in it.

    Attributes:
        code: The HTTP status: 404, 409, 413, 422, ...
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
