"""What can go wrong between a candidate and the users, each error with its next command."""

from __future__ import annotations

from feedback.errors import PalateError


class RolloutError(PalateError, RuntimeError):
    """Base of this package's errors."""


class RegistryUnavailable(RolloutError, ConnectionError):
    """The MLflow registry cannot be reached or refuses to work."""


class UnknownVersion(RolloutError, LookupError):
    """A version or alias that the registry does not have."""


class BrokenAdapter(RolloutError, ValueError):
    """An adapter directory that cannot be loaded, or is not the one that was registered."""


class GateFailed(RolloutError):
    """A gate said no."""

    exit_code = 3


class StaleEvidence(GateFailed):
    """The gates judged the candidate against a model that is no longer the champion."""


class InsufficientData(RolloutError):
    """The gates could not decide, or none was judged."""

    exit_code = 4


class NothingToDo(RolloutError):
    """There is no candidate to promote, or no earlier champion to return to."""

    exit_code = 5


class PromotionConflict(RolloutError):
    """Another decision came first; this one is recorded as void and changed nothing."""


class DecisionLogBroken(RolloutError):
    """The decision log was edited: hashes, numbers or evidence do not fit together."""
