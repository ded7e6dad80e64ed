#!/usr/bin/env python3
# ruff: noqa
"""A fake vLLM 0.32 OpenAI server for black-box tests and load benchmarks (`FACTS.md` in tests/vllm).

Speaks GET /health /version /v1/models, POST /v1/completions, /v1/chat/completions, /tokenize, /detokenize on
the wire format recorded from vLLM 0.32, plus the control API /__script /__log /__active /__reset /__release.
One asyncio process, raw HTTP/1.1 protocol, pre-encoded chunks, one shared timer wheel for all paced streams.
"""
from __future__ import annotations

import argparse
import asyncio
import codecs
import collections
import heapq
import itertools
import json
import os
import re
import socket
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import harmony_vocab as hv
from tests.fakes.validation import Refusal, refusal_of_chat, refusal_of_completion, refusal_of_room

VERSION = "0.32.0"
FINGERPRINT = "vllm-0.32.0-d50224ac"
HELLO = ("<|channel|>analysis<|message|>Greet back.<|end|><|start|>assistant"
         "<|channel|>final<|message|>Hello there.<|return|>")
PATHS = {"/health", "/ping", "/version", "/v1/models", "/v1/completions", "/v1/chat/completions", "/tokenize",
         "/detokenize"}
DEFAULT_MAX_TOKENS = 16
WORDS = " the sea was calm and the old keeper wrote each night about light wind salt stone and rain".split()
HIGH_WATER = 256 * 1024
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Payload Too Large",
           422: "Unprocessable Entity", 429: "Too Many Requests", 500: "Internal Server Error",
           503: "Service Unavailable"}


def dumps(obj: Any) -> str:
    """JSON as pydantic's model_dump_json writes it: compact, not ASCII-escaped."""
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False)


def error_body(message: str, type_: str = "BadRequestError", code: int = 400, param: str | None = None) -> dict:
    """vLLM 0.32's error envelope (code is the integer HTTP status)."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def error_from(spec: dict | None, default_code: int = 500) -> tuple[int, dict]:
    """Turn a script's error spec into (HTTP status, vLLM error body)."""
    spec = dict(spec or {})
    code = spec.get("status") or (spec.get("code") if isinstance(spec.get("code"), int) else default_code)
    types = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 503: "ServiceUnavailableError"}
    return code, error_body(spec.get("message", "Internal server error"),
                            spec.get("type") or types.get(code, "InternalServerError"), code, spec.get("param"))


# ------------------------------------------------------------------------------------------------- scripts

@dataclass(eq=False)
class Script:
    """One scripted generation."""
    tokens: list[int] = field(default_factory=list)
    chat: list[dict] | None = None
    tokens_per_chunk: int = 1
    pace_ms: float = 0
    first_token_delay_ms: float = 0
    finish: str | None = None
    fault: dict | None = None
    match: str | None = None
    request_id: str | None = None
    cached_tokens: int | None = 0
    endless: bool = False
    name: str = ""
    cache: dict = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, spec: dict) -> "Script":
        spec = dict(spec)
        text, load, tokens = spec.pop("text", None), spec.pop("load", None), spec.pop("tokens", None)
        spec.pop("repeat", None)
        chat = spec.pop("chat", None)
        if load is not None:
            tokens = load_tokens(int(load.get("tokens", 256)), load.get("channel", "final"), load.get("end", True))
        elif tokens is None:
            tokens = hv.encode_harmony(text) if text is not None else []
        if chat is None and text is not None:
            chat = chat_from_harmony(text)
        elif chat is None and load is not None:
            chat = [{"content": hv.decode([t])} for t in tokens if t < hv.FIRST_SPECIAL][1:]
        known = {f for f in cls.__dataclass_fields__ if f not in ("tokens", "chat", "cache")}
        unknown = set(spec) - known
        if unknown:
            raise ValueError(f"unknown script field(s): {sorted(unknown)}")
        return cls(tokens=list(tokens), chat=chat, **spec)


_LOAD_CACHE: dict[tuple, list[int]] = {}


def load_tokens(n: int, channel: str = "final", end: bool = True) -> list[int]:
    """A deterministic harmony generation of exactly n tokens (frame included)."""
    key = (n, channel, end)
    if key not in _LOAD_CACHE:
        head = hv.encode_harmony(f"<|channel|>{channel}<|message|>")
        words = [hv.encode_text(" " + w)[0] for w in WORDS]
        body = [words[i % len(words)] for i in range(max(0, n - len(head) - bool(end)))]
        _LOAD_CACHE[key] = head + body + ([hv.RETURN] if end else [])
    return _LOAD_CACHE[key]


def chat_from_harmony(text: str) -> list[dict]:
    """Harmony text -> chat deltas, the way an upstream with parsers would split it."""
    out: list[dict] = []
    for head, body in re.findall(r"(?:^|<\|start\|>assistant)([^\n]*?)<\|message\|>(.*?)(?=<\|end\|>|<\|return\|>|<\|call\|>|$)",
                                 text, re.S):
        to = re.search(r"to=functions\.([\w-]+)", head)
        if to:
            out.append({"tool_call": {"name": to.group(1), "arguments": body}})
        elif "analysis" in head:
            out += [{"reasoning": p} for p in pieces(body)]
        else:
            out += [{"content": p} for p in pieces(body)]
    return out or [{"content": p} for p in pieces(text)]


def pieces(text: str) -> list[str]:
    """Split text into token-like chunks (a word with its leading space, or punctuation)."""
    return re.findall(r"\s*\w{1,6}|\s*[^\w\s]|\s+", text)


