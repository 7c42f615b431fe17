"""The dashboard, as check.py looks at it: it is what grafana/dashboard.py makes, and its queries name metrics, labels and variables
that exist.
"""

import itertools
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "grafana"))

import dashboard  # noqa: E402 (it lies in grafana/)

# Labels that Prometheus gives, and the one of a histogram's buckets.
GIVEN = {"job", "instance", "role", "le"}
# What Grafana replaces by itself.
BUILT_IN = {"__rate_interval", "__all"}


def check(expect, documented):
    """`documented` are the metrics of docs/services.md: name, kind and labels."""
    made, found = dashboard.text(), (HERE / "grafana/windfall.json").read_text()
    expect(made == found, "grafana/windfall.json is not what grafana/dashboard.py makes: run that")
    document = json.loads(found)
    panels = all_panels(document)
    ids = [panel["id"] for panel in panels]
    expect(len(ids) == len(set(ids)), "grafana/windfall.json: a panel's id is there twice")
    overlaps(expect, document)
    variables = {one["name"]: one for one in document["templating"]["list"]}
    for name, one in variables.items():
        if one["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", one["definition"]).groups()
            _, labels = documented.get(metric, ("", set()))
            expect(metric in documented and label in labels | GIVEN, f"variable {name}: {metric} has no label {label}")
    for panel in panels:
        for target in panel.get("targets", []):
            where = f"panel {panel['title']}"
            asked = set(re.findall(r"\$\{?(\w+)", target["expr"])) - BUILT_IN
            expect(asked <= set(variables), f"{where}: there is no variable {sorted(asked - set(variables))}")
            query(expect, documented, where, target["expr"])
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = grouped(target["expr"])
            expect(kept is None or legend <= kept, f"{where}: the legend names {sorted(legend)}, the query keeps {sorted(kept or [])}")


def all_panels(document):
    return [one for panel in document["panels"] for one in [panel, *panel.get("panels", [])]]


def queries(document):
    """The queries, without what Grafana replaces: promtool parses them."""
    for panel in all_panels(document):
        for target in panel.get("targets", []):
            yield panel["title"], re.sub(r"\$\w+", "a", target["expr"].replace("$__rate_interval", "5m"))


def metric_of(documented, name):
    if name in documented:
        return documented[name]
    plain = documented.get(re.sub(r"_(?:bucket|count|sum)$", "", name))
    return plain if plain and plain[0] == "histogram" else None


def query(expect, documented, where, text):
    all_labels = set(GIVEN)
    for name, matchers in re.findall(r"\b(windfall_\w+)(?:\{([^}]*)\})?", text):
        metric = metric_of(documented, name)
        expect(metric is not None, f"{where}: docs/services.md knows no metric {name}")
        labels = GIVEN | (metric[1] if metric else set())
        all_labels |= labels
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
            expect(label in labels, f"{where}: {name} has no label {label}")
        is_read_as_counter = re.search(rf"(?:rate|increase)\({name}\b", text)
        kind = metric[0] if metric else ""
        expect(bool(is_read_as_counter) == (kind in {"counter", "histogram"}), f"{where}: {name} is a {kind}")
    for by in re.findall(r"\b(?:by|ignoring|on)\s*\(([^)]*)\)", text):
        for label in re.findall(r"\w+", by):
            expect(label in all_labels, f"{where}: none of its metrics has the label {label}")


def grouped(text):
    """The labels that a query keeps; None: all that its metric has."""
    if text.startswith("histogram_quantile"):
        text = text[text.index("sum") :]
    by = re.match(r"(?:sum|max|min)(?: by \(([^)]*)\))? ?\(", text)
    return set(re.findall(r"\w+", by.group(1) or "")) - {"le"} if by else None


def overlaps(expect, document):
    """No two panels share a place, but those of folded rows, which are laid out when their row is opened."""
    shown = [panel for panel in document["panels"]]
    folded = [panel["panels"] for panel in document["panels"] if panel.get("panels")]
    for panels in [shown, *folded]:
        for one, other in itertools.combinations(panels, 2):
            a, b = one["gridPos"], other["gridPos"]
            is_apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
            expect(is_apart, f"grafana/windfall.json: {one['title']} and {other['title']} overlap")
