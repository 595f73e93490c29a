"""How well a reward model knows people it has never met, after k of their votes.

Each held-out person's votes are put in the order of their casting (`event_time`, then `preference_id`). The first k
teach the model about that person and nobody else; what it then expects of their later votes is compared with what it
expects of anybody, the shared taste alone:

    gain(k) = mean over people u of  mean over later votes v of u of  loss_shared(v) - loss_k(v)         nats per vote

Later votes are those after the first K, the largest k of the curve, whichever k is asked about: so every point is about
the same votes of the same people, and what differs between points is only what was learned. The price is that people
with few votes are not in it; K is therefore the largest k for which enough people are left. Every person counts once,
however much they voted, and intervals resample people. A vote on the prompt and of the moment of vote K, such as
another pair of the same ranking, is neither learned nor a later one; a verdict that comes in several rows counts once.

At k = 0 a person is what the model expects of people like them (their agent, their first message), for every k the
same. The belief after k votes is that of all of them together, as a fit has it (`low_rank.LowRank.learn_all`);
`personal.Personal.learn`, one vote after the other, comes close to it. Replies are embedded once. The shared taste
alone is the same fit with nothing personal, not another fit: `votes_tell`, the gain over k = 0, does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from evaluation.estimates import Estimate, bootstrap_mean
from reward_models.heldout import bare, corrected, presented
from reward_models.length_bias import log_words
from reward_models.low_rank import LowRank, Votes
from reward_models.people import Person
from reward_models.representation import last_user_message
from reward_models.scorer import Scorer
from reward_models.taste import Belief
from reward_models.ties import outcome_loss
from reward_models.votes_of_rows import Given, marks_of, unheard

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[Any]
NOBODY = (
    "It learns nothing of one person, so there is no curve of how well it knows people after their votes."
)


class Config(BaseModel):
    """How the curve is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    ks: tuple[Annotated[int, Field(ge=0)], ...] = (0, 1, 2, 4, 8, 16, 32)
    """After how many votes of a person; 0 is always among them."""
    min_people: int = Field(default=10, ge=2)
    """A k for which fewer people have enough votes is left out."""
    min_later: int = Field(default=4, ge=1)
    """Votes of a person after the largest k that there must be to predict."""


@dataclass(frozen=True)
class Point:
    """What a model knows of people after `k` of their votes."""

    k: int
    gain: Estimate
    """Log-loss of the shared taste alone less the model's, nats per vote; `n` counts people."""
    votes_tell: Estimate
    """The model's log-loss at k = 0 less that at k: what these votes add."""


@dataclass(frozen=True)
class KShot:
    """The curve, or why there is none."""

    points: tuple[Point, ...] = ()
    """By k; empty where nothing could be measured."""
    shared: Estimate | None = None
    """Log-loss of the shared taste alone, nats per vote, over people."""
    people: int = 0
    """Whom the model had not met; the same for every k."""
    votes: int = 0
    """Later votes of theirs, the same for every k."""
    notes: tuple[str, ...] = ()
    """Why there is no curve, or why it ends early or stays flat, in sentences."""

    def estimates(self) -> dict[str, Estimate]:
        """Gains over the shared taste alone by a name that MLflow accepts."""
        return {f"k_shot_{point.k}": point.gain for point in self.points}

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "points": [
                {"k": p.k, "gain": p.gain.to_dict(), "votes_tell": p.votes_tell.to_dict()}
                for p in self.points
            ],
            "shared": None if self.shared is None else self.shared.to_dict(),
            "people": self.people,
            "votes": self.votes,
            "notes": list(self.notes),
        }


@runtime_checkable
class KnowsPeople(Protocol):
    """A reward model that can learn one person's votes, as `reward_models.personal` does."""

    @property
    def taste(self) -> LowRank:
        """What holds for everybody."""
        ...

    @property
    def people(self) -> Mapping[str, Person]:
        """Whom it has met."""
        ...

    def votes(self, pairs: Given) -> Votes:
        """Pairs as votes whose outcomes are not known."""
        ...

    def person(self, user_id: str | None, agent: str | None = None, message: str = "") -> Person:
        """What is believed of somebody."""
        ...


def measure(scorer: Scorer, rows: pa.Table, *, seed: int, config: Config | None = None) -> KShot:
    """The curve of a scorer, from pairs of people it has not met.

    Args:
        scorer: a fitted reward model, or what wraps one.
        rows: held-out PREFERENCES rows; unpaired ones, those of nobody known and of people it has met are passed over.
        seed: of the resampling of people.
        config: defaults if None.
    """
    config, model = config or Config(), bare(scorer)
    if not isinstance(model, KnowsPeople):
        return KShot(notes=(NOBODY,))
    rows = strangers(rows, model.people)
    person, first = _grouped(rows["user_id"].to_pylist())
    place = np.arange(len(person)) - first[person]
    division = divide(person, place, _sittings(rows), config)
    if division.most < 0:
        return KShot(notes=division.notes)
    rows = rows.filter(division.kept)
    person, first = _grouped(rows["user_id"].to_pylist())
    place, later = place[division.kept], division.later[division.kept]
    ks = sorted(k for k in {0, *config.ks} if k <= division.most)
    shared, losses = _losses(scorer, model, rows, _Known(person, place, later, first), ks)
    clusters = np.arange(len(first))

    def over_people(values: Array) -> Estimate:
        return bootstrap_mean(values, clusters, seed=seed)

    notes = division.notes
    if model.taste.trust == 0:
        notes += ("Nothing personal helped to predict people who were not fitted, so votes change nothing.",)
    points = [
        Point(k, over_people(shared - own), over_people(losses[0] - own))
        for k, own in zip(ks, losses, strict=True)
    ]
    return KShot(tuple(points), over_people(shared), len(first), int(later.sum()), notes)


