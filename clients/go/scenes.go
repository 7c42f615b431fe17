package windfall

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

const (
	nameMaxBytes      = 64
	bonusTypeMaxBytes = 32
	tradeNoMaxBytes   = 128
)

// ErrInvalid is what errors about the arguments of scene helpers are.
var ErrInvalid = errors.New("invalid argument")

// Sender takes rewards: a [Gateway], or a stand-in for it in tests.
type Sender interface {
	SendBonus(context.Context, *windfallpb.SendBonusRequest) (*windfallpb.SendBonusReply, error)
}

// Prize is what was won: an amount in the type's smallest unit, 1 or more, and what the user reads, which may be empty.
type Prize struct {
	Amount      int64
	Description string
}

// RedPacketRain is a rain of red packets: users tap packets that fall in rounds.
type RedPacketRain struct{ scene }

// CardDraw is a draw of cards: a user draws, and each draw of a day has its number.
type CardDraw struct{ scene }

// Fireworks is a show: everyone who watches gets something of each burst.
type Fireworks struct{ scene }

// NewRedPacketRain fixes the activity and the bonus type. An error is [ErrInvalid].
func NewRedPacketRain(sender Sender, activity, bonusType string) (*RedPacketRain, error) {
	scene, err := newScene(sender, "red-packet-rain", "rain", activity, bonusType)
	return &RedPacketRain{scene}, err
}

// NewCardDraw fixes the activity and the bonus type. An error is [ErrInvalid].
func NewCardDraw(sender Sender, activity, bonusType string) (*CardDraw, error) {
	scene, err := newScene(sender, "card-draw", "draw", activity, bonusType)
	return &CardDraw{scene}, err
}

// NewFireworks fixes the activity and the bonus type. An error is [ErrInvalid].
func NewFireworks(sender Sender, activity, bonusType string) (*Fireworks, error) {
	scene, err := newScene(sender, "fireworks", "show", activity, bonusType)
	return &Fireworks{scene}, err
}

// scene is what all scenes share: fixed names, and order numbers of round, user and a number within the round.
type scene struct {
	sender                    Sender
	name, activity, bonusType string
	prefix                    string
}

func newScene(sender Sender, name, shortName, activity, bonusType string) (scene, error) {
	if err := checkName("activity", activity, nameMaxBytes, isVisibleASCII); err != nil {
		return scene{}, err
	}
	if err := checkName("bonus type", bonusType, bonusTypeMaxBytes, isBonusType); err != nil {
		return scene{}, err
	}
	own := scene{sender, name, activity, bonusType, activity + "/" + shortName + "/"}
	// No call can fail for the length of its number if the longest one fits.
	if len(own.number(math.MaxUint32, math.MaxInt64, math.MaxUint32)) > tradeNoMaxBytes {
		return scene{}, fmt.Errorf("%w: with this activity and bonus type an order number can have more than %d bytes",
			ErrInvalid, tradeNoMaxBytes)
	}
	return own, nil
}

// TradeNo is the order number of a user's reward. The round is the rain's round, the day of the draw or the show; the number
// is the user's packet in that round, the draw of that day or the burst of that show. The error is [ErrInvalid], for a user
// below 1.
func (s scene) TradeNo(round uint32, userID int64, number uint32) (string, error) {
	if userID < 1 {
		return "", fmt.Errorf("%w: the user id is %d; it must be at least 1", ErrInvalid, userID)
	}
	return s.number(round, userID, number), nil
}

// Request is what Send sends, for those who send many rewards in one call.
func (s scene) Request(
	round uint32, user *windfallpb.User, number uint32, prize Prize,
) (*windfallpb.SendBonusRequest, error) {
	tradeNo, err := s.TradeNo(round, user.GetUserId(), number)
	if err != nil {
		return nil, err
	}
	return &windfallpb.SendBonusRequest{
		TradeNo:  tradeNo,
		User:     user,
		Activity: s.activity,
		Scene:    s.name,
		Bonus:    &windfallpb.Bonus{Type: s.bonusType, Amount: prize.Amount, Description: prize.Description},
	}, nil
}

// Send sends a user's reward and returns the token. The same arguments again are the same order, which credits once.
func (s scene) Send(
	ctx context.Context, round uint32, user *windfallpb.User, number uint32, prize Prize,
) (string, error) {
	request, err := s.Request(round, user, number, prize)
	if err != nil {
		return "", err
	}
	reply, err := s.sender.SendBonus(ctx, request)
	if err != nil {
		return "", err
	}
	return reply.GetToken(), nil
}

// number writes the format of docs/order-numbers.md. A number that differs from it pays twice.
func (s scene) number(round uint32, userID int64, number uint32) string {
	return fmt.Sprintf("%s%010d/%s/%d/%d", s.prefix, round, s.bonusType, userID, number)
}

func checkName(what, text string, maxBytes int, allows func(string) bool) error {
	switch {
	case text == "":
		return fmt.Errorf("%w: the %s is empty", ErrInvalid, what)
	case len(text) > maxBytes:
		return fmt.Errorf("%w: the %s is %d bytes long; at most %d are allowed", ErrInvalid, what, len(text), maxBytes)
	case !allows(text):
		return fmt.Errorf("%w: the %s %q has a character that is not allowed", ErrInvalid, what, text)
	}
	return nil
}

func isBonusType(text string) bool {
	for _, letter := range []byte(text) {
		isPlain := letter >= 'a' && letter <= 'z' || letter >= '0' && letter <= '9'
		if !isPlain && letter != '_' && letter != '-' && letter != '.' {
			return false
		}
	}
	return true
}
