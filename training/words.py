"""Learning from what people write: corrections and complaints teach, too, without any rating.

Two kinds of rows:

- **Hindsight.** What the user wrote next says what the reply should have been. The policy that has read it (the
  teacher) is a better judge of each token of the reply than the policy that has not (the student), and they are the
  same model: loss of a reply = mean over its tokens of KL(teacher || student), no gradient into the teacher. After
  hindsight self-distillation (arXiv 2603.12273).
- **Edits.** A reply that its user corrected is a target: loss = -log p(edit|x) / |edit|, times `edit_weight`.

Both are held to the champion by `kl_weight`, see `training.leash`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import Field, field_validator

from training.encoding import Encoder
from training.fit import fit
from training.result import RESULT, TrainResult, read_result
from training.served_rows import Row, ServedRow, choose_served, require
from training.settings import UpdateSettings
from training.update import Champion, Data, Need, Run

if TYPE_CHECKING:
    from torch import Tensor

    from reward_models.scorer import Scorer
    from training.policy_trainer import Item, Terms
    from training.sequences import Tokens

NEEDS: frozenset[Need] = frozenset({"served"})
HINDSIGHT, EDIT = "hindsight", "edit"


class Config(UpdateSettings):
    """Settings of an update from words."""

    hint: str = 'In hindsight: after your reply the user will write: "{next}". Reply so that this is heeded.'
    """What the teacher reads beside the prompt; `{next}` is what the user wrote next."""
    hindsight_weight: float = Field(default=1.0, ge=0)
    """Weight of replies with a next message or comment; 0 leaves them out."""
    edit_weight: float = Field(default=1.0, ge=0)
    """Weight of edits; 0 leaves them out."""
    kl_weight: float = Field(default=0.05, ge=0)
    """Penalty on the distance to the champion, per nat and token."""
    batch_rows: int = Field(default=16, ge=1)
    """Replies per optimizer step."""
    micro_batch_rows: int = Field(default=4, ge=1)
    """Replies per forward and backward pass; hindsight holds logits of student and teacher."""
    max_rows: int = Field(default=8192, ge=1)
    """At most this many replies."""
    min_rows: int = Field(default=16, ge=1)
    """With fewer replies the update refuses to run (exit code 4)."""

    @field_validator("hint")
    @classmethod
    def _place(cls, hint: str) -> str:
        if hint.count("{next}") != 1:
            raise ValueError("hint must hold {next} once")
        return hint


def train(
    config: Config,
    champion: Champion,
    data: Data,
    scorer: Scorer | None,
    run: Run,
) -> TrainResult:
    """Continue the champion's adapter on corrections and on what users wrote next; as safe to kill as DPO.

    Raises:
        NotEnoughPreferences: fewer than `min_rows` usable replies.
        TrainingError: the loss or a weight is not finite, or the disk is full.
    """
    if (run.output / RESULT).is_file():
        return read_result(run.output / RESULT)
    items, left_out, metrics = word_items(config, champion, data, run.seed)
    return fit(
        config,
        champion,
        run,
        items,
        Objective(config),
        per_step=config.batch_rows,
        micro_batch=config.micro_batch_rows,
        metrics=metrics,
        left_out=left_out,
        data=data,
        scorer=scorer,
    )


def word_items(
    config: Config, champion: Champion, data: Data, seed: int
) -> tuple[list[Item], dict[str, int], dict[str, float]]:
    """The replies to train on, what was left out by reason, and what to say of them.

    Raises:
        NotEnoughPreferences: fewer than `min_rows`.
    """
    encoder = Encoder(champion.base, config)
    chosen = choose_served(
        data.served, encoder, most=config.max_rows, seed=seed, unusable=lambda row: _unusable(config, row)
    )
    left_out = dict(chosen.left_out)
    items = []
    for one in chosen.rows:
        item = _edit(config, encoder, one) if _is_edit(config, one.row) else _hindsight(config, encoder, one)
        if item is None:
            left_out["not_rendered"] = left_out.get("not_rendered", 0) + 1
        else:
            items.append(item)
    require(
        type(chosen)(chosen.rows[: len(items)], left_out),
        config.min_rows,
        "words",
        "an edit or a next message",
    )
    edits = sum(item.part == EDIT for item in items)
    metrics = {"rows": float(len(items)), "edits": float(edits), "hindsight": float(len(items) - edits)}
    return items, left_out, {**metrics, **encoder.metrics}


def _is_edit(config: Config, row: Row) -> bool:
    return bool(row["edit"]) and config.edit_weight > 0


def _unusable(config: Config, row: Row) -> str | None:
    if _is_edit(config, row) or ((row["next_message"] or row["comment"]) and config.hindsight_weight > 0):
        return None
    return "no_words"


def _edit(config: Config, encoder: Encoder, one: ServedRow) -> Item | None:
    from training.policy_trainer import Item

    target = encoder.encode(orjson.loads(one.row["prompt"]), one.row["edit"])
    values = {"weight": config.edit_weight, "time": one.row["event_time"].timestamp()}
    return None if target is None else Item((target,), values, part=EDIT)


def _hindsight(config: Config, encoder: Encoder, one: ServedRow) -> Item | None:
    """The reply as the student sees it and as the teacher does: the same completion after two prompts."""
    from dataclasses import replace

    from training.policy_trainer import Item

    prompt = with_hint(
        orjson.loads(one.row["prompt"]), config.hint, one.row["next_message"] or one.row["comment"]
    )
    seen = encoder.encode(prompt, orjson.loads(one.row["completion"]))
    if seen is None or len(seen.prompt) + len(one.tokens.completion) > config.max_tokens:
        return None
    teacher: Tokens = replace(one.tokens, prompt=seen.prompt)
    values = {"weight": config.hindsight_weight, "time": one.row["event_time"].timestamp()}
    return Item((one.tokens, teacher), values, part=HINDSIGHT, referenced=1)


def with_hint(prompt: Sequence[dict[str, Any]], hint: str, following: str) -> list[dict[str, Any]]:
    """The prompt with the hint at the end of its last message; the user's text is put in as it is, never formatted."""
    *before, last = prompt
    before_next, after_next = hint.split("{next}")
    return [*before, {**last, "content": f"{last['content']}\n\n{before_next}{following}{after_next}"}]


