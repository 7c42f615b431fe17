package token

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	// The largest key file that is read. A thousand keys take a third of it.
	fileMaxBytes = 1 << 20
	sealBytes    = 32
	title        = "# Windfall key ring. It holds secrets: chmod 600, and change it with `windfall keys` alone."
	format       = 1
)

// ErrKeyFile is what errors about a key file are.
var ErrKeyFile = errors.New("key file")

// key is a key of the ring. One that is pending or destroyed opens nothing and has no parts.
type key struct {
	seal   []byte
	public ed25519.PublicKey
}

func damaged(what string) error {
	return fmt.Errorf("%w: it is damaged or no key file (%s); export it again", ErrKeyFile, what)
}

// readFile reads a verifier's copy that only its owner may read: whoever has it can read every user's tokens.
func readFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	defer file.Close()
	about, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	if mode := about.Mode().Perm(); mode&0o077 != 0 {
		return "", fmt.Errorf("%w: others may read %s (mode %o); run: chmod 600 '%s'", ErrKeyFile, path, mode, path)
	}
	text, err := io.ReadAll(io.LimitReader(file, fileMaxBytes+1))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	if len(text) > fileMaxBytes {
		return "", damaged("longer than 1 MiB")
	}
	return string(text), nil
}

// parse reads the text of a verifier's copy, and checks it as a whole.
func parse(text string) (map[uint32]key, error) {
	first, rest, _ := strings.Cut(text, "\n")
	if first != title {
		return nil, damaged("the first line is not that of a key ring")
	}
	second, rest, _ := strings.Cut(rest, "\n")
	number, err := strconv.ParseUint(strings.TrimPrefix(second, "format = "), 10, 64)
	if err != nil {
		return nil, damaged("no format number")
	}
	if number != format {
		return nil, fmt.Errorf("%w: it has format %d, and this release knows %d; use a newer release", ErrKeyFile, number, format)
	}
	third, body, _ := strings.Cut(rest, "\n")
	digest := sha256.Sum256([]byte(body))
	if third != `digest = "`+base64.StdEncoding.EncodeToString(digest[:])+`"` {
		return nil, damaged("it is not what its digest says: cut or altered")
	}
	keys := map[uint32]key{}
	var last uint64
	for _, table := range strings.Split(body, "[[key]]\n")[1:] {
		id, own, err := parseKey(table)
		if err != nil {
			return nil, err
		}
		if id <= last {
			return nil, damaged("key numbers out of order")
		}
		last = id
		keys[uint32(id)] = own
	}
	if len(keys) == 0 {
		return nil, damaged("no key")
	}
	return keys, nil
}

// parseKey reads a key's table, as `windfall keys` writes it: a line for each value.
func parseKey(table string) (uint64, key, error) {
	values := map[string]string{}
	for line := range strings.Lines(table) {
		if line = strings.TrimSuffix(line, "\n"); line == "" {
			continue
		}
		name, value, found := strings.Cut(line, " = ")
		if _, twice := values[name]; !found || twice {
			return 0, key{}, damaged("a line that is no value")
		}
		values[name] = strings.Trim(value, `"`)
	}
	id, err := strconv.ParseUint(values["id"], 10, 32)
	if err != nil || id == 0 {
		return 0, key{}, damaged("a key without a number")
	}
	if _, signs := values["signing_secret"]; signs {
		return 0, key{}, fmt.Errorf("%w: key %d has its signing secret, with which tokens can be made; "+
			"verifiers need a copy without it: windfall keys export-verifier", ErrKeyFile, id)
	}
	switch values["state"] {
	case "pending", "destroyed":
		return id, key{}, nil
	case "primary", "verify-only":
	default:
		return 0, key{}, damaged("a key in an unknown state")
	}
	seal, sealErr := base64.StdEncoding.Strict().DecodeString(values["seal_secret"])
	public, publicErr := base64.StdEncoding.Strict().DecodeString(values["public_key"])
	isSized := len(seal) == sealBytes && len(public) == ed25519.PublicKeySize
	if values["algorithm"] != "ed25519" || errors.Join(sealErr, publicErr) != nil || !isSized {
		return 0, key{}, damaged("a key that does not verify")
	}
	return id, key{seal, public}, nil
}
