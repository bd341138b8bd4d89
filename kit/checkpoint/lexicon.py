"""The words of the captions: for each name of the drawn world, the plain words, then others.

`Words.plain` holds the usual words, `Words.others` synonyms. Every word that is not in this module
is an unknown one.
"""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """The ways to say one thing; neither tuple is empty."""

    plain: tuple[str, ...]
    others: tuple[str, ...]


class PlaceWords(NamedTuple):
    """The ways to say a background, each as (preposition, noun phrase)."""

    plain: tuple[tuple[str, str], ...]
    others: tuple[tuple[str, str], ...]


KIND_WORDS = {
    "circle": Words(("circle",), ("disc", "disk", "ball")),
    "square": Words(("square",), ("block", "cube", "box")),
    "triangle": Words(("triangle",), ("pyramid", "wedge")),
    "star": Words(("star",), ("five-pointed star", "starlet")),
    "heart": Words(("heart",), ("love heart", "valentine")),
    "moon": Words(("moon",), ("crescent", "crescent moon", "half-moon")),
    "vase": Words(("vase",), ("urn", "flower vase", "jar")),
    "cup": Words(("cup",), ("mug", "teacup", "coffee cup")),
    "bottle": Words(("bottle",), ("flask", "wine bottle")),
    "house": Words(("house",), ("home", "cottage", "cabin", "hut")),
    "tree": Words(("tree",), ("leafy tree", "maple", "shade tree")),
    "flower": Words(("flower",), ("blossom", "bloom", "daisy")),
    "mushroom": Words(("mushroom",), ("toadstool", "fungus")),
    "fish": Words(("fish",), ("carp", "trout")),
    "butterfly": Words(("butterfly",), ("moth",)),
    "boat": Words(("boat",), ("sailboat", "ship", "yacht", "sailing boat")),
    "car": Words(("car",), ("automobile", "motor car", "auto")),
    "umbrella": Words(("umbrella",), ("parasol", "brolly")),
    "crown": Words(("crown",), ("tiara", "diadem")),
    "cat": Words(("cat",), ("kitten", "kitty")),
    "rocket": Words(("rocket",), ("spaceship", "space rocket", "rocket ship")),
    "apple": Words(("apple",), ("ripe apple", "apple fruit")),
}

PLURALS = {"fish": "fish", "carp": "carp", "trout": "trout", "fungus": "fungi"}
"""Nouns whose plural no rule makes."""

ANY_KIND_WORDS = Words(("thing",), ("object", "item"))

COLOUR_WORDS = {
    "red": Words(("red",), ("crimson", "scarlet", "ruby")),
    "orange": Words(("orange",), ("tangerine", "amber")),
    "yellow": Words(("yellow",), ("golden", "lemon yellow")),
    "green": Words(("green",), ("emerald", "jade", "forest green")),
    "turquoise": Words(("turquoise",), ("teal", "cyan", "aqua")),
    "blue": Words(("blue",), ("royal blue", "cobalt", "azure")),
    "purple": Words(("purple",), ("violet", "plum")),
    "pink": Words(("pink",), ("rose pink", "bubblegum pink")),
    "brown": Words(("brown",), ("chestnut", "chocolate brown")),
    "black": Words(("black",), ("jet black", "ebony")),
    "white": Words(("white",), ("snow white", "ivory")),
    "grey": Words(("grey", "gray"), ("silver grey", "ash gray")),
}

COLOURED = ("coloured", "colored")
"""May follow a colour."""

MATERIAL_WORDS = {
    "matte": Words(("matte",), ("plastic",)),
    "ceramic": Words(("ceramic",), ("porcelain", "clay", "china")),
    "wooden": Words(("wooden", "wood"), ("timber", "carved wood")),
    "metal": Words(("metal",), ("metallic", "steel", "iron")),
    "glass": Words(("glass",), ("crystal", "shiny glass")),
}

MADE_OF = {"ceramic": "ceramic", "wooden": "wood", "metal": "metal", "glass": "glass"}
"""The noun in "made of ..."."""

SIZE_WORDS = {
    "small": Words(("small",), ("little", "tiny")),
    "medium": Words(("medium-sized",), ("mid-sized", "medium")),
    "large": Words(("large", "big"), ("huge", "giant")),
}

COUNT_WORDS = {
    2: Words(("two",), ("2", "a pair of", "a couple of")),
    3: Words(("three",), ("3", "a trio of", "a group of three")),
}

POSITION_WORDS = {
    "left": Words(("on the left",), ("on the left side", "at the left", "to the left")),
    "right": Words(("on the right",), ("on the right side", "at the right", "to the right")),
    "top": Words(("at the top",), ("near the top", "in the upper part")),
    "bottom": Words(("at the bottom",), ("near the bottom", "in the lower part")),
    "centre": Words(
        ("in the centre", "in the center"), ("in the middle", "right in the middle", "centred")
    ),
    "top left": Words(("in the top left corner",), ("at the top left", "in the upper left")),
    "top right": Words(("in the top right corner",), ("at the top right", "in the upper right")),
    "bottom left": Words(
        ("in the bottom left corner",), ("at the bottom left", "in the lower left")
    ),
    "bottom right": Words(
        ("in the bottom right corner",), ("at the bottom right", "in the lower right")
    ),
}

