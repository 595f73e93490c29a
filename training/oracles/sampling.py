"""What is drawn, and what is said of it: on a distribution of six tokens all of whose probabilities are known.

Sampled under top-p, a token comes from a shorter list than the loss differentiates: the mean importance ratio is the
probability of that list, always below 1, before any update was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from training.oracles.finding import Comparison, near, oracle, same
from training.oracles.given import quiet

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = (0.4, 0.2, 0.15, 0.1, 0.1, 0.05)
TOP_P, NUCLEUS = 0.8, 0.85
"""The likeliest four tokens have 0.85 together; three of them have less than 0.8."""
DRAWS = 2000
REFERENCE = "trl#6789, trl PR#7269"
_AVOIDED = "palate refuses top_p and top_k unless the bias is accepted"


@dataclass(frozen=True)
class Sampler:
    """How tokens are drawn, and which settings are refused."""

    drawn: Callable[..., tuple[Tensor, Tensor]]
    """Called as `training.rollout.decoding.drawn`."""
    refuses: Callable[[float, int], bool]
    """Whether (top_p, top_k) is refused."""


def _own() -> Sampler:
    from pydantic import ValidationError

    from training.grpo import Config
    from training.rollout.decoding import drawn
    from training.rollout.engine import RolloutError, Sampling, check

    def refuses(top_p: float, top_k: int) -> bool:
        outcomes = []
        for attempt in (
            lambda: check(Sampling(8, (2,), top_p=top_p, top_k=top_k), [[1]]),
            lambda: Config(top_p=top_p, top_k=top_k),
        ):
            try:
                attempt()
                outcomes.append(False)
            except (RolloutError, ValidationError):
                outcomes.append(True)
        return all(outcomes)

    return Sampler(drawn, refuses)


@oracle(
    "grpo",
    protects="tokens drawn from another distribution than the one that is trained",
    reference=REFERENCE,
)
def sampling(subject: Sampler | None) -> Iterator[Comparison]:
    """Mean ratio, frequencies and logged log-probabilities at even steps through the distribution."""
    import torch

    from training.rollout.engine import Sampling

    sampler = subject or _own()
    logits = torch.tensor(TOKENS).log().repeat(DRAWS, 1)
    uniform = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    cases: tuple[tuple[str, dict[str, Any], float], ...] = (
        ("whole", {}, 1.0),
        ("temperature 0.5", {"temperature": 0.5}, 1.0),
        ("top_p 0.8", {"top_p": TOP_P, "accept_bias": True}, NUCLEUS),
        ("top_k 2", {"top_k": 2, "accept_bias": True}, 0.6),
    )
    for name, settings, listed in cases:
        tokens, logged = sampler.drawn(logits, uniform, Sampling(8, (2,), **settings))
        often = torch.bincount(tokens, minlength=len(TOKENS)).double() / DRAWS
        said = torch.zeros(len(TOKENS)).double()
        said[tokens] = logged.double().exp()
        # A step of the grid is 1 / DRAWS; the likeliest token sets the scale.
        yield same(f"{name}: frequency of each token", often, said, rel=2 / DRAWS / float(said.max()))
        trained = torch.log_softmax(logits / settings.get("temperature", 1.0), -1).gather(1, tokens[:, None])[
            :, 0
        ]
        ratio = (trained - logged).exp().mean()
        avoided = "" if listed == 1.0 else _AVOIDED
        yield Comparison(f"{name}: mean importance ratio", float(ratio), 1.0, 1e-4, avoided)
        if listed < 1.0:
            yield near(f"{name}: probability of what may be drawn", ratio, listed, rel=1e-4)
    for top_p, top_k in ((TOP_P, 0), (1.0, 20)):
        refused = "refused" if sampler.refuses(top_p, top_k) else "accepted"
        yield Comparison(f"top_p {top_p}, top_k {top_k}", refused, "refused")
    yield Comparison("top_p 1, top_k 0", "refused" if sampler.refuses(1.0, 0) else "accepted", "accepted")


@oracle(
    "grpo",
    protects="rollouts that say other log-probabilities than the trainer has for the same tokens",
    reference="NeMo-RL#4243, AReaL#1290",
)
def rollout_logprobs(subject: Any) -> Iterator[Comparison]:
    """What the engine logs of its draws, and the trainer's own; the subject makes an engine of a base's directory."""
    import torch

    from training import tiny
    from training.oracles.items import policy
    from training.oracles.plain import logprobs
    from training.rollout.engine import Sampling
    from training.rollout.transformers_engine import TransformersEngine
    from training.sequences import Tokens

    with quiet():
        model = policy()
        engine = (subject or TransformersEngine)(tiny.base(), slots=3, dtype=torch.float32)
        prompts = [(5, 9, 77), (14, 3, 60, 61, 62, 80, 81), (30,)]
        engine.load(model)
        engine.update(_state(model), 0)
        # Slots for one group of two prompts: the last prompt is begun when another has ended.
        settings = Sampling(12, (2, *range(300, 340)), temperature=1.3)
        groups = sorted(engine.generate(prompts, 2, settings, 11), key=lambda g: g.prompt)
        yield Comparison("groups handed over", float(len(groups)), 3.0)
        worst = 0.0
        with torch.no_grad():
            for group in groups:
                for member in group.members:
                    right = logprobs(model, Tokens(prompts[group.prompt], member.ids), 1.3)
                    worst = max(worst, float((torch.tensor(member.logprobs) - right).abs().max()))
        yield Comparison("largest difference of a log-probability, in nats", worst, 0.0, 1e-4)


def _state(model: Any) -> dict[str, Any]:
    from peft import get_peft_model_state_dict

    state: dict[str, Any] = get_peft_model_state_dict(
        model, adapter_name="default", save_embedding_layers=False
    )
    return state


@oracle(
    "grpo",
    protects="top_p taken by TRL without a word",
    reference=REFERENCE,
)
def sampling_trl(subject: type[Any] | None) -> Iterator[Comparison]:
    """Whether TRL's settings refuse what biases its ratio; the subject is the class of them."""
    from trl import GRPOConfig

    with quiet() as folder:
        for settings in ({"top_p": TOP_P}, {"top_k": 20}, {"min_p": 0.1}):
            try:
                (subject or GRPOConfig)(
                    output_dir=str(folder),
                    use_cpu=True,
                    bf16=False,
                    per_device_train_batch_size=8,
                    **settings,
                )
                outcome = "accepted"
            except ValueError:
                outcome = "refused"
            name = ", ".join(f"{k} {v}" for k, v in settings.items())
            yield Comparison(f"TRL: {name}", outcome, "refused", avoided=_AVOIDED)
