"""The sides of `updates_speed.py`: one update in a process of its own, by palate or by stock TRL.

    python benchmarks/updates_speed_sides.py '{"side": "palate", "method": "kto", ...}'

Both sides of a method are given the same rows, champion, learning rate, batches and seed.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from updates_speed_rows import PROMPTS, questions, unpaired

PALATE, TRL, BARE, REPLAY = "palate", "trl", "trl, checkpointing off", "trl on palate's replies"
BATCH, EPOCHS, RATE, BETA, SEED = 8, 2, 1e-4, 0.1, 0
MAX_TOKENS, LAYERS = 192, 15
STEPS, GROUP, MICRO, NEW_TOKENS = 2, 8, 8, 128


@dataclass(frozen=True)
class Spec:
    """One update to measure."""

    side: str
    method: str
    base: str
    champion: str
    rows: str
    folder: str
    """For what both sides share, and for the result."""
    lead: bool = False
    """Whether to say how far apart the finished adapter puts liked and disliked replies."""


@dataclass
class Measured:
    """What an update took and gave."""

    curve: list[dict[str, float]]
    adapter: str = ""
    step_cpu_s: list[float] = field(default_factory=list)
    """GRPO: time at the end of each step, from the start of the process."""
    lengths: list[list[list[int]]] = field(default_factory=list)
    """GRPO: tokens of each reply, by step and prompt."""
    rollouts: dict[str, Any] = field(default_factory=dict)
    """GRPO: what was sampled for the first step."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_gb: float = 0.0
    lead: float | None = None


def brevity(replies: Any) -> list[float]:
    """The reward of GRPO: minus the tokens."""
    return [-float(tokens) for tokens in replies.tokens]


def palate(spec: Spec, rows: Any, output: Path) -> Measured:
    """DPO or KTO by palate."""
    from feedback.served import SERVED
    from training import update

    how = update.method(spec.method)
    names = {
        "dpo": ("batch_pairs", "micro_batch_pairs", "min_pairs"),
        "kto": ("batch_rows", "micro_batch_rows", "min_rows"),
    }
    batch, micro, least = names[spec.method]
    config = how.Config(
        learning_rate=RATE, epochs=EPOCHS, warmup_share=0.0, schedule="linear", max_tokens=4 * MAX_TOKENS, beta=BETA,
        save_every_steps=1000, **{batch: BATCH, micro: 4, least: 1},
    )  # fmt: skip
    data = update.Data(rows if spec.method == "dpo" else unpaired(rows), SERVED.empty_table())
    where = update.Champion(Path(spec.base), "bench", Path(spec.champion))
    result = how.train(config, where, data, None, update.Run(output, SEED))
    return Measured(result.curve, str(result.adapter))


