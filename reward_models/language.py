"""Which language a short text is in, as far as its script or its commonest words tell.

Function words are the commonest of a language and differ between languages (Grefenstette 1995, Comparing two language
identification schemes): the language with most of them in the text, if it has at least two and more than any other.
Texts in other scripts are told apart by script alone. Where nothing tells, there is no answer, rather than a guess.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection

_FUNCTION_WORDS = {
    "de": "der die das und ist nicht ich sie ein eine mit auf für den dem zu im von wie was kann auch es wir",
    "en": "the and is not you that of to in it for with on are this what how can i do be have a your",
    "es": "el la los las y es no que de en un una por con para se lo como más su está puedo qué mi",
    "fr": "le la les et est pas que de des en un une pour avec je vous il dans sur ce qui mon du à",
    "it": "il lo gli e è non che di del della un una per con si come sono questo ho anche mi da nel",
    "nl": "de het en is niet ik een van dat te op voor met zijn er wat hoe kan ook maar aan bij je",
    "pl": "i nie to się w na jest do z co jak że o tak po jestem czy mam dla ale za mi być ma",
    "pt": "o os as e é não que de do da em um uma para com se por como mais seu está eu você no na",
    "sv": "och är inte jag det att en ett som på för med av den till vad hur kan har om de du så",
    "tr": "ve bir bu da de için ne mi ben çok nasıl var değil ile ama gibi daha en o sen mı kadar",
}
_LANGUAGES_OF: dict[str, tuple[str, ...]] = {}
for _name, _words in _FUNCTION_WORDS.items():
    for _word in _words.split():
        _LANGUAGES_OF[_word] = (*_LANGUAGES_OF.get(_word, ()), _name)
_ENOUGH = 2
"""Fewer function words than this may be chance, or a name."""


def language_of(words: Collection[str]) -> str | None:
    """The language of a text's words (lower case), as ISO 639-1 or the name of its script; None where nothing tells."""
    script = _script(words)
    if script is not None:
        return script
    found = Counter(language for word in words for language in _LANGUAGES_OF.get(word, ()))
    ranked = found.most_common(2)
    if not ranked or ranked[0][1] < _ENOUGH or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def _script(words: Collection[str]) -> str | None:
    """The script of most of the first letters, unless it is Latin: its languages are told apart by words."""
    scripts = Counter(
        unicodedata.name(word[0], "").partition(" ")[0] for word in words if word and not word.isascii()
    )
    latin = sum(word.isascii() for word in words) + scripts.pop("LATIN", 0)
    if not scripts:
        return None
    if scripts.keys() & {"HIRAGANA", "KATAKANA"}:
        return "ja"
    name, count = scripts.most_common(1)[0]
    return name.lower() if count > latin else None
