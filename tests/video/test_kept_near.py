"""A video that begins with that of a similar prompt, where its client asks for that."""

from collections.abc import Callable
from typing import Any

from tests.kept import REQUEST, STEPS, Open, RunAll, engine_of, hits, made
from videoserve.video.near import skipped


def test_a_video_of_a_similar_prompt_is_begun_with(
    studio: Callable[..., Any], run_all: RunAll, open_cache: Open
) -> None:
    place = studio("wan22-a14b")
    cache = open_cache()
    engine = engine_of(place, cache, checkpoint_steps=1)
    common = REQUEST | {"num_inference_steps": 6}
    made(place, engine, run_all, place.job("1", prompt="pan left slowly", **common))
    kept = {row["digest"] for row in cache.entries()[0]}
    asked = place.job("2", prompt="pan left slowly.", cache={"near": 0.5}, **(common | {"seed": 8}))
    video, receipt = made(place, engine, run_all, asked)
    first = receipt["steps"].count("A")
    assert 0 < first < 6
    assert receipt["steps"] == "A" * first + "R" * (6 - first)
    (entry,) = [entry for entry in receipt["reuse"]["entries"] if entry.get("class") == "A"]
    assert entry["kind"] == "final_latent"
    assert 0.5 < entry["similarity"] <= 1
    assert 0.6 <= entry["sigma"] < 1
    assert "approximate" in receipt["adjustments"][-1]
    exact = place.job("2", prompt="pan left slowly.", **(common | {"seed": 8}))
    assert video != place.solo(exact)
    # Nothing of it is left but what was encoded.
    left = {row["kind"] for row in cache.entries()[0] if row["digest"] not in kept}
    assert left == {"text_emb"}
    # Whoever does not ask for it does not get it, nor another client, nor one with another picture.
    assert made(place, engine, run_all, exact)[0] == place.solo(exact)
    for change in ({"tenant": "u"}, {"image": place.picture(3)}):
        told = {name: value for name, value in change.items() if name != "tenant"}
        job = place.job("3", prompt="pan left slowl", cache={"near": 0.5}, **(common | {"seed": 9} | told))
        object.__setattr__(job, "tenant", change.get("tenant", job.tenant))
        assert "A" not in made(place, engine, run_all, job)[1]["steps"]


def test_a_video_that_is_not_alike_enough_is_computed(tiny_studio: Any, run_all: RunAll, open_cache: Open) -> None:
    engine = engine_of(tiny_studio, open_cache())
    made(tiny_studio, engine, run_all, tiny_studio.job("1", **REQUEST))
    asked = tiny_studio.job("2", prompt="ZZZ 0 ???????", cache={"near": 1.0}, **REQUEST)
    video, receipt = made(tiny_studio, engine, run_all, asked)
    assert receipt["steps"] == "R" * STEPS
    # Being exact, it is there for others.
    again, receipt = made(tiny_studio, engine, run_all, tiny_studio.job("3", prompt="ZZZ 0 ???????", **REQUEST))
    assert (again, hits(receipt)) == (video, ["result"])


def test_the_more_alike_the_later_a_video_is_taken_up() -> None:
    sigmas = (1.0, 0.9, 0.8, 0.7, 0.5, 0.2, 0.0)
    counts = [skipped(sigmas, similarity, 0.9) for similarity in (0.9, 0.95, 0.975, 1.0)]
    assert counts == [0, 2, 3, 4]
    assert skipped(sigmas, 1.0, 1.0) == 4
    assert skipped((1.0, 0.99, 0.0), 1.0, 0.9) == 1
