"""Group-relative policy optimisation of the champion's adapter (TRL): replies are sampled, paid and compared.

For each prompt G replies are sampled from the policy p itself. With R_i what reply i is paid in all, reference r (the
champion), ratio w = p / p_old (1 where a generation is used once) and clip bounds l, h:

    A_i = R_i - mean(R)                 divided by std(R) too where `advantage_scale` says so
    L   = sum over i, t of [ - min(w A_i, clip(w, 1 - l, 1 + h) A_i) + beta w (exp(d) - 1 - d) ] / D,  d = log r - log p

Shao et al. 2024 (arXiv 2402.03300), eq. 3 and 4; the ratio before the KL makes its gradient unbiased (DeepSeek-AI 2025,
arXiv 2512.02556). D decides who counts how much:

- `dr_grpo`: replies times `max_new_tokens`, a constant; with no division by std. Liu et al. 2025 (arXiv 2503.20783).
- `dapo`: tokens of the whole generation. Yu et al. 2025 (arXiv 2503.14476), eq. 8, with its dynamic sampling.
- `grpo`: each reply's own length, then the mean over replies. The original, which favours short good replies and long
  bad ones.
- `bnpo`: tokens of the micro-batch.

Replies that are masked out (`truncated = "mask"`, or a reward that failed) count neither above nor below the line.

A generation is sampled from the policy as it is and used at once: nothing is off-policy with `iterations = 1`, and no
pass computes the old log-probabilities then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from training.errors import NotEnoughPreferences
from training.full_disk import stops_when_full
from training.grpo_prompts import Chat, Chosen, Row, choose
from training.hacking import HackingSettings, RewardHacked
from training.result import RESULT, TrainResult, last_complete_checkpoint, read_result, write_alarm
from training.reward_sources import RewardError, RewardSettings, sources_of
from training.update import Champion, Data, Need, Run

if TYPE_CHECKING:
    from reward_models.scorer import Scorer
    from training.rendered import NotRendered, Rendered

NEEDS: frozenset[Need] = frozenset({"served", "scorer"})


class Config(BaseModel):
    """Settings of a GRPO update."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    loss: Literal["dr_grpo", "dapo", "grpo", "bnpo"] = "dr_grpo"
    """Who counts how much; see the method."""
    beta: float = Field(default=0.04, ge=0)
    """Strength of the pull towards the champion (0.04 in the paper); 0 saves the reference's pass."""
    advantage_scale: Literal["none", "group", "batch"] | None = None
    """What advantages are divided by: nothing, the standard deviation of the group or of the generation. Not set, it
    is none for dr_grpo and group for the others, as in their papers."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """How far below 1 the ratio may still move the loss; matters with `iterations` above 1."""
    clip_high: float = Field(default=0.28, gt=0)
    """How far above (DAPO's value)."""
    iterations: int = Field(default=1, ge=1)
    """Optimizer steps on each generation."""
    steps: int = Field(default=50, ge=1)
    """Optimizer steps in all."""
    prompts_per_step: int = Field(default=8, ge=1)
    """Prompts of a generation."""
    group_size: int = Field(default=8, ge=2)
    """Replies to each prompt."""
    micro_batch: int = Field(default=8, ge=1)
    """Replies per forward and backward pass; must divide prompts_per_step times group_size."""
    temperature: float = Field(default=1.0, gt=0)
    """What logits are divided by, in sampling and in the loss."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Below 1 it biases the importance ratio and needs `accept_sampling_bias`."""
    top_k: int = Field(default=0, ge=0)
    """Above 0 likewise."""
    accept_sampling_bias: bool = False
    """Allow `top_p` and `top_k` all the same."""
    max_new_tokens: int = Field(default=128, ge=1)
    """Longest reply, in tokens."""
    max_prompt_tokens: int = Field(default=512, ge=16)
    """Longest prompt, in tokens."""
    overlong: Literal["cut", "leave_out"] = "cut"
    """`cut` leaves out the oldest turns of a prompt that is too long; the system message and the last question stay."""
    use_logged_tokens: bool = True
    """Take a prompt's token ids as they were logged instead of rendering its messages."""
    template_options: dict[str, Any] = Field(default_factory=dict)
    """Switches of the chat template that the product sets, such as { enable_thinking = false }."""
    max_prompts: int = Field(default=4096, ge=1)
    """At most this many distinct prompts."""
    min_prompts: int = Field(default=8, ge=1)
    """With fewer the update refuses to run (exit code 4)."""
    truncated: Literal["keep", "mask"] = "keep"
    """Whether replies that were cut off at `max_new_tokens` are learned from."""
    refill_rounds: int = Field(default=1, ge=0)
    """How often further prompts are tried in place of groups whose replies are all paid the same."""
    dead_steps: int = Field(default=5, ge=1)
    """So many generations in a row with nothing to learn from end the run."""
    rewards: RewardSettings = RewardSettings()
    """What replies are paid for."""
    hacking: HackingSettings = HackingSettings()
    """When the run is stopped because the reward is being gamed."""
    environment: str | None = None
    """`module:object` that makes an environment with turns: TRL's `environment_factory`. Its methods become tools."""
    tools: tuple[str, ...] = ()
    """Functions the policy may call, each `module:object`."""
    max_turns: int = Field(default=4, ge=1)
    """Turns of the policy in an environment or with tools."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What samples; vllm needs a CUDA device."""
    slots: int = Field(default=64, ge=1)
    """Replies decoded side by side."""
    precision: Literal["auto", "fp32"] = "auto"
    """`auto` computes in bf16 where this machine is fast in it."""
    learning_rate: float = Field(default=5e-5, gt=0)
    """Peak learning rate of AdamW on the adapter."""
    warmup_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0; 0 starts at the peak."""
    schedule: Literal["cosine", "linear", "constant"] = "constant"
    """How the learning rate falls after the warm-up."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """A gradient longer than this is shortened to it."""
    save_every_steps: int = Field(default=5, ge=1)
    """A checkpoint every so many steps, or at the next end of a generation's use."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Config:
        completions = self.prompts_per_step * self.group_size
        if completions % self.micro_batch:
            raise ValueError(
                f"micro_batch ({self.micro_batch}) must divide prompts_per_step x group_size ({completions})"
            )
        if self.steps % self.iterations:
            raise ValueError(f"iterations ({self.iterations}) must divide steps ({self.steps})")
        if (self.top_p < 1 or self.top_k) and not self.accept_sampling_bias:
            raise ValueError(
                "top_p and top_k bias the importance ratio: leave them, or set accept_sampling_bias = true"
            )
        return self

    def in_bf16(self) -> bool:
        """Whether forward passes run in bf16."""
        from reward_models.hardware import fast_bf16

        return self.precision == "auto" and fast_bf16()


def train(config: Config, champion: Champion, data: Data, scorer: Scorer | None, run: Run) -> TrainResult:
    """Continue the champion's adapter on replies that the policy samples to real prompts.

    Safe to kill at any moment: a finished update is returned as it is, an unfinished one resumes from its last complete
    checkpoint with the same prompts and draws.

    Raises:
        NotEnoughPreferences: fewer than `min_prompts` prompts.
        RewardHacked: the reward was being gamed (exit code 3).
        TrainingError: nothing to learn from, a reward that never works, a loss or weight that is not finite, or a full
            disk.
    """
    done = run.output / RESULT
    if done.is_file():
        return read_result(done)
    sources = sources_of(config.rewards, scorer)
    if not sources and not config.environment:
        raise RewardError("Nothing is paid for.", next_step="name a source in [train.grpo.rewards] sources")
    if scorer is not None and run.heldout is not None:
        from reward_models.scorer import refuse_shared_rows

        refuse_shared_rows(scorer, run.heldout)
    tokenizer = _tokenizer(champion)
    chosen = _chosen(config, tokenizer, data, run)
    from training.grpo_assembly import assembled
    from training.grpo_finish import finished

    with stops_when_full(run.output):
        run.output.mkdir(parents=True, exist_ok=True)
        with _faster(assembled(config, champion, chosen, sources, tokenizer, run)) as trainer:
            hacked = _run(trainer, config, run)
        return finished(trainer, config, champion, chosen, run, hacked)


def _tokenizer(champion: Champion) -> Any:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(champion.base, padding_side="left")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _chosen(config: Config, tokenizer: Any, data: Data, run: Run) -> Chosen:
    from training.grpo_rendering import attempt_prompt
    from training.rendering import RenderSettings

    settings = RenderSettings(
        max_tokens=config.max_prompt_tokens,
        overlong=config.overlong,
        use_logged_tokens=config.use_logged_tokens,
        template_options=config.template_options,
    )

    def rendered(row: Row) -> tuple[Rendered, Chat] | NotRendered:
        return attempt_prompt(
            tokenizer, row["messages"], settings=settings, tools=row["tools"], logged_ids=row["prompt_ids"]
        )

    chosen = choose(data.served, data.preferences, rendered, max_prompts=config.max_prompts, seed=run.seed)
    if len(chosen.prompts) < config.min_prompts:
        unused = ", ".join(f"{reason}: {n}" for reason, n in chosen.left_out.items())
        raise NotEnoughPreferences(
            "Too few prompts to answer.",
            got=f"{len(chosen.prompts)} distinct prompts ({unused or 'no others'})",
            allowed=f"at least {config.min_prompts} ([train.grpo] min_prompts)",
            next_step="collect more interactions, then run again; `palate show dataset` lists what there is",
        )
    return chosen


@contextlib.contextmanager
def _faster(trainer: Any) -> Iterator[Any]:
    """The trainer, with what makes TRL faster here and changes no result."""
    from training.grpo_micro_batches import length_sorted
    from training.trl_on_cpu import only_needed_positions

    with only_needed_positions(), length_sorted(trainer), _no_texts_in_the_log():
        yield trainer


@contextlib.contextmanager
def _no_texts_in_the_log() -> Iterator[None]:
    """TRL warns of a group without a reward by printing what was said in it; here such groups are counted."""
    import logging

    def kept(record: logging.LogRecord) -> bool:
        return "All reward functions returned None" not in record.getMessage()

    logger = logging.getLogger("trl.trainer.grpo_trainer")
    logger.addFilter(kept)
    try:
        yield
    finally:
        logger.removeFilter(kept)


def _run(trainer: Any, config: Config, run: Run) -> RewardHacked | None:
    """Train to the end, or to an alarm where that is only to be marked."""
    from training.grpo_finish import curve_of

    try:
        trainer.train(resume_from_checkpoint=last_complete_checkpoint(run.output))
    except RewardHacked as hacked:
        write_alarm(run.output, hacked.alarm, curve_of(trainer))
        if config.hacking.action == "raise":
            raise
        return hacked
    return None
