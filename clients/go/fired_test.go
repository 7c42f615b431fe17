package windfall

import (
	"math"
	"strconv"
	"testing"
	"time"
)

func TestWhatWasDoneIsKnownAndWhatWasOnlyBegunIsNot(t *testing.T) {
	ids := NewFiredIDs(time.Second, 10)
	for range 2 {
		if seen := ids.Seen("a", 5_000); seen != NeverSeen {
			t.Fatal("its work was not done: it comes again, and is done again", seen)
		}
	}
	ids.Done("a", 5_000)
	if ids.Seen("a", 5_000) != SeenBefore || ids.Seen("b", 5_000) != NeverSeen {
		t.Fatal("the one was done, the other was not")
	}
}

func TestWhatLiesBeforeTheWindowIsNotCalledNew(t *testing.T) {
	ids := NewFiredIDs(time.Second, 10)
	ids.Done("old", 1_000)
	ids.Done("edge", 4_000)
	ids.Done("new", 5_000)
	if ids.Len() != 2 || ids.Seen("old", 1_000) != TooOldToSay || ids.Seen("edge", 4_000) != SeenBefore {
		t.Fatal(ids.Len())
	}
	// Nothing that is due at 3,000 was forgotten.
	if ids.Seen("late", 3_000) != NeverSeen {
		t.Fatal("late")
	}
	// A late one is kept no longer than its due time allows.
	ids.Done("late", 3_000)
	if ids.Seen("late", 3_000) != TooOldToSay {
		t.Fatal("late, and done")
	}
}

func TestTheWindowIsBoundedAndForgetsTheOldestFirst(t *testing.T) {
	ids := NewFiredIDs(math.MaxInt64, 3)
	for _, dueMs := range []uint64{7, 3, 9, 5, 8} {
		ids.Done(strconv.FormatUint(dueMs, 10), dueMs)
		if ids.Len() > 3 {
			t.Fatal(ids.Len())
		}
	}
	for dueMs, wanted := range map[uint64]Seen{3: TooOldToSay, 5: TooOldToSay, 7: SeenBefore, 8: SeenBefore, 9: SeenBefore} {
		if seen := ids.Seen(strconv.FormatUint(dueMs, 10), dueMs); seen != wanted {
			t.Error(dueMs, seen)
		}
	}
}

func TestAnIDWithAnotherDueTimeIsTheSameTimer(t *testing.T) {
	ids := NewFiredIDs(100*time.Millisecond, 10)
	ids.Done("a", 1_000)
	ids.Done("a", 1_050)
	if ids.Len() != 1 {
		t.Fatal(ids.Len())
	}
	ids.Done("b", 1_120)
	if ids.Seen("a", 1_000) != SeenBefore {
		t.Fatal("its newest due time keeps it")
	}
}
