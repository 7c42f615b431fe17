#!/usr/bin/env python3
"""Reads every file of deploy/ and holds them against each other and against the source:

- YAML, JSON and TOML parse; helm_chart.py does what concerns the chart;
- roles are those of the binary; ports, paths of probes and times to stop agree;
- metrics in alerts are those of docs/services.md; dashboard_check.py does what concerns the dashboard;
- each alert has a page of docs/runbook and a test in prometheus/alerts_test.yml; links, alerts, metrics and tests that the pages
  name, and docs/upgrade.md and SECURITY.md, exist; with `promtool` installed it checks the alerts, runs their tests and parses the pages' queries;
- users and rights in PostgreSQL, Redis, Kafka and etcd are those of the roles, and no file has a password;
- systemd-analyze accepts the units, where it is installed.

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

import dashboard_check
import helm_chart

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PORT = helm_chart.PORT
XXL_PORT = helm_chart.XXL_PORT
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
    source = (ROOT / "cli/src/commands.rs").read_text()
    body = source[source.index("enum Command"):]
    arguments = r"(?:services::(?:ServiceArgs|ServeArgs)|admin::backfill::SchedulerArgs)"
    names = re.findall(rf"^    ([A-Z]\w+)\({arguments}\)", body, re.M)
    return {re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower() for name in names}


def documented_metrics():
    """Kind and labels of each metric. A test of the binary compares that table with what the source declares."""
    rows = re.findall(r"^\| `(windfall_\w+)` \| (\w+) \| ([^|]*) \|", (ROOT / "docs/services.md").read_text(), re.M)
    return {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in rows}


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
    sealer = services.get("sealer", {})
    seals = re.fullmatch(r"ledger seal --config \S+ --data /var/lib/windfall --every-s \d+", sealer.get("command", ""))
    expect(seals and "sealer:/var/lib/windfall" in sealer["volumes"], "compose.yaml: nobody seals the journal, or the anchor does not stay")
    expect(sealer.get("cap_drop") == ["ALL"] and sealer.get("init"), "compose.yaml: the sealer has rights, or does not end by a signal")
    commands = {name: one["command"].split()[0] for name, one in services.items() if "cap_drop" in one and name != "sealer"}
    expect(set(commands) == roles - {"serve"}, f"compose.yaml runs {sorted(commands)}, there are {sorted(roles)}")
    for name, role in commands.items():
        expect(name == role, f"compose.yaml: {name} runs {role}")
        expect(services[name]["stop_grace_period"] == "45s", f"compose.yaml: {name} is stopped too soon")
    names = {volume.split(":")[0] for one in services.values() for volume in one.get("volumes", [])}
    for volume in names:
        is_known = volume.startswith(".") or volume in document["volumes"]
        expect(is_known, f"compose.yaml: volume {volume} is not declared")


def signing_in_compose():
    """Each role that works on records signs as a sender of its own; who only sends has its own key alone."""
    services = yaml.safe_load(text("compose.yaml"))["services"]
    mounted = {}
    for role in helm_chart.signing_roles():
        own = services[role]["environment"]
        expect(own.get("WINDFALL_OPTION_SIGNING__SENDER") == role, f"compose.yaml: {role} signs as somebody else, or not at all")
        keys = pathlib.PurePath(own.get("WINDFALL_OPTION_SIGNING__KEYS", "/"))
        volumes = [volume.split(":")[0] for volume in services[role]["volumes"] if volume.split(":")[1] == str(keys.parent)]
        expect(len(volumes) == 1, f"compose.yaml: {role} has its signing keys from {volumes}")
        mounted[role] = "".join(volumes)
    whole = {mounted[role] for role in helm_chart.whole_ring_roles()}
    exports = [volume for role, volume in mounted.items() if role not in helm_chart.whole_ring_roles()]
    expect(len(whole) == 1 and not whole & set(exports), f"compose.yaml: the whole ring is in {sorted(whole)}, exports in {exports}")
    expect(len(set(exports)) == len(exports), f"compose.yaml: senders share the keys in {exports}")
    others = [role for role, one in services.items() if role not in mounted and "SIGNING" in str(one.get("environment"))]
    expect(not others, f"compose.yaml: {others} work on no records, and have signing keys")


def listeners(table, where):
    """What listens beyond loopback has TLS, or is allowed plain text by name."""
    for key, value in table.items():
        if isinstance(value, dict):
            listeners(value, f"{where}: {key}")
        elif key in ("listen", "admin_listen"):
            is_local = value.rpartition(":")[0].strip("[]") in ("127.0.0.1", "::1")
            expect(is_local or "tls" in table or table.get("plaintext") is True, f"{where}.{key}: {value} without tls or plaintext")


def options():
    listeners(tomllib.loads(text("config/windfall.toml")), "config/windfall.toml")
    for path in [HERE / "helm/windfall/values.yaml", *helm_chart.CASES]:
        listeners(tomllib.loads(yaml.safe_load(path.read_text()).get("config", "")), path.name)
    for name in ["config/windfall.toml", "config/access.toml"]:
        tomllib.loads(text(name))
    document = tomllib.loads(text("config/windfall.toml"))
    expect(document["serve"]["listen"].endswith(f":{PORT}"), f"config/windfall.toml does not listen on {PORT}")
    drain_ms(text("config/windfall.toml"), "config/windfall.toml")
    xxl = f'# [jobs.xxl]\n# listen = "0.0.0.0:{XXL_PORT}"\n# tls = '
    expect(xxl in text("config/windfall.toml"), f"config/windfall.toml: executors of XXL-JOB do not register on {XXL_PORT}")
    source = (ROOT / "cli/src/services/jobs.rs").read_text()
    expect(f"127, 0, 0, 1], {XXL_PORT})" in source, f"port {XXL_PORT} is not the default of jobs.xxl.listen")
    ports = yaml.safe_load(text("compose.yaml"))["services"]["scheduler"]["ports"]
    expect(f"127.0.0.1:{XXL_PORT}:{XXL_PORT}" in ports, f"compose.yaml: the scheduler does not publish {XXL_PORT}")


def alert_rules():
    alerts = yaml.safe_load(text("prometheus/alerts.yml"))
    return [rule for group in alerts["groups"] for rule in group["rules"]]


def monitoring():
    known = documented_metrics()
    rules = alert_rules()
    dashboard_check.check(expect, known)
    queries = {f"alert {rule['alert']}": rule["expr"] for rule in rules}
    queries["values.yaml"] = text("helm/windfall/templates/scaling.yaml")
    for where, query in queries.items():
        for name in re.findall(r"\bwindfall_[a-z_]+", query):
            expect(dashboard_check.metric_of(known, name), f"{where}: docs/services.md knows no metric {name}")
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
    """The queries of the runbook and of the dashboard parse, each as the expression of a rule."""
    asked = dashboard_check.queries(json.loads(text("grafana/windfall.json")))
    rules = [{"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(asked)]
    for path in sorted(RUNBOOK.glob("*.md")):
        for block in re.findall(r"^```promql\n(.*?)^```", path.read_text(), re.M | re.S):
            rules += [{"record": f"{path.stem}:{len(rules)}", "expr": query} for query in block.splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "queries.yml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
        run("a query of the runbook or of the dashboard", "promtool", "check", "rules", str(file))


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
    for path in [*RUNBOOK.glob("*.md"), ROOT / "docs/on-call.md", ROOT / "docs/upgrade.md", ROOT / "SECURITY.md"]:
        page, where = path.read_text(), path.relative_to(ROOT)
        for metric in re.findall(r"\bwindfall_[a-z_]+", page):
            is_known = metric in groups_of_the_ledger() or metric in known or re.sub(r"_(?:bucket|count|sum)$", "", metric) in known
            expect(is_known, f"{where}: docs/services.md knows no metric {metric}")
        for alert in re.findall(r"\bWindfall[A-Z]\w+", page):
            expect(alert in rules, f"{where}: there is no alert {alert}")
        for test, file in re.findall(r"\[`(\w+)`\]\(([^)\s]*)\)", page):
            source = (path.parent / file).resolve()
            is_there = source.exists() and re.search(rf"^\s*(?:(?:async )?fn )?{test}\(\)", source.read_text(), re.M)
            expect(is_there, f"{where}: {file} has no test {test}")
        for link in re.findall(r"\]\((?!https?:)([^)\s]*)\)", page):
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            is_there = target.exists() and (not anchor or anchor in anchors(target.read_text()))
            expect(is_there, f"{where}: the link {link} leads nowhere")


def rights_of_unit(source):
    """The lines that say what a unit may do."""
    names = r"(?:No|Private|Protect|Restrict|Capability|Ambient|Lock|Memory|System|Remove|ProcSubset|UMask|Limit|User=|Group=)"
    return sorted(line for line in source.splitlines() if re.match(names, line) and not re.match(r"Memory(?:High|Max)|LimitNOFILE", line))


def units():
    source, sealer = text("systemd/windfall@.service"), text("systemd/windfall-sealer.service")
    expect("TimeoutStopSec=45" in source, "windfall@.service: TimeoutStopSec is not 45")
    expect("StateDirectory=windfall/%i" in source, "windfall@.service has no StateDirectory")
    for option in ["KEYS=/etc/windfall/secrets/%i/signing.toml", "SENDER=%i"]:
        line = f"\nEnvironment=WINDFALL_OPTION_SIGNING__{option}\n"
        expect(line in source, f"windfall@.service: the role does not sign by default: {line.strip()} is missing")
    seals = r"^ExecStart=\S+ .*ledger seal --config \S+ --data %S/windfall/sealer --every-s \d+$"
    expect(re.search(seals, sealer, re.M) and "StateDirectory=windfall/sealer\n" in sealer, "windfall-sealer.service does not seal, or where")
    expect(rights_of_unit(sealer) == rights_of_unit(source), "windfall-sealer.service has other rights than a role")
    if not shutil.which("systemd-analyze"):
        return print("deploy: systemd-analyze is not installed: the units are not verified")
    for name, unit in {"windfall@consumer.service": source, "windfall-sealer.service": sealer}.items():
        with tempfile.TemporaryDirectory() as folder:
            # The binary need not be installed here.
            path = pathlib.Path(folder) / name
            path.write_text(unit.replace("/usr/local/bin/windfall", "/bin/true"))
            done = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
            ours = [line for line in done.stderr.splitlines() if re.search(r"windfall[@-]", line)]
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


def groups_of_the_ledger():
    return set(re.findall(r"CREATE ROLE (\w+) NOLOGIN", text("postgres/roles.sql")))


def users_of_the_ledger():
    """Each group has its rights from the ledger, and each role with the ledger a user of its own group, the same in all places."""
    groups, grants = groups_of_the_ledger(), (ROOT / "ledger/src/postgres/grants.sql").read_text()
    expect({group for group in groups if group not in grants} == {"windfall_owner"}, "grants.sql: a group has no rights")
    shown = dict(re.findall(r"CREATE ROLE windfall_(\w+) LOGIN PASSWORD '…' IN ROLE windfall_(\w+);", text("postgres/roles.sql")))
    listed = re.search(r"for one in ([\w: ]+); do", text("compose.yaml")).group(1)
    for user, group in [one.split(":") for one in listed.split()]:
        expect(shown.get(user) == group, f"compose.yaml: windfall_{user} is in windfall_{group}, roles.sql shows {shown.get(user)}")


def users_of_the_rules():
    """The keys of the rights in etcd are those of the source, and who runs the rules does not change them."""
    printed = run("users.sh", "env", "DRY_RUN=1", "bash", str(HERE / "etcd/users.sh"), "http://etcd:2379", "/p/")
    rights = set(re.findall(r"role grant-permission ([a-z-]+) (\w+) (\S+)(?: --prefix=true)?$", printed, re.M))
    writes = {user: {key for who, what, key in rights if who == user and what != "read"} for user, _, _ in rights}
    expected = {"process": {"/p/status/"}, "ledger": {"/p/ledger-mark/"}, "operator": {"/p/current", "/p/changes/", "/p/proposals/"}}
    expect(writes == {f"windfall-{user}": keys for user, keys in expected.items()}, f"users.sh: who writes what is {writes}")
    source = (ROOT / "config/src/etcd/mod.rs").read_text() + (ROOT / "cli/src/drivers/ledger_mark.rs").read_text()
    for key in ['"{}current"', '"{}changes/"', '"{}proposals/"', '"{}status/{}"', '"ledger-mark/{tenant}/']:
        expect(key in source, f"users.sh: the source has no key {key} any more")
    prefix = re.search(r'prefix: "([^"]+)"\.into\(\)', source).group(1)
    expect(f"${{2:-{prefix}}}" in text("etcd/users.sh"), f"users.sh: the default prefix is not {prefix}")


def users():
    """Each role that reaches a server has rights there, and the files with them have no passwords."""
    acl = [line.split() for line in text("redis/users.acl").splitlines()]
    expect(all(words[0] == "user" for words in acl), "users.acl: Redis takes lines of users alone")
    expect(acl[0][1:3] == ["default", "off"], "users.acl: anybody is the default user")
    for words in acl:
        open_doors = [word for word in words if word in {"nopass", "allkeys", "+@all", "~*"} or word[0] in ">#"]
        expect(not open_doors and "resetpass" in words, f"users.acl: {words[1]} has {open_doors}")
    printed = run("acls.sh", "env", "DRY_RUN=1", "bash", str(HERE / "kafka/acls.sh"), "broker:9092", "admin.properties")
    with_brokers = {role for role, work in helm_chart.work_of_the_roles().items() if work & {"sends", "consumes", "serves_grants", "schedules"}}
    named = set(re.findall(r"User:windfall-([a-z-]+)", printed)) | {"serve"}
    expect(named == with_brokers | {"serve"}, f"acls.sh: rights of {sorted(named)}, but {sorted(with_brokers)} use brokers")
    group = re.search(r'pub const GROUP: &str = "(\w+)"', (ROOT / "cli/src/wiring/mod.rs").read_text()).group(1)
    expect(f"--group {group}. " in printed, f"acls.sh: the consumers' groups begin with {group}.")
    in_compose = text("compose.yaml")
    for user in [words[1] for words in acl[1:] if words[1] != "windfall-jobs"]:
        expect(user in in_compose, f"compose.yaml: nobody is {user}")


def main():
    roles = roles_of_the_binary()
    compose(roles)
    signing_in_compose()
    options()
    users()
    users_of_the_ledger()
    users_of_the_rules()
    helm_chart.check(expect, run, roles, drain_ms)
    monitoring()
    alert_tests()
    runbook()
    units()
    containerfile(roles)
    kept_out()
    for what in wrong:
        print(f"deploy: {what}", file=sys.stderr)
    print(f"deploy: {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
