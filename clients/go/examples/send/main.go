// The command send sends a reward through a gateway and shows the user's proof:
//
//	go run ./examples/send http://127.0.0.1:8080 KEY
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	windfall "github.com/windfall-rewards/windfall/clients/go"
	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return errors.New("give the gateway's address and a key of the role send")
	}
	connection, err := windfall.Open(windfall.Options{Endpoints: []string{os.Args[1]}, BearerKey: os.Args[2]})
	if err != nil {
		return err
	}
	defer connection.Close()
	rain, err := windfall.NewRedPacketRain(windfall.NewGateway(connection), "spring-2027", "cash")
	if err != nil {
		return err
	}
	token, err := giveRedPacket(context.Background(), rain, 42)
	if err != nil {
		return err
	}
	fmt.Println("the user's proof:", token)
	return nil
}

// giveRedPacket sends packet 0 that the user takes in round 1. While the answer is "unknown" or "not now" it sends the same
// order again, which credits once.
func giveRedPacket(ctx context.Context, rain *windfall.RedPacketRain, userID int64) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		prize := windfall.Prize{Amount: 888, Description: "red packet"}
		token, err := rain.Send(ctx, 1, &windfallpb.User{UserId: userID}, 0, prize)
		if err == nil || !windfall.IsWorthRetrying(err) || ctx.Err() != nil {
			return token, err
		}
		var told *windfall.Error
		wait := 100 * time.Millisecond
		if errors.As(err, &told) {
			wait = max(wait, told.RetryAfter)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return "", err
		}
	}
}
