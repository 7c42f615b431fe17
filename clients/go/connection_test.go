package windfall

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

func replay(t *testing.T, connection *Connection) error {
	_, err := Call(t.Context(), connection, Never, nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.ReplayArchivedReply, error) {
			return windfallpb.NewArchiveClient(channel).ReplayArchived(ctx, &windfallpb.ReplayArchivedRequest{Id: 1})
		})
	return err
}

func TestWhatAStatusMeansAndHowOftenItIsAsked(t *testing.T) {
	server, endpoint := serve(t)
	connection := open(t, Options{Endpoints: []string{endpoint}})
	tokens := NewTokens(connection)
	list := func() error {
		_, err := tokens.List(t.Context(), NamedUser(1), &windfallpb.ListTokensRequest{})
		return err
	}
	for code, kind := range map[codes.Code]error{
		codes.InvalidArgument: ErrRefused, codes.Unauthenticated: ErrDenied, codes.PermissionDenied: ErrDenied,
		codes.NotFound: ErrNotFound, codes.Internal: ErrUnanswered,
	} {
		server.say(said(code))
		if err := list(); !errors.Is(err, kind) || server.made() != 1 {
			t.Errorf("%v: %v after %d calls", code, err, server.made())
		}
	}
	for _, code := range []codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.Aborted} {
		server.say(said(code), hinted(code))
		if err := list(); err != nil || server.made() != 3 {
			t.Errorf("%v: %v after %d calls", code, err, server.made())
		}
	}
	away, busy := said(codes.Unavailable), hinted(codes.Unavailable)
	server.say(away, away, away)
	if err := list(); !errors.Is(err, ErrUnanswered) {
		t.Error(err)
	}
	server.say(busy, busy, busy)
	var known *Error
	if err := list(); !errors.Is(err, ErrBusy) || !errors.As(err, &known) || known.RetryAfter != 7*time.Millisecond {
		t.Error(err)
	}
	// The last one did nothing; of the first ones nobody knows.
	server.say(away, away, busy)
	if err := list(); !errors.Is(err, ErrUnanswered) || errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	// A refusal for good after a lost answer says nothing of the attempt that was lost.
	server.say(away, said(codes.NotFound))
	if err := list(); !errors.Is(err, ErrUnanswered) {
		t.Error(err)
	}
	server.say(said(codes.ResourceExhausted), said(codes.NotFound))
	if err := list(); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	// An answer that does not fit the question is none.
	server.say()
	if _, err := tokens.Verify(t.Context(), NamedUser(1), []string{"a"}); !errors.Is(err, ErrUnanswered) {
		t.Error(err)
	}
	server.say(away)
	if err := replay(t, connection); !errors.Is(err, ErrUnanswered) || server.made() != 1 {
		t.Error("a replay is never made again by itself:", err, server.made())
	}
}

func TestWhatBecameOfAWithdrawal(t *testing.T) {
	server, endpoint := serve(t)
	wallet := NewWallet(open(t, Options{Endpoints: []string{endpoint}, Attempts: 1}))
	for _, known := range []struct {
		end
		kind  error
		after time.Duration
	}{
		{said(codes.InvalidArgument), ErrRefused, 0},
		{said(codes.PermissionDenied), ErrDenied, 0},
		{said(codes.FailedPrecondition), ErrTooLittle, 0},
		{because("user_frozen"), ErrFrozen, 0},
		{because("of_a_later_release"), ErrTooLittle, 0},
		{said(codes.AlreadyExists), ErrTaken, 0},
		{said(codes.Internal), ErrUnanswered, 0},
		{said(codes.ResourceExhausted), ErrUnanswered, 0},
		{hinted(codes.Unavailable), ErrUnanswered, 7 * time.Millisecond},
	} {
		server.say(known.end)
		_, err := wallet.Withdraw(t.Context(), NamedUser(1), &windfallpb.WithdrawRequest{})
		var told *Error
		if !errors.As(err, &told) || told.Kind != known.kind || told.RetryAfter != known.after {
			t.Errorf("%v: %v", known.code, err)
		}
	}
}

func TestACallThatIsResetMayHaveBeenDone(t *testing.T) {
	const enhanceYourCalm, inadequateSecurity = 0x0b, 0x0c
	for _, reason := range []byte{enhanceYourCalm, inadequateSecurity} {
		endpoint := resetting(t, reason)
		for _, attempts := range []int{1, 2} {
			connection := open(t, Options{Endpoints: []string{endpoint}, Attempts: attempts})
			_, err := NewGateway(connection).SendBonus(t.Context(), &windfallpb.SendBonusRequest{})
			if !errors.Is(err, ErrUnanswered) {
				t.Errorf("sent, and reset for %d: %v", reason, err)
			}
			_, err = NewWallet(connection).Withdraw(t.Context(), NamedUser(1), &windfallpb.WithdrawRequest{})
			if !errors.Is(err, ErrUnanswered) {
				t.Errorf("paid, and reset for %d: %v", reason, err)
			}
			if err := replay(t, connection); !errors.Is(err, ErrUnanswered) || !strings.Contains(err.Error(), "RST_STREAM") {
				t.Errorf("it was reset, not timed out: %v", err)
			}
		}
	}
}