@dataclass(frozen=True)
class Objective:
    """The loss of items of both kinds."""

    config: Config

    def prepare(self, model: Any, items: Sequence[Item]) -> None:
        """Nothing of the whole step is needed."""

    def terms(self, model: Any, items: Sequence[Item], step: Any) -> Terms:  # noqa: ARG002
        """Loss of each reply: a mean over its tokens."""
        import torch

        from training import losses
        from training.logprobs import completion_logits, selected
        from training.policy_trainer import Terms, mean_of
        from training.sequences import padded

        device = next(model.parameters()).device
        batch = padded([item.sequences[0] for item in items], device)
        student = completion_logits(model, batch)
        logps = selected(student, batch.targets).split(batch.lengths)
        taught = [k for k, item in enumerate(items) if item.part == HINDSIGHT]
        teachers: dict[int, Tensor] = {}
        if taught:
            with torch.no_grad():
                other = padded([items[k].sequences[1] for k in taught], device)
                teachers = dict(
                    zip(taught, completion_logits(model, other).split(other.lengths), strict=True)
                )
        parts: dict[str, list[Tensor]] = {HINDSIGHT: [], EDIT: []}
        for k, (item, logits) in enumerate(zip(items, student.split(batch.lengths), strict=True)):
            own = losses.self_distillation(logits, teachers[k]).mean() if k in teachers else -logps[k].mean()
            parts[item.part].append(own * item.values["weight"])
        found = {name: iter(values) for name, values in parts.items()}
        sums = {f"{name}_loss": mean_of(torch.stack(values)) for name, values in parts.items() if values}
        return Terms(
            torch.stack([next(found[item.part]) for item in items]), [(logp,) for logp in logps], sums
        )
