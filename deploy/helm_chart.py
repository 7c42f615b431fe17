"""The Helm chart, as check.py looks at it: its source; and with `helm`, what it renders with each file of helm/cases.

`./dev test` builds helm and kubeconform from their Go modules. Kubernetes' own description of its objects (OpenAPI) comes from a
module that helm is built of, so neither a cluster nor a download is needed; WINDFALL_KUBERNETES_OPENAPI names its file.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import tomllib

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
FOLDER = HERE / "helm/windfall"
CASES = sorted((HERE / "helm/cases").glob("*.yaml"))
PORT = 8443
# Where executors of XXL-JOB register with the role `scheduler`.
XXL_PORT = 7780
# Where publishers and consumers of jobs call the role `task-queue`.
QUEUE_PORT = 7777
# The oldest version that Chart.yaml allows, and a new one.
KUBERNETES = ["1.27.0", "1.36.0"]
# Their descriptions are not in Kubernetes' own: they belong to KEDA and to the Prometheus Operator.
FOREIGN = ["ScaledObject", "ServiceMonitor"]
GRACE_S = 45
# Values that the chart must refuse, and a word of what it says.
REFUSED = {
    "rolez.consumer.enabled=true": "rolez",
    "roles.consumer.replica=3": "replica",
    "roles.consumers.enabled=true": "consumers",
    "roles.token-service.stateful=true": "storage",
    "sealer.everySeconds=0": "everySeconds",
    "signing.unsigned=maybe": "unsigned",
    "rules.document=version = 1": "reach",
    "secrets.files=Not A Name": "files",
    "image.digest=sha256:1": "digest",
    "ingress[0].name=a,ingress[0].host=a.example.com,ingress[0].role=scheduler": "not enabled",
    "signing.secrets.consumer=": "signing.secrets.consumer",
    "signing.secrets.reward-service=": "signing.secrets.reward-service",
    "signing.secrets.sdk-gateway=": "signing.secrets.sdk-gateway",
    "signing.unsigned=accept,signing.secrets.consumer=": "signing.secrets.consumer",
}


def check(expect, run, roles, drain_ms):
    values = yaml.safe_load((FOLDER / "values.yaml").read_text())
    source(expect, values, roles, drain_ms)
    if not shutil.which("helm"):
        return print("deploy: helm is not installed: the chart is not rendered")
    run("helm lint", "helm", "lint", "--strict", "--kube-version", KUBERNETES[-1], str(FOLDER))
    rendered = {"defaults": render(expect, run, [])}
    for case in CASES:
        run(f"helm lint with {case.name}", "helm", "lint", "--strict", "--kube-version", KUBERNETES[-1], "-f", str(case), str(FOLDER))
        rendered[case.stem] = render(expect, run, ["-f", str(case)])
    objects_of = {name: objects_in(text) for name, text in rendered.items()}
    for name, objects in objects_of.items():
        given = yaml.safe_load((HERE / f"helm/cases/{name}.yaml").read_text()) if name != "defaults" else {}
        Chart(expect, name, merged(values, given), objects).check()
    cases(expect, objects_of)
    checksums(expect, run)
    for settings, said in REFUSED.items():
        done = helm_template(["--set", settings])
        expect(done.returncode != 0 and said in done.stderr, f"the chart does not refuse {settings}: {done.stderr}")
    schemas(expect, rendered)


def source(expect, values, roles, drain_ms):
    """What can be seen without helm."""
    yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    schema = json.loads((FOLDER / "values.schema.json").read_text())
    known = set(schema["properties"]) - {"global"}
    expect(known == set(values), f"values.schema.json and values.yaml: {sorted(known ^ set(values))}")
    expect(set(values["roles"]) == roles - {"serve"}, f"values.yaml: roles are {sorted(values['roles'])}")
    named = set(schema["properties"]["roles"]["properties"])
    expect(named == roles - {"serve"}, f"values.schema.json: roles are {sorted(named)}")
    expect(values["terminationGracePeriodSeconds"] == GRACE_S, f"values.yaml: terminationGracePeriodSeconds is not {GRACE_S}")
    signing = values["signing"]
    expect(signing["enabled"] and signing["unsigned"] == "refuse", "values.yaml: records are not signed, or need not be")
    expect(set(signing["secrets"]) == signing_roles(), f"values.yaml: the Secrets of signing keys are of {sorted(signing['secrets'])}")
    whole = {secret for role, secret in signing["secrets"].items() if role in whole_ring_roles()}
    exports = [secret for role, secret in signing["secrets"].items() if role not in whole_ring_roles()]
    expect(len(set(exports)) == len(exports) and not whole & set(exports), "values.yaml: a sender has the keys of others")
    drain_ms(values["config"], "values.yaml")
    tomllib.loads(values["access"])
    for path in sorted((FOLDER / "templates").iterdir()):
        template = path.read_text()
        balanced(expect, path.name, template)
        for keys in re.findall(r"\.Values\.([A-Za-z.]+)", template):
            at = values
            for key in keys.split("."):
                expect(isinstance(at, dict) and key in at, f"{path.name}: .Values.{keys} is not in values.yaml")
                at = at.get(key, {}) if isinstance(at, dict) else {}


def balanced(expect, name, template):
    depth = 0
    for action in re.findall(r"\{\{-?\s*(?!/\*)(.*?)\s*-?\}\}", template, re.S):
        word = action.split()[0]
        depth += word in {"if", "range", "with", "define", "block"}
        depth -= word == "end"
        expect(depth >= 0, f"{name}: an end too many")
    expect(depth == 0, f"{name}: {depth} actions are not ended")
    expect(template.count("{{") == template.count("}}"), f"{name}: braces are not balanced")


def helm_template(flags, version=KUBERNETES[-1]):
    command = ["helm", "template", "try", str(FOLDER), "--kube-version", version, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(expect, run, flags):
    """The chart as text. An old Kubernetes is given the same as a new one."""
    old, new = (
        run("helm template", "helm", "template", "try", str(FOLDER), "--kube-version", version, *flags) for version in KUBERNETES
    )
    expect(old == new, f"the chart with {flags} is another one for Kubernetes {KUBERNETES[0]}")
    return new


def objects_in(rendered):
    return [one for one in yaml.safe_load_all(rendered) if one]


def merged(values, given):
    """What helm makes of values and those of a file."""
    if not (isinstance(values, dict) and isinstance(given, dict)):
        return given
    return values | {key: merged(values.get(key), value) for key, value in given.items()}


def work_of_the_roles():
    """What each role does, as cli/src/services/role.rs says it."""
    body = (ROOT / "cli/src/services/role.rs").read_text()
    arms = re.findall(r"Self::(\w+) => Work \{ ([\w: ,]+), \.\.NOTHING \}", body)
    dashed = {re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower(): does for name, does in arms}
    return {name: set(re.findall(r"(\w+): true", does)) for name, does in dashed.items()}


def signing_roles():
    """Those that write records, or read them."""
    return {role for role, work in work_of_the_roles().items() if work & {"sends", "consumes", "serves_grants", "schedules"}}


def whole_ring_roles():
    """Those that verify records: they need the keys of all senders, and the others have their own alone."""
    return {role for role, work in work_of_the_roles().items() if work & {"consumes", "serves_grants"}}


class Chart:
    """What holds of every rendering."""

    def __init__(self, expect, name, values, objects):
        self.values, self.objects = values, objects
        self.expect = lambda is_so, what: expect(is_so, f"the chart with {name}: {what}")
        self.roles = {role: own for role, own in values["roles"].items() if own["enabled"]}

    def of(self, kind):
        return {one["metadata"]["name"]: one for one in self.objects if one["kind"] == kind}

    def check(self):
        workloads = self.of("Deployment") | self.of("StatefulSet")
        names = {f"try-{role}" for role in self.roles}
        sealers = {"try-sealer"} if self.values["sealer"]["enabled"] else set()
        self.expect(set(workloads) == names | sealers, f"the workloads are {sorted(workloads)}")
        for kind, more in {"Service": sealers, "PodDisruptionBudget": set()}.items():
            self.expect(set(self.of(kind)) == names | more, f"not a {kind} a role: {sorted(self.of(kind))}")
        for name in sealers & set(workloads):
            self.sealer(workloads.pop(name))
        for role, own in self.roles.items():
            workload = workloads.get(f"try-{role}")
            if workload:
                self.workload(role, own, workload)
                self.secrets(role, workload)
        self.hooks()
        self.scaling(workloads)

    def queue_api(self, role, ports):
        """The queue API can be reached where it is asked for: by the container, its Service and a policy."""
        is_open = role == "task-queue" and self.values["taskQueue"]["api"]
        self.expect((QUEUE_PORT in ports) == is_open, f"{role}: its ports are {ports}")
        served = {port["port"] for port in self.of("Service")[f"try-{role}"]["spec"]["ports"]}
        self.expect(served == ports, f"{role}: its Service has {served}, its container {ports}")
        if is_open and self.values["networkPolicy"]["enabled"]:
            policy = self.of("NetworkPolicy").get("try-task-queue", {}).get("spec", {})
            allowed = {port["port"] for rule in policy.get("ingress", []) for port in rule["ports"]}
            callers = [one["namespaceSelector"] for rule in policy.get("ingress", []) for one in rule["from"] or []]
            self.expect(allowed == {QUEUE_PORT}, f"{role}: callers may reach {allowed}")
            self.expect(callers == self.values["taskQueue"]["namespaces"], f"{role}: {callers} may call")

    def workload(self, role, own, workload):
        spec, template = workload["spec"], workload["spec"]["template"]
        pod, labels = template["spec"], template["metadata"]["labels"]
        self.expect(workload["kind"] == ("StatefulSet" if own["stateful"] else "Deployment"), f"{role} is a {workload['kind']}")
        for selector in [
            spec["selector"]["matchLabels"],
            self.of("Service")[f"try-{role}"]["spec"]["selector"],
            self.of("PodDisruptionBudget")[f"try-{role}"]["spec"]["selector"]["matchLabels"],
            pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        ]:
            is_own = selector.items() <= labels.items() and selector["app.kubernetes.io/component"] == role
            self.expect(is_own, f"{role}: a selector is {selector}")
        budget = self.of("PodDisruptionBudget")[f"try-{role}"]["spec"]["maxUnavailable"]
        self.expect(budget == own["maxUnavailable"], f"{role}: its disruption budget is {budget}")
        self.expect(pod["terminationGracePeriodSeconds"] == GRACE_S, f"{role}: it is stopped too soon")
        self.expect(not pod["automountServiceAccountToken"], f"{role} has a token of Kubernetes")
        is_live = self.values["secrets"]["live"]
        for key, is_there in {"checksum/config": True, "checksum/access": not is_live}.items():
            length = len(template["metadata"]["annotations"].get(key, ""))
            self.expect(length == (64 if is_there else 0), f"{role}: {key} has {length} letters")
        self.expect(not (is_live and "initContainers" in pod), f"{role} copies secrets, and so does not follow them")
        paths = [mount for one in pod["containers"] for mount in one["volumeMounts"] if "subPath" in mount]
        self.expect(not paths, f"{role}: what is mounted by a subPath never changes: {paths}")
        container = pod["containers"][0]
        self.expect(container["args"][0] == role, f"{role} runs {container['args']}")
        for probe, path in [("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")]:
            asked = container.get(probe, {}).get("httpGet", {})
            expected = {"path": f"/health/{path}", "port": "https", "scheme": "HTTPS"}
            self.expect(asked == expected, f"{role}: {probe} asks {asked}")
        ports = {port["containerPort"] for port in container["ports"]}
        self.expect(PORT in ports <= {PORT, XXL_PORT, QUEUE_PORT}, f"{role}: its ports are {ports}")
        self.queue_api(role, ports)
        for one in [*pod["containers"], *pod.get("initContainers", [])]:
            self.expect("limits" in one["resources"], f"{role}: no limits of {one['name']}")
            self.locked_down(role, pod, one)
            mounts = {mount["name"] for mount in one["volumeMounts"]}
            claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
            volumes = {volume["name"] for volume in pod["volumes"]} | claims
            self.expect(mounts <= volumes, f"{role}: {one['name']} mounts {sorted(mounts - volumes)}, which is no volume")

    def sealer(self, workload):
        """It seals on a volume that stays, and has neither keys nor variables that its work does not need."""
        own, secrets, spec = self.values["sealer"], self.values["secrets"], workload["spec"]
        pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
        container = pod["containers"][0]
        command = ["ledger", "seal", "--config", "/etc/windfall/windfall.toml", "--data", "/var/lib/windfall", "--every-s", str(own["everySeconds"])]
        self.expect(container["args"] == command, f"the sealer runs {container['args']}")
        self.expect(workload["kind"] == "StatefulSet" and spec["replicas"] == 1, "the sealer is not one pod with a volume of its own")
        self.expect(spec["selector"]["matchLabels"].items() <= labels.items(), "the sealer is not what its StatefulSet selects")
        self.expect([one["metadata"]["name"] for one in spec["volumeClaimTemplates"]] == ["data"], "the anchor has no volume")
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        self.expect(mounts.get("data") == "/var/lib/windfall", f"the sealer mounts {mounts}")
        self.expect(set(mounts) <= {volume["name"] for volume in pod["volumes"]} | {"data"}, f"the sealer mounts {sorted(mounts)}")
        self.expect(not pod["automountServiceAccountToken"], "the sealer has a token of Kubernetes")
        self.expect("limits" in container["resources"], "no limits of the sealer")
        self.locked_down("the sealer", pod, container)
        files = {item["key"] for volume in pod["volumes"] if "secret" in volume for item in volume["secret"]["items"]}
        self.expect(files == set(secrets["shared"]), f"the sealer has the files {sorted(files)}")
        needed = {secrets["own"]["sealer"]} if "sealer" in secrets["own"] else {secrets["environment"], secrets["ledger"]}
        variables = {one["secretRef"]["name"] for one in container.get("envFrom", [])}
        self.expect(variables == needed - {""}, f"the sealer has the variables of {sorted(variables)}")

    def locked_down(self, who, pod, container):
        rights = container["securityContext"]
        is_bare = rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        self.expect(is_bare and rights["capabilities"] == {"drop": ["ALL"]}, f"{who}: the rights of {container['name']}")
        self.expect(pod["securityContext"]["runAsNonRoot"], f"{who} may run as root")

    def secrets(self, role, workload):
        """No role gets a secret that its work does not need."""
        pod, secrets, work = workload["spec"]["template"]["spec"], self.values["secrets"], work_of_the_roles().get(role, set())
        verifies, grants = {"serves_tokens", "serves_wallets"}, {"consumes", "serves_grants", "serves_wallets"}
        # A scheduler has an SDK where one of its targets sends rewards.
        may_seal_or_open = work & (verifies | {"sends", "schedules"})
        only_opens = secrets["verifierCopy"] and not work & {"sends", "schedules"}
        ring = "verifier.toml" if only_opens else "keys.toml"
        files = set(secrets["shared"]) | ({ring} if may_seal_or_open else set())
        files |= set(secrets["connectors"]) if work & grants else set()
        files |= {"jobs.token"} if role == "scheduler" else set()
        files |= {"console.key"} if role == "console" else set()
        allowed = {secrets["files"]: files, secrets["tls"]: {"tls.crt", "tls.key"}}
        if self.values["signing"]["enabled"] and work & {"sends", "consumes", "serves_grants", "schedules"}:
            allowed[self.values["signing"]["secrets"][role]] = {"signing.toml"}
        mounted = {}
        for volume in pod["volumes"]:
            parts = [part["secret"] for part in volume.get("projected", {}).get("sources", []) if "secret" in part]
            for secret in [*parts, *([volume["secret"]] if "secret" in volume else [])]:
                items = {item["key"] for item in secret["items"]} if "items" in secret else {"all of it"}
                mounted.setdefault(secret.get("secretName") or secret["name"], set()).update(items)
        for secret, keys in mounted.items():
            self.expect(keys <= allowed.get(secret, set()), f"{role} has {sorted(keys)} of the Secret {secret}, which it does not need")
        if role == "sdk-gateway":
            self.expect("keys.toml" in mounted.get(secrets["files"], set()), "sdk-gateway has no key ring")
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            variables = {one["secretRef"]["name"] for one in container.get("envFrom", [])}
            needed = {secrets["environment"], secrets["ledger"] if work & grants or role == "auditor" else ""}
            needed = {secrets["own"][role]} if role in secrets["own"] else needed
            self.expect(variables == needed - {""} or role not in secrets["own"], f"{role} lacks the variables of its own")
            self.expect(variables <= needed, f"{role} has the variables of {sorted(variables)}, which it does not need")

    def hooks(self):
        """What runs before the release is there uses nothing of the release; all else is no hook."""
        hooks = [one for one in self.objects if "helm.sh/hook" in one["metadata"].get("annotations", {})]
        document = self.values["rules"]["document"]
        self.expect([one["kind"] for one in hooks] == (["ConfigMap", "Job"] if document else []), "the hooks are not those of the rules")
        if not document:
            return
        rules, job = sorted(hooks, key=lambda one: int(one["metadata"]["annotations"]["helm.sh/hook-weight"]))
        for hook in [rules, job]:
            when = hook["metadata"]["annotations"]["helm.sh/hook"]
            self.expect(when == "pre-install,pre-upgrade", f"the rules come {when}: roles without rules are never ready")
        self.expect(rules["data"]["rules.toml"].rstrip("\n") == document.rstrip("\n"), "the rules are not those of the values")
        pod = job["spec"]["template"]["spec"]
        self.locked_down("the Job", pod, pod["containers"][0])
        maps = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
        self.expect(maps == {rules["metadata"]["name"]}, f"the Job needs {maps}, which is not there yet")
        files = {item["key"] for volume in pod["volumes"] if "secret" in volume for item in volume["secret"]["items"]}
        self.expect(files == set(self.values["rules"]["files"]), f"the Job has the files {sorted(files)}")
        variables = {one["secretRef"]["name"] for one in pod["containers"][0].get("envFrom", [])}
        self.expect(variables == {self.values["rules"]["secret"]} - {""}, f"the Job has the variables of {sorted(variables)}")

    def scaling(self, workloads):
        """Nobody else sets the replicas of what scales by itself, and each scaler and way in leads to something."""
        scaled = {one["spec"]["scaleTargetRef"]["name"] for one in self.of("HorizontalPodAutoscaler").values()}
        keda = {one["spec"]["scaleTargetRef"]["name"] for one in self.of("ScaledObject").values()}
        workers = {worker["name"] for worker in self.values["jobWorkers"]}
        self.expect(scaled | keda <= set(workloads) | workers, f"{sorted(scaled | keda)} scales what is not there")
        self.expect(not scaled & keda, f"{sorted(scaled & keda)} are scaled twice")
        for name, workload in workloads.items():
            is_scaled = name in scaled | keda
            self.expect(("replicas" in workload["spec"]) != is_scaled, f"the replicas of {name}")
        for name, one in self.of("Ingress").items():
            for rule in one["spec"]["rules"]:
                service = rule["http"]["paths"][0]["backend"]["service"]
                self.expect(service["name"] in workloads and service["port"] == {"name": "https"}, f"the Ingress {name} leads to {service}")


def cases(expect, rendered):
    """What a case is about."""

    def pod(case, name):
        found = [one for one in rendered[case] if one["metadata"]["name"] == name and "template" in one.get("spec", {})]
        return found[0]["spec"]["template"]["spec"] if found else {}

    def kinds(case):
        return {one["kind"] for one in rendered[case]}

    def files(case, name):
        """What lies in /run/windfall: paths, and the keys of Secrets that they show."""
        volume = [one for one in pod(case, name)["volumes"] if one["name"] == "run"]
        sources = volume[0]["projected"]["sources"] if volume else []
        return {item["path"]: item["key"] for one in sources for item in one["secret"]["items"]}

    def variables(case, name):
        return {one["name"]: one.get("value") for one in pod(case, name)["containers"][0]["env"]}

    digest = pod("minimal", "try-consumer")["containers"][0]["image"]
    expect(digest.startswith("registry.example.com/windfall@sha256:1"), f"minimal.yaml: the image is {digest}")
    images = {one["image"] for one in pod("minimal", "try-wallet")["containers"]}
    expect(images == {"registry.example.com/windfall:0.2.0"}, f"minimal.yaml: the wallet's images are {images}")
    expect(not kinds("minimal") & {"NetworkPolicy", "HorizontalPodAutoscaler", "Job", "Ingress"}, "minimal.yaml: more than it asks for")
    for role in ["consumer", "reward-service", "sdk-gateway", "scheduler"]:
        own = variables("signed", f"try-{role}")
        expect(own.get("WINDFALL_OPTION_SIGNING__SENDER") == role, f"signed.yaml: {role} signs as somebody else")
        expect(own.get("WINDFALL_OPTION_SIGNING__UNSIGNED") == "refuse", f"signed.yaml: {role} takes what is not signed")
        own = variables("unsigned", f"try-{role}")
        expect("WINDFALL_OPTION_SIGNING__KEYS" not in own, f"unsigned.yaml: {role} has signing keys")
        expect(own.get("WINDFALL_OPTION_SIGNING__UNSIGNED") == "accept", f"unsigned.yaml: {role} refuses to start")
        own = variables("verifiers-first", f"try-{role}")
        has_keys = role in whole_ring_roles()
        expect(("WINDFALL_OPTION_SIGNING__KEYS" in own) == has_keys, f"verifiers-first.yaml: the signing keys of {role}")
        expect(own.get("WINDFALL_OPTION_SIGNING__UNSIGNED") == "accept", f"verifiers-first.yaml: {role} is not told to accept")
    for role in ["wallet", "token-service"]:
        for case in ["signed", "unsigned", "verifiers-first"]:
            named = [name for name in variables(case, f"try-{role}") if "SIGNING" in name]
            expect(not named, f"{case}.yaml: {role} is given {named}")
    for role in ["consumer", "reward-service", "sdk-gateway"]:
        own = variables("defaults", f"try-{role}")
        expect("WINDFALL_OPTION_SIGNING__KEYS" in own, f"values.yaml: {role} has no signing keys, and refuses to start")
        expect(own.get("WINDFALL_OPTION_SIGNING__UNSIGNED") == "refuse", f"values.yaml: {role} takes what is not signed")
    for role in ["consumer", "token-service"]:
        expect("ca.pem" in files("tls", f"try-{role}"), f"tls.yaml: {role} has no file of the authority")
    expect(not files("autoscaling", "try-task-queue"), "autoscaling.yaml: task-queue gets files")
    expect(files("signed", "try-consumer").get("signing.toml") == "signing.toml", "signed.yaml: the consumer has no keys")
    for role, key in {"token-service": "verifier.toml", "wallet": "verifier.toml", "sdk-gateway": "keys.toml"}.items():
        found = files("own", f"try-{role}").get("keys.toml")
        expect(found == key, f"own.yaml: the ring of {role} is {found}")
    copied = {role: str(pod("copied", f"try-{role}").get("initContainers", "")) for role in ["consumer", "token-service"]}
    expect(all("/secrets/*" in command for command in copied.values()), "copied.yaml: a role copies no files")
    expect("/signing/signing.toml" in copied["consumer"], "copied.yaml: the consumer copies no signing keys")
    expect("ScaledObject" in kinds("autoscaling"), "autoscaling.yaml: nothing follows the lag")
    consumer, wallet = pod("everything", "try-consumer"), pod("everything", "try-wallet")
    expect("tolerations" not in consumer and len(wallet["tolerations"]) == 1, "everything.yaml: a role's own tolerations")
    for name in ["try-consumer", "try-wallet", "try-rules"]:
        own = pod("everything", name)
        is_placed = own["nodeSelector"] == {"pool": "windfall"} and own["priorityClassName"] == "money" and "nodeAffinity" in own["affinity"]
        expect(is_placed and own["imagePullSecrets"], f"everything.yaml: where {name} runs")
    own = variables("everything", "try-consumer")
    expect(own.get("RUST_BACKTRACE") == "1" and "WINDFALL_OPTION_CONSUMER__CHURN_PER_S" in own, "everything.yaml: extraEnv")
    everything = {"Ingress", "ServiceMonitor", "ScaledObject", "NetworkPolicy", "Job", "HorizontalPodAutoscaler"}
    expect(everything <= kinds("everything"), f"everything.yaml lacks {sorted(everything - kinds('everything'))}")


def checksums(expect, run):
    """Pods start anew when options or variables change, and not when callers do or their number does."""

    def annotations(*settings):
        objects = objects_in(render(expect, run, [flag for one in settings for flag in ("--set-string", one)]))
        templates = {one["metadata"]["name"]: one["spec"]["template"] for one in objects if "template" in one.get("spec", {})}
        return {name: json.dumps(template, sort_keys=True) for name, template in templates.items()}

    before = annotations()
    expect(bool(before), "the chart renders no pods")
    expect(annotations("access=# nobody") == before, "other callers start pods anew, which follow them by themselves")
    for setting in ["config=drain_ms = 1", "secrets.revision=2"]:
        after = annotations(setting)
        same = [name for name in before if before[name] == after.get(name)]
        expect(not same, f"{setting} does not start {same} anew")
    expect(annotations("roles.consumer.maxUnavailable=50%") == before, "another disruption budget starts pods anew")


def schemas(expect, rendered):
    """Every object is as Kubernetes describes it; kubeconform compares them."""
    openapi = os.environ.get("WINDFALL_KUBERNETES_OPENAPI")
    if not (openapi and shutil.which("kubeconform")):
        return print("deploy: without kubeconform and Kubernetes' OpenAPI the chart's objects are not held against its schemas")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        kinds = {one["kind"] for text in rendered.values() for one in objects_in(text)} - set(FOREIGN)
        write_schemas(json.loads(pathlib.Path(openapi).read_text()), kinds, folder)
        for case, text in rendered.items():
            done = kubeconform(folder, case, text)
            expect(done.returncode == 0, f"the chart with {case} is not as Kubernetes wants it: {done.stdout}{done.stderr}")
        for damage in ["spec: { port: [] }", "spec: { ports: 7 }", "spec: {}\nspec: {}"]:
            service = f"apiVersion: v1\nkind: Service\nmetadata: {{ name: a }}\n{damage}\n"
            expect(kubeconform(folder, "control", service).returncode != 0, f"kubeconform accepts a Service with {damage}")


def kubeconform(folder, case, rendered):
    file = folder / f"{case}.yaml"
    file.write_text(rendered)
    location = f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = ["kubeconform", "-strict", "-skip", ",".join(FOREIGN), "-schema-location", location, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_schemas(openapi, kinds, folder):
    """A JSON schema for each of these kinds, in which no key is allowed that is not described."""
    definitions = openapi["definitions"]
    for one in definitions.values():
        if "properties" in one:
            one.setdefault("additionalProperties", False)
    definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = {"type": ["string", "integer"]}
    definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": ["string", "number"]}
    for name, one in definitions.items():
        for known in one.get("x-kubernetes-group-version-kind", []):
            if known["kind"] in kinds:
                group = known["group"].split(".")[0]
                file = "-".join(part for part in [known["kind"].lower(), group, known["version"]] if part)
                schema = {"$ref": f"#/definitions/{name}", "definitions": reachable(definitions, name)}
                (folder / f"{file}.json").write_text(json.dumps(schema))


def reachable(definitions, name):
    found, ahead = {}, [name]
    while ahead:
        at = ahead.pop()
        if at not in found:
            found[at] = definitions[at]
            ahead += re.findall(r'"#/definitions/([^"]+)"', json.dumps(definitions[at]))
    return found
