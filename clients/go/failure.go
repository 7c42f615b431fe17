package windfall

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// retryAfterMs is metadata of an answer that nothing was done, with the wait after which it may be: milliseconds.
const retryAfterMs = "retry-after-ms"

// reasonKey is metadata of a refusal whose code has several reasons.
const reasonKey = "reason"

// userFrozen is the reason of a withdrawal's FAILED_PRECONDITION that is not about the balance.
const userFrozen = "user_frozen"

// failure is how an attempt failed.
type failure struct {
	code    codes.Code
	message string
	// isOfServer says whether a server said it. What breaks on the way gets a code from gRPC, too, at any time of the call:
	// a connection that is reset "to calm down" is a RESOURCE_EXHAUSTED of a call that may be done.
	isOfServer bool
	// wasSent says whether anything of the call may have reached a server.
	wasSent bool
	// hasHint says whether the server promised that nothing was done.
	hasHint    bool
	retryAfter time.Duration
	// reason is the server's word for why, where the code has several reasons.
	reason string
	cause  error
}

func failureOf(err error, seen *sighting) *failure {
	said := status.Convert(err)
	failed := &failure{code: said.Code(), message: said.Message(), wasSent: seen.sent.Load(), cause: err}
	// What this side refuses of an answer (its size, its coding) begins like this.
	failed.isOfServer = seen.answered.Load() && !strings.HasPrefix(failed.message, "grpc: ")
	if hint := seen.trailer.Get(retryAfterMs); failed.isOfServer && len(hint) > 0 {
		if ms, err := strconv.ParseUint(hint[0], 10, 32); err == nil {
			failed.hasHint, failed.retryAfter = true, time.Duration(ms)*time.Millisecond
		}
	}
	if reason := seen.trailer.Get(reasonKey); failed.isOfServer && len(reason) > 0 {
		failed.reason = reason[0]
	}
	return failed
}

// ownRefusal is final: the call was not made.
func ownRefusal(message string) *failure {
	return &failure{code: codes.InvalidArgument, message: message, isOfServer: true}
}

// mayHelp says whether another attempt may get another answer.
func (f *failure) mayHelp() bool {
	switch f.code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.Unknown, codes.ResourceExhausted:
		return true
	default:
		// A connection that broke may have any code. The servers' refusals, and our own, are final.
		return !f.isOfServer
	}
}

// leavesDoubt says whether the call may have been done all the same.
func (f *failure) leavesDoubt() bool {
	if !f.isOfServer {
		return f.wasSent
	}
	return f.code != codes.ResourceExhausted && !f.hasHint
}

// lastWord is what the caller is told, to whom a code means what a server means by it.
func (f *failure) lastWord(inDoubt bool) *failure {
	isCertain := !f.mayHelp() || !f.leavesDoubt()
	switch {
	case inDoubt && isCertain:
		return f.unanswered()
	case f.isOfServer:
		return f
	default:
		return &failure{code: codes.Unavailable, message: f.message, cause: f.cause}
	}
}

// unanswered: what the last attempt says is true of that attempt; an earlier one may have been done. It has no hint, which
// would be word that nothing was. What is wrong in the call itself, every attempt was told.
func (f *failure) unanswered() *failure {
	if f.code == codes.InvalidArgument || f.code == codes.Unimplemented {
		return f
	}
	message := fmt.Sprintf("an earlier attempt was not answered; the last one: %v: %s", f.code, f.message)
	return &failure{code: codes.Unavailable, message: message, cause: f.cause}
}

// sighting is what was seen of an attempt on the wire.
type sighting struct {
	sent     atomic.Bool
	answered atomic.Bool
	trailer  metadata.MD
}

type sightingKey struct{}

// witness notes when a call's head leaves, and when a server ends the call by itself.
type witness struct{}

func (witness) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (witness) HandleRPC(ctx context.Context, event stats.RPCStats) {
	seen, ok := ctx.Value(sightingKey{}).(*sighting)
	if !ok {
		return
	}
	switch event.(type) {
	case *stats.OutHeader:
		seen.sent.Store(true)
	case *stats.InTrailer:
		seen.answered.Store(true)
	}
}

func (witness) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (witness) HandleConn(context.Context, stats.ConnStats) {}

// seenChannel keeps the trailer of an attempt's call.
type seenChannel struct {
	grpc.ClientConnInterface
	seen *sighting
}

func (c seenChannel) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	options = append(options, grpc.Trailer(&c.seen.trailer))
	return c.ClientConnInterface.Invoke(ctx, method, request, reply, options...)
}
