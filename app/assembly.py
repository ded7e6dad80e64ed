"""From model settings to sources: which engine, which dialect, which defaults."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from app.engines.deadlines import Deadlines
from app.engines.llama import LlamaEngine
from app.engines.pool import ChatPool, Members, TokenPool
from app.engines.scripted import ScriptedChat, ScriptedTokens
from app.engines.scripts import DEFAULT, load_script
from app.errors import SettingsError
from app.models.chat import ChatModel
from app.models.harmony import HarmonyModel
from app.models.harmony_rendering import HarmonyRenderer
from app.models.patience import Patience
from app.models.vocabulary import Vocabulary
from app.ports import ChatEngine, Model, TokenEngine
from app.runtime.registry import Source
from app.settings import Dialect, ModelSettings, Settings

if TYPE_CHECKING:
    from app.engines.chat import ChatCompletions

UNNAMED: Final = {"embedded": "smollm2-135m-instruct", "scripted": "scripted"}  # model names of engines that list none
_HARMONY_NAMES: Final = ("gpt-oss", "gpt_oss")
# 135 million parameters ramble when they are left to chance, and then on to the end of the context.
_EMBEDDED_SAMPLING: Final = {"temperature": 0.0, "max_output_tokens": 1024}


class Assembly:
    """Builds the source of each configured model. The harmony vocabulary is shared by all."""

    def __init__(self, settings: Settings) -> None:
        self._deadlines = Deadlines(first_token=settings.first_token_seconds, stall=settings.stall_seconds)
        self._patience = Patience(seconds=settings.engine_retry_seconds)
        self._vocabulary = Vocabulary()
        self._renderer = HarmonyRenderer(self._vocabulary)
        self._engines: list[TokenEngine | ChatEngine] = []

    def source(self, model: ModelSettings) -> Source:
        """The source of one configured model. Raises SettingsError for what can't be."""
        match model.engine:
            case "embedded":
                return self._embedded(model)
            case "scripted":
                return self._scripted(model)
            case "vllm":
                return self._vllm(model)
            case "chat":
                return self._chat(model)

    async def close(self) -> None:
        """Close all engines."""
        for engine in self._engines:
            await engine.close()

    def _embedded(self, model: ModelSettings) -> Source:
        _refuse_harmony(model)
        name = model.name or UNNAMED["embedded"]
        engine = LlamaEngine(model.model_path, name=name)
        self._engines.append(engine)
        sampling = _EMBEDDED_SAMPLING | _defaults(model)
        return Source(engine, lambda name: ChatModel(name, engine, images=False), (name,), sampling)

    def _scripted(self, model: ModelSettings) -> Source:
        outputs = load_script(model.script) if model.script else [DEFAULT]
        name = model.name or UNNAMED["scripted"]
        if _dialect(model, name) == "chat":
            chat = ScriptedChat(outputs, models=(name,))
            self._engines.append(chat)
            return Source(chat, lambda name: ChatModel(name, chat), (name,), _defaults(model))
        tokens = ScriptedTokens(self._encode, self._vocabulary.text_of, outputs, models=(name,))
        self._engines.append(tokens)
        return Source(tokens, lambda name: self._harmony(name, tokens), (name,), _defaults(model))

    def _vllm(self, model: ModelSettings) -> Source:
        tokens, chat = self._vllm_engines(model)
        self._engines += [tokens, chat]

        def build(name: str) -> Model:
            if _dialect(model, name) == "harmony":
                return self._harmony(name, tokens)
            return ChatModel(name, chat, images=model.images)

        return Source(tokens, build, _names(model), _defaults(model))

    def _vllm_engines(self, model: ModelSettings) -> tuple[TokenEngine, ChatEngine]:
        """Both ways to speak to the same servers. A pool of them knows how busy a server is with either."""
        from app.engines.vllm import VllmEngine  # here, because an HTTP client takes a tenth of a second to load

        tokens = {url: VllmEngine(url, api_key=model.api_key, deadlines=self._deadlines) for url in _urls(model)}
        chats = self._chat_engines(model)
        if len(tokens) == 1:
            return next(iter(tokens.values())), next(iter(chats.values()))
        members = Members({url: chat.probe for url, chat in chats.items()})
        return TokenPool(members, tokens), ChatPool(members, chats)

    def _chat(self, model: ModelSettings) -> Source:
        _refuse_harmony(model)
        chats = self._chat_engines(model)
        engine: ChatEngine = next(iter(chats.values()))
        if len(chats) > 1:
            engine = ChatPool(Members({url: chat.cards for url, chat in chats.items()}), chats)
        self._engines.append(engine)
        return Source(
            engine, lambda name: ChatModel(name, engine, images=model.images), _names(model), _defaults(model)
        )

    def _chat_engines(self, model: ModelSettings) -> "dict[str, ChatCompletions]":
        from app.engines.chat import ChatCompletions  # here, see above

        return {url: ChatCompletions(url, api_key=model.api_key, deadlines=self._deadlines) for url in _urls(model)}

    def _harmony(self, name: str, engine: TokenEngine) -> HarmonyModel:
        return HarmonyModel(name, engine, self._vocabulary, self._renderer, self._patience)

    def _encode(self, text: str) -> Sequence[int]:
        """Model-side text to tokens, with markers as special tokens."""
        tokens: list[int] = self._renderer.load().encode(text, allowed_special="all")
        return tokens


def _dialect(model: ModelSettings, name: str) -> Dialect:
    if model.dialect is not None:
        return model.dialect
    return "harmony" if any(part in name.lower() for part in _HARMONY_NAMES) else "chat"


def _refuse_harmony(model: ModelSettings) -> None:
    if model.dialect == "harmony":
        raise SettingsError(f"Engine '{model.engine}' speaks chat only: 'harmony' needs engine 'vllm' or 'scripted'.")


def _names(model: ModelSettings) -> tuple[str, ...]:
    return (model.name,) if model.name else ()


def _defaults(model: ModelSettings) -> dict[str, Any]:
    return model.sampling.model_dump(exclude_none=True)


def _urls(model: ModelSettings) -> tuple[str, ...]:
    if not model.url:
        raise SettingsError(
            f"Engine '{model.engine}' needs a URL: set VERBATIM_ENGINE_URL, for example http://127.0.0.1:8000/v1."
        )
    return model.url
