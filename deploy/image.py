#!/usr/bin/env python3
"""Makes the container image of a binary that is built already, without a base image, a registry or a container engine:

    python3 deploy/image.py build target/dist/windfall image.tar     an OCI archive: podman load -i image.tar, skopeo copy
    python3 deploy/image.py check image.tar                          unpack it, start it in a root of its own, and probe it

The image is one layer: the binary, the shared libraries that it is linked with, the authorities of this machine, and what the chart's and
compose's start-ups call (bash, install). It has the user, the folders and the settings of Containerfile, which builds the binary, too.
The same files give the same image. `check` needs root, for chroot and mounts of its own, or says that it did not start the image.
"""

import ast
import gzip
import hashlib
import http.client
import io
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
USER = 10001
DATA = "var/lib/windfall"
PROGRAMS = ["/usr/bin/bash", "/usr/bin/install"]
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
# As on Debian: OpenSSL, which Kafka's client uses, looks for its authorities here.
OPENSSL_AUTHORITIES = "usr/lib/ssl/cert.pem"
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", OPENSSL_AUTHORITIES: AUTHORITIES, "usr/bin/sh": "bash"}
TEXTS = {
    "etc/passwd": f"root:x:0:0::/:/usr/sbin/nologin\nwindfall:x:{USER}:{USER}::/{DATA}:/usr/sbin/nologin\n",
    "etc/group": f"root:x:0:\nwindfall:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
PATIENCE_S = 120
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
INDEX = "application/vnd.oci.image.index.v1+json"


def build(binary, archive):
    blobs = {}
    plain = layer(pathlib.Path(binary))
    packed = io.BytesIO()
    # Mostly machine code: a higher level takes long and saves little.
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file:
        file.write(plain)
    layer_blob = blob(blobs, LAYER, packed.getvalue())
    settings = config(hashlib.sha256(plain).hexdigest())
    config_blob = blob(blobs, CONFIG, as_json(settings))
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config_blob, "layers": [layer_blob]}
    manifest_blob = blob(blobs, MANIFEST, as_json(manifest))
    manifest_blob["platform"] = {"os": settings["os"], "architecture": settings["architecture"]}
    manifest_blob["annotations"] = {"org.opencontainers.image.ref.name": "windfall:local"}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest_blob]}
    files = {"oci-layout": as_json({"imageLayoutVersion": "1.0.0"}), "index.json": as_json(index)} | blobs
    with tarfile.open(archive, "w") as tar:
        for name, content in sorted(files.items()):
            add(tar, name, content=content)
    print(f"{archive}: {manifest_blob['digest']}, {len(packed.getvalue()) >> 20} MiB")


def as_json(value):
    return json.dumps(value, sort_keys=True).encode()


def blob(blobs, kind, content):
    digest = hashlib.sha256(content).hexdigest()
    blobs[f"blobs/sha256/{digest}"] = content
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def config(diff_id):
    """What Containerfile says of the image's start."""
    source = (HERE / "Containerfile").read_text()
    said = dict(re.findall(r"^(ENTRYPOINT|CMD|EXPOSE|STOPSIGNAL|VOLUME|WORKDIR|USER|ENV) (.*)$", source, re.M))
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    own = {
        "User": said["USER"],
        "Entrypoint": ast.literal_eval(said["ENTRYPOINT"]),
        "Cmd": ast.literal_eval(said["CMD"]),
        "Env": ["PATH=/usr/local/bin:/usr/bin", *said["ENV"].split()],
        "ExposedPorts": {f"{said['EXPOSE']}/tcp": {}},
        "Volumes": {said["VOLUME"]: {}},
        "WorkingDir": said["WORKDIR"],
        "StopSignal": said["STOPSIGNAL"],
    }
    root = {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]}
    return {"created": "1970-01-01T00:00:00Z", "os": "linux", "architecture": machine, "config": own, "rootfs": root}


