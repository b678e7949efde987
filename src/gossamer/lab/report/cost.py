"""Quality against cost, for a comparison, with the front of those that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer._text.formats import count, macs
from gossamer.lab.report.axes import Axis, colour_class
from gossamer.lab.report.charts import MOST_NAMED, Mark, Words, scatter
from gossamer.lab.report.figure import Figure
from gossamer.lab.report.markup import Html, element
from gossamer.lab.report.runs import Group
from gossamer.metrics import METRICS, Metric

QUALITY = "nll"
COSTS = {
    "training_macs": ("cost", "Multiply-adds of the training"),
    "parameter_bytes": ("cost-size", "Size of all that predicts"),
    "prediction_seconds": ("cost-prediction", "Time to predict a batch"),
}
"""What a method costs: the figure's name in the page, and that of its axis."""

ON_FRONT = 0.09  # area of a point
RULE = "Down and to the left is better. The line joins the front: no other method is both better and cheaper."


def figures(groups: Sequence[Group], scope: str = "") -> list[Figure]:
    """The log loss against each cost that at least two groups have measured."""
    found = (_figure(groups, METRICS[key], scope) for key in COSTS)
    return [figure for figure in found if figure is not None]


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which points (cost, loss) are on the Pareto front, from the cheapest to the best: no other has less of both.

    Example:
        >>> front([(1.0, 0.5), (2.0, 0.3), (3.0, 0.4), (2.0, 0.6)])
        [0, 1]
    """
    chosen: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: points[i]):
        if not chosen or points[place][1] < points[chosen[-1]][1]:
            chosen.append(place)
    return chosen


def _figure(groups: Sequence[Group], cost: Metric, scope: str) -> Figure | None:
    drawn = [one for one in groups if one.mean(QUALITY) is not None and (one.mean(cost.name) or 0) > 0]
    if len(drawn) < 2:
        return None
    points = [(one.mean(cost.name) or 0.0, one.mean(QUALITY) or 0.0) for one in drawn]
    best = front(points)
    sizes = [ON_FRONT if place in best else _rest(len(drawn)) for place in range(len(drawn))]
    marks = [_mark(one, *point, cost, area) for one, point, area in zip(drawn, points, sizes, strict=True)]
    slug, label = COSTS[cost.name]
    title = f"{METRICS[QUALITY].label} against {label[0].lower()}{label[1:]}"
    told = f"On the front: {', '.join(drawn[place].label for place in best)}."
    losses = [loss for _, loss in points]
    axes = (
        Axis(label, count if cost.format is macs else cost.format, log=True),
        Axis(METRICS[QUALITY].label, METRICS[QUALITY].format, log=min(losses) > 0 and max(losses) > 4 * min(losses)),
    )
    words = Words(f"{scope}{slug}", title, told)
    chart = scatter(marks, *axes, words, steps=[points[place] for place in best])
    if slug != "cost":
        return Figure(words.slug, title, "", chart)
    return Figure(words.slug, title, RULE, chart, "hero", _key([drawn[place] for place in best], cost))


def _rest(n: int) -> float:
    """Area of a point that is not on the front: one without a name, where there are many."""
    return ON_FRONT / 2 if n <= MOST_NAMED else 0.0


def _mark(one: Group, x: float, y: float, cost: Metric, area: float) -> Mark:
    hover = f"{one.label}: {one.text(METRICS[QUALITY])} for {cost.format(x)}"
    return Mark(x, y, one.label, hover, one.colour, area, (one.error(QUALITY) or 0.0) if area else 0.0)


def _key(best: Sequence[Group], cost: Metric) -> Html:
    """The numbers behind the points of the front."""
    items = []
    for one in best:
        swatch = element("i", class_=colour_class(one.colour))
        numbers = f"{one.text(METRICS[QUALITY])}, {one.text(cost)}"
        items.append(element("li", swatch, element("b", one.label), element("span", numbers)))
    return element("ul", *items, class_="legend list")
