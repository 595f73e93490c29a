from __future__ import annotations

import pytest

from reward_models.features import NAMES, WORD, text_features
from reward_models.language import language_of

TEXTS = {
    "en": "How can I cook lentils for the week, and what do you put in it?",
    "de": "Wie kann ich Linsen für die Woche kochen, und was ist mit dem Reis?",
    "fr": "Je ne sais pas ce que vous avez dans la cuisine pour les lentilles.",
    "es": "No sé qué es lo que se puede hacer con las lentejas para la semana.",
    "pt": "Eu não sei o que você pode fazer com as lentilhas para a semana.",
    "it": "Non so che cosa si può fare con le lenticchie per la settimana, mi sono perso.",
    "nl": "Ik weet niet wat je met de linzen voor deze week kan maken, maar het is goed.",
    "cyrillic": "Как приготовить чечевицу на неделю?",
    "cjk": "如何 煮 扁豆",
    "arabic": "كيف أطبخ العدس",
    "greek": "Πώς να μαγειρέψω φακές",
}


@pytest.mark.parametrize(("language", "text"), TEXTS.items())
def test_languages_are_told_by_script_or_function_words(language, text):
    assert language_of([word.lower() for word in WORD.findall(text)]) == language


@pytest.mark.parametrize("text", ["", "Paris", "OK", "print(x)", "42", "la", "Python pandas numpy"])
def test_where_nothing_tells_there_is_no_answer(text):
    assert language_of([word.lower() for word in WORD.findall(text)]) is None


@pytest.mark.parametrize(
    ("asked", "replied", "value"),
    [("en", "en", 0.0), ("en", "de", 1.0), ("cyrillic", "en", 1.0), ("es", "es", 0.0)],
)
def test_a_reply_in_another_language_than_the_question(asked, replied, value):
    (row,) = text_features([TEXTS[asked]], [TEXTS[replied]])
    assert row[NAMES.index("other_language")] == value


def test_an_unknown_language_is_no_other_language():
    (row,) = text_features(["Paris"], [TEXTS["en"]])
    assert row[NAMES.index("other_language")] == 0.0


def test_features_by_hand():
    reply = "# Plan\n- one\n- two\n\nPerhaps you'll like it! Is it 42?"
    named = dict(zip(NAMES, text_features(["Plan it for me"], [reply])[0], strict=True))
    log1p = {1: 0.6931471805599453, 2: 1.0986122886681098}
    assert named["list_items"] == pytest.approx(log1p[2])
    assert named["headings"] == named["hedges"] == named["questions"] == pytest.approx(log1p[1])
    assert named["digits"] == pytest.approx(log1p[2])
    assert named["ends_finished"] == 1.0
    assert named["prompt_overlap"] == 1.0  # of the long words, "plan" is the only one
