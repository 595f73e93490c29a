"""A tiny causal language model with a tokenizer of its own, made in memory: what numeric checks run on.

Two layers, hidden size 64, a byte-pair vocabulary of 512: a forward pass takes milliseconds, and nothing is downloaded.
Its weights are random but wide, so that logits, gradients and differences between policies are far from rounding.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

END, START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
BASE_ID = "palate:tiny"
_TEXT = """
The ferry leaves at seven, and whoever is late waits for the next one with a paper cup of coffee.
Peel the onions, cut them fine, fry them slowly in butter until they are soft and golden.
A short answer is often enough; a long one should earn its length. What would you like to know?
Seven people counted 128 birds on the lake, 64 on the meadow, and none at all above the car park.
Please remember to close the window before it rains, water the plants, and lock the back door.
Nobody knows why the old clock strikes thirteen, although every child in the village has a theory.
Turn left at the library, follow the river for ten minutes, then ask again at the yellow house.
Thank you for the kind letter. I am sorry that the parcel arrived late and that the lamp was broken.
"""
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> Any:
    """A byte-level BPE tokenizer with a ChatML template; it pads with its end of turn, as many models do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[END, START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_TEXT.strip().splitlines(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=START,
        eos_token=TURN_END,
        pad_token=TURN_END,
        padding_side="left",
        chat_template=_TEMPLATE,
    )


def config(tokens: Any, **changes: Any) -> Any:
    """Shape of the model for a tokenizer; `changes` replace fields."""
    from transformers import LlamaConfig

    return LlamaConfig(
        **{
            "vocab_size": len(tokens),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "initializer_range": 0.1,
            "bos_token_id": tokens.bos_token_id,
            "eos_token_id": tokens.eos_token_id,
            "pad_token_id": tokens.pad_token_id,
            **changes,
        }
    )


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    import torch
    from transformers import LlamaForCausalLM

    made = tempfile.TemporaryDirectory(prefix="palate-tiny-")
    tokens = tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model: Any = LlamaForCausalLM(config(tokens))
        model.to(torch.float32).save_pretrained(made.name)
    tokens.save_pretrained(made.name)
    return made


def base() -> Path:
    """Directory of the model and its tokenizer (single precision); made once a process, gone with it."""
    return Path(_directory().name)


def policy(*, dropout: float = 0.0, moved: float = 0.05, directory: Path | None = None) -> Any:
    """The model with a LoRA adapter on all its linear layers, ready to be trained on the CPU.

    Args:
        dropout: on the adapter's input.
        moved: standard deviation of the noise on the adapter; 0 leaves B = 0, so that it answers as the base.
        directory: the base; None is `base()`.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(directory or base(), dtype=torch.float32)
    settings = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        adapted = get_peft_model(model, settings)
    if moved:
        move(adapted, moved)
    return adapted


def move(model: Any, by: float, seed: int = 7) -> None:
    """Add noise of standard deviation `by` to all that is trained."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(by * torch.randn(weight.shape, generator=generator))
