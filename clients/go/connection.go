package windfall

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Connection is a way to a service. Goroutines may share it.
type Connection struct {
	channels       []*grpc.ClientConn
	next           atomic.Uint64
	bearer         string
	attempts       int
	attemptTimeout time.Duration
}

// Repeat says how often a call may be made.
type Repeat int

const (
	// Never: it must not be repeated, because each call counts.
	Never Repeat = iota
	// Safe: made twice, it does what it does once.
	Safe
)

// Open prepares channels, which connect when they are needed. An error is about the options, or a file that they name.
func Open(options Options) (*Connection, error) {
	options = options.withDefaults()
	if err := options.check(); err != nil {
		return nil, err
	}
	channels, err := options.channels()
	if err != nil {
		return nil, err
	}
	connection := &Connection{channels: channels, attempts: options.Attempts, attemptTimeout: options.AttemptTimeout}
	if options.BearerKey != "" {
		connection.bearer = "Bearer " + options.BearerKey
	}
	return connection, nil
}

// Close ends the connection. Calls in flight end unanswered.
func (c *Connection) Close() error {
	return closeAll(c.channels)
}

func closeAll(channels []*grpc.ClientConn) error {
	var wrong []error
	for _, channel := range channels {
		wrong = append(wrong, channel.Close())
	}
	return errors.Join(wrong...)
}

// Call makes a call of any service, and makes it again where that is safe and may help. A nil user stands for none. The
// function is called once per attempt and makes the call by generated stubs, with the context and over the channel that it is
// given; its error goes back as it is.
//
//	job, err := windfall.Call(ctx, connection, windfall.Safe, nil,
//		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.Job, error) {
//			return windfallpb.NewJobsClient(channel).Get(ctx, request)
//		})
func Call[R any](
	ctx context.Context, connection *Connection, repeat Repeat, user *EndUser,
	call func(context.Context, grpc.ClientConnInterface) (R, error),
) (R, error) {
	reply, _, failed := ask(ctx, connection, repeat, user, call)
	if failed != nil {
		return reply, callError(failed)
	}
	return reply, nil
}

// ask is Call, for answers that may say of a part of the call that it was not done: the second result is whether an earlier
// attempt of the same call may have been done.
func ask[R any](
	ctx context.Context, c *Connection, repeat Repeat, user *EndUser,
	call func(context.Context, grpc.ClientConnInterface) (R, error),
) (R, bool, *failure) {
	first := c.next.Add(1) - 1
	attempts := 1
	if repeat == Safe {
		attempts = c.attempts
	}
	inDoubt := false
	wait := waitFirst
	for attempt := 1; ; attempt++ {
		channel := c.channels[(first+uint64(attempt)-1)%uint64(len(c.channels))]
		reply, failed := once(ctx, c, channel, user, call)
		if failed == nil {
			return reply, inDoubt, nil
		}
		asked := wait
		if failed.hasHint {
			asked = failed.retryAfter
		}
		if attempt == attempts || !failed.mayHelp() || !sleep(ctx, jittered(min(asked, waitMax))) {
			if err := ctx.Err(); err != nil {
				failed.cause = err
			}
			return reply, inDoubt, failed.lastWord(inDoubt)
		}
		inDoubt = inDoubt || failed.leavesDoubt()
		wait = min(wait*2, waitMax)
	}
}

// once makes one attempt.
func once[R any](
	ctx context.Context, c *Connection, channel *grpc.ClientConn, user *EndUser,
	call func(context.Context, grpc.ClientConnInterface) (R, error),
) (R, *failure) {
	var nothing R
	// The server is told the deadline: it need not go on with what nobody waits for.
	ctx, cancel := context.WithTimeout(ctx, c.attemptTimeout)
	defer cancel()
	if c.bearer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", c.bearer)
	}
	if user != nil {
		if !isVisibleASCII(user.value) {
			return nothing, ownRefusal("the user's token is not visible ASCII")
		}
		ctx = metadata.AppendToOutgoingContext(ctx, user.header, user.value)
	}
	seen := &sighting{}
	reply, err := call(context.WithValue(ctx, sightingKey{}, seen), seenChannel{channel, seen})
	if err != nil {
		return nothing, failureOf(err, seen)
	}
	return reply, nil
}

// sleep says whether it slept to the end.
func sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jittered is a random wait between half of `wait` and all of it, so that callers that were refused together do not come
// back together.
func jittered(wait time.Duration) time.Duration {
	return wait/2 + rand.N(wait/2+1)
}
