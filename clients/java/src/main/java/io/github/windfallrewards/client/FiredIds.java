package io.github.windfallrewards.client;

import java.time.Duration;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;

/**
 * Drops timers that came before: a bounded window of ids, by due time. Threads may share it.
 *
 * <p>A timer is delivered at least once; it comes twice where a process died, or an answer was lost, between its delivery and the
 * note that it was delivered. It then has the same id. Ask {@link #seen} before the work, and say {@link #done} after it, in that
 * order: an id that is noted before its work is work that is lost when the process dies in between.
 *
 * <p>For a job of a task queue take its attribute {@code timer-id} where it has one, else the job's id, and for the due time the
 * moment at which it was taken. {@link Seen#NEVER} then means: not within the window.
 *
 * <p>The window lives in memory, so it knows nothing of what an earlier process did, and two processes have two windows. Where
 * twice is once too often whatever happens, keep the id with the work in one transaction, under a unique index
 * (docs/scheduler.md has the recipe).
 */
public final class FiredIds {
    /** Ids that are kept at most, where nothing else is asked for: some 200 MB. */
    private static final int IDS_MAX = 1_000_000;
    /** Ids are kept for so long, by their due times, where nothing else is asked for. */
    private static final Duration WINDOW = Duration.ofHours(1);

    private final long windowMs;
    private final int idsMax;
    private final Map<String, Long> dueOf = new HashMap<>();
    private final TreeSet<Noted> byDue =
            new TreeSet<>(Comparator.comparingLong(Noted::dueMs).thenComparing(Noted::id));
    /** What is due before it may have been forgotten. */
    private long knownFromMs;

    private record Noted(long dueMs, String id) {}

    /** Whether a timer came before. */
    public enum Seen {
        /** It did not, since this window exists. */
        NEVER,
        /** It did, and was done. Drop it. */
        BEFORE,
        /**
         * It was due so long ago that the window may have forgotten it. Do it, unless another record says that it was done.
         */
        TOO_OLD_TO_SAY
    }

    /** A window of an hour, with at most a million ids. */
    public FiredIds() {
        this(WINDOW, IDS_MAX);
    }

    /**
     * A window behind the latest due time that was done, with at most so many ids, at least 1. Choose it longer than a timer's
     * delivery may be late: behind an outage, a catch-up, a long retry.
     */
    public FiredIds(Duration window, int idsMax) {
        windowMs = window.toMillis();
        this.idsMax = Math.max(1, idsMax);
    }

    /** Whether this timer came before. Its id and due time are those of a {@code FiredTimer}. */
    public synchronized Seen seen(String id, long dueMs) {
        if (dueOf.containsKey(id)) {
            return Seen.BEFORE;
        }
        return dueMs < knownFromMs ? Seen.TOO_OLD_TO_SAY : Seen.NEVER;
    }

    /** Its work is done: when it comes again, it was {@link Seen#BEFORE}. */
    public synchronized void done(String id, long dueMs) {
        // A timer that was sent again by hand may have another due time; its id is the same.
        Long known = dueOf.put(id, dueMs);
        if (known != null) {
            byDue.remove(new Noted(known, id));
        }
        byDue.add(new Noted(dueMs, id));
        long fromMs = byDue.last().dueMs() - windowMs;
        while (byDue.first().dueMs() < fromMs || byDue.size() > idsMax) {
            Noted forgotten = byDue.pollFirst();
            dueOf.remove(forgotten.id());
            knownFromMs = Math.max(knownFromMs, forgotten.dueMs() + 1);
        }
    }

    /** The number of ids that it keeps. */
    public synchronized int size() {
        return byDue.size();
    }
}
