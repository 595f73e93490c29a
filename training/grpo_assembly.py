"""Puts an update together: champion, prompts, engine, rewards and trainer; or, with turns, TRL's own rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from training.grpo_prompts import Chosen, scheduled
from training.grpo_rollout import Rollouts
from training.reward_sources import Source
from training.rollout.engine import Engine, Sampling, ends_of
from training.update import Champion, Run

if TYPE_CHECKING:
    from training.grpo import Config
    from training.grpo_trainer import Trainer


def assembled(
    config: Config, champion: Champion, chosen: Chosen, sources: Sequence[Source], tokenizer: Any, run: Run
) -> Trainer:
    """The trainer of one update, ready to be run.

    Raises:
        TrainingError: an environment that the base model's chat template cannot serve.
    """
    from training.grpo_trainer import make_trainer

    model = _policy(champion)
    names, weights = [s.name for s in sources], [s.weight for s in sources]
    rows = _rows(config, chosen, run.seed)
    if config.environment or config.tools:
        from training.grpo_environment import Turns, refused

        turns = Turns(config, run, chosen.prompts, sources, tokenizer)
        given = turns.for_trl()
        try:
            trainer = make_trainer(
                config, run, model, tokenizer, rows, names, weights, figures=turns.taken, **given
            )
        except ValueError as error:
            raise refused(error) from error
        turns.trainer = trainer
        return trainer
    sampling = Sampling(
        max_new_tokens=config.max_new_tokens,
        ends=ends_of(model, tokenizer),
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        accept_bias=config.accept_sampling_bias,
    )
    rollouts = Rollouts(config, run, chosen.prompts, _engine(config, champion), sources, tokenizer, sampling)
    return make_trainer(
        config, run, model, tokenizer, rows, names, weights, rollouts=rollouts, figures=rollouts.taken
    )


def _policy(champion: Champion) -> Any:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base: Any = AutoModelForCausalLM.from_pretrained(champion.base, dtype=torch.float32)
    model: Any = PeftModel.from_pretrained(base, str(champion.adapter), is_trainable=True)
    # Checkpoints then find the base's vocabulary here, and do not look its id up on the hub.
    model.peft_config["default"].base_model_name_or_path = str(champion.base)
    return model


def _engine(config: Config, champion: Champion) -> Engine:
    if config.engine == "vllm":
        from training.rollout.vllm_engine import VLLMEngine

        return VLLMEngine(champion.base, slots=config.slots)
    import torch

    from training.rollout.transformers_engine import TransformersEngine

    dtype = torch.bfloat16 if config.in_bf16() else torch.float32
    return TransformersEngine(champion.base, slots=config.slots, dtype=dtype)


def _rows(config: Config, chosen: Chosen, seed: int) -> list[dict[str, Any]]:
    """TRL's rows: the prompts of each generation in their order, so that one pass over them is the whole run."""
    generations = config.steps // config.iterations
    places = [
        i
        for g in range(generations)
        for i in scheduled(len(chosen.prompts), g, config.prompts_per_step, seed)
    ]
    simple = [
        [{"role": str(m.get("role")), "content": m.get("content") or ""} for m in p.messages]
        for p in chosen.prompts
    ]
    return [{"prompt": simple[i], "place": i} for i in places]
