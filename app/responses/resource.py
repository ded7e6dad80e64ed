"""The response object at its birth: every required key, with the effective value."""

from typing import Any

from app.responses.events import Status
from app.responses.request import Request


def born(request: Request, response_id: str, *, created_at: int, status: Status) -> dict[str, Any]:
    """The response before anything was said. `GET` of an unfinished response shows exactly this."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": status,
        "background": request.background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {"effort": request.reasoning_effort, "summary": request.reasoning_summary},
        "safety_identifier": request.safety_identifier,
        "service_tier": request.service_tier or "default",
        "store": request.store,
        "temperature": request.temperature,
        "text": {"format": request.text_format, "verbosity": request.verbosity or "medium"},
        "tool_choice": request.tool_choice,
        "tools": list(request.tools),
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": request.truncation,
        "usage": None,
        "user": request.user,
        "metadata": request.metadata,
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
    }