def layer(binary):
    """The root as a tar: sorted, without times and names of this machine."""
    files = {"usr/local/bin/windfall": binary} | {program[1:]: pathlib.Path(program) for program in PROGRAMS}
    for program in [binary, *PROGRAMS]:
        files |= libraries(program)
    files[AUTHORITIES[1:]] = pathlib.Path(AUTHORITIES)
    folders = {str(parent) for name in [*files, *LINKS, *TEXTS, DATA] for parent in pathlib.PurePath(name).parents} - {"."} - set(LINKS)
    folders |= {"tmp", "run", "proc", "dev"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in sorted(folders):
            add(tar, folder, kind=tarfile.DIRTYPE, mode=0o1777 if folder == "tmp" else 0o755)
        add(tar, DATA, kind=tarfile.DIRTYPE, mode=0o700, owner=USER)
        for name, target in sorted(LINKS.items()):
            add(tar, name, kind=tarfile.SYMTYPE, link=target)
        for name, content in sorted(TEXTS.items()):
            add(tar, name, content=content.encode())
        for name, path in sorted(files.items()):
            is_program = os.access(path, os.X_OK) or ".so" in name
            add(tar, name, content=path.read_bytes(), mode=0o755 if is_program else 0o644)
    return out.getvalue()


def libraries(program):
    """The shared libraries that a program is linked with, and the loader, by their place in the image."""
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    if "not found" in said:
        raise SystemExit(f"image: {program} lacks a library:\n{said}")
    found = re.findall(r"(?:=> )?(/\S+) \(0x", said)
    return {re.sub(r"^/(?=lib)", "usr/", path).lstrip("/"): pathlib.Path(path).resolve() for path in found}


def add(tar, name, kind=tarfile.REGTYPE, content=b"", mode=0o644, owner=0, link=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid, entry.linkname = kind, 0o777 if link else mode, owner, owner, link
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def check(archive):
    with tempfile.TemporaryDirectory(prefix="windfall-image-") as name:
        folder = pathlib.Path(name)
        with tarfile.open(archive) as tar:
            extract(tar, folder / "layout")
        settings, root = unpack(folder)
        if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
            return print("image: only root may start it in a root of its own: it was unpacked, and not started")
        (folder / "data").mkdir(mode=0o700)
        os.chown(folder / "data", USER, USER)
        # A chroot passes through the folders above it.
        folder.chmod(0o755)
        says(root, folder, settings, ["help"], "sdk-gateway")
        # As the chart's init container does.
        says(root, folder, settings, ["-euc", "install -m 0600 -t /run /etc/group && echo \"$(</run/group)\""], "windfall:x", bash=True)
        probe(root, folder, settings)
    print("image: started and probed")


def read(folder, described):
    content = (folder / "layout/blobs/sha256" / described["digest"].removeprefix("sha256:")).read_bytes()
    if f"sha256:{hashlib.sha256(content).hexdigest()}" != described["digest"] or len(content) != described["size"]:
        raise SystemExit(f"image: the blob {described['digest']} is another one than its name says")
    return content


def extract(tar, folder):
    """With the rights that the tar says; older Pythons do so without being told."""
    tar.extractall(folder, **({"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}))


def unpack(folder):
    """Its settings, and its root on disk."""
    index = json.loads((folder / "layout/index.json").read_text())
    manifest = json.loads(read(folder, index["manifests"][0]))
    settings = json.loads(read(folder, manifest["config"]))
    root = folder / "root"
    root.mkdir(mode=0o755)
    for described, diff_id in zip(manifest["layers"], settings["rootfs"]["diff_ids"], strict=True):
        plain = gzip.decompress(read(folder, described))
        if f"sha256:{hashlib.sha256(plain).hexdigest()}" != diff_id:
            raise SystemExit(f"image: the layer is not {diff_id}")
        with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
            extract(tar, root)
    return settings["config"], root


def start(root, folder, settings, arguments, bash=False):
    """The image as its settings say: on a read-only root, as its user, with a volume for its data."""
    environment = dict(one.split("=", 1) for one in settings["Env"])
    script = f"""
        mount --bind {root} {root} && mount -o remount,bind,ro {root}
        mount --bind {folder}/data {root}/{DATA}
        mount -t tmpfs -o mode=1777 tmpfs {root}/run && mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
        mount -t tmpfs -o mode=755 tmpfs {root}/dev && touch {root}/dev/null && mount --bind /dev/null {root}/dev/null
        mount -t proc proc {root}/proc
        setpriv=$(command -v setpriv) chroot=$(command -v chroot) PATH={environment.pop("PATH")}
        exec "$setpriv" --no-new-privs "$chroot" --userspec={settings["User"]} {root} "$@"
    """
    program = ["/usr/bin/bash"] if bash else settings["Entrypoint"]
    # The first process of a PID namespace ends with all that it began.
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", script, "image", *program, *arguments]
    environment["PATH"] = os.environ["PATH"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def says(root, folder, settings, arguments, word, bash=False):
    done = start(root, folder, settings, arguments, bash)
    out, error = done.communicate(timeout=PATIENCE_S)
    if done.returncode != 0 or word not in out:
        raise SystemExit(f"image: {arguments} ended with {done.returncode}: {out}{error}")


def probe(root, folder, settings):
    """A service of the image becomes ready, writes to its volume alone, and drains."""
    service = start(root, folder, settings, ["serve", "--dev", "--data", f"/{DATA}", "--listen", "127.0.0.1:0"])
    try:
        address = ""
        for line in service.stdout:
            ready = re.search(r"is ready at (?:https?://)?(\S+)", line)
            if ready:
                address = ready.group(1)
                break
        if not address:
            raise SystemExit(f"image: it did not become ready: {service.stderr.read()}")
        for path in ["/health/live", "/health/ready"]:
            connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status != 200:
                raise SystemExit(f"image: {path} answers {answer.status} {answer.read()}")
        os.kill(child_of(service.pid), signal.SIGTERM)
        service.communicate(timeout=PATIENCE_S)
        if service.returncode != 0:
            raise SystemExit(f"image: it ended with {service.returncode}")
        owners = {path.stat().st_uid for path in (folder / "data").iterdir()}
        if owners != {USER}:
            raise SystemExit(f"image: its files belong to {owners}")
    finally:
        service.kill()
        service.wait()


def child_of(pid):
    """The service itself: `unshare` waits for it, and passes on no signal."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.05)
    raise SystemExit("image: it has no process")


def main():
    arguments = sys.argv[1:]
    if len(arguments) == 3 and arguments[0] == "build":
        return build(*arguments[1:])
    if len(arguments) == 2 and arguments[0] == "check":
        return check(arguments[1])
    raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