# -------------------------------------------------------------------------------------------- timer wheel

class Wheel:
    """Wake many generations with few timers: due times are rounded up to a slot of `step` seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, step: float = 0.002):
        self.loop, self.step = loop, step
        self.slots: dict[int, list] = {}
        self.heap: list[int] = []
        self.handle: asyncio.TimerHandle | None = None
        self.next_slot: int | None = None

    def at(self, due: float, job) -> None:
        slot = int(due / self.step) + 1
        bucket = self.slots.get(slot)
        if bucket is not None:
            bucket.append(job)
            return
        self.slots[slot] = [job]
        heapq.heappush(self.heap, slot)
        if self.next_slot is None or slot < self.next_slot:
            self._arm(slot)

    def _arm(self, slot: int) -> None:
        if self.handle:
            self.handle.cancel()
        self.next_slot = slot
        self.handle = self.loop.call_at(slot * self.step, self._fire)

    def _fire(self) -> None:
        now = int(self.loop.time() / self.step)
        self.next_slot = self.handle = None
        while self.heap and self.heap[0] <= now:
            for job in self.slots.pop(heapq.heappop(self.heap)):
                job()
        if self.heap:
            self._arm(self.heap[0])


# ------------------------------------------------------------------------------------------------- state

class Engine:
    """Scripts, log and settings of the fake server."""

    def __init__(self, models: list[str], max_model_len: int, eos: list[int], log_limit: int, default: dict | None,
                 any_model: bool = False, continuous_usage: bool = False):
        self.models, self.max_model_len, self.any_model = models, max_model_len, any_model
        self.boot_eos = eos
        self.continuous_usage = continuous_usage
        self.log_limit = log_limit
        self.boot_default = Script.parse(default or {"text": HELLO, "name": "default"})
        self.started = int(time.time())
        self.counter = itertools.count()
        self.wheel: Wheel | None = None
        self.generations: set[Generation] = set()
        self.reset()

    def reset(self) -> None:
        """Forget scripts and log; cut every running generation."""
        for g in list(self.generations):
            g.cut()
        self.end_with(self.boot_eos)
        self.queue: list[Script] = []
        self.default = self.boot_default
        self.recent: collections.deque[Script] = collections.deque(maxlen=64)
        self.log: collections.deque[dict] = collections.deque(maxlen=self.log_limit or 1)
        self.logged = 0
        self.unwell: dict | None = None
        self.refused: collections.Counter = collections.Counter()

    def refusal(self, prompt_text_of) -> tuple[int, dict] | None:
        """The error for a request while the server is unwell: for the first `times` with its prompt, or for all."""
        if self.unwell is None:
            return None
        self.refused[prompt_text_of()] += 1
        over = self.refused[prompt_text_of()] > self.unwell.get("times", float("inf"))
        return None if over else error_from(self.unwell)

    def end_with(self, eos: list[int]) -> None:
        """Ids that end a generation by themselves: first the tokenizer's own, then those of generation_config.json."""
        self.eos, self.silent_eos = frozenset(eos), eos[0] if eos else None

    def take(self, prompt_text_of, tail: list[int]) -> tuple[Script, int]:
        """The script for the next request, and the token offset at which to start.

        A prompt that already ends inside an assistant turn (`tail`) which a recent script began with is a
        continuation: it resumes that script and takes none from the queue.
        """
        if tail:
            for script in (*reversed(self.recent), self.default):
                if len(tail) < len(script.tokens) and script.tokens[:len(tail)] == tail:
                    return script, len(tail)
        for i, script in enumerate(self.queue):
            if script.match is None or script.match in prompt_text_of():
                del self.queue[i]
                self.recent.append(script)
                return script, 0
        self.recent.append(self.default)
        return self.default, 0


def assistant_tail(tokens: list[int]) -> list[int]:
    """Tokens after the last <|start|>assistant of a prompt."""
    for i in range(len(tokens) - 1, 0, -1):
        if tokens[i] == hv.ASSISTANT and tokens[i - 1] == hv.START:
            return tokens[i + 1:]
    return []


def render_chat(body: dict) -> str:
    """A readable prompt text of a chat request (roles, text, tool calls, offered tools)."""
    out = []
    for tool in body.get("tools") or []:
        out.append("[tool] " + json.dumps(tool.get("function", tool), ensure_ascii=False))
    for m in body.get("messages") or []:
        content = m.get("content")
        if isinstance(content, list):
            content = "".join(p.get("text") or p.get("refusal") or f"[{p.get('type')}]" for p in content)
        line = f"[{m.get('role')}] {content or ''}"
        for call in m.get("tool_calls") or []:
            fn = call.get("function", {})
            line += f" [call {call.get('id')} {fn.get('name')} {fn.get('arguments')}]"
        if m.get("tool_call_id"):
            line += f" [for {m['tool_call_id']}]"
        out.append(line)
    return "\n".join(out)


# -------------------------------------------------------------------------------------------- generations

