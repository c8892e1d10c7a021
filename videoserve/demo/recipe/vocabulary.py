"""The words prompts are made of."""

SLOWLY = (
    "slowly",
    "gently",
    "softly",
    "a bit",
    "slightly",
    "smoothly and slowly",
    "at a slow pace",
    "in slow motion",
    "calmly",
    "a little",
)
QUICKLY = (
    "quickly",
    "fast",
    "rapidly",
    "swiftly",
    "at high speed",
    "very fast",
    "in a hurry",
    "with a fast motion",
    "strongly",
    "a lot",
)
STEADILY = ("smoothly", "steadily", "at normal speed", "at a steady pace")
SLOW = ("slow", "gentle", "subtle", "soft", "calm", "slight")
QUICK = ("fast", "quick", "rapid", "swift", "strong", "dramatic")
CAMERA = ("the camera", "camera", "the view", "the shot", "a camera", "the viewpoint", "we", "the lens", "the frame")
SCENE = ("the scene", "everything", "the picture", "the image", "the content", "the whole scene", "the photo")
TURNED = ("the scene", "the picture", "the image", "everything", "the photo", "the world")

NOUNS = tuple(
    """cat dog bird woman man girl boy child people crowd mountain lake river sea ocean beach forest tree flower garden
    city street building house castle bridge tower temple car train boat ship plane rocket sky cloud sunset sunrise
    night moon star snow rain field meadow desert hill valley waterfall rock stone road path coffee cup table food
    fruit apple orange cake bread window door room kitchen book portrait face eyes smile hand horse sheep cow lion
    tiger cheetah raccoon squirrel fox bear rabbit fish butterfly bee robot astronaut painting pattern texture
    landscape skyline harbor market park statue church motorcycle bicycle bike bus truck guitar piano dancer runner
    soldier king queen dragon wizard spaceship planet""".split()  # noqa: SIM905 -- a hundred quoted words read worse
)
ADJECTIVES = tuple(
    """beautiful old new small big red green blue yellow white black golden dark bright sunny cloudy foggy misty quiet
    busy colorful happy sad young cute wild lonely ancient modern wooden tall tiny huge epic majestic sleepy cozy vivid
    dreamy""".split()  # noqa: SIM905
)
STYLES = (
    "cinematic",
    "high quality",
    "4k",
    "photorealistic",
    "realistic",
    "smooth motion",
    "detailed",
    "film grain",
    "natural light",
    "soft light",
    "masterpiece",
    "best quality",
    "documentary style",
    "wide shot",
    "close-up",
    "golden hour",
    "ultra hd",
    "sharp focus",
    "beautiful scenery",
    "award winning photo",
    "vintage look",
    "hdr",
)
LINKS = (" in ", " on ", " near ", " with ", " over ", " at ", " and ", " by ")
DOING = (
    " sleeping",
    " sitting",
    " standing",
    " in the wind",
    " at dawn",
    " looking at us",
    " walking",
    " smiling",
    " at dusk",
    " in the rain",
    " on a sunny day",
)
SIDES = {
    "left": ("left", "to the left", "leftward", "towards the left", "to the left", "leftwards", "to the left side"),
    "right": (
        "right",
        "to the right",
        "rightward",
        "towards the right",
        "to the right",
        "rightwards",
        "to the right side",
    ),
    "up": ("up", "upward", "upwards", "up"),
    "down": ("down", "downward", "downwards", "down"),
}
PAN_VERBS = ("pan", "move", "glide", "drift", "track", "slide", "travel", "pan", "pan", "go", "turn", "shift")
PAN_NOUNS = ("pan", "camera pan", "panning shot", "camera movement", "camera move", "tracking shot", "pan shot")
STATIC = (
    "static",
    "static camera",
    "static shot",
    "the camera does not move",
    "no camera movement",
    "no motion",
    "still",
    "the camera stays still",
    "a still shot",
    "fixed camera",
    "the camera is fixed",
    "the camera holds still",
    "locked-off shot",
    "nothing moves",
    "keep the camera still",
    "the view stays the same",
    "do not move",
    "freeze",
    "the scene is frozen",
    "a static image",
    "stationary camera",
    "motionless",
    "tripod shot",
    "the camera stays in place",
    "without any movement",
    "stay still",
    "no movement",
)
CLOCKWISE = ("clockwise", "clockwise", "clockwise", "in a clockwise direction", "cw", "clock-wise")
COUNTERCLOCKWISE = (
    "counterclockwise",
    "counter-clockwise",
    "anticlockwise",
    "anti-clockwise",
    "counter clockwise",
    "ccw",
    "in a counterclockwise direction",
    "counterclockwise",
)
AIMLESS = ("animate this photo", "make it move", "bring the picture to life", "add some motion", "a short video")
POLITE = ("please ", "make ", "now ", "video: ", "let ", "i want ")
# Forms of a sentence: how and kind are the speed as an adverb and as an adjective, s and es the ending of the verb.
ZOOM_IN = (
    "{camera} zoom{s} in{how}{aim}",
    "{camera} zoom{s}{how} in{aim}",
    "zoom in{how}{aim}",
    "zoom in{aim}{how}",
    "zoom into the {what}{how}",
    "{kind}zoom in{aim}",
    "zooming in{how}{aim}",
    "{kind}zoom-in",
    "{camera} move{s} closer{how}",
    "{camera} move{s} forward{how}",
    "{kind}push in",
    "{camera} push{es} in{how}",
    "{kind}dolly in",
    "dolly in{how}",
    "get closer{how}",
    "magnify the {what}{how}",
    "enlarge the picture{how}",
    "{camera} approach{es} the {what}{how}",
    "{how} zoom in",
    "fly forward{how}",
    "zoom into the scene{how}",
)
AIMS_IN = (
    "",
    "",
    "",
    " on the {what}",
    " into the scene",
    " to the {what}",
    " on the subject",
    " on the center",
)
ZOOM_OUT = (
    "{camera} zoom{s} out{how}",
    "{camera} zoom{s}{how} out",
    "zoom out{how}{aim}",
    "zoom out from the {what}{how}",
    "{kind}zoom out",
    "zooming out{how}",
    "{kind}zoom-out",
    "{camera} move{s} away{how}",
    "{camera} move{s} back{how}",
    "{camera} move{s} backward{how}",
    "{kind}pull back",
    "{camera} pull{s} back{how}",
    "{camera} pull{s} out{how}",
    "{kind}dolly out",
    "dolly out{how}",
    "back away{how}",
    "shrink the picture{how}",
    "{camera} retreat{s} from the {what}{how}",
    "{how} zoom out",
    "fly backward{how}",
    "reveal more of the scene{how}",
    "zoom out of the scene{how}",
)
AIMS_OUT = (
    "",
    "",
    " on the {what}",
    " to the {what}",
)
TURN = (
    "{camera} rotate{s} {way}{how}",
    "{camera} rotate{s}{how} {way}",
    "rotate {way}{how}",
    "rotate {scene} {way}{how}",
    "{scene} rotates {way}{how}",
    "{kind}rotation {way}",
    "{kind}{way} rotation",
    "{camera} roll{s} {way}{how}",
    "spin {way}{how}",
    "{scene} spins {way}{how}",
    "{kind}{way} roll",
    "turn {way}{how}",
    "rotating {way}{how}",
    "{how} rotate {way}",
    "twist {way}{how}",
    "{kind}{way} spin",
)
