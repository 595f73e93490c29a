"""From chats to token ids, as the model served them, each chat once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from training.contexts import Context
from training.rendering import NotRendered, Rendered, RenderSettings, attempt, attempt_pair, counted
from training.sequences import Tokens
from training.settings import UpdateSettings

if TYPE_CHECKING:
    import pyarrow as pa


class Encoder:
    """Encodes prompts and replies with a base model's tokenizer, and remembers what it encoded."""

    def __init__(self, base: Path, settings: UpdateSettings) -> None:
        """With the tokenizer in `base`."""
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        self.settings = RenderSettings(
            max_tokens=settings.max_tokens,
            overlong=settings.overlong,
            reasoning=settings.reasoning,
            use_logged_tokens=settings.use_logged_tokens,
            template_options=settings.template_options,
        )
        self._pairs: dict[int, tuple[Rendered, Rendered] | NotRendered] = {}
        self._seen: dict[tuple[bytes, bytes], Rendered | NotRendered] = {}

    def encode(self, prompt: Sequence[Mapping[str, Any]], reply: Mapping[str, Any] | str) -> Tokens | None:
        """The chat as tokens, the completion being what follows the rendered prompt; None where it cannot be used."""
        return _tokens(self._outcome(list(prompt), reply, {}))

    def served(self, row: Mapping[str, Any]) -> Tokens | None:
        """A row of SERVED as tokens: as logged where they were, else rendered."""
        logged = {
            "tools": orjson.loads(row["tools"]) if row.get("tools") else None,
            "logged_prompt_ids": row.get("prompt_ids"),
            "logged_completion_ids": row.get("completion_ids"),
        }
        given = {name: value for name, value in logged.items() if value is not None}
        return _tokens(self._outcome(orjson.loads(row["prompt"]), orjson.loads(row["completion"]), given))

    def pair(self, place: int, context: Context) -> tuple[Tokens, Tokens] | None:
        """Two replies to one prompt as tokens, the prompt cut alike; None where they cannot be used.

        Args:
            place: names the pair, so that it is rendered once.
            context: the pair as it was served.
        """
        if place not in self._pairs:
            assert context.rejected is not None
            self._pairs[place] = attempt_pair(
                self.tokenizer,
                context.prompt,
                context.chosen,
                context.rejected,
                settings=self.settings,
                tools=context.tools,
                logged_prompt_ids=context.prompt_ids,
                logged_chosen_ids=context.chosen_ids,
                logged_rejected_ids=context.rejected_ids,
            )
        found = self._pairs[place]
        if isinstance(found, NotRendered):
            return None
        sides = [_tokens(side) for side in found]
        return None if sides[0] is None or sides[1] is None else (sides[0], sides[1])

    def single(self, context: Context) -> Tokens | None:
        """The chosen reply of a row as tokens; None where it cannot be used."""
        logged = {
            "tools": context.tools,
            "logged_prompt_ids": context.prompt_ids,
            "logged_completion_ids": context.chosen_ids,
        }
        given = {name: value for name, value in logged.items() if value is not None}
        return _tokens(self._outcome(context.prompt, context.chosen, given))

    @property
    def metrics(self) -> dict[str, float]:
        """What became of all chats so far: rendered, cut, left out, differing from what was served."""
        pairs = [
            side
            for pair in self._pairs.values()
            for side in ((pair,) if isinstance(pair, NotRendered) else pair)
        ]
        return counted([*self._seen.values(), *pairs]).metrics()

    def _outcome(self, prompt: Any, reply: Any, given: dict[str, Any]) -> Rendered | NotRendered:
        key = (orjson.dumps(prompt), orjson.dumps([reply, given]))
        if key not in self._seen:
            self._seen[key] = attempt(self.tokenizer, prompt, reply, settings=self.settings, **given)
        return self._seen[key]


def _tokens(outcome: Rendered | NotRendered) -> Tokens | None:
    if isinstance(outcome, NotRendered):
        return None
    mask = tuple(bool(m) for m in outcome.completion_mask)
    if not any(mask):
        return None
    return Tokens(tuple(outcome.prompt_ids), tuple(outcome.completion_ids), None if all(mask) else mask)


class AsServed:
    """Preference rows with their messages as they were served, by `preference_id`."""

    def __init__(self, preferences: pa.Table, served: pa.Table) -> None:
        """Look up every row of PREFERENCES among the rows of SERVED."""
        from training.contexts import contexts

        self._contexts = contexts(preferences, served)
        self.place = {name: k for k, name in enumerate(preferences["preference_id"].to_pylist())}

    def context(self, row_id: str) -> Context:
        """One row."""
        return self._contexts.row(self.place[row_id])

    @property
    def metrics(self) -> dict[str, float]:
        """How many rows stand for themselves, as no interaction with their prompt is there."""
        return {"render/own_messages": float(self._contexts.not_found)}
