package windfall

import (
	"context"

	"google.golang.org/grpc"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

// Payouts lists the withdrawals that a front end pays out elsewhere, and takes its acknowledgements.
type Payouts struct {
	connection *Connection
}

// NewPayouts makes calls over a connection, which may be shared.
func NewPayouts(connection *Connection) *Payouts {
	return &Payouts{connection}
}

// List is a page of what nobody has acknowledged.
func (p *Payouts) List(
	ctx context.Context, request *windfallpb.ListToPayOutRequest,
) (*windfallpb.ListToPayOutReply, error) {
	return Call(ctx, p.connection, Safe, nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.ListToPayOutReply, error) {
			return windfallpb.NewPayoutsClient(channel).ListToPayOut(ctx, request)
		})
}

// Acknowledge says how a payout ended: whether this was new. It is safe to repeat, and is repeated where no answer comes.
func (p *Payouts) Acknowledge(ctx context.Context, request *windfallpb.AcknowledgePayoutRequest) (bool, error) {
	reply, err := Call(ctx, p.connection, Safe, nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.AcknowledgePayoutReply, error) {
			return windfallpb.NewPayoutsClient(channel).AcknowledgePayout(ctx, request)
		})
	return reply.GetIsNew(), err
}
