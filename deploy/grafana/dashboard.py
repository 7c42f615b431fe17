#!/usr/bin/env python3
"""Makes windfall.json: python3 deploy/grafana/dashboard.py. check.py says when the two differ.

Queries of rows.py name metrics without labels of the fleet: each metric of docs/services.md gets the variables for which it has a
label.
"""

import json
import pathlib
import re

from rows import FOLDED, OVERVIEW, ROWS

HERE = pathlib.Path(__file__).resolve().parent
SERVICES = HERE.parent.parent / "docs/services.md"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The label, what the variable is called, and the metric whose values it lists.
VARIABLES = [
    ("job", "Fleet", "windfall_part_ready"),
    ("instance", "Process", "windfall_part_ready"),
    ("app", "App", "windfall_sent_events_total"),
    ("topic", "Topic", "windfall_fetched_records_total"),
    ("type", "Bonus type", "windfall_grants_total"),
]


def labels_of_metrics(services):
    """The labels of each metric, as the table of docs/services.md has them."""
    rows = re.findall(r"^\| `(windfall_\w+)` \| \w+ \| ([^|]*) \|", services, re.M)
    return {name: {label.strip() for label in labels.split(",") if label.strip()} for name, labels in rows}


def selected(query, labels):
    """The query, with each metric narrowed to what the variables say."""

    def narrow(found):
        name, own = found.group(1), found.group(2)
        known = labels.get(name) or labels.get(re.sub(r"_(bucket|count|sum)$", "", name), set())
        variables = [f'{label}=~"${label}"' for label, _, _ in VARIABLES if label in known | {"job", "instance"}]
        return f"{name}{{{','.join([own.replace(chr(39), chr(34)), *variables] if own else variables)}}}"

    return re.sub(r"\b(windfall_\w+)(?:\{([^}]*)\})?", narrow, query)


def panel(number, kind, spec, place, labels):
    title, description, unit, queries = spec
    targets = [
        {"refId": chr(ord("A") + at), "expr": selected(query, labels), "legendFormat": legend, "datasource": DATASOURCE}
        for at, (query, legend) in enumerate(queries)
    ]
    defaults = {"unit": unit, "min": 0}
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "graphMode": "area"}
    if kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 8, "showPoints": "never"}
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "id": number,
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }


def panels(labels):
    made, number, y = [], 0, 0
    for at, spec in enumerate(OVERVIEW):
        number += 1
        made.append(panel(number, "stat", spec, {"h": 4, "w": 4, "x": 4 * at, "y": y}, labels))
    y += 4
    for title, specs in ROWS:
        number += 1
        row = {"id": number, "type": "row", "title": title, "collapsed": title in FOLDED, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}}
        row["panels"] = []
        made.append(row)
        y += 1
        for at, spec in enumerate(specs):
            number += 1
            place = {"h": 8, "w": 8, "x": 8 * (at % 3), "y": y + 8 * (at // 3)}
            (row["panels"] if row["collapsed"] else made).append(panel(number, "timeseries", spec, place, labels))
        y += 0 if row["collapsed"] else 8 * ((len(specs) + 2) // 3)
    return made


def variable(label, title, metric):
    of_fleet = "" if label == "job" else '{job=~"$job"}'
    query = f"label_values({metric}{of_fleet}, {label})"
    return {
        "name": label,
        "type": "query",
        "label": title,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        # Also series without the label.
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def dashboard():
    labels = labels_of_metrics(SERVICES.read_text())
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source", "current": {}, "hide": 0}
    alerts = {
        "name": "Alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "expr": 'ALERTS{alertname=~"Windfall.+",alertstate="firing"}',
        "titleFormat": "{{alertname}}",
    }
    return {
        "title": "Windfall",
        "uid": "windfall",
        "tags": ["windfall"],
        "description": "Rewards from the call to the credit. Made by dashboard.py, for prometheus/scrape.yml.",
        "schemaVersion": 39,
        "version": 2,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "templating": {"list": [source, *(variable(*one) for one in VARIABLES)]},
        "annotations": {"list": [alerts]},
        "panels": panels(labels),
    }


def text():
    """As JSON with a line a panel."""
    made = dashboard()
    lines = ",\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in made.pop("panels"))
    rest = json.dumps(made, indent=2, ensure_ascii=False).removesuffix("\n}")
    return f'{rest},\n  "panels": [\n{lines}\n  ]\n}}\n'


if __name__ == "__main__":
    (HERE / "windfall.json").write_text(text())