class Generation:
    """One running request: a list of (payload bytes, tokens so far) sent at the script's pace."""

    __slots__ = ("engine", "conn", "entry", "script", "chunks", "i", "stream", "pace", "due", "fault_at", "fault",
                 "waiting", "done", "final", "next_after_fault", "wake_scheduled")

    def __init__(self, engine: Engine, conn: "Conn", entry: dict, script: Script, chunks: list, final: list,
                 stream: bool, first_index: int = 0):
        self.engine, self.conn, self.entry, self.script = engine, conn, entry, script
        self.chunks, self.final, self.stream = chunks, final, stream
        self.i = first_index
        self.pace = script.pace_ms / 1000
        self.fault = script.fault if script.fault and script.fault.get("kind") != "http" else None
        if self.fault and self.fault["kind"] == "hold" and entry.get("offset"):
            self.fault = None                             # held once: what continues it is not
        self.fault_at = max(0, int(self.fault.get("after", 0)) - entry.get("offset", 0)) if self.fault else -1
        self.waiting = self.done = self.wake_scheduled = False
        self.due = 0.0

    def start(self) -> None:
        self.engine.generations.add(self)
        now = self.engine.wheel.loop.time()
        self.due = now + self.script.first_token_delay_ms / 1000
        if self.stream:
            self.conn.start_stream()
        if self.script.first_token_delay_ms or self.pace:
            self.engine.wheel.at(self.due, self.step)
        else:
            self.step()

    def step(self) -> None:
        """Send what is due."""
        if self.done or self.waiting:
            return
        conn, chunks = self.conn, self.chunks
        n = len(chunks)
        budget = 512
        while self.i < n:
            if conn.paused and self.stream:
                self.waiting = True
                return
            payload, produced = chunks[self.i]
            if self.fault and (produced > self.fault_at or not self.script.tokens and not self.fault_at):
                return self.hit_fault()
            if self.stream:
                conn.write_chunk(payload)
            self.entry["produced"] = produced
            self.i += 1
            if self.pace:
                if self.i < n or self.fault or not self.stream:
                    self.due += self.pace * self.script.tokens_per_chunk
                    return self.engine.wheel.at(self.due, self.step)
            else:
                budget -= 1
                if not budget:
                    return void(self.engine.wheel.loop.call_soon(self.step))
        if self.fault:
            return self.hit_fault()
        for payload in self.final:
            conn.write_chunk(payload) if self.stream else conn.respond_raw(200, payload)
        self.finish("done")
        if self.stream:
            conn.end_stream()

    def resume(self) -> None:
        if self.waiting:
            self.waiting = False
            self.step()

    def hit_fault(self) -> None:
        kind = self.fault["kind"]
        if kind in ("hang", "hold") or self.fault.get("held"):
            self.entry["state"] = "hanging" if kind == "hang" else "held"
            self.waiting = True
            return
        self.finish("fault:" + kind)
        if kind == "reset":
            self.conn.reset()
        elif kind == "close":
            self.conn.end_stream() if self.stream else self.conn.close()
        elif kind == "cut":
            self.conn.close()
        elif kind == "error_chunk":
            code, body = error_from(self.fault.get("error"))
            if self.stream:
                self.conn.write_chunk(b"data: " + json.dumps(body).encode() + b"\n\n")
                self.conn.write_chunk(b"data: [DONE]\n\n")
                self.conn.end_stream()
            else:
                self.conn.respond(code, body)
        else:
            raise ValueError(f"unknown fault {kind}")

    def release(self) -> None:
        """Go on behind a `hold`, or into a fault that is `held`, if it is there or still comes."""
        if self.fault and (self.fault["kind"] == "hold" or self.fault.get("held")):
            self.fault = None if self.fault["kind"] == "hold" else {**self.fault, "held": False}
            self.entry["state"] = "active"
            self.due = self.engine.wheel.loop.time()
            self.resume()

    def finish(self, state: str) -> None:
        if not self.done:
            self.done = True
            self.engine.generations.discard(self)
            self.conn.generation = None
            self.entry["state"], self.entry["t_end"] = state, time.time()

    def abort(self) -> None:
        """The client went away."""
        self.finish("aborted")

    def cut(self) -> None:
        self.finish("reset")
        self.conn.close()


def void(_: Any) -> None:
    return None


def stop_index(script: Script, offset: int, stops: frozenset[int], max_tokens: int) -> tuple[int, str, int | None]:
    """(number of tokens emitted counted from the script start, finish_reason, stop_reason)."""
    key = ("stop", offset, stops)
    first = script.cache.get(key)
    if first is None:
        first = next((i for i in range(offset, len(script.tokens)) if script.tokens[i] in stops), -1)
        script.cache[key] = first
    limit = offset + max_tokens
    if first >= 0 and first < limit:
        return first + 1, "stop", script.tokens[first]
    if limit <= len(script.tokens):
        return limit, "length", None
    return len(script.tokens), script.finish or "stop", None


def completion_logprobs(tokens: list[int], top: int, offset: int, as_ids: bool) -> tuple[dict, int]:
    """Deterministic logprobs in vLLM's shape; returns the next text offset too."""
    out: dict[str, list] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for t in tokens:
        s = f"token_id:{t}" if as_ids else hv.decode([t])
        lp = -((t % 97) + 1) / 100
        out["text_offset"].append(offset)
        out["token_logprobs"].append(lp)
        out["tokens"].append(s)
        tops = {s: lp}
        for k in range(max(0, top - 1) if top > 0 else 0):
            alt = (t * 7 + k + 1) % 190000
            tops[f"token_id:{alt}" if as_ids else hv.decode([alt])] = lp - k - 1
        out["top_logprobs"].append(tops)
        offset += len(s)
    return out, offset


