"""Engines that sample completions from the policy in training, group by group."""
