// Writes the hashes of what the page is made from, and of what was made, beside the latter: a test of the crate needs no Node.js
// to see that the source was changed and not built. `node seal.js FOLDER` seals another folder than ../assets.

import { createHash } from "node:crypto";
import { readFile, readdir, rm, stat, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";

/** Files and folders that the built page depends on. `src/assets.rs` has the same ones. */
const SOURCES = ["index.html", "package-lock.json", "public", "src", "tsconfig.json", "vite.config.js"];

async function filesOf(path) {
  if (!(await stat(path)).isDirectory()) return [path];
  const all = await Promise.all((await readdir(path)).map((name) => filesOf(join(path, name))));
  return all.flat();
}

async function hashOf(folder, paths) {
  const files = (await Promise.all(paths.map((path) => filesOf(join(folder, path))))).flat();
  const names = files.map((file) => relative(folder, file));
  const hash = createHash("sha256");
  for (const name of names.sort((one, other) => Buffer.compare(Buffer.from(one), Buffer.from(other)))) {
    const bytes = await readFile(join(folder, name));
    hash.update(`${name} ${bytes.length}\n`).update(bytes);
  }
  return hash.digest("hex");
}

const built = process.argv[2] ?? "../assets";
const seal = join(built, "seal.sha256");
await rm(seal, { force: true });
await writeFile(seal, `source ${await hashOf(".", SOURCES)}\nbuilt ${await hashOf(built, ["."])}\n`);
