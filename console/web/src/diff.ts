// Differences of two texts by lines.

export type DiffLine = { kind: "same" | "gone" | "new" | "skip"; text: string };

const CONTEXT = 3;
/** Beyond so many pairs of lines the middle is shown as replaced. */
const PAIRS_MAX = 4_000_000;

export function diff(before: string, after: string): DiffLine[] {
  const a = before.split("\n");
  const b = after.split("\n");
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const middle = longest(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  const same = (text: string): DiffLine => ({ kind: "same", text });
  return fold([...a.slice(0, head).map(same), ...middle, ...a.slice(a.length - tail).map(same)]);
}

/** By the longest common subsequence. */
function longest(a: string[], b: string[]): DiffLine[] {
  const gone = (text: string): DiffLine => ({ kind: "gone", text });
  const fresh = (text: string): DiffLine => ({ kind: "new", text });
  if (a.length * b.length > PAIRS_MAX) return [...a.map(gone), ...b.map(fresh)];
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  const at = (i: number, j: number) => lengths[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    const [one, other] = [a[i], b[j]];
    if (one !== undefined && one === other) {
      lines.push({ kind: "same", text: one });
      i++;
      j++;
    } else if (one !== undefined && (other === undefined || at(i + 1, j) >= at(i, j + 1))) {
      lines.push(gone(one));
      i++;
    } else if (other !== undefined) {
      lines.push(fresh(other));
      j++;
    }
  }
  return lines;
}

/** Leaves out what is far from a change. */
function fold(lines: DiffLine[]): DiffLine[] {
  const near = new Uint8Array(lines.length);
  lines.forEach((line, at) => {
    if (line.kind === "same") return;
    near.fill(1, Math.max(0, at - CONTEXT), Math.min(lines.length, at + CONTEXT + 1));
  });
  const shown: DiffLine[] = [];
  lines.forEach((line, at) => {
    if (near[at]) shown.push(line);
    else if (shown.at(-1)?.kind !== "skip") shown.push({ kind: "skip", text: "…" });
  });
  return shown.some((line) => line.kind === "gone" || line.kind === "new") ? shown : [];
}
