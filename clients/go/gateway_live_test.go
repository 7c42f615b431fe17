package windfall_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	windfall "github.com/windfall-rewards/windfall/clients/go"
	"github.com/windfall-rewards/windfall/clients/go/token"
	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

const (
	ownUser = 1_001
	// The tests of every language send this user the same order.
	sharedUser = 7_777
)

// live opens a connection with one of the keys of the gateway that clients/with-gateway started.
func live(t *testing.T, keyName string) *windfall.Connection {
	t.Helper()
	endpoint := os.Getenv("WINDFALL_GATEWAY")
	if endpoint == "" {
		t.Skip("no gateway runs (WINDFALL_GATEWAY is not set); clients/with-gateway starts one")
	}
	connection, err := windfall.Open(windfall.Options{
		Endpoints: []string{endpoint}, BearerKey: os.Getenv(keyName), AttemptTimeout: 20 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

// untilCredited waits until the user's balance of cash is this. The bound is for a machine that is very busy.
func untilCredited(t *testing.T, userID, wanted int64) {
	t.Helper()
	wallet := windfall.NewWallet(live(t, "WINDFALL_WALLET_KEY"))
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		reply, err := wallet.Get(t.Context(), windfall.NamedUser(userID), &windfallpb.GetWalletRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, balance := range reply.GetBalances() {
			if balance.GetCredited() == wanted && balance.GetPending() == 0 {
				return
			}
			if balance.GetCredited() > wanted {
				t.Fatalf("credited %d, not %d", balance.GetCredited(), wanted)
			}
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("user %d has %v after a minute, not %d", userID, reply.GetBalances(), wanted)
		}
	}
}

func TestLiveARewardThatIsSentAgainIsCreditedOnceAndPaidOutOnce(t *testing.T) {
	gateway := windfall.NewGateway(live(t, "WINDFALL_ACTIVITY_KEY"))
	rain, err := windfall.NewRedPacketRain(gateway, "go-2027", "cash")
	if err != nil {
		t.Fatal(err)
	}
	user := &windfallpb.User{UserId: ownUser}
	prize := windfall.Prize{Amount: 888, Description: "red packet"}
	text, err := rain.Send(t.Context(), 1, user, 0, prize)
	if err != nil {
		t.Fatal(err)
	}
	// Again alone, and in a batch beside one that is wrong.
	if _, err := rain.Send(t.Context(), 1, user, 0, prize); err != nil {
		t.Fatal(err)
	}
	same, err := rain.Request(1, user, 0, prize)
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := rain.Request(1, user, 1, windfall.Prize{})
	if err != nil {
		t.Fatal(err)
	}
	answers := gateway.SendBonusBatch(t.Context(), []*windfallpb.SendBonusRequest{same, wrong})
	if answers[0].Err != nil || !errors.Is(answers[1].Err, windfall.ErrRefused) {
		t.Fatal(answers)
	}

	verifier, err := token.Load(os.Getenv("WINDFALL_VERIFIER_FILE"), "windfall")
	if err != nil {
		t.Fatal(err)
	}
	opened, err := verifier.Open(text, ownUser)
	if err != nil || opened.GetTradeNo() != "go-2027/rain/0000000001/cash/1001/0" || opened.GetAmount() != 888 {
		t.Fatal(opened, err)
	}
	if _, err := verifier.Open(text, ownUser+1); err != token.ErrIllegal {
		t.Error(err)
	}
	untilCredited(t, ownUser, 888)

	tokens := windfall.NewTokens(live(t, "WINDFALL_WALLET_KEY"))
	judged, err := tokens.Verify(t.Context(), windfall.NamedUser(ownUser), []string{text, "AQAA"})
	if err != nil || judged[0].GetVerdict() == windfallpb.TokenVerdict_TOKEN_VERDICT_ILLEGAL ||
		judged[1].GetVerdict() != windfallpb.TokenVerdict_TOKEN_VERDICT_ILLEGAL {
		t.Error(judged, err)
	}
	wallet := windfall.NewWallet(live(t, "WINDFALL_WALLET_KEY"))
	payouts := windfall.NewPayouts(live(t, "WINDFALL_PAYOUTS_KEY"))
	done := &windfallpb.AcknowledgePayoutRequest{
		UserId: ownUser, WithdrawalId: "go-1", Result: windfallpb.PayoutResult_PAYOUT_RESULT_PAID,
	}
	for nth, wanted := range []windfallpb.WithdrawOutcome{
		windfallpb.WithdrawOutcome_WITHDRAW_OUTCOME_TO_PAY_OUT, windfallpb.WithdrawOutcome_WITHDRAW_OUTCOME_PAID_OUT,
	} {
		request := &windfallpb.WithdrawRequest{WithdrawalId: "go-1", BonusType: "cash", Amount: 800}
		reply, err := wallet.Withdraw(t.Context(), windfall.NamedUser(ownUser), request)
		if err != nil || reply.GetOutcome() != wanted || reply.GetBalance() != 88 {
			t.Error(reply, err)
		}
		if isNew, err := payouts.Acknowledge(t.Context(), done); err != nil || isNew != (nth == 0) {
			t.Error(isNew, err)
		}
	}
	short := &windfallpb.WithdrawRequest{WithdrawalId: "go-2", BonusType: "cash", Amount: 800}
	if _, err := wallet.Withdraw(t.Context(), windfall.NamedUser(ownUser), short); !errors.Is(err, windfall.ErrTooLittle) {
		t.Error(err)
	}
	other := &windfallpb.WithdrawRequest{WithdrawalId: "go-1", BonusType: "cash", Amount: 8}
	if _, err := wallet.Withdraw(t.Context(), windfall.NamedUser(ownUser), other); !errors.Is(err, windfall.ErrTaken) {
		t.Error(err)
	}
}

// The order numbers of the languages and of HTTP are one, so that the reward is one, whoever sends it.
func TestLiveARewardOfSeveralLanguagesIsCreditedOnce(t *testing.T) {
	connection := live(t, "WINDFALL_ACTIVITY_KEY")
	draw, err := windfall.NewCardDraw(windfall.NewGateway(connection), "shared-2027", "cash")
	if err != nil {
		t.Fatal(err)
	}
	user := &windfallpb.User{UserId: sharedUser}
	if _, err := draw.Send(t.Context(), 15, user, 3, windfall.Prize{Amount: 100, Description: "a card"}); err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"trade_no": "shared-2027/draw/0000000015/cash/%d/3", "user": {"user_id": %d}, "activity": "shared-2027",
		"scene": "card-draw", "bonus": {"type": "cash", "amount": 100}}`, sharedUser, sharedUser)
	endpoint := os.Getenv("WINDFALL_GATEWAY") + "/v1/bonuses/send"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("content-type", "application/json")
	request.Header.Set("authorization", "Bearer "+os.Getenv("WINDFALL_ACTIVITY_KEY"))
	answer, err := http.DefaultClient.Do(request)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer, err)
	}
	answer.Body.Close()
	untilCredited(t, sharedUser, 100)
}

func TestLiveAKeyWithoutTheRoleIsDenied(t *testing.T) {
	_, err := windfall.NewGateway(live(t, "WINDFALL_WALLET_KEY")).SendBonus(t.Context(), &windfallpb.SendBonusRequest{})
	if !errors.Is(err, windfall.ErrRefused) || windfall.IsWorthRetrying(err) {
		t.Error(err)
	}
	wallet := windfall.NewWallet(live(t, "WINDFALL_ACTIVITY_KEY"))
	_, err = wallet.Get(t.Context(), windfall.NamedUser(ownUser), &windfallpb.GetWalletRequest{})
	if !errors.Is(err, windfall.ErrDenied) {
		t.Error(err)
	}
}

func TestLiveATimerWithAKeyIsAddedOnce(t *testing.T) {
	connection := live(t, "WINDFALL_SCHEDULER_KEY")
	timers := windfall.NewTimers(connection)
	dueMs := uint64(time.Now().Add(time.Hour).UnixMilli())
	add := &windfallpb.AddTimerRequest{Timer: &windfallpb.NewTimer{
		Target: "rewards", DueMs: dueMs, Key: "go-1", Payload: []byte("{}"),
	}}
	first, err := timers.Add(t.Context(), add)
	if err != nil {
		t.Fatal(err)
	}
	again, err := timers.Add(t.Context(), add)
	if err != nil || !again.GetExisted() || again.GetId() != first.GetId() {
		t.Error(again, err)
	}
	// A call that has no method here.
	listed, err := windfall.Call(t.Context(), connection, windfall.Safe, nil,
		func(ctx context.Context, channel grpc.ClientConnInterface) (*windfallpb.ListTimersReply, error) {
			return windfallpb.NewTimersClient(channel).List(ctx, &windfallpb.ListTimersRequest{})
		})
	if err != nil || len(listed.GetTimers()) == 0 {
		t.Error(listed, err)
	}
	cancel := &windfallpb.CancelTimerRequest{Id: first.GetId()}
	reply, err := timers.Cancel(t.Context(), cancel)
	if err != nil || reply.GetChange() != windfallpb.TimerChange_TIMER_CHANGE_DONE {
		t.Error(reply, err)
	}
}
