package windfall

import (
	"context"

	"google.golang.org/grpc"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

// Timers adds, changes, cancels and shows timers. The scheduler's calls that are not here are made by [Call].
type Timers struct {
	connection *Connection
}

// NewTimers makes calls over a connection, which may be shared.
func NewTimers(connection *Connection) *Timers {
	return &Timers{connection}
}

// Add adds a timer. Without a key it is never repeated by itself, since a call that was not answered may have stored it:
// made again, there would be two.
func (t *Timers) Add(ctx context.Context, request *windfallpb.AddTimerRequest) (*windfallpb.AddTimerReply, error) {
	return Call(ctx, t.connection, repeatOf(request.GetTimer()), nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.AddTimerReply, error) {
			return windfallpb.NewTimersClient(channel).Add(ctx, request)
		})
}

// AddBatch adds up to 1,000 timers, with one answer for each, in order. It is repeated by itself only where each of them has
// a key.
func (t *Timers) AddBatch(
	ctx context.Context, request *windfallpb.AddTimersRequest,
) ([]*windfallpb.AddTimerResult, error) {
	reply, err := Call(ctx, t.connection, repeatOf(request.GetTimers()...), nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.AddTimersReply, error) {
			return windfallpb.NewTimersClient(channel).AddBatch(ctx, request)
		})
	if err != nil {
		return nil, err
	}
	if len(reply.GetResults()) != len(request.GetTimers()) {
		return nil, doesNotFit()
	}
	return reply.GetResults(), nil
}

// Update gives a waiting timer another time, another payload, or both.
func (t *Timers) Update(
	ctx context.Context, request *windfallpb.UpdateTimerRequest,
) (*windfallpb.ChangeTimerReply, error) {
	return Call(ctx, t.connection, Safe, nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.ChangeTimerReply, error) {
			return windfallpb.NewTimersClient(channel).Update(ctx, request)
		})
}

// Cancel cancels a waiting timer.
func (t *Timers) Cancel(
	ctx context.Context, request *windfallpb.CancelTimerRequest,
) (*windfallpb.ChangeTimerReply, error) {
	return Call(ctx, t.connection, Safe, nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.ChangeTimerReply, error) {
			return windfallpb.NewTimersClient(channel).Cancel(ctx, request)
		})
}

// Get is one timer; [ErrNotFound] where it never was, or is over and gone.
func (t *Timers) Get(ctx context.Context, request *windfallpb.GetTimerRequest) (*windfallpb.Timer, error) {
	reply, err := Call(ctx, t.connection, Safe, nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.GetTimerReply, error) {
			return windfallpb.NewTimersClient(channel).Get(ctx, request)
		})
	if err != nil {
		return nil, err
	}
	if reply.GetTimer() == nil {
		return nil, doesNotFit()
	}
	return reply.GetTimer(), nil
}

// repeatOf: timers with keys may be added again, because the second one is not stored.
func repeatOf(timers ...*windfallpb.NewTimer) Repeat {
	for _, timer := range timers {
		if timer.GetKey() == "" {
			return Never
		}
	}
	return Safe
}
