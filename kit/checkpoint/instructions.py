"""Says an edit as an instruction, in one of many ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kit.checkpoint.captions import (
    CASES,
    Speaker,
    Style,
    plural_of,
    with_article,
    written,
)
from kit.checkpoint.edits import Edit
from kit.checkpoint.grounds import GROUNDS
from kit.checkpoint.lexicon import (
    ANY_KIND_WORDS,
    BACKGROUND_WORDS,
    COLOUR_WORDS,
    COUNT_WORDS,
    KIND_WORDS,
    MADE_OF,
    MATERIAL_WORDS,
    RELATION_WORDS,
    SIDE_WORDS,
    SIZE_WORDS,
)
from kit.checkpoint.scenes import RELATIONS, SIZES, Scene, SceneObject, relation

# {it} is what changes, {new} what comes in its place. The first of each are the usual ways.
_WAYS: dict[str, tuple[str, ...]] = {
    "colour": (
        "make {it} {new}",
        "paint {it} {new}",
        "colour {it} {new}",
        "color {it} {new}",
        "turn {it} {new}",
        "change {it} to {new}",
        "recolour {it} in {new}",
        "change the colour of {it} to {new}",
        "change the color of {it} to {new}",
        "let {it} be {new}",
        "I want {it} to be {new}",
        "{it} should be {new}",
        "{it} in {new}",
    ),
    "placed": (
        "put {it} {new}",
        "place {it} {new}",
        "set {it} {new}",
        "show {it} {new}",
        "move {it} {new}",
        "I want {it} {new}",
        "{it} should be {new}",
        "{it} {new}",
    ),
    "background": (
        "change the background to {new}",
        "make the background {new}",
        "replace the background with {new}",
        "set the background to {new}",
        "use {new} as the background",
        "turn the background into {new}",
        "I want {new} as the background",
        "the background should be {new}",
        "{new} as the background",
    ),
    "replace": (
        "turn {it} into {new}",
        "replace {it} with {new}",
        "replace {it} by {new}",
        "change {it} into {new}",
        "change {it} to {new}",
        "swap {it} for {new}",
        "exchange {it} for {new}",
        "transform {it} into {new}",
        "make {it} {new}",
        "put {new} in place of {it}",
        "let {it} become {new}",
        "I want {new} instead of {it}",
        "{new} instead of {it}",
    ),
    "bigger": (
        "make {it} bigger",
        "make {it} larger",
        "enlarge {it}",
        "scale {it} up",
        "increase the size of {it}",
        "I want {it} bigger",
        "{it} should be larger",
    ),
    "smaller": (
        "make {it} smaller",
        "shrink {it}",
        "scale {it} down",
        "reduce the size of {it}",
        "decrease the size of {it}",
        "I want {it} smaller",
        "{it} should be smaller",
    ),
    "size": ("make {it} {new}", "let {it} be {new}", "{it} should be {new}"),
    "material": (
        "make {it} {new}",
        "change {it} to {new}",
        "let {it} be {new}",
        "I want {it} to be {new}",
        "{it} should be {new}",
    ),
    "made of": (
        "make {it} out of {new}",
        "make {it} of {new}",
        "change the material of {it} to {new}",
        "{it} should be made of {new}",
    ),
    "add": (
        "add {new}",
        "put {new}",
        "place {new}",
        "draw {new}",
        "insert {new}",
        "show {new}",
        "I want {new}",
        "there should be {new}",
    ),
    "remove": (
        "remove {it}",
        "delete {it}",
        "erase {it}",
        "take away {it}",
        "take {it} away",
        "get rid of {it}",
        "leave out {it}",
        "drop {it}",
        "make {it} disappear",
        "I do not want {it}",
        "{it} should be gone",
    ),
}

_OPENINGS = ("please", "now", "can you", "could you", "could you please", "edit the picture:",
             "in this picture,")  # fmt: skip
_NO_COMMAND = ("{", "I ", "the ", "there ")


def training_instruction(edit: Edit, draw: np.random.Generator) -> str:
    """Say the edit in a random way; words are replaced or added."""
    chance = draw.random(8)
    style = Style(
        colour=chance[0] < 0.4,
        relation=chance[1] < 0.85,
        material=chance[2] < 0.1,
        size=chance[3] < 0.15,
        synonyms=(0.0, 0.35, 0.35, 1.0)[draw.integers(4)],
        articles=chance[4] < 0.88,
        case=CASES[int(np.searchsorted((0.45, 0.8, 0.85), chance[5]))],
        turns=chance[6] < 0.85,
        num_extra_words=int(draw.integers(1, 3)) if chance[7] < 0.05 else 0,
        ending=("", "", "", "", ".", ".", "!", " please")[draw.integers(8)],
    )
    return instruct(edit, style, draw)


def instruct(edit: Edit, style: Style, draw: np.random.Generator) -> str:
    """Say the edit in a given style; `draw` chooses among equal ways.

    `style.colour` names colours of objects where they are not needed, `style.relation` the place
    of a new object; without `style.turns` only the usual ways are taken.
    """
    return written(_Instruction(edit, style, draw).text(), style, draw)


class _Instruction(Speaker):
    """One instruction in the making."""

    def __init__(self, edit: Edit, style: Style, draw: np.random.Generator) -> None:
        super().__init__(style, draw)
        self._edit, self._source = edit, edit.source

    def text(self) -> str:
        ways: dict[str, Callable[[], str]] = {
            "colour": self._colour,
            "background": self._background,
            "replace": self._replace,
            "size": self._size,
            "material": self._material,
            "add": self._add,
            "remove": self._remove,
        }
        return ways[self._edit.kind]()

    def _colour(self) -> str:
        return self._say_way("colour", self.say(COLOUR_WORDS[self._target().colour]))

    def _background(self) -> str:
        background = self._edit.target.background
        words = BACKGROUND_WORDS[background]
        preposition, place = self.pick(words.others if self.by_synonym() else words.plain)
        if self.draw.random() < 0.62:
            return self._say_way("placed", f"{preposition} {place}")
        is_plain = GROUNDS[background].surface is None and GROUNDS[background].texture is None
        return self._say_way("background", _colour_of(place) if is_plain else place)

    def _replace(self) -> str:
        one = self._target()
        noun = self.say(KIND_WORDS[one.kind])
        if self.style.colour and self.style.turns and self.draw.random() < 0.4:
            noun = f"{self.say(COLOUR_WORDS[one.colour])} {noun}"
        many = len(self._edit.changed) > 1
        return self._say_way("replace", plural_of(noun) if many else with_article(noun))

    def _size(self) -> str:
        names = list(SIZES)
        old, new = (names.index(one.size) for one in (self._changed()[0], self._target()))
        if abs(new - old) == 1 and self.draw.random() < 0.75:
            return self._say_way("bigger" if new > old else "smaller", "")
        return self._say_way("size", self.say(SIZE_WORDS[names[new]]))

    def _material(self) -> str:
        material = self._target().material
        if material in MADE_OF and self.draw.random() < 0.35:
            return self._say_way("made of", MADE_OF[material])
        return self._say_way("material", self.say(MATERIAL_WORDS[material]))

    def _add(self) -> str:
        edit = self._edit
        assert edit.anchor is not None, "a new object has a place"
        new, anchor = edit.target.objects[edit.changed[0]], self._source.objects[edit.anchor]
        words = [self.say(COLOUR_WORDS[new.colour])]
        if self.style.size:
            words.insert(0, self.say(SIZE_WORDS[new.size]))
        if self.style.material:
            words.append(self.say(MATERIAL_WORDS[new.material]))
        noun = with_article(" ".join([*words, self.say(KIND_WORDS[new.kind])]))
        word = relation(new, anchor)
        assert word is not None, "the place has a word"
        where = ""
        alone = len(self._source.objects) == 1
        if self.style.relation and alone and self.style.turns and self.draw.random() < 0.3:
            side = word if word in SIDE_WORDS else RELATIONS[word]
            where = SIDE_WORDS[side][side != word]
        elif self.style.relation:
            beside = self._name(self._source, (edit.anchor,))
            where = f"{self.say(RELATION_WORDS[word])} {beside}"
        return self._say_way("add", f"{noun} {where}".strip())

    def _remove(self) -> str:
        return self._say_way("remove", "")

    def _say_way(self, way: str, new: str) -> str:
        """Fill one of the ways; a command may be opened by some words."""
        draw, ways = self.draw, _WAYS[way]
        if not self.style.turns:
            ways = ways[:2]
        text = self.pick(ways)
        if self.style.turns and not text.startswith(_NO_COMMAND) and draw.random() < 0.2:
            text = f"{self.pick(_OPENINGS)} {text}"
        if "{it}" not in text:
            return text.format(new=new)
        changed = self._edit.changed or tuple(range(len(self._source.objects)))
        return text.format(it=self._name(self._source, changed), new=new)

    def _name(self, scene: Scene, indices: tuple[int, ...]) -> str:
        """Name some objects of a scene so that nothing else is meant."""
        draw, style = self.draw, self.style
        named = [scene.objects[at] for at in indices]
        everything = len(named) == len(scene.objects)
        equal = len({(one.kind, one.colour) for one in named}) == 1
        if everything and style.turns and draw.random() < 0.35:
            return "it" if len(named) == 1 else self.pick(("them", "them", "everything"))
        if not equal:
            return " and ".join(self._name(scene, (at,)) for at in indices)
        (one, *more) = named
        others = [o for at, o in enumerate(scene.objects) if at not in indices]
        needs_colour = any(o.kind == one.kind for o in others)
        if style.turns and not more and draw.random() < 0.2:
            by_side = self._by_side(scene, indices[0])
            if by_side is not None:
                return by_side
        noun = self.say(KIND_WORDS[one.kind])
        needs_no_kind = all(o.colour != one.colour for o in others)
        if style.turns and needs_no_kind and draw.random() < 0.1:
            noun, needs_colour = self.say(ANY_KIND_WORDS), bool(others)
        words = [noun] if not more else [plural_of(noun)]
        if needs_colour or style.colour:
            words.insert(0, self.say(COLOUR_WORDS[one.colour]))
        if more and draw.random() < 0.3:
            words.insert(0, self.pick(COUNT_WORDS[len(named)].plain))
        return " ".join(["the", *words])

    def _by_side(self, scene: Scene, at: int) -> str | None:
        """Name one of two objects by where it is."""
        if len(scene.objects) != 2:
            return None
        word = relation(*scene.objects)
        if word not in SIDE_WORDS:
            return None
        where = SIDE_WORDS[word][at]
        one = scene.objects[at]
        return f"the {self.say(self.pick((KIND_WORDS[one.kind], ANY_KIND_WORDS)))} {where}"

    def _changed(self) -> list[SceneObject]:
        return [self._source.objects[at] for at in self._edit.changed]

    def _target(self) -> SceneObject:
        """The first changed object as it is in the target."""
        return self._edit.target.objects[self._edit.changed[0]]


def evaluation_style(draw: np.random.Generator) -> Style:
    """Return a style in which an instruction leaves nothing open."""
    return replace(
        Style(colour=bool(draw.random() < 0.3), turns=bool(draw.random() < 0.5)),
        synonyms=0.25,
        case=("sentence", "lower", "sentence", "upper")[draw.integers(4)],
    )


def _colour_of(place: str) -> str:
    """Return the colour of a plain background's noun phrase: "a white page" says white."""
    words = [w for w in place.split(" ") if w not in ("a", "plain")]
    return " ".join(words[:-1] if words[-1] in _PLAIN_NOUNS else words)


_PLAIN_NOUNS = ("background", "backdrop", "wall", "page")