RELATION_WORDS = {
    "left of": Words(("to the left of", "left of"), ("on the left of", "on the left side of")),
    "right of": Words(("to the right of", "right of"), ("on the right of", "on the right side of")),
    "above": Words(("above",), ("over", "higher than")),
    "below": Words(("below", "under"), ("beneath", "underneath")),
}

ORDER_WORDS = {
    "left of": Words(("from left to right",), ("in a row from left to right", "left to right")),
    "above": Words(("from top to bottom",), ("stacked from top to bottom", "top to bottom")),
}

SIDE_WORDS = {
    "left of": ("on the left", "on the right"),
    "above": ("at the top", "at the bottom"),
}
"""For the first and the second of two objects."""


def _plain_place(*colours: str) -> PlaceWords:
    """The first colour is the plain word."""
    plain = ("on", f"a {colours[0]} background")
    others = [("on", colours[0]), ("on", f"a plain {colours[0]} background")]
    others += [(on, f"a {colour} {noun}") for colour in colours for on, noun in _PLAIN_NOUNS]
    return PlaceWords((plain,), tuple(way for way in others if way != plain))


_PLAIN_NOUNS = (("on", "background"), ("against", "backdrop"), ("against", "wall"), ("on", "page"))

BACKGROUND_WORDS = {
    "white": _plain_place("white"),
    "grey": _plain_place("grey", "gray", "light grey", "light gray"),
    "black": _plain_place("black"),
    "blue": _plain_place("blue", "light blue", "pale blue"),
    "green": _plain_place("green", "light green", "mint green"),
    "yellow": _plain_place("yellow", "light yellow", "pale yellow"),
    "pink": _plain_place("pink", "light pink", "pale pink"),
    "table": PlaceWords(
        (("on", "a wooden table"), ("on", "a table")),
        (
            ("on", "an oak table"),
            ("on", "a wood table"),
            ("on", "a wooden desk"),
            ("on", "a tabletop"),
            ("on", "wooden planks"),
        ),
    ),
    "grass": PlaceWords(
        (("on", "the grass"), ("on", "grass")),
        (("on", "a lawn"), ("in", "a meadow"), ("on", "a grassy field"), ("in", "the garden")),
    ),
    "sand": PlaceWords(
        (("on", "the sand"), ("on", "sand")),
        (("on", "the beach"), ("on", "a sandy beach"), ("in", "the desert"), ("on", "a dune")),
    ),
    "sea": PlaceWords(
        (("on", "the sea"), ("in", "the sea")),
        (("at", "sea"), ("on", "the ocean"), ("on", "the water"), ("on", "the waves")),
    ),
    "sky": PlaceWords(
        (("in", "the sky"),),
        (
            ("in", "the clouds"),
            ("in", "a cloudy sky"),
            ("against", "a blue sky"),
            ("in", "the daytime sky"),
        ),
    ),
    "night": PlaceWords(
        (("at", "night"), ("in", "the night sky")),
        (("under", "the stars"), ("in", "a starry sky"), ("in", "a starry night")),
    ),
    "checkerboard": PlaceWords(
        (("on", "a checkerboard"),),
        (
            ("on", "a chessboard"),
            ("on", "a checkered background"),
            ("on", "a chequered floor"),
            ("on", "a checked pattern"),
        ),
    ),
}

OPENINGS = (
    "a picture of",
    "a photo of",
    "an image of",
    "a drawing of",
    "a painting of",
    "an illustration of",
    "a close-up of",
    "draw",
    "show me",
    "paint",
    "please draw",
    "there is",
    "I want to see",
)

FILLERS = (
    "beautiful", "nice", "cute", "lovely", "old", "new", "simple", "elegant", "modern", "detailed",
    "highly", "very", "really", "just", "sharp", "clean", "clear", "bright", "soft",
    "4k", "8k", "hd", "masterpiece", "quality", "high", "best", "style", "digital", "art", "vector",
    "icon", "minimal", "cinematic", "professional", "studio", "shot", "cool", "funny",
    "today", "here", "kind", "real", "perfect", "amazing", "trending", "render", "3d",
)  # fmt: skip
"""Words of real prompts that say nothing about a scene."""

SYLLABLES = (
    "ba", "bo", "ceg", "da", "dri", "el", "fa", "fro", "gim", "gor", "hu", "ix", "jo", "ka", "kel",
    "lo", "lum", "ma", "mip", "ne", "nok", "or", "pa", "plo", "qua", "ril", "ro", "sa", "sku", "ta",
    "tho", "ur", "va", "vek", "wo", "xan", "ya", "zi", "zun",
)  # fmt: skip
"""Two or three of them make a word that nobody knows."""
