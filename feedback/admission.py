"""From what a rule proposes to a row: split, consent, personal data and identity, for all rules alike."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from feedback.events import SCHEMA_VERSION
from feedback.groups import Group, Reply
from feedback.hygiene.pii import PiiConfig, scrub
from feedback.rules import Proposal
from feedback.splits import SplitConfig, row_split


class Admission:
    """Makes rows of what rules propose for one group: split, consent, personal data, identity."""

    def __init__(self, group: Group, split: SplitConfig, pii: PiiConfig) -> None:
        self.group, self.split, self.pii = group, split, pii
        self._clean: dict[str, tuple[str, list[str]]] = {}
        self._prompts: dict[bytes, tuple[list[dict[str, str]], list[str]]] = {}

    def row(self, item: Proposal, rule: str) -> dict[str, Any] | str:
        """The row of a proposal, or the reason why there is none."""
        if item.chosen == item.rejected:
            return "same_text"
        users = {signal.user for signal in item.signals} | {reply.user for reply in item.replies}
        drawn = row_split(users, self.group.prompt_key, self.split)
        if drawn is None:
            return "split_conflict"
        use = "train" if drawn == "train" else "evaluate"
        if not all(use in reply.uses for reply in item.replies):
            return "consent_" + use
        prompt, removed = self._prompt(item.preferred)
        chosen, of_chosen = self._text(item.chosen)
        rejected, of_rejected = (None, []) if item.rejected is None else self._text(item.rejected)
        if chosen == rejected:  # they differed in personal data only
            return "same_text"
        raters = {signal.user for signal in item.signals}
        row = {
            "prompt": prompt,
            "prompt_key": self.group.prompt_key,
            "chosen": chosen,
            "rejected": rejected,
            "label": item.label,
            "margin": float(item.margin),
            "weight": float(item.weight),
            # With two replies there is no single draw that the row was logged under.
            "propensity": item.preferred.propensity if len(item.replies) == 1 else None,
            "user_id": raters.pop() if len(raters) == 1 else None,
            "agent": item.preferred.agent,
            "rule": rule,
            "evidence": self._evidence(item),
            "event_time": max(signal.time for signal in item.signals),
            "split": drawn,
            "scrubbed": sorted([*removed, *of_chosen, *of_rejected]),
            "schema_version": SCHEMA_VERSION,
        }
        content = orjson.dumps(row, option=orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z)
        return {"preference_id": hashlib.sha256(content).hexdigest(), **row}

    def _evidence(self, item: Proposal) -> list[str]:
        """The events it rests on, and what the same person had said before."""
        signals = {signal.id for signal in item.signals}
        older = {name for key in signals for name in self.group.superseded.get(key, ())}
        return sorted([*signals, *older, *{reply.id for reply in item.replies}])

    def _text(self, text: str) -> tuple[str, list[str]]:
        """A text without personal data, and which kinds of it were replaced."""
        if text not in self._clean:
            clean, found = scrub(text, self.pii)
            self._clean[text] = clean, list(found.elements())
        return self._clean[text]

    def _prompt(self, reply: Reply) -> tuple[list[dict[str, str]], list[str]]:
        """Likewise for the messages of a prompt."""
        if reply.context not in self._prompts:
            messages, removed = [], []
            for message in reply.prompt:
                content, found = self._text(message["content"])
                messages.append({"role": message["role"], "content": content})
                removed += found
            self._prompts[reply.context] = messages, removed
        return self._prompts[reply.context]
