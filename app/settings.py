"""Settings: read once from `VERBATIM_*` variables and `verbatim.toml`, frozen afterwards. Variables win."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from app.errors import SettingsError

PREFIX: Final = "VERBATIM_"
_EXAMPLE: Final = "http://127.0.0.1:8000/v1"
CONFIG_FILE: Final = "verbatim.toml"

Engine = Literal["embedded", "vllm", "chat", "scripted"]
Dialect = Literal["harmony", "chat"]


class SamplingDefaults(BaseModel):
    """Sampling defaults of a model: used where a request says nothing, sent explicitly, and echoed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = None
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    max_output_tokens: int | None = Field(None, ge=1)
    reasoning_effort: str | None = None


class ModelSettings(BaseModel):
    """One `[[models]]` table of `verbatim.toml`: a model, its engine, and how to speak to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    engine: Engine = "vllm"
    url: tuple[str, ...] = ()
    api_key: str | None = None
    dialect: Dialect | None = None
    script: Path | None = None
    model_path: Path | None = None
    images: bool = True
    sampling: SamplingDefaults = SamplingDefaults()

    @field_validator("url", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        urls = value.split(",") if isinstance(value, str) else value
        if not isinstance(urls, list | tuple) or not all(isinstance(url, str) for url in urls):
            raise ValueError("it must be a URL or a list of URLs")
        return tuple(dict.fromkeys(url.strip().rstrip("/") for url in urls if url.strip()))


class Settings(BaseSettings):
    """Everything that can be set. The docs' table is this class."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on")
    database_url: str = Field("sqlite:///verbatim.db", description="`sqlite:///PATH` or `postgresql://…`")
    redis_url: str | None = Field(
        None, repr=False, description="`redis://…`, `rediss://…` or `unix://…`: the live tail, beside PostgreSQL"
    )
    engine: Engine = Field("embedded", description="`embedded`, `vllm`, `chat` or `scripted`")
    engine_url: str | None = Field(
        None, description="base URL of the engine, ending in `/v1`; several of the same model: comma-separated"
    )
    engine_api_key: str | None = Field(None, repr=False, description="key sent to the engine")
    model: str | None = Field(None, description="name of the model; unset: whatever the engine lists")
    dialect: Dialect | None = Field(None, description="`harmony` or `chat`; unset: `harmony` if the name has `gpt-oss`")
    model_path: Path | None = Field(None, description="GGUF file for the embedded engine; unset: SmolLM2-135M")
    script: Path | None = Field(None, description="TOML or JSON script for the scripted engine; unset: a short hello")
    worker: bool = Field(True, description="whether `serve` also runs background responses")
    processes: int = Field(1, ge=1, le=256, description="API processes on one machine; more than one needs PostgreSQL")
    max_concurrent_runs: int = Field(256, ge=1, description="responses generated at a time by this process")
    max_queued_runs: int = Field(10_000, ge=0, description="background responses that may wait")
    durability: Literal["strict", "relaxed"] = Field("strict", description="`relaxed`: SQLite without fsync per commit")
    lease_seconds: float = Field(10.0, gt=0, description="a process without a beat for so long is held dead")
    database_wait_seconds: float = Field(
        10.0, gt=0, description="how long a request waits for a database that does not answer, until it gets a 503"
    )
    api_keys: Annotated[frozenset[str], NoDecode] = Field(
        frozenset(), repr=False, description="comma-separated; when set, every request needs one of them"
    )
    cors_origins: Annotated[frozenset[str], NoDecode] = Field(
        frozenset(), description="comma-separated origins of web pages that may call; `*`: all"
    )
    retention_days: float = Field(30.0, gt=0, description="how long finished conversations are kept")
    drain_seconds: float = Field(30.0, ge=0, description="how long running responses may go on after SIGTERM")
    keep_alive_seconds: float = Field(10.0, gt=0, description="silence after which a stream gets a comment")
    max_body_bytes: int = Field(64 * 1024 * 1024, ge=1024, description="largest request body")
    receive_seconds: float = Field(120.0, gt=0, description="how long a request may take to arrive")
    first_token_seconds: float = Field(600.0, gt=0, description="how long an engine may take to its first token")
    stall_seconds: float = Field(120.0, gt=0, description="how long an engine may be silent between tokens")
    engine_retry_seconds: float = Field(
        120.0, ge=0, description="how long an engine that breaks off in mid-turn is waited for"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe log line written")
    models: tuple[ModelSettings, ...] = Field((), description="`[[models]]` tables; only in `verbatim.toml`")

    @field_validator("api_keys", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        parts = frozenset(part.strip() for part in value.split(",") if part.strip())
        if not parts:  # a slip must not open the server to everybody
            raise ValueError("it holds nothing but commas")
        return parts

    @field_validator("models", mode="before")
    @classmethod
    def _has_two_brackets(cls, value: Any) -> Any:
        if isinstance(value, dict):
            raise ValueError("write [[models]], in two brackets, above each model")
        return value

    @field_validator("redis_url")
    @classmethod
    def _names_a_redis(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "redis://none")
        place = parts.path if parts.scheme == "unix" else parts.hostname
        if parts.scheme not in ("redis", "rediss", "unix") or not place or parts.port == 0:
            raise ValueError("it must look like redis://host:6379/0, rediss://… or unix:///path")
        return value

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **sources: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then variables, then the file."""
        toml = TomlConfigSettingsSource(settings_cls, toml_file=os.environ.get(f"{PREFIX}CONFIG", CONFIG_FILE))
        return sources["init_settings"], sources["env_settings"], toml

    def served(self) -> tuple[ModelSettings, ...]:
        """The models to serve: the tables of the file, or the one that the variables describe."""
        if self.models:
            return self.models
        return (
            ModelSettings(
                name=self.model,
                engine=self.engine,
                url=self.engine_url or (),
                api_key=self.engine_api_key,
                dialect=self.dialect,
                script=self.script,
                model_path=self.model_path,
            ),
        )


def load_settings(**given: Any) -> Settings:
    """Read the settings; `given` are command line options. Raises SettingsError with one sentence."""
    _check_names()
    options = {key: value for key, value in given.items() if value is not None}
    try:
        settings = Settings(**options)
    except ValidationError as error:
        raise SettingsError(_sentence(error.errors()[0], options)) from error
    except ValueError as error:
        raise SettingsError(f"{_file()} can't be read: {error}.") from error
    for sentence in _contradictions(settings, options):
        raise SettingsError(sentence)
    return settings


def _file() -> str:
    return os.environ.get(f"{PREFIX}CONFIG", CONFIG_FILE)


def _check_names() -> None:
    """Names that are meant and not meant: a slip in `VERBATIM_API_KEYS` would open the server to everybody."""
    config = os.environ.get(f"{PREFIX}CONFIG")
    if config and (not Path(config).exists() or Path(config).is_dir()):
        raise SettingsError(f"{PREFIX}CONFIG names a file that is not there: {config}.")
    if os.environ.get(f"{PREFIX}MODELS"):
        raise SettingsError(f"Setting {PREFIX}MODELS is none: models are tables in {_file()}.")
    known = [f"{PREFIX}{name.upper()}" for name in (*Settings.model_fields, "config")]
    for name in os.environ:
        near = 0.6 if name.endswith("KEYS") else 0.9  # Kubernetes sets names such as VERBATIM_API_PORT
        if name.startswith(PREFIX) and name not in known and (meant := get_close_matches(name, known, 1, near)):
            raise SettingsError(f"There is no setting {name}; perhaps {meant[0]} is meant.")


def _sentence(error: ErrorDetails, options: Mapping[str, Any]) -> str:
    """What is wrong, in the words of whoever wrote it."""
    where, name = error["loc"], str(error["loc"][-1])
    if error["type"] != "extra_forbidden":
        return f"{_called(where, options)} is wrong: {error['msg'].removeprefix('Value error, ')}."
    known = _TABLES[len(where)].model_fields  # variables and options are checked by their names before
    bare = name.lower().removeprefix(PREFIX.lower())  # the variables' names, in the file
    meant = get_close_matches(bare if len(where) == 1 else bare.removeprefix("engine_"), known, 1)
    perhaps = f"; perhaps '{meant[0]}' is meant" if meant else ""
    return f"There is no setting '{_path(where)}'{perhaps}. It stands in {_file()}."


def _called(where: Sequence[int | str], options: Mapping[str, Any]) -> str:
    """A setting by the name that it was given under: options win over variables, and they over the file."""
    name = str(where[0])
    if name in options:
        return f"Option --{name.replace('_', '-')}"
    if os.environ.get(f"{PREFIX}{name.upper()}"):
        return f"Setting {PREFIX}{name.upper()}"
    return f"Setting '{_path(where)}' in {_file()}"


def _path(where: Sequence[int | str]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where).removeprefix(".")


_TABLES: Final[Mapping[int, type[BaseModel]]] = {1: Settings, 3: ModelSettings, 4: SamplingDefaults}  # by their depth


def _contradictions(settings: Settings, options: Mapping[str, Any]) -> Iterator[str]:
    embedded_database = settings.database_url.startswith("sqlite")
    if settings.processes > 1 and embedded_database:
        yield f"{_called(['processes'], options)} above 1 needs PostgreSQL: set {PREFIX}DATABASE_URL."
    if settings.redis_url is not None and embedded_database:
        redis = _called(["redis_url"], options)
        yield f"{redis} goes with PostgreSQL only: unset it, or set {PREFIX}DATABASE_URL to a PostgreSQL."
    names = Counter(model.name for model in settings.models if model.name)
    yield from (f"{n} tables of 'models' in {_file()} have the name '{name}'." for name, n in names.items() if n > 1)
    yield from _engines_without_url(settings, options)
    yield from _settings_without_engine(settings, options)


def _engines_without_url(settings: Settings, options: Mapping[str, Any]) -> Iterator[str]:
    for place, model in enumerate(settings.served()):
        where = ("models", place, "url") if settings.models else ("engine_url",)
        if model.engine in ("vllm", "chat") and not model.url:
            unset = f"'{_path(where)}' in {_file()}" if settings.models else f"{PREFIX}ENGINE_URL"
            yield f"Engine '{model.engine}' needs a URL: set {unset}, for example {_EXAMPLE}."
        for url in model.url:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                yield f"{_called(where, options)} is wrong: '{url}' is no URL; write it like {_EXAMPLE}."
            elif model.api_key and "@" in urlsplit(url).netloc:
                yield f"{_called(where, options)} holds a name or password, and there is an API key too: give one."


def _settings_without_engine(settings: Settings, options: Mapping[str, Any]) -> Iterator[str]:
    """Whoever names an engine's URL, or a script, and forgets the engine, would be served by the built-in model."""
    for place, model in enumerate(settings.served()):
        within, engine = (("models", place), "'engine'") if settings.models else ((), f"{PREFIX}ENGINE")
        if model.url and model.engine == "embedded":
            url = _called((*within, "url" if within else "engine_url"), options)
            yield f"{url} is not for engine 'embedded': set {engine} to 'vllm' or 'chat'."
        if model.script and model.engine != "scripted":
            script = _called((*within, "script"), options)
            yield f"{script} is not for engine '{model.engine}': set {engine} to 'scripted'."
