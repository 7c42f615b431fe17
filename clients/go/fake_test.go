package windfall

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

// end is how the fake ends a call: hangs until its caller has gone, or answers a status, with a hint and a reason or without.
type end struct {
	hangs  bool
	code   codes.Code
	what   string
	hint   string
	reason string
}

func said(code codes.Code) end   { return end{code: code, what: "w"} }
func hinted(code codes.Code) end { return end{code: code, what: "later", hint: "7"} }
func because(reason string) end {
	return end{code: codes.FailedPrecondition, what: "w", reason: reason}
}

// fake answers every call with the next of these ends, and with the method's reply when there is none left.
type fake struct {
	windfallpb.UnimplementedSendServer
	windfallpb.UnimplementedTokensServer
	windfallpb.UnimplementedWalletServer
	windfallpb.UnimplementedTimersServer
	windfallpb.UnimplementedArchiveServer

	mutex   sync.Mutex
	ends    []end
	calls   int
	heads   []metadata.MD
	replies map[string]proto.Message
	batch   func(*windfallpb.SendBonusBatchRequest) *windfallpb.SendBonusBatchReply
}

func (f *fake) answer(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler,
) (any, error) {
	head, _ := metadata.FromIncomingContext(ctx)
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.calls++
	f.heads = append(f.heads, head)
	if len(f.ends) > 0 {
		next := f.ends[0]
		f.ends = f.ends[1:]
		if next.hangs {
			f.mutex.Unlock()
			<-ctx.Done()
			f.mutex.Lock()
			return nil, ctx.Err()
		}
		if next.hint != "" {
			grpc.SetTrailer(ctx, metadata.Pairs(retryAfterMs, next.hint))
		}
		if next.reason != "" {
			grpc.SetTrailer(ctx, metadata.Pairs("reason", next.reason))
		}
		return nil, status.Error(next.code, next.what)
	}
	if batch, ok := request.(*windfallpb.SendBonusBatchRequest); ok {
		return f.batch(batch), nil
	}
	return f.replies[info.FullMethod], nil
}

func (f *fake) say(ends ...end) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.ends, f.calls, f.heads = ends, 0, nil
}

func (f *fake) made() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.calls
}

// serve starts a fake; the options reach it. The time-out is a bound for a machine that is very busy.
func serve(t *testing.T, options ...grpc.ServerOption) (*fake, string) {
	t.Helper()
	own := &fake{replies: map[string]proto.Message{
		"/windfall.v1.Send/SendBonus":         &windfallpb.SendBonusReply{Token: "token"},
		"/windfall.v1.Tokens/ListTokens":      &windfallpb.ListTokensReply{},
		"/windfall.v1.Tokens/VerifyTokens":    &windfallpb.VerifyTokensReply{},
		"/windfall.v1.Wallet/GetWallet":       &windfallpb.GetWalletReply{},
		"/windfall.v1.Wallet/Withdraw":        &windfallpb.WithdrawReply{},
		"/windfall.v1.Timers/Add":             &windfallpb.AddTimerReply{Id: "1"},
		"/windfall.v1.Archive/ReplayArchived": &windfallpb.ReplayArchivedReply{},
	}}
	server := grpc.NewServer(append(options, grpc.UnaryInterceptor(own.answer))...)
	windfallpb.RegisterSendServer(server, own)
	windfallpb.RegisterTokensServer(server, own)
	windfallpb.RegisterWalletServer(server, own)
	windfallpb.RegisterTimersServer(server, own)
	windfallpb.RegisterArchiveServer(server, own)
	listener := listen(t)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return own, "http://" + listener.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// nobody is an address at which nobody listens.
func nobody(t *testing.T) string {
	t.Helper()
	listener := listen(t)
	defer listener.Close()
	return "http://" + listener.Addr().String()
}

func open(t *testing.T, options Options) *Connection {
	t.Helper()
	if options.AttemptTimeout == 0 {
		options.AttemptTimeout = 20 * time.Second
	}
	connection, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

// resetCalls speaks HTTP/2 by hand: it takes each call whole, and resets its stream for this reason.
func resetCalls(stream net.Conn, reason byte) {
	const data, settings = 0, 4
	defer stream.Close()
	preface := make([]byte, 24)
	if _, err := io.ReadFull(stream, preface); err != nil {
		return
	}
	stream.Write([]byte{0, 0, 0, settings, 0, 0, 0, 0, 0})
	for head := make([]byte, 9); ; {
		if _, err := io.ReadFull(stream, head); err != nil {
			return
		}
		length := binary.BigEndian.Uint32([]byte{0, head[0], head[1], head[2]})
		if _, err := io.CopyN(io.Discard, stream, int64(length)); err != nil {
			return
		}
		switch {
		case head[3] == settings && head[4]&1 == 0:
			stream.Write([]byte{0, 0, 0, settings, 1, 0, 0, 0, 0})
		case head[3] == data && head[4]&1 == 1:
			stream.Write(append([]byte{0, 0, 4, 3, 0, head[5], head[6], head[7], head[8]}, 0, 0, 0, reason))
		}
	}
}

// resetting starts a server that resets every call for this reason.
func resetting(t *testing.T, reason byte) string {
	t.Helper()
	listener := listen(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				return
			}
			go resetCalls(stream, reason)
		}
	}()
	return "http://" + listener.Addr().String()
}
