// Package token opens users' tokens without a network: it proves that Windfall made a token, for whom and over how much.
//
// It needs a verifier's copy of the key ring, which `windfall keys export-verifier` writes from a ring of Ed25519 keys. Such a
// copy cannot make tokens. A ring of HMAC keys, which is the default, has no such copy, because whoever verifies with it can
// also mint: ask the gateway's Tokens/VerifyTokens then.
//
// A token that opens is genuine, no more: only the token store knows whether its reward is still on its way, and the wallet
// alone pays. Show it to the user as "on its way or arrived", and never hand out money for it.
package token

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

const (
	// TextMaxBytes is the length of the longest token text.
	TextMaxBytes = 1024

	version         = 1
	headerBytes     = 1 + 4 + prefixBytes + countBytes
	purpose         = "bonus-token"
	signatureDomain = "windfall bonus token signature\x00"
	domainBlock     = 64
)

// ErrIllegal: the text is not a token of this user. It says no more, whatever the cause.
var ErrIllegal = errors.New("illegal token")

// Verifier opens tokens of one tenant, which is the app that a fleet serves. Goroutines may share it.
type Verifier struct {
	keys   map[uint32]key
	tenant string
}

// Load reads a verifier's copy, which only its owner may be able to read. After a change of the key ring, export the copy and
// load it again. An error is [ErrKeyFile].
func Load(path, tenant string) (*Verifier, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(text, tenant)
}

// Parse takes the text of a verifier's copy, for those who keep it elsewhere than in a file. An error is [ErrKeyFile].
func Parse(text, tenant string) (*Verifier, error) {
	keys, err := parse(text)
	if err != nil {
		return nil, err
	}
	return &Verifier{keys, tenant}, nil
}

// Open opens a token that this user presents. The error is [ErrIllegal].
func (v *Verifier) Open(text string, userID int64) (*windfallpb.BonusToken, error) {
	// The length comes first: a text of 10 MB costs one comparison.
	if len(text) > TextMaxBytes || !isAlphabet(text) {
		return nil, ErrIllegal
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < headerBytes+tagBytes || raw[0] != version {
		return nil, ErrIllegal
	}
	// The key's number alone fixes the key and its algorithms: nothing is tried in turn.
	own, found := v.keys[binary.BigEndian.Uint32(raw[1:])]
	if !found || own.public == nil {
		return nil, ErrIllegal
	}
	header, sealed := raw[:headerBytes], raw[headerBytes:]
	associated := slices.Concat([]byte(purpose), raw[:5], []byte(v.tenant))
	inside, err := unseal(own.seal, header[5:], sealed, associated)
	if err != nil || len(inside) < ed25519.SignatureSize {
		return nil, ErrIllegal
	}
	content, signature := inside[:len(inside)-ed25519.SignatureSize], inside[len(inside)-ed25519.SignatureSize:]
	if !ed25519.Verify(own.public, slices.Concat(domainOf(v.tenant), header, content), signature) {
		return nil, ErrIllegal
	}
	// Only now are the bytes known to come from a minter; nothing was parsed before.
	said, err := decode(content)
	if err != nil || said.GetUserId() != userID {
		return nil, ErrIllegal
	}
	return said, nil
}

// domainOf is what a tenant's signed messages begin with, filled up to a whole block of SHA-256.
func domainOf(tenant string) []byte {
	domain := binary.BigEndian.AppendUint64([]byte(signatureDomain), uint64(len(tenant)))
	domain = append(domain, tenant...)
	return append(domain, make([]byte, (domainBlock-len(domain)%domainBlock)%domainBlock)...)
}

// isAlphabet is needed because the decoder passes over line breaks.
func isAlphabet(text string) bool {
	for _, letter := range []byte(text) {
		isPlain := letter >= 'a' && letter <= 'z' || letter >= 'A' && letter <= 'Z' || letter >= '0' && letter <= '9'
		if !isPlain && letter != '-' && letter != '_' {
			return false
		}
	}
	return true
}