func TestALostAnswerIsAskedForAgainAndAtLastUnknown(t *testing.T) {
	server, endpoint := serve(t)
	hangs := end{hangs: true}
	short := Options{Endpoints: []string{endpoint}, AttemptTimeout: 300 * time.Millisecond}
	// More attempts than are needed, for a machine that is very busy.
	patient, hasty := short, short
	patient.Attempts, hasty.Attempts = 8, 2
	gateway := NewGateway(open(t, patient))
	server.say(hangs, hangs)
	reply, err := gateway.SendBonus(t.Context(), &windfallpb.SendBonusRequest{TradeNo: "lost"})
	if err != nil || reply.GetToken() != "token" || server.made() < 3 {
		t.Error("the same order, three times:", err, server.made())
	}
	gateway = NewGateway(open(t, hasty))
	server.say(hangs, hangs)
	if _, err := gateway.SendBonus(t.Context(), &windfallpb.SendBonusRequest{}); !errors.Is(err, ErrUnanswered) {
		t.Error(err)
	}
	// The same where the last attempt is refused, for now or for good.
	for _, last := range []end{hinted(codes.Unavailable), said(codes.ResourceExhausted), said(codes.FailedPrecondition)} {
		server.say(hangs, last)
		if _, err := gateway.SendBonus(t.Context(), &windfallpb.SendBonusRequest{}); !errors.Is(err, ErrUnanswered) {
			t.Error(last.code, err)
		}
	}
}

func TestACallerThatGoesIsToldThatNobodyKnows(t *testing.T) {
	server, endpoint := serve(t)
	gateway := NewGateway(open(t, Options{Endpoints: []string{endpoint}}))
	server.say(end{hangs: true})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := gateway.SendBonus(ctx, &windfallpb.SendBonusRequest{})
	if !errors.Is(err, ErrUnanswered) || !errors.Is(err, context.DeadlineExceeded) || server.made() > 1 {
		t.Error(err, server.made())
	}
}

func TestAGatewayThatIsAwayIsNoAnswerAndAnotherOneTakesOver(t *testing.T) {
	away := nobody(t)
	_, err := NewGateway(open(t, Options{Endpoints: []string{away}})).SendBonus(t.Context(), &windfallpb.SendBonusRequest{})
	if !errors.Is(err, ErrUnanswered) || !IsWorthRetrying(err) {
		t.Error(err)
	}
	server, endpoint := serve(t)
	gateway := NewGateway(open(t, Options{Endpoints: []string{away, endpoint}}))
	for range 6 {
		if _, err := gateway.SendBonus(t.Context(), &windfallpb.SendBonusRequest{}); err != nil {
			t.Error(err)
		}
	}
	if server.made() != 6 {
		t.Error(server.made())
	}
	// Where there was no connection, nothing was sent, and the refusal stands.
	gateway = NewGateway(open(t, Options{Endpoints: []string{away, endpoint}}))
	server.say(said(codes.FailedPrecondition))
	if _, err := gateway.SendBonus(t.Context(), &windfallpb.SendBonusRequest{}); !errors.Is(err, ErrNoRoute) {
		t.Error(err)
	}
}

