"""Preference data in, a scorer out: `score(prompts, completions) -> Rewards`."""