def strangers(rows: pa.Table, met: Mapping[str, Any]) -> pa.Table:
    """Pairs of known people who are not among those met, each verdict once, by person and in the order of casting."""
    import pyarrow as pa
    import pyarrow.compute as pc

    named = pc.and_(pc.is_valid(rows["user_id"]), pc.not_equal(pc.fill_null(rows["user_id"], ""), ""))
    weighs = pc.fill_null(pc.greater(rows["weight"], 0), False)
    rows = rows.filter(pc.and_(pc.and_(pc.is_valid(rows["rejected"]), named), weighs))
    new = [name not in met for name in rows["user_id"].to_pylist()]
    rows = rows.filter(pa.array(new, pa.bool_()))
    # Votes without a time come last, as `learn` has them.
    rows = rows.sort_by(
        [("user_id", "ascending"), ("event_time", "ascending"), ("preference_id", "ascending")]
    )
    return rows.filter(pa.array(unheard(marks_of(rows), ())))


@dataclass(frozen=True)
class Division:
    """Which of N votes are learned from or predicted."""

    most: int
    """The largest k; -1 where no curve can be drawn."""
    kept: Array
    """(N,) bool: the votes that are used; the others are of people with too few."""
    later: Array
    """(N,) bool: those of them that are predicted."""
    notes: tuple[str, ...]


def divide(person: Array, place: Array, sitting: Array, config: Config) -> Division:
    """The largest k for which enough people have enough votes after it.

    Args:
        person: (N,) codes from 0, each person's votes together.
        place: (N,) of each vote among its person's.
        sitting: (N,) codes of what was said in one breath.
        config: what is enough.
    """
    ks = sorted({0, *config.ks})
    count = int(person[-1]) + 1 if len(person) else 0
    best, few = Division(-1, np.zeros(len(person), bool), np.zeros(len(person), bool), ()), (0, 0)
    for k in ks:
        # Sitting of vote k, which is nobody's where there is none.
        last = np.full(count, -1)
        at = place == k - 1
        last[person[at]] = sitting[at]
        later = (place >= k) & (sitting != last[person])
        enough = np.bincount(person[later], minlength=count) >= config.min_later
        if enough.sum() < config.min_people:
            few = (k, int(enough.sum()))
            break
        own = enough[person]
        best = Division(k, own & (later | (place < k)), own & later, ())
    if best.most == ks[-1]:
        return best
    k, people = few
    have = f"{k} votes and {config.min_later} later ones" if k else f"{config.min_later} votes"
    who = "person" if people == 1 else "people"
    note = f"{people} {who} whom it had not met cast {have}, {config.min_people} are needed"
    if best.most < 0:
        return replace(
            best, notes=(f"There is no curve of how well it knows people after their votes: {note}.",)
        )
    return replace(best, notes=(f"The curve ends after {best.most} votes: {note} for more.",))


@dataclass(frozen=True)
class _Known:
    """N votes of P people, each one's together and in their order."""

    person: Array
    """(N,) from 0."""
    place: Array
    """(N,) of each vote among all of its person's."""
    later: Array
    """(N,) bool: those that are predicted."""
    first: Array
    """(P,) row of each one's first vote."""


def _losses(
    scorer: Scorer, model: KnowsPeople, rows: pa.Table, known: _Known, ks: Sequence[int]
) -> tuple[Array, list[Array]]:
    """Mean log-loss of each person's later votes (P,): by the shared taste alone, and after each k."""
    shown = presented(rows)
    votes = model.votes(Given(shown.prompts, shown.first, shown.second))
    votes = replace(votes, outcome=shown.outcome, weight=np.asarray(rows["weight"].to_numpy(), dtype=float))
    longer = (log_words(shown.first) - log_words(shown.second))[known.later]
    taste, people = model.taste, len(known.first)
    begin = rows.take(known.first).select(["user_id", "agent", "prompt"]).to_pylist()
    about = np.stack(
        [model.person(one["user_id"], one["agent"], last_user_message(one["prompt"])).known for one in begin]
    )
    asked, whose = votes.take(np.flatnonzero(known.later)), known.person[known.later]
    per_person = np.bincount(whose, minlength=people)

    def loss(belief: Belief | None) -> Array:
        said = corrected(scorer, taste.predict(asked, belief), longer)
        total = np.bincount(whose, weights=outcome_loss(said, asked.outcome), minlength=people)
        return np.asarray(total / per_person)

    if taste.trust == 0:  # exactly, whatever is learned
        alone = loss(None)
        return alone, [alone] * len(ks)
    after = []
    for k in ks:
        heard = votes.take(np.flatnonzero(known.place < k))
        means, covariances = taste.learn_all(heard, k * np.arange(people), about)
        after.append(loss(Belief(means[whose], covariances[whose])))
    return loss(None), after


def _sittings(rows: pa.Table) -> Array:
    """(N,) codes of person, prompt and time: pairs of one ranking are said in one breath."""
    columns = rows.select(["user_id", "prompt_key", "event_time"]).to_pydict()
    codes: dict[tuple[Any, ...], int] = {}
    said = zip(*columns.values(), strict=True)
    return np.array([codes.setdefault(each, len(codes)) for each in said], dtype=int)


def _grouped(names: Sequence[str]) -> tuple[Array, Array]:
    """(codes (N,) of sorted names, the row where each begins (P,))."""
    _, first, codes = np.unique(
        np.array(names, dtype=object).astype(str), return_index=True, return_inverse=True
    )
    return codes, first
