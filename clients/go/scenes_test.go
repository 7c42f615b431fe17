package windfall

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

type kept struct {
	requests []*windfallpb.SendBonusRequest
}

func (k *kept) SendBonus(_ context.Context, request *windfallpb.SendBonusRequest) (*windfallpb.SendBonusReply, error) {
	k.requests = append(k.requests, request)
	return &windfallpb.SendBonusReply{Token: "token of " + request.GetTradeNo()}, nil
}

func sceneOf(t *testing.T, sender Sender, name, activity, bonusType string) scene {
	t.Helper()
	made := map[string]func() (scene, error){
		"red-packet-rain": func() (scene, error) {
			rain, err := NewRedPacketRain(sender, activity, bonusType)
			return rain.scene, err
		},
		"card-draw": func() (scene, error) {
			draw, err := NewCardDraw(sender, activity, bonusType)
			return draw.scene, err
		},
		"fireworks": func() (scene, error) {
			show, err := NewFireworks(sender, activity, bonusType)
			return show.scene, err
		},
	}
	own, err := made[name]()
	if err != nil {
		t.Fatalf("scene %s: %v", name, err)
	}
	return own
}

// A number that differs from the documented ones pays twice.
func TestOrderNumbersAreThoseOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/order-numbers.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Scene     string `json:"scene"`
		Activity  string `json:"activity"`
		BonusType string `json:"bonus_type"`
		Round     uint32 `json:"round"`
		UserID    int64  `json:"user_id"`
		Number    uint32 `json:"number"`
		TradeNo   string `json:"trade_no"`
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) < 5 {
		t.Fatal(len(vectors), err)
	}
	for _, vector := range vectors {
		sender := &kept{}
		scene := sceneOf(t, sender, vector.Scene, vector.Activity, vector.BonusType)
		tradeNo, err := scene.TradeNo(vector.Round, vector.UserID, vector.Number)
		if err != nil || tradeNo != vector.TradeNo {
			t.Errorf("%q, %v; documented: %q", tradeNo, err, vector.TradeNo)
		}
		user := &windfallpb.User{UserId: vector.UserID, DeviceId: "phone"}
		token, err := scene.Send(t.Context(), vector.Round, user, vector.Number, Prize{7, "for you"})
		if err != nil || token != "token of "+vector.TradeNo {
			t.Error(token, err)
		}
		sent := sender.requests[0]
		bonus := sent.GetBonus()
		if sent.GetTradeNo() != vector.TradeNo || sent.GetScene() != vector.Scene || sent.GetActivity() != vector.Activity ||
			sent.GetUser().GetDeviceId() != "phone" || bonus.GetType() != vector.BonusType || bonus.GetAmount() != 7 {
			t.Error(sent)
		}
	}
}

func TestNamesWithWhichAnOrderNumberCouldBeRefusedAreRefused(t *testing.T) {
	// 64 + /rain/ + 10 + / + 32 + / + 19 + / + 10 is more than 128.
	for _, names := range [][2]string{
		{"", "cash"}, {"a b", "cash"}, {"红包", "cash"}, {strings.Repeat("a", 65), "cash"}, {"a", ""}, {"a", "Cash"},
		{"a", strings.Repeat("c", 33)}, {strings.Repeat("a", 64), strings.Repeat("c", 32)},
	} {
		if _, err := NewRedPacketRain(&kept{}, names[0], names[1]); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", names, err)
		}
	}
	rain, err := NewRedPacketRain(&kept{}, strings.Repeat("a", 64), "cash")
	if err != nil {
		t.Fatal(err)
	}
	for _, userID := range []int64{0, -1, math.MinInt64} {
		if _, err := rain.TradeNo(1, userID, 0); !errors.Is(err, ErrInvalid) {
			t.Error(userID, err)
		}
	}
}