class Conn(asyncio.Protocol):
    """One HTTP/1.1 client connection."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.buf = bytearray()
        self.transport: asyncio.Transport | None = None
        self.generation: Generation | None = None
        self.paused = self.keep_alive = self.busy = False
        self.head: tuple | None = None

    # -- transport
    def connection_made(self, transport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_WATER)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc) -> None:
        if self.generation:
            self.generation.abort()
        self.transport = None

    def eof_received(self) -> bool:
        return False                                  # a half-closed client counts as gone, as for uvicorn

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.generation:
            self.generation.resume()

    def close(self) -> None:
        if self.transport:
            self.transport.close()

    def reset(self) -> None:
        """Drop the connection with a TCP RST, behind what was written: an abort forgets what is not sent yet."""
        if self.transport and self.transport.get_write_buffer_size():
            self.engine.wheel.loop.call_later(0.001, self.reset)
        elif self.transport:
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()

    # -- responses
    def respond(self, status: int, obj: Any) -> None:
        self.respond_raw(status, dumps(obj).encode())

    def respond_raw(self, status: int, body: bytes, ctype: str = "application/json") -> None:
        if self.transport:
            self.transport.write(f"HTTP/1.1 {status} {REASONS.get(status, 'X')}\r\nserver: uvicorn\r\ncontent-type: {ctype}\r\n"
                                 f"content-length: {len(body)}\r\n\r\n".encode() + body)
        self.request_done()

    def start_stream(self) -> None:
        if self.transport:
            self.transport.write(b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                                 b"transfer-encoding: chunked\r\n\r\n")

    def write_chunk(self, payload: bytes) -> None:
        if self.transport:
            self.transport.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end_stream(self) -> None:
        if self.transport:
            self.transport.write(b"0\r\n\r\n")
        self.request_done()

    def request_done(self) -> None:
        self.busy = False
        if not self.keep_alive:
            self.close()
        elif self.buf:
            self.engine.wheel.loop.call_soon(self.data_received, b"")

    # -- requests
    def data_received(self, data: bytes) -> None:
        self.buf += data
        while not self.busy and self.transport:
            if self.head is None:
                end = self.buf.find(b"\r\n\r\n")
                if end < 0:
                    return
                lines = bytes(self.buf[:end]).decode("latin-1").split("\r\n")
                del self.buf[:end + 4]
                method, target, version = lines[0].split(" ", 2)
                headers = {k.strip().lower(): v.strip() for k, _, v in (ln.partition(":") for ln in lines[1:])}
                self.keep_alive = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
                if headers.get("expect", "").lower() == "100-continue":
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.head = (method, target, headers)
            method, target, headers = self.head
            body = self._body(headers)
            if body is None:
                return
            self.head, self.busy = None, True
            try:
                self.route(method, target, headers, body)
            except Exception as e:                    # a bug here must not look like a dead server
                print(f"fake_vllm: {method} {target}: {e!r}", file=sys.stderr, flush=True)
                self.respond(500, error_body(f"fake_vllm internal: {e!r}", "InternalServerError", 500))

    def _body(self, headers: dict) -> bytes | None:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            out, pos = bytearray(), 0
            while True:
                eol = self.buf.find(b"\r\n", pos)
                if eol < 0:
                    return None
                size = int(bytes(self.buf[pos:eol]).split(b";")[0], 16)
                if len(self.buf) < eol + 4 + size:
                    return None
                out += self.buf[eol + 2:eol + 2 + size]
                pos = eol + 4 + size
                if size == 0:
                    del self.buf[:pos]
                    return bytes(out)
        n = int(headers.get("content-length", 0))
        if len(self.buf) < n:
            return None
        body = bytes(self.buf[:n])
        del self.buf[:n]
        return body

    def route(self, method: str, target: str, headers: dict, raw: bytes) -> None:
        path, _, query = target.partition("?")
        eng = self.engine
        if method == "GET":
            if path in ("/health", "/ping"):
                return self.respond_raw(200, b"")
            if path == "/version":
                return self.respond(200, {"version": VERSION})
            if path == "/v1/models":
                return self.respond(200, {"object": "list", "data": [
                    {"id": m, "object": "model", "created": eng.started, "owned_by": "vllm", "root": m, "parent": None,
                     "max_model_len": eng.max_model_len, "permission": [{
                         "id": f"modelperm-{eng.started:016x}", "object": "model_permission", "created": eng.started, "allow_create_engine": False,
                         "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False, "allow_view": True,
                         "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False}]} for m in eng.models]})
            if path == "/__log":
                return self.respond(200, log_view(eng, query))
            if path == "/__active":
                return self.respond(200, {"active": len(eng.generations), "logged": eng.logged})
        if method != "POST" or path in ("/health", "/ping", "/version", "/v1/models"):
            return self.respond(*((405, {"detail": "Method Not Allowed"}) if path in PATHS else (404, {"detail": "Not Found"})))
        if path == "/__reset":
            eng.reset()
            return self.respond(200, {})
        if path == "/__release":
            for generation in list(eng.generations):
                generation.release()
            return self.respond(200, {})
        try:
            body = json.loads(raw or b"{}")
            if not isinstance(body, dict):
                raise json.JSONDecodeError("Input should be a valid dictionary", "", 0)
        except ValueError as e:
            at, why = (e.pos, e.msg) if isinstance(e, json.JSONDecodeError) else (0, str(e))
            return self.respond(400, error_body("1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.%d', 'msg': 'JSON decode error', "
                                                "'input': '<dict of 0 items>', 'ctx': {'error': %r}}" % (at, why), "Bad Request", 400, f"body.{at}"))
        if path == "/__script":
            return self.control(body)
        if path == "/v1/completions":
            return self.completions(body, headers)
        if path == "/v1/chat/completions":
            return self.chat(body, headers)
        if path == "/tokenize":
            text = body.get("prompt") if "prompt" in body else render_chat(body)
            ids = hv.encode_harmony(text)
            out = {"count": len(ids), "max_model_len": eng.max_model_len, "tokens": ids, "token_strs": None}
            if body.get("return_token_strs"):
                out["token_strs"] = [hv.decode([t]) for t in ids]
            return self.respond(200, out)
        if path == "/detokenize":
            return self.respond(200, {"prompt": hv.decode(body.get("tokens", []))})
        return self.respond(404, {"detail": "Not Found"})

    def control(self, body: dict) -> None:
        eng = self.engine
        try:
            if body.get("reset"):
                eng.reset()
            if "eos" in body:
                eng.end_with([int(one) for one in body["eos"]])
            if "max_model_len" in body:
                eng.max_model_len = int(body["max_model_len"])
            if "unwell" in body:
                eng.unwell = body["unwell"]
            if "default" in body:
                eng.default = Script.parse(body["default"]) if body["default"] else eng.boot_default
            for spec in body.get("queue", []):
                times = int(spec.get("repeat", 1))
                script = Script.parse(spec)
                for i in range(times):
                    eng.queue.append(script)
        except (ValueError, TypeError, KeyError) as e:
            return self.respond(400, error_body(f"bad script: {e}"))
        self.respond(200, {"queued": len(eng.queue)})

    # -- the two generation endpoints
    def admit(self, path: str, body: dict, headers: dict, tokens: list[int] | None, text_of,
              wrong: Refusal | None) -> tuple | None:
        """Common checks; logs the request.  None when already answered."""
        eng = self.engine
        n = len(tokens) if tokens is not None else max(1, len(text_of()) // 4)
        harmony = tokens is None and is_harmony(body)
        entry = {"n": next(eng.counter), "t": time.time(), "path": path, "body": body, "prompt_tokens": n,
                 "state": "active", "produced": 0, "finish_reason": None, "t_end": None, "script": None,
                 "authorization": headers.get("authorization"), "x_request_id": headers.get("x-request-id")}
        eng.logged += 1
        if eng.log_limit:
            eng.log.append(entry)

        def refuse(status: int, payload: dict) -> None:
            entry["state"], entry["t_end"] = f"http {status}", time.time()
            self.respond(status, payload)

        if not eng.any_model and body.get("model") not in (None, *eng.models):
            return refuse(404, error_body(f"The model `{body['model']}` does not exist. Valid aliases: {', '.join(eng.models)}.", "NotFoundError", 404, "model"))
        if wrong is not None and not wrong.late:
            return refuse(400, error_body(wrong.message, wrong.type, 400, wrong.param))
        if n > eng.max_model_len and harmony:
            return refuse(400, error_body(f"Input length ({n}) exceeds model's maximum context length ({eng.max_model_len})."))
        if n > eng.max_model_len:
            return refuse(400, error_body(
                f"This model's maximum context length is {eng.max_model_len} tokens. However, your prompt contains {n} input "
                f"tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
                f"prompt. (parameter=input_tokens, value={n})", param="input_tokens"))
        entry["max_tokens"] = wanted = max_tokens_of(path, body, eng.max_model_len - n)
        wrong = refusal_of_room(wanted, eng.max_model_len - n, eng.max_model_len) or wrong
        if wrong is not None and wrong.late and body.get("stream"):
            return self.refuse_late(entry, wrong)
        if wrong is not None:
            return refuse(400, error_body(wrong.message, wrong.type, 400, wrong.param))
        if body.get("priority") not in (None, 0) and body.get("__strict_priority"):
            return refuse(400, error_body("Got priority but scheduling policy is fcfs"))
        if (unwell := eng.refusal(text_of)) is not None:
            return refuse(*unwell)
        script, offset = eng.take(text_of, assistant_tail(tokens) if tokens else [])
        entry["script"], entry["offset"] = script.name, offset
        if script.fault and script.fault.get("kind") == "http":
            return refuse(*error_from(script.fault.get("error"), script.fault.get("status", 500)))
        return entry, script, offset, n

    def refuse_late(self, entry: dict, wrong: Refusal) -> None:
        """What vLLM finds out when the stream has begun: status 200, an error chunk, and [DONE]."""
        entry["state"], entry["t_end"] = "http 400", time.time()
        self.start_stream()
        self.write_chunk(b"data: " + json.dumps(error_body(wrong.message, wrong.type, 400, wrong.param)).encode() + b"\n\n")
        self.write_chunk(b"data: [DONE]\n\n")
        self.end_stream()

    def completions(self, body: dict, headers: dict) -> None:
        eng = self.engine
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            prompt = hv.encode_harmony(prompt)
        elif isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
            prompt = prompt[0]
        wrong = refusal_of_completion(body, prompt)
        if not isinstance(prompt, list) or not all(type(t) is int and t >= 0 for t in prompt):
            return self.respond(400, error_body(wrong.message, wrong.type, 400, wrong.param))
        admitted = self.admit("/v1/completions", body, headers, prompt, lambda: hv.decode(prompt), wrong)
        if admitted is None:
            return
        entry, script, offset, n_prompt = admitted
        max_tokens = min(entry["max_tokens"], eng.max_model_len - n_prompt)  # vLLM 0.32 caps silently at the context length
        stops = frozenset(body.get("stop_token_ids") or ())
        eos = frozenset() if body.get("ignore_eos") else eng.eos
        cut, finish, stop_token = stop_index(script, offset, stops | eos, max_tokens)
        stop_reason = None if stop_token == eng.silent_eos and eos else stop_token
        entry["finish_reason"] = finish
        stream = bool(body.get("stream"))
        opts = body.get("stream_options") or {}
        want_ids = bool(body.get("return_token_ids"))
        top = body.get("logprobs")
        as_ids = bool(body.get("return_tokens_as_token_ids"))
        skip_special = body.get("skip_special_tokens", True)
        usage_each = bool(opts.get("continuous_usage_stats")) or eng.continuous_usage
        own = script.request_id or "%016x" % (int(time.time() * 1e6) << 12 | entry["n"] & 0xfff)
        rid = body.get("request_id") or headers.get("x-request-id") or own[-16:]
        head = b'data: {"id":"cmpl-%b","object":"text_completion","created":%d,"model":%b,' % (
            rid.encode(), int(time.time()), dumps(body.get("model") or eng.models[0]).encode())
        k = max(1, script.tokens_per_chunk)
        key = ("tails", offset, want_ids, top, as_ids, skip_special, k)
        tails = script.cache.get(key)
        if tails is None:
            tails = script.cache[key] = completion_tails(script.tokens, offset, want_ids, top, as_ids, skip_special, k)
        full = max(0, cut - offset - 1) // k                     # chunks sent whole before the final one
        ids_field = dumps(prompt) if want_ids else "null"
        chunks: list[tuple[bytes, int]] = []
        if stream:
            body_chunks = LazyChunks(head, tails, full, k)
            last = completion_last(script.tokens, offset + full * k, cut, want_ids, top, as_ids, skip_special, tails, full,
                                   finish, stop_reason)
            first = tails[0][0] if full else last
            if want_ids:
                first = first.replace(b'"prompt_token_ids":null', b'"prompt_token_ids":' + ids_field.encode(), 1)
            chunks = body_chunks
            body_chunks.first, body_chunks.last = first, last if full else first
            body_chunks.last_produced = cut - offset
            if usage_each:
                body_chunks.usage_prompt = n_prompt
            final = []
            usage = {"prompt_tokens": n_prompt, "total_tokens": n_prompt + cut - offset, "completion_tokens": cut - offset}
            if opts.get("include_usage") or eng.continuous_usage:
                if script.cached_tokens is not None:
                    usage["prompt_tokens_details"] = {"cached_tokens": min(script.cached_tokens, n_prompt)}
                final.append(head + b'"choices":[],"usage":' + dumps(usage).encode()
                             + b',"system_fingerprint":"' + FINGERPRINT.encode() + b'"}\n\n')
            else:
                body_chunks.fingerprint = True
            final.append(b"data: [DONE]\n\n")
        else:
            toks = script.tokens[offset:cut]
            lp = completion_logprobs(toks, top, 0, as_ids)[0] if top is not None else None
            text = "".join(text_pieces(toks, skip_special))
            usage = {"prompt_tokens": n_prompt, "total_tokens": n_prompt + len(toks), "completion_tokens": len(toks),
                     "prompt_tokens_details": None if script.cached_tokens is None else {
                         "cached_tokens": script.cached_tokens, "created_cache_tokens": None, "multimodal_tokens": None},
                     "completion_tokens_details": None}
            answer = {"id": "cmpl-" + rid, "object": "text_completion", "created": int(time.time()),
                      "model": body.get("model") or eng.models[0],
                      "choices": [{"index": 0, "text": text, "logprobs": lp, "finish_reason": finish, "stop_reason": stop_reason,
                                   "token_ids": toks if want_ids else None, "prompt_logprobs": None,
                                   "prompt_token_ids": prompt if want_ids else None, "routed_experts": None}],
                      "service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage, "kv_transfer_params": None,
                      "ec_transfer_params": None, "metrics": None}
            chunks = [(b"", min((i + 1) * k, len(toks))) for i in range(-(-len(toks) // k))]
            final = [dumps(answer).encode()]
        self.generation = Generation(eng, self, entry, script, chunks, final, stream)
        self.generation.start()

    def chat(self, body: dict, headers: dict) -> None:
        eng = self.engine
        harmony = is_harmony(body)
        wrong = refusal_of_chat(body, harmony=harmony)
        if not isinstance(body.get("messages"), list):
            return self.respond(400, error_body(wrong.message, wrong.type, 400, wrong.param))
        admitted = self.admit("/v1/chat/completions", body, headers, None, lambda: render_chat(body), wrong)
        if admitted is None:
            return
        entry, script, _, n_prompt = admitted
        limit = entry["max_tokens"]
        choice = body.get("tool_choice")
        forced = not harmony and (choice == "required" or isinstance(choice, dict))  # vLLM itself parses those
        rid = script.request_id or "%016x" % (int(time.time() * 1e6) << 12 | entry["n"] & 0xfff)
        model = body.get("model") or eng.models[0]
        deltas, n_calls, reasoning_tokens, args_of = [], 0, 0, {}
        for d in script.chat or []:
            if "tool_call" in d:
                call = d["tool_call"]
                name = call["name"] if isinstance(call["name"], str) else resolve_flat(body, call["name"])
                cid = call.get("id") or f"chatcmpl-tool-{rid}{n_calls:02x}"[:46]
                beside = {"content": None} if forced else {}
                deltas.append({**beside, "tool_calls": [{"id": cid, "type": "function", "index": n_calls,
                                                         "function": {"name": name} if forced else {"name": name, "arguments": ""}}]})
                for p in pieces(call.get("arguments", "")):
                    deltas.append({**beside, "tool_calls": [{"index": n_calls, "function": {"arguments": p}}]})
                n_calls += 1
            else:
                deltas.append(d)
        finish = script.finish or ("tool_calls" if n_calls and not (forced and isinstance(choice, dict)) else "stop")
        if len(deltas) > limit:
            deltas, finish = deltas[:limit], "length"
        stop_reason = hv.CALL if harmony and finish == "tool_calls" else None
        reasoning_tokens = sum("reasoning" in d for d in deltas)
        entry["finish_reason"] = finish
        stream = bool(body.get("stream"))
        opts = body.get("stream_options") or {}
        usage = {"prompt_tokens": n_prompt, "total_tokens": n_prompt + len(deltas), "completion_tokens": len(deltas)}
        if script.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": script.cached_tokens, "created_cache_tokens": 0}
        if reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
        chunks: list[tuple[bytes, int]] = []
        if stream:
            head = {"id": f"chatcmpl-{rid}", "object": "chat.completion.chunk", "created": int(time.time()), "model": model}

            def chunk(choice: dict, **extra) -> bytes:
                return b"data: " + dumps({**head, "choices": [choice], **extra}).encode() + b"\n\n"

            base = {"index": 0}
            chunks.append((chunk({**base, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
                                 prompt_token_ids=None, prompt_text=None), 0))
            for i, d in enumerate(deltas):
                lp = None
                if body.get("logprobs") and "content" in d:
                    alt = [{"token": d["content"], "logprob": -0.1, "bytes": list(d["content"].encode())}]
                    lp = {"content": [{**alt[0], "top_logprobs": alt[:body.get("top_logprobs") or 0]}]}
                chunks.append((chunk({**base, "delta": d, "logprobs": lp, "finish_reason": None, "token_ids": None}), i + 1))
            chunks.append((chunk({**base, "delta": {}, "logprobs": None,
                                  "finish_reason": finish, "stop_reason": stop_reason, "token_ids": None}), len(deltas)))
            final = []
            if opts.get("include_usage"):
                final.append(b"data: " + dumps({**head, "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}).encode() + b"\n\n")
            final.append(b"data: [DONE]\n\n")
        else:
            content = "".join(d.get("content") or "" for d in deltas) or ("" if forced else None)
            reasoning = "".join(d.get("reasoning", "") for d in deltas) or None
            calls: list[dict] = []
            for d in deltas:
                for tc in d.get("tool_calls", []):
                    if "id" in tc:
                        calls.append({"id": tc["id"], "type": "function", "function": {"arguments": "", **tc["function"]}})
                    else:
                        calls[tc["index"]]["function"]["arguments"] += tc["function"]["arguments"]
            told = {"tool_calls": [{**c, "function": {"name": c["function"]["name"], "arguments": anew(c["function"]["arguments"])}}
                                   for c in calls]} if calls else {}
            if "prompt_tokens_details" in usage:
                usage["prompt_tokens_details"]["multimodal_tokens"] = None
            answer = {"id": f"chatcmpl-{rid}", "object": "chat.completion", "created": int(time.time()), "model": model,
                      "choices": [{"index": 0, "message": {"role": "assistant", "content": content, "refusal": None, "annotations": None,
                                                           "audio": None, "function_call": None, **told, "reasoning": reasoning},
                                   "logprobs": None, "finish_reason": finish, "stop_reason": stop_reason, "token_ids": None, "routed_experts": None}],
                      "service_tier": None, "system_fingerprint": FINGERPRINT, "usage": usage, "prompt_logprobs": None,
                      "prompt_token_ids": None, "prompt_text": None, "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
            chunks = [(b"", i + 1) for i in range(len(deltas))]
            final = [dumps(answer).encode()]
        self.generation = Generation(eng, self, entry, script, chunks, final, stream)
        self.generation.start()


def is_harmony(body: dict) -> bool:
    """Whether the model is gpt-oss, which vLLM serves by other code than models with a chat template."""
    return "gpt-oss" in (body.get("model") or "gpt-oss")


def max_tokens_of(path: str, body: dict, room: int) -> int:
    """How many tokens are wanted. Left out or null means 16 for a completion, and all the room for a chat."""
    wanted = body.get("max_completion_tokens") if path == "/v1/chat/completions" else None
    wanted = wanted if wanted is not None else body.get("max_tokens")
    return wanted if wanted is not None else DEFAULT_MAX_TOKENS if path == "/v1/completions" else max(room, 1)


def anew(arguments: str) -> str:
    """Arguments as vLLM writes them without a stream: parsed and written again."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False)
    except ValueError:
        return arguments


