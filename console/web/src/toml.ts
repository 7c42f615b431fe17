// Small changes of the rules' text that keep everything else as it stands. The server checks the result, and the page shows
// the difference, before anything is written.

/** Gives a type a limit of its own: both keys, because neither stands alone. */
export function setLimit(text: string, type: string, ratePerS: number, burst: number): string {
  return setOfType(setOfType(text, type, "burst", String(burst)), type, "rate_per_s", String(ratePerS));
}

/** Sets a key of `[limits.types.TYPE]`, which is added where it is missing. */
export function setOfType(text: string, type: string, key: string, value: string): string {
  const lines = text.split("\n");
  const name = /^[A-Za-z0-9_-]+$/.test(type) ? type : JSON.stringify(type);
  const isHead = (line: string) => /^\s*\[/.test(line);
  const isOwn = (line: string) =>
    line.replace(/#.*$/, "").replace(/\s/g, "") === `[limits.types.${name}]` ||
    line.replace(/#.*$/, "").replace(/\s/g, "") === `[limits.types."${type}"]`;
  const head = lines.findIndex(isOwn);
  if (head < 0) {
    const end = lines.findIndex((line) => line.replace(/#.*$/, "").trim() === "[end]");
    const at = end < 0 ? lines.length : end;
    lines.splice(at, 0, `[limits.types.${name}]`, `${key} = ${value}`, "");
    return lines.join("\n");
  }
  let end = head + 1;
  while (end < lines.length && !isHead(lines[end] ?? "")) end++;
  const own = new RegExp(`^(\\s*${key}\\s*=\\s*)([^#]*?)(\\s*#.*)?$`);
  for (let at = head + 1; at < end; at++) {
    const found = own.exec(lines[at] ?? "");
    if (found) {
      lines[at] = `${found[1]}${value}${found[3] ?? ""}`;
      return lines.join("\n");
    }
  }
  lines.splice(head + 1, 0, `${key} = ${value}`);
  return lines.join("\n");
}
