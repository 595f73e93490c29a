"""Rollouts by vLLM on a CUDA device. Not run in this project's tests, which have none: marked `gpu`.

The adapter goes to vLLM as a directory with a name and a number of its own for every version: an engine that is
given new weights under an old name may answer from the old ones' prefix cache. Log-probabilities are asked for as
processed, after the temperature, which is what the loss computes. Prompts are shared within a group by vLLM's own
prefix cache. The members of a group are seeded by vLLM from the request's seed.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.rollout.engine import Group, Member, RolloutError, Sampling, check

if TYPE_CHECKING:
    from torch import Tensor


class VLLMEngine:
    """See the module, and `training.rollout.engine.Engine`."""

    def __init__(
        self, base: Path, *, slots: int = 256, memory_share: float = 0.3, sleeps: bool = True
    ) -> None:
        """An engine that samples nothing yet.

        Args:
            base: directory of the base model.
            slots: rows decoded side by side.
            memory_share: share of the device's memory that vLLM may take; training needs the rest.
            sleeps: between generations its weights go to the host's memory and its cache is given up, so that training
                has the device to itself.

        Raises:
            RolloutError: vLLM is not installed.
        """
        try:
            import vllm
        except ImportError as error:
            raise RolloutError(
                "The rollout engine vllm is not installed.",
                next_step='pip install vllm on a machine with CUDA, or set [train.grpo] engine = "transformers"',
            ) from error
        self._vllm: Any = vllm
        self.base, self.slots, self.memory_share, self.sleeps = base, slots, memory_share, sleeps
        self._asleep = False
        self._version = -1
        self._llm: Any = None
        self._adapter: Any = None
        self._config: Any = None
        self._directory = tempfile.TemporaryDirectory(prefix="palate-adapters-")

    @property
    def version(self) -> int:
        """See `Engine.version`."""
        return self._version

    def load(self, policy: Any) -> None:
        """See `Engine.load`; base weights are read from the directory."""
        self._config = policy.peft_config["default"]
        self._llm = self._vllm.LLM(
            model=str(self.base),
            enable_lora=True,
            max_lora_rank=self._config.r,
            max_num_seqs=self.slots,
            gpu_memory_utilization=self.memory_share,
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enable_sleep_mode=self.sleeps,
        )

    def update(self, adapter: Mapping[str, Tensor], version: int) -> None:
        """See `Engine.update`."""
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        directory = Path(self._directory.name) / f"version-{version}"
        directory.mkdir(exist_ok=True)
        self._config.save_pretrained(directory)
        tensors = {k: v.detach().cpu().contiguous() for k, v in adapter.items()}
        save_file(tensors, directory / "adapter_model.safetensors")
        self._adapter = LoRARequest(directory.name, version + 1, str(directory))
        self._version = version

    def generate(
        self, prompts: Sequence[Sequence[int]], group_size: int, sampling: Sampling, seed: int
    ) -> Iterator[Group]:
        """See `Engine.generate`."""
        check(sampling, prompts)
        if self._llm is None or self._adapter is None:
            raise RolloutError(
                "The engine was given no policy to sample from.", next_step="call load and update"
            )
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False
        engine = self._llm.llm_engine
        for place, ids in enumerate(prompts):
            parameters = self._vllm.SamplingParams(
                n=group_size,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_new_tokens,
                stop_token_ids=list(sampling.ends),
                logprobs=0,
                seed=_seed(seed, place),
                detokenize=False,
            )
            request = f"{self._version}-{seed}-{place}"
            engine.add_request(
                request, {"prompt_token_ids": list(ids)}, parameters, lora_request=self._adapter
            )
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    yield _group(output, sampling, self._version)
        if self.sleeps:
            self._llm.sleep(level=1)
            self._asleep = True


def _group(output: Any, sampling: Sampling, version: int) -> Group:
    members = []
    for one in sorted(output.outputs, key=lambda o: o.index):
        ids = tuple(one.token_ids)
        logprobs = tuple(at[token].logprob for at, token in zip(one.logprobs, ids, strict=True))
        members.append(Member(ids, logprobs, ids[-1] in sampling.ends))
    return Group(int(output.request_id.rsplit("-", 1)[-1]), tuple(members), version)


def _seed(seed: int, place: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{place}".encode()).digest()[:4], "big")
