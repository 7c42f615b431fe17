package windfall

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

// The kinds of [Error], for errors.Is. Each says what to do next.
var (
	// ErrRefused: mend the call. Nothing was done.
	ErrRefused = errors.New("refused")
	// ErrDenied: mend the key, its roles, or the user's token. Nothing was done.
	ErrDenied = errors.New("not allowed")
	// ErrNotFound: there is no such thing.
	ErrNotFound = errors.New("not found")
	// ErrNoRoute: the live rules send this reward nowhere. Add a route, then call again. Nothing was taken.
	ErrNoRoute = errors.New("no route")
	// ErrBusy: the server cannot do it now, and nothing was done. Call again after RetryAfter at the earliest.
	ErrBusy = errors.New("not now")
	// ErrTooLittle: the balance is too small for the withdrawal. Nothing was kept; the id may be used again.
	ErrTooLittle = errors.New("too little")
	// ErrFrozen: two operators have frozen the user. Nothing was kept; the id may be used again when they have thawed the user.
	ErrFrozen = errors.New("the user is frozen")
	// ErrTaken: the withdrawal's id was used for another user, type or amount. Take another one.
	ErrTaken = errors.New("the id is taken")
	// ErrUnanswered: whether it was done is not known. Make the same call again, with the same order number or id, after
	// RetryAfter at the earliest.
	ErrUnanswered = errors.New("no answer")
)

// Error is a call that was not answered with a result.
type Error struct {
	// Kind is one of the kinds above.
	Kind error
	// Message is the server's.
	Message string
	// RetryAfter is the least wait before the same call is made again.
	RetryAfter time.Duration

	cause error
}

// Error says what happened.
func (e *Error) Error() string {
	text := fmt.Sprintf("%v: %s", e.Kind, e.Message)
	if e.Kind == ErrUnanswered {
		text += "; make the same call again"
	}
	return text
}

// Unwrap gives the kind, and the cause where there is one: the end of the caller's context, or gRPC's own error.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.cause}
}

// IsWorthRetrying says whether the same call may succeed later.
func IsWorthRetrying(err error) bool {
	return errors.Is(err, ErrBusy) || errors.Is(err, ErrUnanswered) || errors.Is(err, ErrNoRoute)
}

func (f *failure) as(kind error) *Error {
	return &Error{Kind: kind, Message: f.message, RetryAfter: f.retryAfter, cause: f.cause}
}

// busyOrUnanswered: a hint is the server's word that nothing was done; without it the code may be anybody's, at any time.
func (f *failure) busyOrUnanswered() *Error {
	if f.hasHint {
		return f.as(ErrBusy)
	}
	return f.as(ErrUnanswered)
}

func callError(f *failure) error {
	switch f.code {
	case codes.Unauthenticated, codes.PermissionDenied:
		return f.as(ErrDenied)
	case codes.NotFound:
		return f.as(ErrNotFound)
	case codes.ResourceExhausted:
		return f.as(ErrBusy)
	case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition, codes.AlreadyExists, codes.Unimplemented:
		return f.as(ErrRefused)
	default:
		return f.busyOrUnanswered()
	}
}

// withdrawError: a withdrawal that is refused for now may be held, so that nothing but its final answers is certain.
func withdrawError(f *failure) error {
	switch f.code {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound, codes.Unimplemented:
		return f.as(ErrRefused)
	case codes.Unauthenticated, codes.PermissionDenied:
		return f.as(ErrDenied)
	case codes.FailedPrecondition:
		// Services of earlier releases name no reason, for a frozen user neither.
		if f.reason == userFrozen {
			return f.as(ErrFrozen)
		}
		return f.as(ErrTooLittle)
	case codes.AlreadyExists:
		return f.as(ErrTaken)
	default:
		return f.as(ErrUnanswered)
	}
}

func sendError(f *failure) *Error {
	switch f.code {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.Unauthenticated, codes.Unimplemented:
		return f.as(ErrRefused)
	case codes.FailedPrecondition:
		return f.as(ErrNoRoute)
	case codes.ResourceExhausted:
		return f.as(ErrBusy)
	default:
		return f.busyOrUnanswered()
	}
}

// sendFailure is what the failure of one request of an answered batch means for it: nothing was taken.
func sendFailure(said *windfallpb.SendBonusFailure) *Error {
	f := &failure{code: codes.Code(said.GetCode()), message: said.GetMessage(), isOfServer: true, hasHint: true}
	err := sendError(f)
	switch worth := IsWorthRetrying(err); {
	// The gateway knows best, and a later one may know more.
	case said.GetRetryable() && !worth:
		return f.as(ErrBusy)
	case !said.GetRetryable() && worth:
		return f.as(ErrRefused)
	default:
		return err
	}
}
