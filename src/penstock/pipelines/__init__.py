"""Queues joined by links: each link is a function that takes the jobs of one queue and sends them on.

    pipeline = Pipeline("sqlite:///photos.db")

    @pipeline.link("incoming", to="resized", takes="payload")
    def resize(photo):
        return {**photo, "size": "small"}

    await pipeline.run()

A pipeline can also be plain data, a recipe: `Pipeline.from_recipe("photos.toml")`, `penstock pipeline run photos.toml`.

Read in this order: `results` (what a function may return), `link` (a link, and what its results mean), `recipe` (plain
data, checked), `pipeline` (the API, and a run), then its parts: `engine` (a link on a worker), `back_pressure`,
`status`, `drawing`. A link and its results know nothing of workers, so that another engine can run it.
"""

from penstock.pipelines.link import Link
from penstock.pipelines.pipeline import Pipeline
from penstock.pipelines.recipe import Recipe
from penstock.pipelines.results import DROP, Later, Move
from penstock.pipelines.status import LinkStatus

__all__ = ["DROP", "Later", "Link", "LinkStatus", "Move", "Pipeline", "Recipe"]
