"""Says what is in a scene, or part of it, in one of many ways.

A caption comes with the facts that it names; what it does not name is left to chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from kit.checkpoint.lexicon import (
    ANY_KIND_WORDS,
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    COLOURED,
    COUNT_WORDS,
    FILLERS,
    KIND_WORDS,
    MADE_OF,
    MATERIAL_WORDS,
    OPENINGS,
    ORDER_WORDS,
    PLURALS,
    POSITION_WORDS,
    RELATION_WORDS,
    SIDE_WORDS,
    SIZE_WORDS,
    SYLLABLES,
    Words,
)
from kit.checkpoint.scenes import RELATIONS, Scene, SceneObject, random_scene, relation

T = TypeVar("T")

CASES = ("lower", "sentence", "title", "upper")


@dataclass(frozen=True)
class ObjectFacts:
    """What a caption names of one object; None: not named."""

    kind: str | None
    colour: str | None


@dataclass(frozen=True)
class Facts:
    """What must be seen in a picture that follows a caption; None or empty: not named."""

    objects: tuple[ObjectFacts, ...]
    """As many as the picture has, equal ones repeated."""
    background: str | None = None
    relations: tuple[tuple[int, str, int], ...] = ()
    """(i, word of RELATIONS, j) for objects i and j."""
    count: int | None = None
    position: str | None = None


@dataclass(frozen=True)
class Caption:
    text: str
    facts: Facts


@dataclass(frozen=True)
class Style:
    """What a caption names, and how it is written."""

    kind: bool = True
    """Only a single object can stay unnamed."""
    colour: bool = True
    background: bool = True
    material: bool = False
    size: bool = False
    position: bool = True
    """Named where the scene has one that is clear."""
    relation: bool = True
    """Named for two or three different objects."""
    synonyms: float = 0.0
    """Chance of each word to be said in another way."""
    articles: bool = True
    case: str = "sentence"
    """One of CASES."""
    turns: bool = False
    """Whether openings, other orders and keyword lists may be used."""
    num_extra_words: int = 0
    ending: str = ""


def training_caption(scene: Scene, draw: np.random.Generator) -> Caption:
    """Say the scene in a random way; parts are left out, words are replaced or added."""
    single = len(scene.objects) == 1
    chance = draw.random(12)
    if (single and chance[0] < 0.08) or (scene.is_group and chance[0] < 0.3):
        bare = Style(background=False, colour=chance[1] < 0.5, position=False)
        style = replace(bare, turns=chance[2] < 0.2)
    else:
        style = Style(
            kind=not single or chance[0] > 0.09,
            colour=chance[1] < 0.88,
            background=chance[2] < 0.78,
            material=chance[3] < 0.35,
            size=chance[4] < 0.25,
            position=chance[5] < 0.4,
            relation=chance[6] < 0.8,
            turns=True,
        )
    style = replace(
        style,
        synonyms=(0.0, 0.35, 0.35, 1.0)[draw.integers(4)],
        articles=chance[7] < 0.85,
        case=CASES[int(np.searchsorted((0.38, 0.74, 0.82), chance[8]))],
        num_extra_words=int(draw.integers(1, 4)) if chance[9] < 0.08 else 0,
        ending=("", "", "", "", ".", ".", "!")[draw.integers(7)],
    )
    return describe(scene, style, draw)


def training_captions(num: int, seed: int) -> Iterator[str]:
    """Yield captions of scenes that are not held out, to train a vocabulary on."""
    for index in range(num):
        draw = np.random.default_rng((seed, index))
        yield training_caption(random_scene(draw, size=(256, 256)), draw).text


def describe(scene: Scene, style: Style, draw: np.random.Generator) -> Caption:
    """Say the scene in a given style; `draw` chooses among equal ways."""
    phrasing = _Phrasing(scene, style, draw)
    text = phrasing.text()
    return Caption(written(text, style, draw), phrasing.facts())


class Speaker:
    """Chooses words in a style; `draw` decides among equal ones."""

    def __init__(self, style: Style, draw: np.random.Generator) -> None:
        self.style, self.draw = style, draw

    def say(self, words: Words) -> str:
        """Say one thing, by a synonym as often as the style wants."""
        return self.pick(words.others if self.by_synonym() else words.plain)

    def by_synonym(self) -> bool:
        return bool(self.draw.random() < self.style.synonyms)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.draw.integers(len(options)))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return [items[at] for at in self.draw.permutation(len(items))]


class _Phrasing(Speaker):
    """One caption in the making; collects the facts that it names."""

    def __init__(self, scene: Scene, style: Style, draw: np.random.Generator) -> None:
        super().__init__(style, draw)
        self._scene = scene
        self._order = list(scene.objects)
        self._relations: tuple[tuple[int, str, int], ...] = ()
        self._position: str | None = None

    def facts(self) -> Facts:
        style, scene = self.style, self._scene
        return Facts(
            objects=tuple(
                ObjectFacts(one.kind if style.kind else None, one.colour if style.colour else None)
                for one in self._order
            ),
            background=scene.background if style.background else None,
            relations=self._relations,
            count=len(scene.objects) if scene.is_group else None,
            position=self._position,
        )

    def text(self) -> str:
        draw, style = self.draw, self.style
        if style.turns and len(self._order) == 1 and draw.random() < 0.07:
            return self._keywords()
        objects = self._objects()
        if not style.background:
            return self._opened(objects)
        preposition, place = self._place()
        turn = draw.random() if style.turns else 0.0
        if turn < 0.72:
            return self._opened(f"{objects} {preposition} {place}")
        if turn < 0.82:
            return f"{preposition} {place}, {objects}"
        if turn < 0.92:
            return self._opened(f"{objects}, {place}")
        return f"{place} with {objects}"

    def _objects(self) -> str:
        scene = self._scene
        if scene.is_group:
            return self._group()
        if len(scene.objects) == 1:
            return self._positioned(self._object(scene.objects[0]))
        return self._pair() if len(scene.objects) == 2 else self._triple()

    def _opened(self, text: str) -> str:
        if self.style.turns and self.draw.random() < 0.22:
            return f"{self.pick(OPENINGS)} {text}"
        return text

    def _keywords(self) -> str:
        """A comma-separated list, in any order."""
        (one,) = self._order
        style = self.style
        parts = [*self._adjectives(one), self._noun(one, plural=False)]
        if style.background:
            parts.append(self._place()[1])
        return ", ".join(self.shuffled(parts))

    def _positioned(self, text: str) -> str:
        position = self._scene.position
        if position is None or not self.style.position:
            return text
        self._position = position
        where = self.say(POSITION_WORDS[position])
        turn = self.draw.random() if self.style.turns else 0.0
        return f"{text} {where}" if turn < 0.8 else f"{where}, {text}"

    def _group(self) -> str:
        one = self._order[0]
        count = self.say(COUNT_WORDS[len(self._order)])
        return " ".join([count, *self._adjectives(one), self._noun(one, plural=True)])

    def _pair(self) -> str:
        draw = self.draw
        first, second = self._order
        word = relation(first, second)
        if word is None or not self.style.relation:
            if draw.random() < 0.5:
                self._order.reverse()
            joint = self.pick(("and", "and", "and", "with", "next to"))
            joint = "and" if joint == "next to" and word == "above" else joint
            return f" {joint} ".join(self._object(one) for one in self._order)
        turn = draw.random() if self.style.turns else 0.0
        if turn > 0.8 and word in SIDE_WORDS:
            self._relations = ((0, word, 1),)
            sides = SIDE_WORDS[word]
            parts = [f"{self._object(o)} {s}" for o, s in zip(self._order, sides, strict=True)]
            return " and ".join(parts)
        if draw.random() < 0.5:
            self._order.reverse()
            word = RELATIONS[word]
        self._relations = ((0, word, 1),)
        a, b = (self._object(one) for one in self._order)
        return f"{a} {self.say(RELATION_WORDS[word])} {b}"

    def _triple(self) -> str:
        words = {relation(a, b) for a, b in zip(self._order, self._order[1:], strict=False)}
        word = words.pop() if len(words) == 1 else None
        order = ""
        if word in ORDER_WORDS and self.style.relation:
            self._relations = ((0, word, 1), (1, word, 2))
            order = " " + self.say(ORDER_WORDS[word])
        else:
            self._order = self.shuffled(self._order)
        a, b, c = (self._object(one) for one in self._order)
        return f"{a}, {b} and {c}{order}"

    def _object(self, one: SceneObject) -> str:
        style, draw = self.style, self.draw
        adjectives = self._adjectives(one)
        if not style.kind and draw.random() < 0.5 and adjectives:
            return "something " + " ".join(adjectives)
        noun = self._noun(one, plural=False)
        made_of = style.material and one.material in MADE_OF and style.turns
        if made_of and draw.random() < 0.2:
            adjectives.pop()
            noun = f"{noun} made of {MADE_OF[one.material]}"
        return with_article(" ".join([*adjectives, noun]))

    def _adjectives(self, one: SceneObject) -> list[str]:
        """Size, colour, material: those that the style names."""
        style, found = self.style, []
        if style.size:
            found.append(self.say(SIZE_WORDS[one.size]))
        if style.colour:
            colour = self.say(COLOUR_WORDS[one.colour])
            if self.draw.random() < 0.06 * style.turns:
                colour = f"{colour} {self.pick(COLOURED)}"
            found.append(colour)
        if style.material:
            found.append(self.say(MATERIAL_WORDS[one.material]))
        return found

    def _noun(self, one: SceneObject, *, plural: bool) -> str:
        noun = self.say(KIND_WORDS[one.kind] if self.style.kind else ANY_KIND_WORDS)
        return plural_of(noun) if plural else noun

    def _place(self) -> tuple[str, str]:
        """Preposition and noun phrase of the background."""
        words = BACKGROUND_WORDS[self._scene.background]
        return self.pick(words.others if self.by_synonym() else words.plain)


def with_article(noun: str) -> str:
    """Put a or an before a noun phrase."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def plural_of(noun: str) -> str:
    """Return the plural of a noun phrase of the lexicon."""
    *first, last = noun.split(" ")
    if last in PLURALS:
        last = PLURALS[last]
    elif last.endswith(("s", "x", "ss")):
        last += "es"
    elif last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ies"
    else:
        last += "s"
    return " ".join([*first, last])


def written(text: str, style: Style, draw: np.random.Generator) -> str:
    """Apply articles, extra words, case and ending."""
    words = text.split(" ")
    if not style.articles:
        words = [word for word in words if word not in ("a", "an", "the")]
    for _ in range(style.num_extra_words):
        words.insert(int(draw.integers(len(words) + 1)), _extra_word(draw))
    text = " ".join(words)
    if style.case == "title":
        text = text.title()
    elif style.case == "upper":
        text = text.upper()
    elif style.case == "sentence":
        text = text[0].upper() + text[1:]
    return text + style.ending


def _extra_word(draw: np.random.Generator) -> str:
    if draw.random() < 0.5:
        return FILLERS[draw.integers(len(FILLERS))]
    return "".join(SYLLABLES[at] for at in draw.integers(len(SYLLABLES), size=draw.integers(2, 4)))
