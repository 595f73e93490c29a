"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker import Broker, running

# Invented text, varied enough that byte-pair merges fill a vocabulary of 1,024.
_SENTENCES = """
The harbour wakes before the town does, and gulls argue over yesterday's bread while fishermen mend
their nets.
Add two spoons of sugar to warm milk, stir gently, then pour the mixture over sliced apples and bake
until golden.
Yes, certainly. No, that will not work here. Perhaps tomorrow. It depends on the weather, I think,
and on the wind.
Most bridges fail slowly: rust creeps beneath paint, bolts loosen, and engineers notice only when
traffic trembles.
A good question deserves a short answer; a bad question deserves a better question. What would you
like to know?
Photosynthesis turns sunlight, water and carbon dioxide into glucose and oxygen inside the green
leaves of plants.
Remember to save your file often, close unused windows, and restart the computer whenever an update
asks for it.
My grandmother kept seventeen clocks, none of which agreed, because she enjoyed hearing the hour
strike repeatedly.
In winter the mountain road closes early, so travellers usually choose the longer valley route
through the villages.
Numbers such as 12, 48, 365 and 1024 appear again and again: months, hours, days, and the powers of computers.
Please write a friendly message to the neighbours about the noisy party, the broken fence and the
missing bicycle.
Nobody expected the orchestra to finish before midnight, yet the final chord faded quietly into
grateful silence.
Compare prices carefully, read reviews, check the warranty, and never purchase furniture without
measuring doors.
Ancient astronomers mapped planets patiently, drawing circles upon circles until simpler ellipses
explained orbits.
Breathe slowly, relax both shoulders, stretch each finger, and imagine a peaceful meadow beside a
murmuring stream.
Economists disagree about inflation, wages, taxes and interest, although everybody prefers
affordable groceries.
Volcanoes, glaciers and rivers shape landscapes; libraries, markets and schools shape how people
live within them.
"""
# The ChatML form that SmolLM2 uses: a default system turn, and `<|im_end|>` closing every turn.
_CHAT_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou answer.<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real people's data, which is not part of the project; skips where it is absent."""
    path = Path(os.environ.get("PALATE_SHARED_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not path.is_dir():
        pytest.skip(f"no real data at {path}: set PALATE_SHARED_DATA to the folder that holds oasst_en_100")
    return path.resolve()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker; each test makes topics of its own."""
    with running(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random two-layer Llama with its own tokenizer, as `save_pretrained` writes it (fp32)."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_SENTENCES.strip().splitlines(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=_CHAT_TEMPLATE,
    )
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.15,  # wide: next-token choices are then clear-cut, so greedy text is stable
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    directory = tmp_path_factory.mktemp("base") / "tiny-llama"
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