def resolve_flat(body: dict, flat: dict) -> str:
    """The server's own flattened name of a namespaced tool, looked up in the tools it offered."""
    names = [t.get("function", {}).get("name", "") for t in body.get("tools") or []]
    ns, name = flat["flat"]
    both = [n for n in names if ns in n and name in n] or [n for n in names if n.endswith(name)]
    return both[0] if both else name


def text_pieces(tokens: list[int], skip_special: bool) -> list[str]:
    """The text delta of each token: incomplete characters are held back, as a detokenizer does."""
    dec = codecs.getincrementaldecoder("utf-8")("replace")
    return ["" if skip_special and t >= hv.FIRST_SPECIAL else dec.decode(hv.token_bytes(t)) for t in tokens]


def choice_bytes(text: str, lp: dict | None, ids: list[int] | None, finish: str | None, stop_reason) -> bytes:
    """`"choices":[...]}` of one completion chunk, in vLLM's field order."""
    return ('"choices":[{"index":0,"text":%s,"logprobs":%s,"finish_reason":%s,"stop_reason":%s,"prompt_token_ids":null,"token_ids":%s}]'
            % (dumps(text), dumps(lp), dumps(finish), dumps(stop_reason), dumps(ids))).encode()


def completion_tails(tokens, offset, want_ids, top, as_ids, skip_special, k) -> list[tuple[bytes, int]]:
    """Pre-encoded chunk bodies for every k tokens from offset: (bytes, text offset)."""
    part = tokens[offset:]
    texts = text_pieces(part, skip_special)
    out, pos = [], 0
    for i in range(0, len(part), k):
        lp = None
        start = pos
        if top is not None:
            lp, pos = completion_logprobs(part[i:i + k], top, pos, as_ids)
        out.append((choice_bytes("".join(texts[i:i + k]), lp, part[i:i + k] if want_ids else None, None, None), start))
    return out