def trl(spec: Spec, rows: Any, output: Path) -> Measured:
    """The same update by TRL's own trainer."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

    from training.pairs import choose_pairs, choose_unpaired

    kind, trainer = (DPOConfig, DPOTrainer) if spec.method == "dpo" else (KTOConfig, KTOTrainer)
    arguments = kind(
        num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, beta=BETA, max_length=4 * MAX_TOKENS,
        learning_rate=RATE, **_arguments(spec, output),
    )  # fmt: skip
    reply = lambda text: [{"role": "assistant", "content": text}]  # noqa: E731
    if spec.method == "dpo":
        chosen = choose_pairs(rows, most=10**6, seed=SEED).rows.to_pylist()
        made = [
            {"prompt": r["prompt"], "chosen": reply(r["chosen"]), "rejected": reply(r["rejected"])}
            for r in chosen
        ]
    else:
        chosen = choose_unpaired(unpaired(rows), most=10**6, seed=SEED).rows.to_pylist()
        made = [
            {"prompt": r["prompt"], "completion": reply(r["chosen"]), "label": r["label"]} for r in chosen
        ]
    run = trainer(
        model=_policy(spec), args=arguments, train_dataset=Dataset.from_list(made), processing_class=_tokenizer(spec)
    )  # fmt: skip
    run.train()
    run.model.save_pretrained(str(output / "adapter"), selected_adapters=["default"])
    return Measured([e for e in run.state.log_history if "loss" in e], str(output / "adapter"))


def palate_grpo(spec: Spec, rows: Any, output: Path) -> Measured:
    """GRPO by palate, with TRL's defaults for the loss."""
    from feedback.served import SERVED
    from training import grpo, update
    from training.grpo_rollout import Rollouts

    made = Measured([])
    sample = Rollouts.__call__

    def noted(self: Rollouts, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        out = sample(self, prompts, trainer)
        asked = {prompt.ids: prompt.messages for prompt in self.prompts}
        _note(made, [asked[tuple(ids)] for ids in out["prompt_ids"]], out["completion_ids"])
        made.rollouts = made.rollouts or {n: out[n] for n in ("prompt_ids", "completion_ids", "logprobs")}
        return out

    Rollouts.__call__ = noted  # type: ignore[method-assign]  # this process measures and ends
    config = grpo.Config(
        loss="dapo", beta=0.0, clip_low=0.2, clip_high=0.2, refill_rounds=0, learning_rate=RATE, warmup_share=0.0,
        schedule="linear", steps=STEPS, prompts_per_step=PROMPTS, group_size=GROUP, micro_batch=MICRO,
        max_new_tokens=NEW_TOKENS, min_prompts=1, save_every_steps=1000,
        rewards={"sources": {"updates_speed_sides:brevity": 1.0}, "guards": {}}, hacking={"action": "off"},
    )  # fmt: skip
    run = update.Run(output, SEED, on_step=lambda *_: made.step_cpu_s.append(time.process_time()))
    where = update.Champion(Path(spec.base), "bench", Path(spec.champion))
    data = update.Data(questions(rows), SERVED.empty_table())
    made.curve = grpo.train(config, where, data, None, run).curve
    return made


def trl_grpo(spec: Spec, rows: Any, output: Path) -> Measured:
    """The same by stock TRL; or one step of it on the replies that palate sampled."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    made = Measured([])

    class Clock(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
            if "loss" in logs:
                made.step_cpu_s.append(time.process_time())

    def reward(prompts: list[Any], completion_ids: list[Any], **_: Any) -> list[float]:
        _note(made, prompts, completion_ids)
        return [-float(len(ids)) for ids in completion_ids]

    replay = json.loads((Path(spec.folder) / "rollouts.json").read_text()) if spec.side == REPLAY else None
    arguments = GRPOConfig(
        num_generations=GROUP, max_completion_length=NEW_TOKENS, per_device_train_batch_size=MICRO,
        gradient_accumulation_steps=PROMPTS * GROUP // MICRO, max_steps=1 if replay else STEPS, learning_rate=RATE,
        dataloader_pin_memory=False, **_arguments(spec, output),
    )  # fmt: skip
    asked = [{"prompt": row["prompt"]} for row in questions(rows).to_pylist()]
    run = GRPOTrainer(
        model=_policy(spec), reward_funcs=reward, args=arguments, train_dataset=Dataset.from_list(asked),
        processing_class=_tokenizer(spec), callbacks=[Clock()],
        rollout_func=(lambda _prompts, _trainer: replay) if replay else None,
    )  # fmt: skip
    run.train()
    made.curve = [e for e in run.state.log_history if "loss" in e]
    return made


def _arguments(spec: Spec, output: Path) -> dict[str, Any]:
    """TRL's own defaults but for the number format, and what keeps it quiet."""
    import torch

    from reward_models.hardware import fast_bf16

    return {
        "output_dir": str(output), "seed": SEED, "data_seed": SEED, "bf16": fast_bf16(),
        "use_cpu": not torch.cuda.is_available(), "report_to": "none", "save_strategy": "no", "logging_steps": 1,
        "disable_tqdm": True, "gradient_checkpointing": spec.side == TRL,
    }  # fmt: skip


def _policy(spec: Spec) -> Any:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(spec.base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, spec.champion, is_trainable=True)


def _tokenizer(spec: Spec) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(spec.base)


def _note(made: Measured, prompts: list[Any], completions: list[Any]) -> None:
    """Keep how long the replies of one step are, by prompt, in an order that both sides share."""
    by_prompt: dict[str, list[int]] = {}
    for prompt, ids in zip(prompts, completions, strict=True):
        by_prompt.setdefault(prompt[-1]["content"], []).append(len(ids))
    made.lengths.append([by_prompt[text] for text in sorted(by_prompt)])


def lead(spec: Spec, rows: Any, adapter: Path) -> float:
    """How far apart an adapter puts liked and disliked replies, in the reward that KTO implies.

    beta (log p(y|x) - log p_champion(y|x)), its mean over liked replies less that over disliked ones.
    """
    import numpy as np
    import torch

    from feedback.served import SERVED
    from reward_models.hardware import fast_bf16
    from training import kto
    from training.reference import cache_file, reference_logprobs
    from training.update import Champion, Data

    champion = Path(spec.champion)
    config = kto.Config(max_tokens=4 * MAX_TOKENS, min_rows=1)
    data = Data(unpaired(rows), SERVED.empty_table())
    items, _, _ = kto.reply_items(config, Champion(Path(spec.base), "bench", champion), data, SEED)

    def scored(where: Path) -> np.ndarray:
        file = cache_file(Path(spec.folder) / "lead", "bench", where, "lead")
        model = _policy(Spec(**{**asdict(spec), "champion": str(where)}))
        autocast: Callable[[], Any] = lambda: torch.autocast("cpu", torch.bfloat16, enabled=fast_bf16())  # noqa: E731
        found = reference_logprobs(
            model, [i.sequences[0] for i in items], file, batch_size=8, autocast=autocast
        )
        return np.array([logps.sum() for logps in found])

    rewards = BETA * (scored(adapter) - scored(champion))
    liked = np.array([item.values["liked"] > 0 for item in items])
    return float(rewards[liked].mean() - rewards[~liked].mean())


def main(spec: Spec) -> None:
    """One update; what it took and gave goes to `measured.json`."""
    import pyarrow.parquet as pq

    rows = pq.read_table(spec.rows)
    sides = {True: (palate_grpo, trl_grpo), False: (palate, trl)}[spec.method == "grpo"]
    update = sides[0] if spec.side == PALATE else sides[1]
    with tempfile.TemporaryDirectory() as folder:
        started, cpu = time.perf_counter(), time.process_time()
        made = update(spec, rows, Path(folder) / "update")
        made.wall_s, made.cpu_s = time.perf_counter() - started, time.process_time() - cpu
        made.peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        made.lead = lead(spec, rows, Path(made.adapter)) if spec.lead else None
    (Path(spec.folder) / "measured.json").write_text(json.dumps(asdict(made)))


if __name__ == "__main__":
    main(Spec(**json.loads(sys.argv[1])))
