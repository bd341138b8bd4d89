"""Changes of a scene: what one instruction asks for, and what must stay.

Source and target agree in all that the instruction does not name: places, sizes, materials and the
window of the texture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from kit.checkpoint.grounds import GROUNDS, NUM_SHIFTS, shifts
from kit.checkpoint.palette import COLOURS
from kit.checkpoint.scenes import (
    EDGE_MARGIN,
    MATERIALS,
    SIZES,
    Scene,
    SceneObject,
    check_canvas,
    colours_on,
    random_scene,
    relation,
)
from kit.checkpoint.shapes import KINDS, SIDE_STEP, extent

EDIT_KINDS = {
    "colour": 0.15,
    "background": 0.12,
    "replace": 0.2,
    "size": 0.18,
    "material": 0.04,
    "add": 0.13,
    "remove": 0.18,
}
"""How often training draws each."""

LOWEST_BASE = 0.62
"""On a ground with a surface no object's lower edge stays above this share of the height."""

_ARRANGEMENTS = (("single", 0.56), ("pair", 0.26), ("group", 0.12), ("triple", 0.06))
_MIN_GAP = 0.03
"""What two objects keep between them, as a share of the shorter side."""

_MAKES_NEW_LOOKS = ("colour", "background", "replace", "add")


@dataclass(frozen=True)
class Edit:
    """One change; `kind` is a key of EDIT_KINDS."""

    kind: str
    source: Scene
    target: Scene
    changed: tuple[int, ...] = ()
    """Indices of the objects that change: of the target for "add", else of the source."""

    anchor: int | None = None
    """Index in the source of the object that a new one is added beside."""


def random_edit(
    draw: np.random.Generator,
    *,
    size: tuple[int, int],
    kind: str | None = None,
    held_out: bool = False,
) -> Edit:
    """Make an edit for a canvas of `size` (height, width) that `check_canvas` allows.

    `kind` None means any. With `held_out` every target is one that training never sees; without it
    neither source nor target is.
    """
    check_canvas(*size)
    kind = kind or _pick_weighted(draw, tuple(EDIT_KINDS.items()))
    while True:
        # A change that makes no new combination needs one in its source.
        from_held_out = held_out and kind not in _MAKES_NEW_LOOKS
        arrangement = _pick_weighted(draw, _ARRANGEMENTS)
        if kind in ("add", "remove"):
            arrangement = "pair" if draw.random() < 0.8 else "triple"
            from_held_out = held_out
        scene = random_scene(draw, size=size, arrangement=arrangement, held_out=from_held_out)
        edit = _CHANGES[kind](draw, scene)
        if edit is None or edit.target.held_out != held_out:
            continue
        if held_out or not edit.source.held_out:
            return edit


def _recolour(draw: np.random.Generator, scene: Scene) -> Edit | None:
    changed = _some(draw, scene)
    colour = _pick(draw, tuple(COLOURS))
    if colour == scene.objects[changed[0]].colour or colour not in colours_on(scene.background):
        return None
    return _edit("colour", scene, changed, lambda one: replace(one, colour=colour))


def _change_material(draw: np.random.Generator, scene: Scene) -> Edit | None:
    changed = _some(draw, scene)
    material = _pick(draw, MATERIALS)
    if material == scene.objects[changed[0]].material:
        return None
    return _edit("material", scene, changed, lambda one: replace(one, material=material))


def _replace_kind(draw: np.random.Generator, scene: Scene) -> Edit | None:
    """Another object of the same colour, side and place."""
    changed = _some(draw, scene)
    kind = _pick(draw, tuple(KINDS))
    if kind == scene.objects[changed[0]].kind:
        return None
    return _edit("replace", scene, changed, lambda one: _rebased(scene, one, kind, one.side))


def _resize(draw: np.random.Generator, scene: Scene) -> Edit | None:
    changed = _some(draw, scene)
    name = _pick(draw, tuple(SIZES))
    old = scene.objects[changed[0]].size
    if name == old:
        return None

    def resized(one: SceneObject) -> SceneObject:
        side = round(one.side * SIZES[name] / SIZES[old] / SIDE_STEP) * SIDE_STEP
        return replace(_rebased(scene, one, one.kind, side), size=name)

    return _edit("size", scene, changed, resized)


