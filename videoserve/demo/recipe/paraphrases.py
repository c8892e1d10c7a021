"""24 prompts written by hand, none of which the templates make: what the model is tested with."""

from videoserve.demo.recipe.motions import Label

PARAPHRASES: tuple[tuple[str, Label], ...] = (
    ("The camera slowly pans toward the left side of the scene.", Label(right=-1, speed="slow")),
    ("Pan right.", Label(right=1)),
    ("please pan the shot to the right quickly", Label(right=1, speed="fast")),
    ("A gentle upward tilt of the camera", Label(down=-1, speed="slow")),
    ("camera going down fast", Label(down=1, speed="fast")),
    ("Move up", Label(down=-1)),
    ("Zoom in on the dog", Label(zoom=1)),
    ("the camera slowly zooms out to show the whole valley", Label(zoom=-1, speed="slow")),
    ("Quick zoom into her face", Label(zoom=1, speed="fast")),
    ("zooming out", Label(zoom=-1)),
    ("Rotate the photo clockwise", Label(turn=1)),
    ("the picture slowly turns counter-clockwise", Label(turn=-1, speed="slow")),
    ("Fast counterclockwise spin", Label(turn=-1, speed="fast")),
    ("The camera stands still", Label()),
    ("no movement at all", Label()),
    ("pan up and left", Label(right=-1, down=-1)),
    ("the camera drifts diagonally down to the right", Label(right=1, down=1)),
    ("zoom in while panning left", Label(right=-1, zoom=1)),
    ("zoom out and pan up at the same time", Label(down=-1, zoom=-1)),
    ("A cat on a sofa. The camera moves right.", Label(right=1)),
    ("mountain lake at sunset, slow zoom in, cinematic", Label(zoom=1, speed="slow")),
    ("a red rocket on the launch pad, camera tilts up slowly", Label(down=-1, speed="slow")),
    ("move closer while the view pans to the right", Label(right=1, zoom=1)),
    ("left pan", Label(right=-1)),
)
