"""Every error this server raises, in one tree, and what each looks like on the wire.

VerbatimError                    500 server_error
├── InvalidRequest               400 invalid_request_error
│   ├── UnsupportedValue         400 … code unsupported_value
│   ├── ContextTooLong           400 … code context_length_exceeded
│   ├── PreviousResponseNotFound 400 … code previous_response_not_found
│   ├── RequestTooLarge          413 … code request_too_large
│   ├── RequestTooSlow           408 … code request_timeout
│   ├── UnsupportedEncoding      415 … code unsupported_content_encoding
│   └── MethodNotAllowed         405 … code method_not_allowed
├── AuthenticationFailed         401 … code invalid_api_key
├── NotFound                     404 invalid_request_error
│   ├── ResponseNotFound
│   └── ModelNotFound            404 … code model_not_found
├── TooManyRequests              429 rate_limit_error, with Retry-After
├── ShuttingDown                 503 server_error, with Retry-After
├── NotEndedYet                  503 server_error, with Retry-After
├── EngineError                  the engine could not do it
│   ├── EngineRefused            the engine's own status, message and Retry-After
│   ├── EngineLacksModel         404 invalid_request_error … code model_not_found
│   ├── EngineFailed             502: broke off, or answered nonsense
│   │   └── EngineUnreachable    502: nobody answers at its address
│   ├── EngineStalled            504: said nothing until the deadline
│   └── CanNotContinue           502: its process died, and nothing can go on from where it was
├── LogError                     the event log refused a write
│   ├── WrongExpectedVersion     somebody else appended first
│   ├── StreamClosed             the stream has its terminal event
│   ├── Fenced                   503: this writer was declared dead
│   ├── LogUnavailable           503: the database is away
│   ├── LogDamaged               the database file is not whole
│   ├── NotOwned                 this process does not own the response
│   └── AppendRejected           the database refuses these bytes
└── SettingsError                a setting is wrong; one sentence, exit code 2
"""

from typing import Any, ClassVar


class VerbatimError(Exception):
    """Something went wrong on our side."""

    status: int = 500
    type: str = "server_error"
    code: str | None = None
    retry_after: float | None = None  # seconds
    default_param: ClassVar[str | None] = None

    def __init__(self, message: str | None = None, *, param: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.param = param or self.default_param

    @property
    def message(self) -> str:
        """The sentence for the client."""
        return str(self)

    def body(self) -> dict[str, Any]:
        """The `error` object of an HTTP answer."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


class InvalidRequest(VerbatimError):
    """The request is not valid."""

    status, type = 400, "invalid_request_error"


class UnsupportedValue(InvalidRequest):
    """This value is not supported here."""

    code = "unsupported_value"


class ContextTooLong(InvalidRequest):
    """The input is longer than the model's context window."""

    code, default_param = "context_length_exceeded", "input"


class PreviousResponseNotFound(InvalidRequest):
    """The previous response was not found."""

    code, default_param = "previous_response_not_found", "previous_response_id"


class RequestTooLarge(InvalidRequest):
    """The request body is too large."""

    status, code = 413, "request_too_large"


class RequestTooSlow(InvalidRequest):
    """The request took too long to arrive."""

    status, code = 408, "request_timeout"


class UnsupportedEncoding(InvalidRequest):
    """The request body has an encoding that this server does not read."""

    status, code = 415, "unsupported_content_encoding"


class MethodNotAllowed(InvalidRequest):
    """This path does not know the method."""

    status, code = 405, "method_not_allowed"


class AuthenticationFailed(VerbatimError):
    """This server needs an API key: send it as `Authorization: Bearer KEY`."""

    status, type, code = 401, "invalid_request_error", "invalid_api_key"


class NotFound(VerbatimError):
    """There is nothing here."""

    status, type = 404, "invalid_request_error"


class ResponseNotFound(NotFound):
    """No response with this id."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id '{response_id}' not found.")


class ModelNotFound(NotFound):
    """No model of this name is served here."""

    code, default_param = "model_not_found", "model"


class TooManyRequests(VerbatimError):
    """Too much is waiting already; try again later."""

    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"
    retry_after = 1.0


class ShuttingDown(VerbatimError):
    """This server is shutting down; try again."""

    status = 503
    retry_after = 1.0


class NotEndedYet(VerbatimError):
    """The cancellation is noted, but the response has not ended yet; ask again."""

    status = 503
    retry_after = 1.0


class EngineError(VerbatimError):
    """The engine could not do it."""

    status = 502
    code: str | None = "server_error"


class EngineRefused(EngineError):
    """The engine refused the request."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.retry_after = retry_after
        if status == 429:
            self.type, self.code = "rate_limit_error", code or "rate_limit_exceeded"
        elif status < 500:
            self.type, self.code = "invalid_request_error", code
        else:
            self.code = code or "server_error"


class EngineLacksModel(EngineError):
    """The engine does not serve this model."""

    status, type, code, default_param = 404, "invalid_request_error", "model_not_found", "model"


class EngineFailed(EngineError):
    """The engine broke off before the answer was complete."""


class EngineUnreachable(EngineFailed):
    """The engine could not be reached."""


class EngineStalled(EngineError):
    """The engine said nothing for too long."""

    status = 504


class CanNotContinue(EngineError):
    """The process that ran this response died, and the response can't be continued from where it was."""


class LogError(VerbatimError):
    """The event log refused a write."""


class WrongExpectedVersion(LogError):
    """Somebody else appended first."""


class StreamClosed(LogError):
    """The stream has its terminal event."""


class Fenced(LogError):
    """This writer was declared dead by another one; what it had not committed is gone."""

    status = 503
    retry_after = 1.0


class LogUnavailable(LogError):
    """The database can't be reached at the moment; try again."""

    status = 503
    retry_after = 1.0


class LogDamaged(LogError):
    """The database file is damaged."""


class NotOwned(LogError):
    """This process does not own the response: it never did, released it, or lost it."""


class AppendRejected(LogError):
    """The database refuses what this stream wanted to store."""


class SettingsError(VerbatimError):
    """A setting is wrong."""
