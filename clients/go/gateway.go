package windfall

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

const (
	// The number of requests in one call at most.
	batchMax = 512
	// The bytes of one call at most: well below what a server takes by default.
	batchMaxBytes = 1 << 20
)

// Gateway sends rewards.
type Gateway struct {
	connection *Connection
}

// Sent is what became of one request of a batch.
type Sent struct {
	// Token is the user's proof, where Err is nil.
	Token string
	// Err is why there is none.
	Err error
}

// NewGateway makes calls over a connection, which may be shared.
func NewGateway(connection *Connection) *Gateway {
	return &Gateway{connection}
}

// SendBonus sends a reward. When the error is nil, the event is on its way and survives the death of the process that took
// it; the reply holds the user's token. The same request again is harmless: the order number credits once. An error is an
// [*Error] that says what to do next.
func (g *Gateway) SendBonus(ctx context.Context, request *windfallpb.SendBonusRequest) (*windfallpb.SendBonusReply, error) {
	reply, _, failed := ask(ctx, g.connection, Safe, nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.SendBonusReply, error) {
			return windfallpb.NewSendClient(channel).SendBonus(ctx, request)
		})
	if failed != nil {
		return nil, sendError(failed)
	}
	return reply, nil
}

// SendBonusBatch sends several rewards and returns one answer for each request, in order. Some may be taken and others not.
func (g *Gateway) SendBonusBatch(ctx context.Context, requests []*windfallpb.SendBonusRequest) []Sent {
	answers := make([]Sent, 0, len(requests))
	begin, bytes := 0, 0
	for at, request := range requests {
		size := proto.Size(request)
		if at-begin == batchMax || at > begin && bytes+size > batchMaxBytes {
			answers = append(answers, g.sendPart(ctx, requests[begin:at])...)
			begin, bytes = at, 0
		}
		bytes += size
	}
	if begin < len(requests) {
		answers = append(answers, g.sendPart(ctx, requests[begin:])...)
	}
	return answers
}

func (g *Gateway) sendPart(ctx context.Context, requests []*windfallpb.SendBonusRequest) []Sent {
	reply, inDoubt, failed := ask(ctx, g.connection, Safe, nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.SendBonusBatchReply, error) {
			batch := &windfallpb.SendBonusBatchRequest{Requests: requests}
			return windfallpb.NewSendClient(channel).SendBonusBatch(ctx, batch)
		})
	answers := make([]Sent, len(requests))
	for at := range answers {
		switch {
		case failed != nil:
			answers[at].Err = sendError(failed)
		case len(reply.GetResults()) != len(requests):
			answers[at].Err = doesNotFit()
		default:
			answers[at] = sent(reply.GetResults()[at], inDoubt)
		}
	}
	return answers
}

func sent(result *windfallpb.SendBonusResult, inDoubt bool) Sent {
	switch said := result.GetResult().(type) {
	case *windfallpb.SendBonusResult_Token:
		return Sent{Token: said.Token}
	case *windfallpb.SendBonusResult_Failure:
		// An earlier attempt was told the same where the request itself is wrong; else it may have been taken.
		if inDoubt && codes.Code(said.Failure.GetCode()) != codes.InvalidArgument {
			message := "an earlier attempt was not answered; the last one: " + said.Failure.GetMessage()
			return Sent{Err: &Error{Kind: ErrUnanswered, Message: message}}
		}
		return Sent{Err: sendFailure(said.Failure)}
	default:
		return Sent{Err: &Error{Kind: ErrUnanswered, Message: "the gateway's answer says neither yes nor no"}}
	}
}

func doesNotFit() *Error {
	return &Error{Kind: ErrUnanswered, Message: "the answer does not fit the question"}
}
