package token

import (
	"bytes"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

// decode reads a token's content strictly: one token has one encoding, with the fields in ascending order and zero values
// left out.
func decode(content []byte) (*windfallpb.BonusToken, error) {
	said := &windfallpb.BonusToken{}
	if err := proto.Unmarshal(content, said); err != nil {
		return nil, err
	}
	if !bytes.Equal(encode(said), content) {
		return nil, errors.New("not the canonical encoding")
	}
	return said, nil
}

func encode(said *windfallpb.BonusToken) []byte {
	var out []byte
	out = putText(out, 1, said.GetTradeNo())
	out = putNumber(out, 2, said.GetUserId())
	out = putText(out, 3, said.GetAppId())
	out = putText(out, 4, said.GetActivity())
	out = putText(out, 5, said.GetScene())
	out = putText(out, 6, said.GetBonusType())
	out = putNumber(out, 7, said.GetAmount())
	out = putNumber(out, 8, said.GetAwardTimeMs())
	return putText(out, 9, said.GetDescription())
}

func putText(out []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return out
	}
	return protowire.AppendString(protowire.AppendTag(out, field, protowire.BytesType), text)
}

func putNumber(out []byte, field protowire.Number, number int64) []byte {
	if number == 0 {
		return out
	}
	return protowire.AppendVarint(protowire.AppendTag(out, field, protowire.VarintType), uint64(number))
}
