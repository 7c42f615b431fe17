package io.github.windfallrewards.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.windfallrewards.client.FiredIds.Seen;
import java.time.Duration;
import org.junit.jupiter.api.Test;

class FiredIdsTest {
    @Test
    void whatWasDoneIsKnownAndWhatWasOnlyBegunIsNot() {
        FiredIds ids = new FiredIds(Duration.ofSeconds(1), 10);
        assertEquals(Seen.NEVER, ids.seen("a", 5_000));
        assertEquals(Seen.NEVER, ids.seen("a", 5_000), "its work was not done: it comes again, and is done again");
        ids.done("a", 5_000);
        assertEquals(Seen.BEFORE, ids.seen("a", 5_000));
        assertEquals(Seen.NEVER, ids.seen("b", 5_000));
    }

    @Test
    void whatLiesBeforeTheWindowMayHaveBeenForgottenAndIsNotCalledNew() {
        FiredIds ids = new FiredIds(Duration.ofSeconds(1), 10);
        ids.done("old", 1_000);
        ids.done("edge", 4_000);
        ids.done("new", 5_000);
        assertEquals(2, ids.size());
        assertEquals(Seen.TOO_OLD_TO_SAY, ids.seen("old", 1_000));
        assertEquals(Seen.BEFORE, ids.seen("edge", 4_000));
        assertEquals(Seen.NEVER, ids.seen("late", 3_000), "nothing that is due at 3,000 was forgotten");
        ids.done("late", 3_000);
        assertEquals(Seen.TOO_OLD_TO_SAY, ids.seen("late", 3_000), "a late one is kept no longer than its due time allows");
    }

    @Test
    void itIsBoundedAndForgetsTheOldestFirst() {
        FiredIds ids = new FiredIds(Duration.ofDays(365), 3);
        for (long dueMs : new long[] {7, 3, 9, 5, 8}) {
            ids.done(Long.toString(dueMs), dueMs);
            assertTrue(ids.size() <= 3);
        }
        for (long dueMs : new long[] {3, 5}) {
            assertEquals(Seen.TOO_OLD_TO_SAY, ids.seen(Long.toString(dueMs), dueMs));
        }
        for (long dueMs : new long[] {7, 8, 9}) {
            assertEquals(Seen.BEFORE, ids.seen(Long.toString(dueMs), dueMs));
        }
    }

    @Test
    void anIdWithAnotherDueTimeIsTheSameTimer() {
        FiredIds ids = new FiredIds(Duration.ofMillis(100), 10);
        ids.done("a", 1_000);
        ids.done("a", 1_050);
        assertEquals(1, ids.size());
        ids.done("b", 1_120);
        assertEquals(Seen.BEFORE, ids.seen("a", 1_000), "its newest due time keeps it");
    }
}
