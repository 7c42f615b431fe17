package windfall

import (
	"container/heap"
	"sync"
	"time"
)

const (
	// Ids that are kept at most, where nothing else is asked for: some 150 MB.
	firedIDsMax = 1_000_000
	// Ids are kept for so long, by their due times, where nothing else is asked for.
	firedWindow = time.Hour
)

// Seen says whether a timer came before.
type Seen int

const (
	// NeverSeen: it did not come, since this window exists.
	NeverSeen Seen = iota
	// SeenBefore: it came, and was done. Drop it.
	SeenBefore
	// TooOldToSay: it was due so long ago that the window may have forgotten it. Do it, unless another record says that it was
	// done.
	TooOldToSay
)

// FiredIDs drops timers that came before: a bounded window of ids, by due time. Goroutines may share it.
//
// A timer is delivered at least once; it comes twice where a process died, or an answer was lost, between its delivery and the
// note that it was delivered. It then has the same id. Ask Seen before the work, and say Done after it, in that order: an id
// that is noted before its work is work that is lost when the process dies in between.
//
// For a job of a task queue take its attribute timer-id where it has one, else the job's id, and for the due time the moment
// at which it was taken. NeverSeen then means: not within the window.
//
// The window lives in memory, so it knows nothing of what an earlier process did, and two processes have two windows. Where
// twice is once too often whatever happens, keep the id with the work in one transaction, under a unique index
// (docs/scheduler.md has the recipe).
type FiredIDs struct {
	mutex    sync.Mutex
	windowMs uint64
	idsMax   int
	byID     map[string]*firedID
	byDue    dueHeap
	latestMs uint64
	// What is due before it may have been forgotten.
	knownFromMs uint64
}

// NewFiredIDs makes a window behind the latest due time that was done, with at most idsMax ids. Zeros stand for an hour and a
// million. Choose it longer than a timer's delivery may be late: behind an outage, a catch-up, a long retry.
func NewFiredIDs(window time.Duration, idsMax int) *FiredIDs {
	if window <= 0 {
		window = firedWindow
	}
	if idsMax <= 0 {
		idsMax = firedIDsMax
	}
	return &FiredIDs{windowMs: uint64(window.Milliseconds()), idsMax: idsMax, byID: map[string]*firedID{}}
}

// Seen says whether this timer came before. Its id and due time are those of a FiredTimer.
func (f *FiredIDs) Seen(id string, dueMs uint64) Seen {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if _, ok := f.byID[id]; ok {
		return SeenBefore
	}
	if dueMs < f.knownFromMs {
		return TooOldToSay
	}
	return NeverSeen
}

// Done notes that its work is done: when it comes again, it was SeenBefore.
func (f *FiredIDs) Done(id string, dueMs uint64) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	// A timer that was sent again by hand may have another due time; its id is the same.
	if known, ok := f.byID[id]; ok {
		known.dueMs = dueMs
		heap.Fix(&f.byDue, known.at)
	} else {
		noted := &firedID{id: id, dueMs: dueMs}
		f.byID[id] = noted
		heap.Push(&f.byDue, noted)
	}
	f.latestMs = max(f.latestMs, dueMs)
	fromMs := f.latestMs - min(f.windowMs, f.latestMs)
	for len(f.byDue) > 0 && (f.byDue[0].dueMs < fromMs || len(f.byDue) > f.idsMax) {
		forgotten := heap.Pop(&f.byDue).(*firedID)
		delete(f.byID, forgotten.id)
		f.knownFromMs = max(f.knownFromMs, forgotten.dueMs+1)
	}
}

// Len is the number of ids that it keeps.
func (f *FiredIDs) Len() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return len(f.byDue)
}

type firedID struct {
	id    string
	dueMs uint64
	at    int
}

// dueHeap has the earliest due time first.
type dueHeap []*firedID

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(a, b int) bool { return h[a].dueMs < h[b].dueMs }

func (h dueHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].at, h[b].at = a, b
}

func (h *dueHeap) Push(noted any) {
	own := noted.(*firedID)
	own.at = len(*h)
	*h = append(*h, own)
}

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	own := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return own
}
