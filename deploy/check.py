#!/usr/bin/env python3
"""Reads every file of deploy/ and holds them against each other and against the source:

- YAML, JSON and TOML parse; the chart's actions are balanced and name values that exist; with `helm` installed it is
  linted and rendered, and what it renders parses;
- roles are those of the binary; ports, paths of probes and times to stop agree;
- metrics in alerts and dashboard are those of docs/services.md;
- each alert has a page of docs/runbook and a test in prometheus/alerts_test.yml; links, alerts and metrics that the pages
  name exist; with `promtool` installed it checks the alerts, runs their tests and parses the pages' queries;
- systemd-analyze accepts the unit, where it is installed.

Needs Python 3.11 and PyYAML (Debian: python3-yaml). Ends with 1 and says what is wrong.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PORT = 8443
# Where executors of XXL-JOB register with the role `scheduler`.
XXL_PORT = 7780
RUNBOOK = ROOT / "docs/runbook"
# Where alerts say that the pages are. deploy/README.md says how to change it.
RUNBOOK_URL = "https://github.com/windfall-rewards/windfall/blob/main/docs/runbook/"
wrong = []


def expect(is_so, what):
    if not is_so:
        wrong.append(what)


def run(what, *command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"{what}: {done.stdout}{done.stderr}")
    return done.stdout


def text(path):
    return (HERE / path).read_text()


def roles_of_the_binary():
    source = (ROOT / "cli/src/main.rs").read_text()
    body = source[source.index("enum Command"):]
    arguments = r"(?:services::(?:ServiceArgs|ServeArgs)|admin::backfill::SchedulerArgs)"
    names = re.findall(rf"^    ([A-Z]\w+)\({arguments}\)", body, re.M)
    return {re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower() for name in names}


def documented_metrics():
    """A test of the binary compares that table with what the source declares."""
    return set(re.findall(r"^\| `(windfall_[a-z_]+)` \|", (ROOT / "docs/services.md").read_text(), re.M))


def without_suffix(name):
    return re.sub(r"_(?:seconds_)?(?:bucket|count|sum)$|_total$|_seconds$", "", name)


def drain_ms(options, where):
    value = tomllib.loads(options)["drain_ms"]
    expect(value < 45_000, f"{where}: drain_ms is {value}, not below the 45 s after which it is killed")


def compose(roles):
    document = yaml.safe_load(text("compose.yaml"))
    services = document["services"]
    root = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    for name, service in root.items():
        expect(name in services, f"compose.yaml lacks {name}")
        image = services.get(name, {}).get("image")
        expect(image == service["image"], f"compose.yaml: {name} is {image}, ../compose.yaml says {service['image']}")
    commands = {name: one["command"].split()[0] for name, one in services.items() if "cap_drop" in one}
    expect(set(commands) == roles - {"serve"}, f"compose.yaml runs {sorted(commands)}, there are {sorted(roles)}")
    for name, role in commands.items():
        expect(name == role, f"compose.yaml: {name} runs {role}")
        expect(services[name]["stop_grace_period"] == "45s", f"compose.yaml: {name} is stopped too soon")
    names = {volume.split(":")[0] for one in services.values() for volume in one.get("volumes", [])}
    for volume in names:
        is_known = volume.startswith(".") or volume in document["volumes"]
        expect(is_known, f"compose.yaml: volume {volume} is not declared")


def options():
    for name in ["config/windfall.toml", "config/access.toml"]:
        tomllib.loads(text(name))
    document = tomllib.loads(text("config/windfall.toml"))
    expect(document["serve"]["listen"].endswith(f":{PORT}"), f"config/windfall.toml does not listen on {PORT}")
    drain_ms(text("config/windfall.toml"), "config/windfall.toml")
    xxl = f'# [jobs.xxl]\n# listen = "0.0.0.0:{XXL_PORT}"'
    expect(xxl in text("config/windfall.toml"), f"config/windfall.toml: executors of XXL-JOB do not register on {XXL_PORT}")
    source = (ROOT / "cli/src/services/jobs.rs").read_text()
    expect(f"127, 0, 0, 1], {XXL_PORT})" in source, f"port {XXL_PORT} is not the default of jobs.xxl.listen")
    ports = yaml.safe_load(text("compose.yaml"))["services"]["scheduler"]["ports"]
    expect(f"127.0.0.1:{XXL_PORT}:{XXL_PORT}" in ports, f"compose.yaml: the scheduler does not publish {XXL_PORT}")


def balanced(name, template):
    depth = 0
    for action in re.findall(r"\{\{-?\s*(?!/\*)(.*?)\s*-?\}\}", template, re.S):
        word = action.split()[0]
        depth += word in {"if", "range", "with", "define", "block"}
        depth -= word == "end"
        expect(depth >= 0, f"{name}: an end too many")
    expect(depth == 0, f"{name}: {depth} actions are not ended")
    expect(template.count("{{") == template.count("}}"), f"{name}: braces are not balanced")


def chart(roles):
    folder = HERE / "helm/windfall"
    yaml.safe_load((folder / "Chart.yaml").read_text())
    values = yaml.safe_load((folder / "values.yaml").read_text())
    expect(set(values["roles"]) == roles - {"serve"}, f"values.yaml: roles are {sorted(values['roles'])}")
    expect(values["terminationGracePeriodSeconds"] == 45, "values.yaml: terminationGracePeriodSeconds is not 45")
    drain_ms(values["config"], "values.yaml")
    tomllib.loads(values["access"])
    for path in sorted((folder / "templates").iterdir()):
        template = path.read_text()
        balanced(path.name, template)
        for keys in re.findall(r"\.Values\.([A-Za-z.]+)", template):
            at = values
            for key in keys.split("."):
                expect(isinstance(at, dict) and key in at, f"{path.name}: .Values.{keys} is not in values.yaml")
                at = at.get(key, {}) if isinstance(at, dict) else {}
        for port in re.findall(r"containerPort: (\d+)", template):
            expect(int(port) in {PORT, XXL_PORT}, f"{path.name}: port {port}")
        for probe in re.findall(r"path: (/health/\w+)", template):
            expect(probe in {"/health/live", "/health/ready"}, f"{path.name}: {probe}")
    if not shutil.which("helm"):
        return print("deploy: helm is not installed: the chart is not rendered")
    run("helm lint", "helm", "lint", "--strict", str(folder))
    worker = {"name": "w", "namespace": "n", "queue": "q", "readyJobs": "1", "oldestReadyMilliseconds": "1"}
    worker |= {"minReplicas": "0", "maxReplicas": "2"}
    everything = ["roles.scheduler.enabled=true", "signing.enabled=true", "executors.xxl=true", "executors.ports={9999,7000}"]
    everything += ["autoscaling.enabled=true", "serviceMonitor.enabled=true", "rules.document=version = 1"]
    everything += ["rules.reach=--tls-ca /run/windfall/ca.pem"]
    everything += [f"jobWorkers[0].{key}={value}" for key, value in worker.items()]
    for settings in [[], everything]:
        flags = [flag for one in settings for flag in ("--set", one)]
        rendered = run("helm template", "helm", "template", "try", str(folder), *flags)
        kinds = [document["kind"] for document in yaml.safe_load_all(rendered) if document]
        enabled = {name for name, role in values["roles"].items() if role["enabled"]}
        enabled |= {name for name in values["roles"] if f"roles.{name}.enabled=true" in settings}
        expect(kinds.count("Service") == len(enabled), f"the chart renders {kinds}")


def alert_rules():
    alerts = yaml.safe_load(text("prometheus/alerts.yml"))
    return [rule for group in alerts["groups"] for rule in group["rules"]]


def monitoring():
    known = documented_metrics()
    plain = {without_suffix(name) for name in known}
    rules = alert_rules()
    dashboard = json.loads(text("grafana/windfall.json"))
    queries = {f"alert {rule['alert']}": rule["expr"] for rule in rules}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            queries[f"panel {panel['title']}"] = queries.get(f"panel {panel['title']}", "") + " " + target["expr"]
    queries["values.yaml"] = text("helm/windfall/templates/scaling.yaml")
    for where, query in queries.items():
        for name in re.findall(r"\bwindfall_[a-z_]+", query):
            is_known = name in known or without_suffix(name) in plain
            expect(is_known, f"{where}: docs/services.md knows no metric {name}")
    ids = [panel["id"] for panel in dashboard["panels"]]
    expect(len(ids) == len(set(ids)), "grafana/windfall.json: a panel's id is there twice")
    scrape = yaml.safe_load(text("prometheus/scrape.yml"))
    for targets in scrape["scrape_configs"][0]["static_configs"]:
        for target in targets["targets"]:
            expect(target == f"{targets['labels']['role']}:{PORT}", f"prometheus/scrape.yml: {target}")
    if shutil.which("promtool"):
        run("promtool", "promtool", "check", "rules", str(HERE / "prometheus/alerts.yml"))
        run("promtool", "promtool", "test", "rules", str(HERE / "prometheus/alerts_test.yml"))
        queries_parse()
    else:
        print("deploy: promtool is not installed (Debian: prometheus): the alerts are neither parsed nor tested")


def queries_parse():
    """The queries of the runbook parse, each as the expression of a rule."""
    rules = []
    for path in sorted(RUNBOOK.glob("*.md")):
        for block in re.findall(r"^```promql\n(.*?)^```", path.read_text(), re.M | re.S):
            rules += [{"record": f"{path.stem}:{len(rules)}", "expr": query} for query in block.splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "queries.yml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
        run("a query of the runbook", "promtool", "check", "rules", str(file))


def alert_tests():
    """Each alert is provoked by the test of its name. promtool says whether it fires."""
    provoked = set()
    for test in yaml.safe_load(text("prometheus/alerts_test.yml"))["tests"]:
        expected = {sample["labels"] for one in test["promql_expr_test"] for sample in one["exp_samples"]}
        if f'{{alertname="{test["name"]}"}}' in expected:
            provoked.add(test["name"])
    names = {rule["alert"] for rule in alert_rules()}
    expect(provoked == names, f"alerts_test.yml: not tested, or no alert: {sorted(provoked ^ names)}")


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def runbook():
    rules = {rule["alert"]: rule for rule in alert_rules()}
    pages = {path.stem: path.read_text() for path in RUNBOOK.glob("*.md")}
    index = pages.pop("README", "")
    expect(set(pages) == set(rules), f"docs/runbook: no page, or no alert: {sorted(set(pages) ^ set(rules))}")
    for name, rule in rules.items():
        severity, url = rule["labels"]["severity"], rule["annotations"].get("runbook_url")
        expect(url == f"{RUNBOOK_URL}{name}.md", f"alert {name}: runbook_url is {url}")
        expect(f"| [{name}]({name}.md) | {severity} |" in index, f"docs/runbook/README.md has no row of {name}, {severity}")
        head = f"# {name}\n\nSeverity: {severity}. "
        expect(pages.get(name, head).startswith(head), f"docs/runbook/{name}.md does not begin with its name and severity")
    known = documented_metrics()
    for path in [*RUNBOOK.glob("*.md"), ROOT / "docs/on-call.md"]:
        page, where = path.read_text(), path.relative_to(ROOT)
        for metric in re.findall(r"\bwindfall_[a-z_]+", page):
            is_known = metric in known or re.sub(r"_(?:bucket|count|sum)$", "", metric) in known
            expect(is_known, f"{where}: docs/services.md knows no metric {metric}")
        for alert in re.findall(r"\bWindfall[A-Z]\w+", page):
            expect(alert in rules, f"{where}: there is no alert {alert}")
        for link in re.findall(r"\]\((?!https?:)([^)\s]*)\)", page):
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            is_there = target.exists() and (not anchor or anchor in anchors(target.read_text()))
            expect(is_there, f"{where}: the link {link} leads nowhere")


def unit():
    source = text("systemd/windfall@.service")
    expect("TimeoutStopSec=45" in source, "windfall@.service: TimeoutStopSec is not 45")
    expect("StateDirectory=windfall/%i" in source, "windfall@.service has no StateDirectory")
    if not shutil.which("systemd-analyze"):
        return print("deploy: systemd-analyze is not installed: the unit is not verified")
    with tempfile.TemporaryDirectory() as folder:
        # The binary need not be installed here.
        path = pathlib.Path(folder) / "windfall@consumer.service"
        path.write_text(source.replace("/usr/local/bin/windfall", "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
        ours = [line for line in done.stderr.splitlines() if "windfall@" in line]
        expect(done.returncode == 0 and not ours, f"systemd-analyze: {done.stderr}")


def containerfile(roles):
    source = text("Containerfile")
    pinned = re.search(r'channel = "(.*)"', (ROOT / "rust-toolchain.toml").read_text()).group(1)
    expect(f"rust:{pinned}-" in source, f"Containerfile: the toolchain is not {pinned}")
    expect("--locked" in source and "\nUSER 10001" in source, "Containerfile: not locked, or root")
    expect(f"EXPOSE {PORT}" in source, f"Containerfile: not port {PORT}")
    expect(roles >= {"serve", "consumer"}, f"the binary's roles are {sorted(roles)}")


def kept_out():
    """Data and keys of try-outs neither come into the repository nor into an image's build."""
    patterns = ["keys.toml", "signing.toml", "verifier.toml", "*.key", "*.pem", "*.secret"]
    of_git = (ROOT / ".gitignore").read_text().splitlines()
    of_image = text("Containerfile.containerignore").splitlines()
    for pattern in patterns:
        expect(pattern in of_git, f".gitignore: {pattern} is missing")
        expect(f"**/{pattern}" in of_image, f"Containerfile.containerignore: **/{pattern} is missing")
    for folder in ["deploy/local", "demo-data", "windfall-data"]:
        expect(any(line.strip("/") == folder for line in of_git), f".gitignore: {folder} is missing")
        expect(folder in of_image, f"Containerfile.containerignore: {folder} is missing")


def main():
    roles = roles_of_the_binary()
    compose(roles)
    options()
    chart(roles)
    monitoring()
    alert_tests()
    runbook()
    unit()
    containerfile(roles)
    kept_out()
    for what in wrong:
        print(f"deploy: {what}", file=sys.stderr)
    print(f"deploy: {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