def completion_last(tokens, begin, cut, want_ids, top, as_ids, skip_special, tails, index, finish, stop_reason) -> bytes:
    """The final chunk (finish_reason set)."""
    part = tokens[begin:cut]
    # decode with the held-back bytes of the preceding tokens so that a split character survives
    back = min(4, begin)
    text = "".join(text_pieces(tokens[begin - back:cut], skip_special)[back:]) if part else ""
    lp = completion_logprobs(part, top, tails[index][1] if index < len(tails) else 0, as_ids)[0] if top is not None else None
    return choice_bytes(text, lp, part if want_ids else None, finish, stop_reason)


class LazyChunks:
    """A sequence of (payload, produced): request head + shared pre-encoded tail, built only when sent."""

    __slots__ = ("head", "tails", "full", "k", "first", "last", "usage_prompt", "fingerprint", "last_produced")

    def __init__(self, head, tails, full, k):
        self.head, self.tails, self.full, self.k = head, tails, full, k
        self.usage_prompt, self.fingerprint = None, False

    def __len__(self) -> int:
        return self.full + 1

    def __getitem__(self, i: int) -> tuple[bytes, int]:
        tail = self.last if i == self.full else self.first if i == 0 else self.tails[i][0]
        produced = self.last_produced if i == self.full else (i + 1) * self.k
        end = b"}\n\n"
        if self.usage_prompt is not None:
            end = b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n' % (
                self.usage_prompt, self.usage_prompt + produced, produced)
        if self.fingerprint and i == self.full:
            end = b',"system_fingerprint":"' + FINGERPRINT.encode() + b'"' + end
        return self.head + tail + end, produced


