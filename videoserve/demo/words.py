"""The motion a prompt asks for, read from its words."""

import re

from videoserve.demo.recipe.motions import Label

STATIC = r"\bstatic\b|\bstill\b|\bmotionless|\bstationary|\bfixed\b|\bfreeze|\bfrozen|\block(ed)?[- ]off\b|\btripod\b"
NO_MOTION = (
    r"\b(no|without( any)?) (camera )?(motion|movement)|\bnothing moves|\b(do|does) not move|\bstands? still"
    r"|\bstays? (still|in place|the same)"
)
COUNTER = r"\b(counter|anti)[- ]?clock-?wise|\bccw\b"
CLOCKWISE = r"\bclock-?wise|\bcw\b"
ZOOM_IN = (
    r"\bzoom(s|ing)? (\w+ )?in(to)?\b|\bzoom-in|\b(push|dolly)(es|ing)?( \w+)? in\b"
    r"|\b(moves?|fly|flies|get) (closer|forward)|\bmagnify|\benlarge|\bapproach"
)
ZOOM_OUT = (
    r"\bzoom(s|ing)? (\w+ )?out\b|\bzoom-out|\b(pull|dolly)(s|ing)?( \w+)? (out|back)"
    r"|\b(moves?|fly|flies|backs?) (back|away)|\bshrink|\bretreat|\breveal more"
)
DIRECTIONS = {
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "upper": (0, -1),
    "top": (0, -1),
    "down": (0, 1),
    "lower": (0, 1),
    "bottom": (0, 1),
}
DIRECTION = r"\b(left|right|upper|up|top|down|lower|bottom)(wards?)?\b"
# "the picture slides left" moves what is seen, every other sentence moves the camera.
CONTENT = (
    r"\b(scene|everything|picture|image|content|photo)\b (slowly |quickly )?(slides?|drifts?|scrolls?|moves?|shifts?)\b"
)
SLOW = r"\bslow|\bgent|\bsoft|\bsubtle|\bcalm|\bslight|\ba (bit|little)\b"
FAST = r"\bfast\b|\bquick|\brapid|\bswift|\bhigh speed|\bhurry|\bstrong|\bdramatic|\ba lot\b"


def label_of(prompt: str) -> Label | None:
    """The label of a prompt's words; None when no word of it says how to move."""
    text = prompt.lower().replace("close-up", "").replace("close up", "")
    if re.search(STATIC, text) or re.search(NO_MOTION, text):
        return Label()
    turn = -1 if re.search(COUNTER, text) else 1 if re.search(CLOCKWISE, text) else 0
    zoom = 1 if re.search(ZOOM_IN, text) else -1 if re.search(ZOOM_OUT, text) else 0
    steps = [DIRECTIONS[match[1]] for match in re.finditer(DIRECTION, text)]
    sign = -1 if re.search(CONTENT, text) else 1
    right = sign * max(-1, min(1, sum(step[0] for step in steps)))
    down = sign * max(-1, min(1, sum(step[1] for step in steps)))
    if not (turn or zoom or right or down):
        return None
    speed = "slow" if re.search(SLOW, text) else "fast" if re.search(FAST, text) else "normal"
    return Label(right=right, down=down, zoom=zoom, turn=turn, speed=speed)