def _change_background(draw: np.random.Generator, scene: Scene) -> Edit | None:
    background = _pick(draw, tuple(GROUNDS))
    colours = colours_on(background)
    if background == scene.background or any(o.colour not in colours for o in scene.objects):
        return None
    objects = scene.objects
    if GROUNDS[background].stands:
        lowest = round(LOWEST_BASE * scene.height)
        fallen = [max(0, lowest - one.box[2]) for one in objects]
        if any(fallen) and len(objects) > 1:
            return None  # those below would be in the way
        objects = tuple(replace(o, y=o.y + by) for o, by in zip(objects, fallen, strict=True))
    shift = int(draw.integers(NUM_SHIFTS)) if shifts(background) else 0
    return Edit("background", scene, replace(scene, background=background, shift=shift,
                                             objects=objects))  # fmt: skip


def _add(draw: np.random.Generator, scene: Scene) -> Edit | None:
    at = int(draw.integers(len(scene.objects)))
    others = [i for i in range(len(scene.objects)) if i != at]
    new = scene.objects[at]
    clear = [i for i in others if relation(new, scene.objects[i]) is not None]
    if not clear:
        return None
    anchor = clear[int(draw.integers(len(clear)))]
    return Edit("add", _without(scene, at), scene, (at,), others.index(anchor))


def _remove(draw: np.random.Generator, scene: Scene) -> Edit | None:
    at = int(draw.integers(len(scene.objects)))
    return Edit("remove", scene, _without(scene, at), (at,))


_CHANGES: dict[str, Callable[[np.random.Generator, Scene], Edit | None]] = {
    "colour": _recolour,
    "background": _change_background,
    "replace": _replace_kind,
    "size": _resize,
    "material": _change_material,
    "add": _add,
    "remove": _remove,
}


def _edit(
    kind: str, scene: Scene, changed: tuple[int, ...], change: Callable[[SceneObject], SceneObject]
) -> Edit | None:
    """Change some objects; None where they do not fit or are no longer told apart."""
    objects = tuple(change(o) if i in changed else o for i, o in enumerate(scene.objects))
    if not _fit(scene, objects):
        return None
    looks = {(one.kind, one.colour) for one in objects}
    if not scene.is_group and len(looks) < len(objects):
        return None
    return Edit(kind, scene, replace(scene, objects=objects), changed)


def _some(draw: np.random.Generator, scene: Scene) -> tuple[int, ...]:
    """Choose one object, or all of a group."""
    if scene.is_group:
        return tuple(range(len(scene.objects)))
    return (int(draw.integers(len(scene.objects))),)


def _rebased(scene: Scene, one: SceneObject, kind: str, side: int) -> SceneObject:
    """Return another kind or side at the same place: the middle, or the lower edge on a surface."""
    y = one.y
    if GROUNDS[scene.background].stands:
        height, _ = extent(kind, side)
        y = one.box[2] - height + height // 2
    return replace(one, kind=kind, side=side, y=y)


def _fit(scene: Scene, objects: tuple[SceneObject, ...]) -> bool:
    """Whether all are inside the picture and none is at another one."""
    shorter = min(scene.height, scene.width)
    margin, gap = round(EDGE_MARGIN * shorter) - 1, round(_MIN_GAP * shorter)
    for one in objects:
        top, left, bottom, right = one.box
        if min(top, left, scene.height - bottom, scene.width - right) < margin:
            return False
    for a, b in combinations(objects, 2):
        top, left, bottom, right = a.box
        other_top, other_left, other_bottom, other_right = b.box
        apart = max(other_top - bottom, top - other_bottom, other_left - right, left - other_right)
        if apart < gap:
            return False
    return True


def _without(scene: Scene, at: int) -> Scene:
    return replace(scene, objects=scene.objects[:at] + scene.objects[at + 1 :])


def _pick(draw: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[draw.integers(len(options))]


def _pick_weighted(draw: np.random.Generator, weights: tuple[tuple[str, float], ...]) -> str:
    names, shares = zip(*weights, strict=True)
    return str(draw.choice(names, p=np.array(shares) / sum(shares)))
