/** Ids that are kept at most, where nothing else is asked for: some 200 MB. */
const IDS_MAX = 1_000_000;
/** Ids are kept for so long, by their due times, where nothing else is asked for: an hour. */
const WINDOW_MS = 3_600_000;

/**
 * Whether a timer came before.
 * - `never`: it did not, since this window exists.
 * - `before`: it did, and was done. Drop it.
 * - `too-old-to-say`: it was due so long ago that the window may have forgotten it. Do it, unless another record says that it
 *   was done.
 */
export type Seen = "never" | "before" | "too-old-to-say";

interface Noted {
  id: string;
  dueMs: number;
  at: number;
}

/**
 * Drops timers that came before: a bounded window of ids, by due time.
 *
 * A timer is delivered at least once; it comes twice where a process died, or an answer was lost, between its delivery and the
 * note that it was delivered. It then has the same id. Ask `seen` before the work, and say `done` after it, in that order: an id
 * that is noted before its work is work that is lost when the process dies in between.
 *
 * For a job of a task queue take its attribute `timer-id` where it has one, else the job's id, and for the due time the moment
 * at which it was taken. `never` then means: not within the window.
 *
 * The window lives in memory, so it knows nothing of what an earlier process did, and two processes have two windows. Where
 * twice is once too often whatever happens, keep the id with the work in one transaction, under a unique index
 * (docs/scheduler.md has the recipe).
 */
export class FiredIds {
  readonly #windowMs: number;
  readonly #idsMax: number;
  readonly #byId = new Map<string, Noted>();
  readonly #byDue: Noted[] = [];
  #latestMs = 0;
  /** What is due before it may have been forgotten. */
  #knownFromMs = 0;

  /**
   * A window of `windowMs` (default: an hour) behind the latest due time that was done, with at most `idsMax` ids (default: a
   * million). Choose it longer than a timer's delivery may be late: behind an outage, a catch-up, a long retry.
   */
  constructor(windowMs = WINDOW_MS, idsMax = IDS_MAX) {
    this.#windowMs = windowMs;
    this.#idsMax = Math.max(1, idsMax);
  }

  /** Whether this timer came before. Its id and due time are those of a `FiredTimer`. */
  seen(id: string, dueMs: number | bigint): Seen {
    if (this.#byId.has(id)) {
      return "before";
    }
    return Number(dueMs) < this.#knownFromMs ? "too-old-to-say" : "never";
  }

  /** Its work is done: when it comes again, it was `before`. */
  done(id: string, dueMs: number | bigint): void {
    const due = Number(dueMs);
    const known = this.#byId.get(id);
    if (known === undefined) {
      const noted = { id, dueMs: due, at: this.#byDue.length };
      this.#byId.set(id, noted);
      this.#byDue.push(noted);
      this.#rise(noted.at);
    } else {
      // A timer that was sent again by hand may have another due time; its id is the same.
      known.dueMs = due;
      this.#rise(known.at);
      this.#sink(known.at);
    }
    this.#latestMs = Math.max(this.#latestMs, due);
    const fromMs = this.#latestMs - this.#windowMs;
    for (let first = this.#byDue[0]; first !== undefined; first = this.#byDue[0]) {
      if (first.dueMs >= fromMs && this.#byDue.length <= this.#idsMax) {
        break;
      }
      this.#forget(first);
    }
  }

  /** The number of ids that it keeps. */
  get size(): number {
    return this.#byDue.length;
  }

  #forget(first: Noted): void {
    this.#swap(0, this.#byDue.length - 1);
    this.#byDue.pop();
    this.#sink(0);
    this.#byId.delete(first.id);
    this.#knownFromMs = Math.max(this.#knownFromMs, first.dueMs + 1);
  }

  /** `byDue` is a heap: no entry is due before its parent. */
  #rise(at: number): void {
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (this.#due(parent) <= this.#due(at)) {
        return;
      }
      this.#swap(parent, at);
      at = parent;
    }
  }

  #sink(at: number): void {
    for (;;) {
      const [left, right] = [2 * at + 1, 2 * at + 2];
      const child = this.#due(right) < this.#due(left) ? right : left;
      if (this.#due(at) <= this.#due(child)) {
        return;
      }
      this.#swap(at, child);
      at = child;
    }
  }

  #due(at: number): number {
    return this.#byDue[at]?.dueMs ?? Infinity;
  }

  #swap(a: number, b: number): void {
    const [one, other] = [this.#byDue[a], this.#byDue[b]] as [Noted, Noted];
    [this.#byDue[a], this.#byDue[b]] = [other, one];
    [one.at, other.at] = [b, a];
  }
}
