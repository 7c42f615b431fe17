#!/usr/bin/env python3
"""Writes what the binary `windfall` is built from, as CycloneDX 1.5: `deploy/sbom.py > windfall.cdx.json`.

Each crate of its normal and build dependencies, with all drivers, has its version, licence, and the checksum of Cargo.lock.
Nothing is built, and nothing but cargo is needed. The output depends on Cargo.lock alone."""

import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]


def metadata():
    platforms = [word for target in TARGETS for word in ("--filter-platform", target)]
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--all-features", *platforms]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"sbom: cargo metadata failed: {done.stderr}")
    return json.loads(done.stdout)


def reached(graph, root):
    """The ids of all packages that the root is built from, and the edges between them. Tests' dependencies are left out."""
    nodes = {node["id"]: node for node in graph["nodes"]}
    edges, waiting = {}, [root]
    while waiting:
        package = waiting.pop()
        if package in edges:
            continue
        edges[package] = sorted(
            dep["pkg"]
            for dep in nodes[package]["deps"]
            if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])
        )
        waiting.extend(edges[package])
    return edges


def component(package, checksums):
    name, version = package["name"], package["version"]
    ours = package["source"] is None
    found = {
        "type": "library",
        "bom-ref": f"{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:cargo/{name}@{version}",
    }
    if package.get("license"):
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if not ours:
        found["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
        if package.get("repository"):
            found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


def main():
    data = metadata()
    packages = {package["id"]: package for package in data["packages"]}
    root = next(package for package in packages.values() if package["name"] == "windfall" and not package["source"])
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(own["name"], own["version"]): own.get("checksum", "") for own in lock["package"]}
    edges = reached(data["resolve"], root["id"])
    refs = {found: f"{packages[found]['name']}@{packages[found]['version']}" for found in edges}
    inside = sorted((found for found in edges if found != root["id"]), key=refs.get)
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(root, checksums) | {"type": "application"}},
        "components": [component(packages[found], checksums) for found in inside],
        "dependencies": [
            {"ref": refs[found], "dependsOn": sorted(refs[dep] for dep in edges[found])}
            for found in sorted(edges, key=refs.get)
        ],
    }
    json.dump(bom, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