def log_view(eng: Engine, query: str) -> dict:
    """GET /__log[?since=N&brief=1]."""
    args = dict(p.partition("=")[::2] for p in query.split("&") if p)
    since, brief = int(args.get("since", 0)), args.get("brief") == "1"
    out = []
    for e in eng.log:
        if e["n"] < since:
            continue
        e = dict(e)
        if brief:
            e.pop("body")
        elif e["path"] == "/v1/completions":
            p = e["body"].get("prompt")
            p = p[0] if isinstance(p, list) and p and isinstance(p[0], list) else p
            e["prompt_text"] = p if isinstance(p, str) else hv.decode(p)
        else:
            e["prompt_text"] = render_chat(e["body"])
        out.append(e)
    return {"active": len(eng.generations), "logged": eng.logged, "requests": out,
            "aborted": [{"n": e["n"], "produced": e["produced"]} for e in eng.log if e["state"] == "aborted"]}


async def serve(engine: Engine, host: str, port: int) -> asyncio.AbstractServer:
    """Start listening; used by main() and by tests that embed the server."""
    loop = asyncio.get_running_loop()
    engine.wheel = Wheel(loop)
    return await loop.create_server(lambda: Conn(engine), host, port, backlog=2048, reuse_address=True)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--host", default="127.0.0.1")
    ap.add_argument("--port", type=int, default=9000)
    ap.add_argument("--model", action="append", help="served model name(s); default gpt-oss and qwen-parser")
    ap.add_argument("--any-model", action="store_true", help="accept every model name")
    ap.add_argument("--max-model-len", type=int, default=131072)
    ap.add_argument("--eos", default="200002,199999,200012", help="comma-separated ids that end a generation by themselves: "
                    "the tokenizer's (stop_reason null), then those of generation_config.json; 200002 alone for a folder without")
    ap.add_argument("--log-limit", type=int, default=10000, help="requests kept in /__log; 0 = none (benchmarks)")
    ap.add_argument("--default", help="JSON script used when none is queued, e.g. '{\"load\":{\"tokens\":500},\"pace_ms\":20}'")
    ap.add_argument("--continuous-usage", action="store_true", help="usage in every chunk (--enable-force-include-usage)")
    a = ap.parse_args()
    engine = Engine(a.model or ["gpt-oss", "qwen-parser"], a.max_model_len, [int(x) for x in a.eos.split(",") if x],
                    a.log_limit, json.loads(a.default) if a.default else None, a.any_model, a.continuous_usage)

    async def run() -> None:
        server = await serve(engine, a.host, a.port)
        print(f"fake vLLM {VERSION} on http://{a.host}:{server.sockets[0].getsockname()[1]} pid {os.getpid()}", flush=True)
        await server.serve_forever()

    try:
        import uvloop
        uvloop.install()
    except ImportError:
        pass
    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