func TestLargeBatchesGoInPartsAndComeBackInOrder(t *testing.T) {
	server, endpoint := serve(t)
	server.batch = func(batch *windfallpb.SendBonusBatchRequest) *windfallpb.SendBonusBatchReply {
		reply := &windfallpb.SendBonusBatchReply{}
		for _, request := range batch.GetRequests() {
			result := &windfallpb.SendBonusResult{Result: &windfallpb.SendBonusResult_Token{Token: request.GetTradeNo()}}
			if request.GetTradeNo() == "order-700" {
				failure := &windfallpb.SendBonusFailure{Code: int32(codes.FailedPrecondition), Retryable: true}
				result.Result = &windfallpb.SendBonusResult_Failure{Failure: failure}
			}
			reply.Results = append(reply.Results, result)
		}
		return reply
	}
	gateway := NewGateway(open(t, Options{Endpoints: []string{endpoint}}))
	send := func(count int, extension map[string]string) []Sent {
		var requests []*windfallpb.SendBonusRequest
		for nth := range count {
			requests = append(requests, &windfallpb.SendBonusRequest{TradeNo: fmt.Sprint("order-", nth), Extension: extension})
		}
		return gateway.SendBonusBatch(t.Context(), requests)
	}
	answers := send(1_300, nil)
	for nth, answer := range answers {
		if nth == 700 && !errors.Is(answer.Err, ErrNoRoute) || nth != 700 && answer.Token != fmt.Sprint("order-", nth) {
			t.Error(nth, answer)
		}
	}
	if len(answers) != 1_300 || server.made() != 3 || len(send(0, nil)) != 0 {
		t.Error(len(answers), server.made())
	}
	// Fat ones, too: 300 of 10 KiB.
	server.say()
	if answers := send(300, map[string]string{"k": strings.Repeat("v", 10_240)}); len(answers) != 300 || server.made() != 3 {
		t.Error(len(answers), server.made())
	}
	// What a lost part says of the second attempt's refusal: nobody knows.
	server.say(said(codes.Unavailable))
	if answers := send(701, nil); !errors.Is(answers[700].Err, ErrNoRoute) {
		t.Error("another part was lost:", answers[700].Err)
	}
	server.say(said(codes.ResourceExhausted), said(codes.Unavailable))
	requests := []*windfallpb.SendBonusRequest{{TradeNo: "order-700"}}
	if answers := gateway.SendBonusBatch(t.Context(), requests); !errors.Is(answers[0].Err, ErrUnanswered) {
		t.Error(answers[0].Err)
	}
}

func TestATimerWithoutAKeyIsNotAddedTwice(t *testing.T) {
	server, endpoint := serve(t)
	timers := NewTimers(open(t, Options{Endpoints: []string{endpoint}}))
	for key, calls := range map[string]int{"": 1, "call-1": 2} {
		server.say(said(codes.Unavailable))
		request := &windfallpb.AddTimerRequest{Timer: &windfallpb.NewTimer{Target: "hook", Key: key}}
		if _, err := timers.Add(t.Context(), request); errors.Is(err, ErrUnanswered) != (calls == 1) || server.made() != calls {
			t.Errorf("key %q: %v after %d calls", key, err, server.made())
		}
	}
}

func TestTheKeyAndTheUserGoWithTheCallAndAreNotShown(t *testing.T) {
	server, endpoint := serve(t)
	secret := "wfk_not-a-real-key"
	options := Options{Endpoints: []string{endpoint}, BearerKey: secret}
	wallet := NewWallet(open(t, options))
	assertion := "eyJhbGciOi.a-users.assertion"
	for _, user := range []*EndUser{SignedUser(assertion), NamedUser(42)} {
		if _, err := wallet.Get(t.Context(), user, &windfallpb.GetWalletRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	first, second := server.heads[0], server.heads[1]
	if first.Get("x-windfall-user-token")[0] != assertion || second.Get("x-windfall-user")[0] != "42" ||
		len(first.Get("x-windfall-user"))+len(second.Get("x-windfall-user-token")) != 0 ||
		first.Get("authorization")[0] != "Bearer "+secret {
		t.Error(first, second)
	}
	for _, shown := range []string{
		fmt.Sprintf("%v %+v %#v", options, options, options), fmt.Sprintf("%v %#v", SignedUser(assertion), SignedUser(assertion)),
	} {
		if strings.Contains(shown, secret) || strings.Contains(shown, assertion) {
			t.Error(shown)
		}
	}
	_, err := wallet.Get(t.Context(), SignedUser("a\nb"), &windfallpb.GetWalletRequest{})
	if !errors.Is(err, ErrRefused) || server.made() != 2 {
		t.Error(err, server.made())
	}
	options.BearerKey = secret + "\n"
	if _, err := Open(options); !errors.Is(err, ErrOption) || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}

func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	at := func(endpoint string) Options { return Options{Endpoints: []string{endpoint}, BearerKey: "key"} }
	for _, options := range []Options{
		{Endpoints: make([]string, 65)}, {Attempts: 11}, {Attempts: -1}, {AttemptTimeout: time.Hour},
		{ConnectTimeout: -1}, {ClientCertFile: "cert.pem"}, at("http://10.0.0.7:7070"), at("https://10.0.0.7:7070"),
		at("ftp://127.0.0.1"), at("127.0.0.1:7070"), at("no address"), at(""),
	} {
		if _, err := Open(options); !errors.Is(err, ErrOption) {
			t.Errorf("%+v: %v", options, err)
		}
	}
	plain := at("http://10.0.0.7:7070")
	plain.KeyInPlainText = true
	for _, options := range []Options{{}, plain, at("http://[::1]:7070"), at("http://localhost:7070")} {
		open(t, options)
	}
	missing := at("https://10.0.0.7:7070")
	missing.CAFile = t.TempDir() + "/none.pem"
	if _, err := Open(missing); err == nil || errors.Is(err, ErrOption) {
		t.Error(err)
	}
}
