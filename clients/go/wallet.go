package windfall

import (
	"context"

	"google.golang.org/grpc"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

// Tokens lists and judges users' tokens.
type Tokens struct {
	connection *Connection
}

// NewTokens makes calls over a connection, which may be shared.
func NewTokens(connection *Connection) *Tokens {
	return &Tokens{connection}
}

// List is a page of the user's tokens.
func (t *Tokens) List(
	ctx context.Context, user *EndUser, request *windfallpb.ListTokensRequest,
) (*windfallpb.ListTokensReply, error) {
	return Call(ctx, t.connection, Safe, user,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.ListTokensReply, error) {
			return windfallpb.NewTokensClient(channel).ListTokens(ctx, request)
		})
}

// Verify judges at most 512 token texts: one answer per text, in order.
func (t *Tokens) Verify(ctx context.Context, user *EndUser, tokens []string) ([]*windfallpb.VerifiedToken, error) {
	reply, err := Call(ctx, t.connection, Safe, user,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.VerifyTokensReply, error) {
			request := &windfallpb.VerifyTokensRequest{Tokens: tokens}
			return windfallpb.NewTokensClient(channel).VerifyTokens(ctx, request)
		})
	if err != nil {
		return nil, err
	}
	if len(reply.GetTokens()) != len(tokens) {
		return nil, doesNotFit()
	}
	return reply.GetTokens(), nil
}

// Wallet shows users' wallets and withdraws.
type Wallet struct {
	connection *Connection
}

// NewWallet makes calls over a connection, which may be shared.
func NewWallet(connection *Connection) *Wallet {
	return &Wallet{connection}
}

// Get is balances and a page of movements, the newest first, with the pending rewards on the first page. For the page behind it,
// set FlowAfter to the reply's FlowNext; where that is empty, the history has ended.
func (w *Wallet) Get(
	ctx context.Context, user *EndUser, request *windfallpb.GetWalletRequest,
) (*windfallpb.GetWalletReply, error) {
	return Call(ctx, w.connection, Safe, user,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.GetWalletReply, error) {
			return windfallpb.NewWalletClient(channel).GetWallet(ctx, request)
		})
}

// Withdraw takes money off the balance, once for the withdrawal's id: it is safe to repeat, and is repeated where no answer comes. Its errors
// are [ErrRefused], [ErrDenied], [ErrTooLittle], [ErrFrozen], [ErrTaken] and [ErrUnanswered], of which the last one alone leaves
// open what became of the withdrawal.
func (w *Wallet) Withdraw(
	ctx context.Context, user *EndUser, request *windfallpb.WithdrawRequest,
) (*windfallpb.WithdrawReply, error) {
	reply, _, failed := ask(ctx, w.connection, Safe, user,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.WithdrawReply, error) {
			return windfallpb.NewWalletClient(channel).Withdraw(ctx, request)
		})
	if failed != nil {
		return nil, withdrawError(failed)
	}
	return reply, nil
}
