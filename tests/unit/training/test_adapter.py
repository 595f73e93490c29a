"""The first champion: an untrained adapter."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from training.adapter import LoraSettings, new_adapter

SETTINGS = LoraSettings(r=4, alpha=8)


def contents(directory: Path) -> dict[str, str]:
    """Digest of every file, by its name."""
    return {
        f.relative_to(directory).as_posix(): hashlib.sha256(f.read_bytes()).hexdigest()
        for f in sorted(directory.rglob("*"))
        if f.is_file()
    }


def test_it_answers_exactly_as_the_base(tiny_base: Path, fresh_champion: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_base).eval()
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        wanted = base(ids).logits
        adapted = PeftModel.from_pretrained(base, str(fresh_champion)).eval()
        assert len([n for n, _ in adapted.named_parameters() if "lora_B" in n]) == 14  # 2 layers x 7 linears
        torch.testing.assert_close(adapted(ids).logits, wanted, rtol=0, atol=0)
        torch.testing.assert_close(adapted.merge_and_unload()(ids).logits, wanted, rtol=0, atol=0)


def test_same_seed_same_bytes_and_no_path_of_this_machine(
    tiny_base: Path, fresh_champion: Path, tmp_path: Path
) -> None:
    again = new_adapter(tiny_base, "test:tiny", tmp_path / "again", SETTINGS, seed=1)
    other = new_adapter(tiny_base, "test:tiny", tmp_path / "other", SETTINGS, seed=2)
    assert sorted(contents(again)) == ["adapter_config.json", "adapter_model.safetensors"]
    assert contents(again) == contents(fresh_champion)
    assert contents(other) != contents(fresh_champion)
    for file in again.iterdir():
        assert str(tiny_base).encode() not in file.read_bytes()
    about = json.loads((again / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == "test:tiny"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []  # no staging left


def test_an_existing_adapter_is_kept(tiny_base: Path, fresh_champion: Path) -> None:
    before = contents(fresh_champion)
    assert new_adapter(tiny_base, "test:tiny", fresh_champion, SETTINGS, seed=99) == fresh_champion
    assert contents(fresh_champion) == before


def test_only_the_last_layers_are_adapted_when_asked(tiny_base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    settings = LoraSettings(r=4, alpha=8, last_layers=1, target_modules=("q_proj", "v_proj"))
    made = new_adapter(tiny_base, "test:tiny", tmp_path / "top", settings, seed=1)
    names = list(load_file(made / "adapter_model.safetensors"))
    assert len(names) == 4
    assert all(".layers.1." in n and ("q_proj" in n or "v_proj" in n) for n in names)


def test_full_weights_are_a_champion_like_any_other(tiny_base: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from tests.unit.training.test_dpo import update

    settings = LoraSettings(full_weights=True)
    champion = new_adapter(tiny_base, "test:tiny", tmp_path / "full", settings, seed=1)
    base = AutoModelForCausalLM.from_pretrained(tiny_base).eval()
    ids = torch.arange(3, 60)[None]
    before = {name: weight.clone() for name, weight in base.named_parameters()}
    with torch.inference_mode():
        wanted = base(ids).logits
        adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_base), str(champion))
        torch.testing.assert_close(adapted.eval()(ids).logits, wanted, rtol=0, atol=0)
    moved = update(tiny_base, champion, tmp_path / "update", learning_rate=1e-3).adapter
    start, end = (load_file(where / "adapter_model.safetensors") for where in (champion, moved))
    whole = [name for name in end if "lora_" not in name]
    assert len(whole) == 13  # of 14 linear layers; the smallest one has an update of full rank
    for name, weight in end.items():
        if name in whole:
            assert weight.shape == before[name.removeprefix("base_model.model.")].shape
        assert not torch.equal(weight, start[name]) or name.endswith("lora_A.weight"), name
    with torch.inference_mode():
        learned = PeftModel.from_pretrained(base, str(moved)).eval()
        assert not torch.allclose(learned(ids).logits, wanted, atol=1e-3)
        with learned.disable_adapter():
            torch.testing.assert_close(learned(ids).logits, wanted, rtol=0, atol=0)
