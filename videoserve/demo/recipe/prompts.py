"""Many English sentences for one motion: the prompts the text encoder and the DiT learn from."""

import random
import string

from videoserve.demo.recipe import vocabulary as words
from videoserve.demo.recipe.motions import Label


def noun(rng: random.Random) -> str:
    """A known noun, or now and then a word of random letters: subjects must not matter."""
    if rng.random() < 0.8:
        return rng.choice(words.NOUNS)
    return "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randint(2, 9)))


def subject(rng: random.Random) -> str:
    """Something a picture may show."""
    adjective = rng.choice(words.ADJECTIVES) + " " if rng.random() < 0.6 else ""
    text = rng.choice(["a ", "the ", "an ", "some ", "this ", "our ", ""]) + adjective + noun(rng)
    share = rng.random()
    if share < 0.25:
        return text + rng.choice(words.LINKS) + rng.choice(["a ", "the ", ""]) + noun(rng)
    return text + rng.choice(words.DOING) if share < 0.4 else text


def direction(across: str, along: str, rng: random.Random) -> str:
    """Where to, in words; `across` is left, right or empty, `along` is up, down or empty."""
    if across and along:
        corner, edge = ("upper", "top") if along == "up" else ("lower", "bottom")
        first, second = rng.choice(words.SIDES[along]), rng.choice(words.SIDES[across])
        return rng.choice(
            [
                f"{first} and {second}",
                f"{second} and {first}",
                f"diagonally {first} and {second}",
                f"{along} {across}",
                f"{along}-{across}",
                f"diagonally to the {corner} {across}",
                f"to the {corner} {across}",
                f"to the {edge} {across}",
            ]
        )
    if across:
        return rng.choice(words.SIDES[across])
    if rng.random() < 0.06:
        return "to the top" if along == "up" else "to the bottom"
    return rng.choice(words.SIDES[along])


def pan(label: Label, rng: random.Random, how: str, kind: str) -> str:
    """A pan; in one of eight the sentence says how the picture moves instead, which is the other way."""
    of_content = rng.random() < 0.12
    sign = -1 if of_content else 1
    across = {-1: "left", 1: "right", 0: ""}[label.right * sign]
    along = {-1: "up", 1: "down", 0: ""}[label.down * sign]
    where = direction(across, along, rng)
    if of_content:
        return f"{rng.choice(words.SCENE)} {rng.choice(['slides', 'drifts', 'scrolls', 'moves'])} {where}{how}"
    camera = rng.choice(words.CAMERA)
    tilts = bool(along) and not across
    verb = rng.choice([*words.PAN_VERBS, *(["tilt"] * 4 if tilts else [])])
    third = verb if camera == "we" else {"go": "goes"}.get(verb, verb + "s")
    doubled = {"pan": "panning", "glide": "gliding", "slide": "sliding", "move": "moving"}
    doing = doubled.get(verb, verb + "ing")
    one_way = across or along
    forms = [
        (0.15, f"{camera} {third}{how} {where}"),
        (0.15, f"{camera} {third} {where}{how}"),
        (0.12, f"{verb} {where}{how}"),
        (0.08, f"{how} {verb} {where}"),
        (
            0.12,
            rng.choice([f"{verb} the camera {where}{how}", f"{verb} the view {where}{how}", f"{doing} {where}{how}"]),
        ),
        (0.13, f"{kind}{rng.choice([*words.PAN_NOUNS, *(['tilt', 'camera tilt'] if tilts else [])])} {where}"),
        (0.08, f"{camera} {'are' if camera == 'we' else 'is'} {doing} {where}{how}"),
        (
            0.07,
            rng.choice([f"look {where}{how}", f"{where}{how}", f"{kind}movement {where}", f"view moving {where}{how}"]),
        ),
    ]
    if not (across and along):
        short = [f"{kind}{one_way} pan", f"{kind}pan {one_way}", f"camera {one_way}{how}", f"{one_way}ward {kind}pan"]
        forms.append((0.10, rng.choice(short)))
    return rng.choices([form for _, form in forms], [share for share, _ in forms])[0]


def zoom(label: Label, rng: random.Random, how: str, kind: str) -> str:
    """A zoom in or out."""
    camera, what = rng.choice(words.CAMERA), noun(rng)
    s, es = ("", "") if camera == "we" else ("s", "es")
    forms, aims = (words.ZOOM_IN, words.AIMS_IN) if label.zoom > 0 else (words.ZOOM_OUT, words.AIMS_OUT)
    aim = rng.choice(aims).format(what=what)
    return rng.choice(forms).format(camera=camera, s=s, es=es, how=how, kind=kind, what=what, aim=aim).strip()


def turn(label: Label, rng: random.Random, how: str, kind: str) -> str:
    """A rotation; the direction is the one the picture turns in."""
    camera, scene = rng.choice(words.CAMERA), rng.choice(words.TURNED)
    s = "" if camera == "we" else "s"
    way = rng.choice(words.CLOCKWISE if label.turn > 0 else words.COUNTERCLOCKWISE)
    return rng.choice(words.TURN).format(camera=camera, s=s, how=how, kind=kind, way=way, scene=scene).strip()


def motion(label: Label, rng: random.Random) -> str:
    """The part of a prompt that says how to move. The speed is always said when it is not the normal one."""
    how, kind = "", ""
    if label.speed != "normal":
        how = " " + rng.choice(words.SLOWLY if label.speed == "slow" else words.QUICKLY)
        kind = rng.choice(words.SLOW if label.speed == "slow" else words.QUICK) + " "
    elif rng.random() < 0.08:
        how = " " + rng.choice(words.STEADILY)
    clauses = [make for make, wanted in ((pan, label.pans), (zoom, label.zoom), (turn, label.turn)) if wanted]
    rng.shuffle(clauses)
    # Of two clauses the speed is said in the first, the second or both.
    said = [True] if len(clauses) == 1 else rng.choice([[True, False], [False, True], [True, True]])
    texts = [
        make(label, rng, how, kind) if speaks else make(label, rng, "", "")
        for make, speaks in zip(clauses, said, strict=True)
    ]
    text = rng.choice([" and ", " while ", ", ", " and then ", " as ", " with a "]).join(texts)
    if label.speed != "normal" and how.strip() not in text and kind.strip() not in text:
        text += how
    return text


def prompt_for(label: Label, rng: random.Random) -> str:
    """A prompt for the motion, often with a subject or style words around it, which must change nothing."""
    if label.generic:
        text = rng.choice([subject(rng)] * 3 + ["video of " + subject(rng), rng.choice(words.STYLES), *words.AIMLESS])
    elif label.static:
        text = rng.choice(words.STATIC)
    else:
        text = motion(label, rng)
    share = rng.random()
    if share < 0.18:
        text = subject(rng) + rng.choice([", ", ". ", " - ", ", ", " while ", "; "]) + text
    elif share < 0.27:
        text += rng.choice([", ", ". ", " over ", " across ", " - "]) + subject(rng)
    elif share < 0.30:
        text = f"{subject(rng)}, {text}, {rng.choice(words.STYLES)}"
    if rng.random() < 0.15:
        text += ", " + rng.choice(words.STYLES)
    if rng.random() < 0.05:
        text = f"{rng.choice(words.STYLES)}, {text}"
    if rng.random() < 0.06:
        text = rng.choice(words.POLITE) + text
    if rng.random() < 0.35:
        text += rng.choice([".", "!", ".", "."])
    if rng.random() < 0.5:
        text = text[:1].upper() + text[1:]
    return " ".join((text.upper() if rng.random() < 0.03 else text).split())
