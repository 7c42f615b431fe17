#!/usr/bin/env python3
"""Starts each role of a binary with the options that deploy/ gives it: python3 deploy/options_check.py BINARY

The options of compose, of the chart's values and of helm/cases that have some: the servers that they name are not there, and each role
must all the same begin to serve and wait for them, as on a first start. A role that does not understand its options, or finds one of them
unsafe, ends with exit code 2. Callers, key ring, signing keys and certificates are made for the test; paths lead to them. Without signing
keys a role that works on records must end so.
"""

import os
import pathlib
import re
import select
import subprocess
import sys
import tempfile
import time

import yaml

import helm_chart

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 120
LEDGER = {"WINDFALL_OPTION_LEDGER__POSTGRES__URL": "postgres://windfall:rain@postgres/windfall"}
ROLES = yaml.safe_load((HERE / "helm/windfall/values.yaml").read_text())["roles"]


def all_options():
    """Where the options stand, the options, and the callers."""
    values = yaml.safe_load((HERE / "helm/windfall/values.yaml").read_text())
    yield "helm/windfall/values.yaml", values["config"], values["access"]
    for case in helm_chart.CASES:
        given = yaml.safe_load(case.read_text())
        if "config" in given:
            yield f"helm/cases/{case.name}", given["config"], values["access"]
    yield "config/windfall.toml", (HERE / "config/windfall.toml").read_text(), (HERE / "config/access.toml").read_text()


def make_files(binary, folder):
    """What Secrets would hold."""
    (folder / "tls").mkdir()
    key, certificate = folder / "tls/tls.key", folder / "tls/tls.crt"
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "2", *name, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    key.chmod(0o600)
    (folder / "ca.pem").write_bytes(certificate.read_bytes())
    subprocess.run([binary, "keys", "new", "--file", str(folder / "keys.toml")], check=True, capture_output=True)
    make_signing_keys(binary, folder)


def signing_keys(folder, role):
    return folder / ("signing.toml" if role in helm_chart.whole_ring_roles() else f"signing-{role}.toml")


def make_signing_keys(binary, folder):
    """The whole ring for those that verify, and for each other sender an export of its key."""

    def signing(command, *words):
        made = [binary, "signing", command, "--file", str(folder / "signing.toml"), *words]
        subprocess.run(made, check=True, capture_output=True)

    signing("new", "--sender", "consumer", "--may-copy")
    for number, role in enumerate(sorted(helm_chart.signing_roles() - {"consumer"}), start=2):
        signing("add", "--sender", role)
        signing("promote", str(number))
        if role not in helm_chart.whole_ring_roles():
            signing("export", "--sender", role, str(signing_keys(folder, role)))


def with_keys(folder, role):
    """What compose, the chart and the unit set."""
    if role not in helm_chart.signing_roles():
        return {}
    return {"WINDFALL_OPTION_SIGNING__KEYS": str(signing_keys(folder, role)), "WINDFALL_OPTION_SIGNING__SENDER": role}


def start(binary, folder, role, options, signing):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WINDFALL_")}
    work = helm_chart.work_of_the_roles().get(role, set())
    environment |= signing
    environment |= LEDGER if work & {"consumes", "serves_grants", "serves_wallets"} else {}
    # Several may run on this machine.
    environment |= {f"WINDFALL_OPTION_TASK_QUEUE__API__{port}": "127.0.0.1:0" for port in ["LISTEN", "ADMIN_LISTEN"]}
    command = [binary, role, "--config", str(options), "--data", str(folder / f"data-{role}"), "--listen", "127.0.0.1:0"]
    with (folder / f"{role}.log").open("w") as log:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)


def serves(process):
    """Whether it says so before it ends."""
    said, end = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], 1)[0]:
            more = os.read(process.stdout.fileno(), 4096)
            said += more
            if re.search(rb"^windfall [a-z-]+ is (?:up|ready) at ", said, re.M):
                return True
            if not more:
                return False
    return False


def check_without_keys(binary, folder, options):
    """A role that works on records on real brokers ends without keys, before it waits for any server."""
    for role in sorted(helm_chart.signing_roles() - {"scheduler"}):
        process = start(binary, folder, role, options, {})
        try:
            code = process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = "none"
        finally:
            process.kill()
            process.wait()
        said = (folder / f"{role}.log").read_text()
        if code != 2 or "signing.keys is missing" not in said:
            yield f"{role} without signing keys ends with {code}: {said[-400:]}"


def check(binary, where, options, access):
    wrong = []
    with tempfile.TemporaryDirectory(prefix="windfall-options-") as name:
        folder = pathlib.Path(name)
        make_files(binary, folder)
        (folder / "access.toml").write_text(access)
        file = folder / "windfall.toml"
        file.write_text(options.replace("/etc/windfall/", f"{folder}/").replace("/run/windfall/", f"{folder}/"))
        processes = {}
        try:
            for role in ROLES:
                processes[role] = start(binary, folder, role, file, with_keys(folder, role))
            for role, process in processes.items():
                if not serves(process):
                    wrong.append(f"{where}: {role} does not begin: {(folder / f'{role}.log').read_text()[-400:]}")
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        wrong += [f"{where}: {what}" for what in check_without_keys(binary, folder, file)]
    return wrong


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    wrong = [one for options in all_options() for one in check(binary, *options)]
    for what in wrong:
        print(f"options: {what}", file=sys.stderr)
    print(f"options: {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
