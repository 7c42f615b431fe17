package token

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

type vectors struct {
	Tenant       string   `json:"tenant"`
	VerifierFile []string `json:"verifier_file"`
	Tokens       []struct {
		What    string            `json:"what"`
		Token   string            `json:"token"`
		UserID  int64             `json:"user_id,string"`
		Content map[string]string `json:"content"`
	} `json:"tokens"`
}

func load(t *testing.T) (vectors, string, *Verifier) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/token-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var known vectors
	if err := json.Unmarshal(text, &known); err != nil {
		t.Fatal(err)
	}
	file := strings.Join(known.VerifierFile, "\n") + "\n"
	verifier, err := Parse(file, known.Tenant)
	if err != nil {
		t.Fatal(err)
	}
	return known, file, verifier
}

func TestTokensAreJudgedAsWindfallJudgesThem(t *testing.T) {
	known, _, verifier := load(t)
	for _, vector := range known.Tokens {
		said, err := verifier.Open(vector.Token, vector.UserID)
		if vector.Content == nil {
			if err != ErrIllegal || said != nil {
				t.Errorf("%s: %v, %v", vector.What, said, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", vector.What, err)
			continue
		}
		number := func(value int64) string { return strconv.FormatInt(value, 10) }
		for name, value := range map[string]string{
			"trade_no": said.GetTradeNo(), "user_id": number(said.GetUserId()), "app_id": said.GetAppId(),
			"activity": said.GetActivity(), "scene": said.GetScene(), "bonus_type": said.GetBonusType(),
			"amount": number(said.GetAmount()), "award_time_ms": number(said.GetAwardTimeMs()),
			"description": said.GetDescription(),
		} {
			if value != vector.Content[name] {
				t.Errorf("%s: %s is %q, not %q", vector.What, name, value, vector.Content[name])
			}
		}
	}
}

func TestEveryFlippedBitAndEveryOtherLengthIsIllegal(t *testing.T) {
	known, file, verifier := load(t)
	text, owner := known.Tokens[0].Token, known.Tokens[0].UserID
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(raw) * 8 {
		raw[bit/8] ^= 1 << (bit % 8)
		if _, err := verifier.Open(base64.RawURLEncoding.EncodeToString(raw), owner); err != ErrIllegal {
			t.Fatal("bit", bit, err)
		}
		raw[bit/8] ^= 1 << (bit % 8)
	}
	for length := range len(text) {
		if _, err := verifier.Open(text[:length], owner); err != ErrIllegal {
			t.Fatal("length", length, err)
		}
	}
	for _, tenant := range []string{"", "Windfall", "windfal", "windfall2", "windfall\x00"} {
		other, err := Parse(file, tenant)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Open(text, owner); err != ErrIllegal {
			t.Error("tenant", tenant, err)
		}
	}
}

func TestAKeyFileThatIsDamagedOrCouldMintIsRefused(t *testing.T) {
	_, file, _ := load(t)
	for what, text := range map[string]string{
		"empty":         "",
		"cut":           file[:len(file)-1],
		"altered":       strings.Replace(file, "verify-only", "primary", 1),
		"another title": strings.Replace(file, "Windfall", "windfall", 1),
		"a newer one":   strings.Replace(file, "format = 1", "format = 2", 1),
	} {
		if _, err := Parse(text, "windfall"); !errors.Is(err, ErrKeyFile) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, _, err := parseKey("id = 1\nalgorithm = \"ed25519\"\nstate = \"primary\"\nsigning_secret = \"AAAA\"\n")
	if !errors.Is(err, ErrKeyFile) || !strings.Contains(err.Error(), "export-verifier") {
		t.Error(err)
	}

	path := filepath.Join(t.TempDir(), "verifier.toml")
	if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, "windfall"); !errors.Is(err, ErrKeyFile) || !strings.Contains(err.Error(), "chmod 600") {
		t.Error("others may read it:", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, "windfall"); err != nil {
		t.Error(err)
	}
	if _, err := Load(path+".none", "windfall"); !errors.Is(err, ErrKeyFile) {
		t.Error(err)
	}
}

// Both vectors of https://c2sp.org/XAES-256-GCM; the top bit of the first block is 0 in the first and 1 in the second.
func TestXAESGivesThePublishedResults(t *testing.T) {
	for _, vector := range []struct {
		key                int
		associated, sealed string
	}{
		{1, "", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"},
		{3, "c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"},
	} {
		sealed, err := hex.DecodeString(vector.sealed)
		if err != nil {
			t.Fatal(err)
		}
		secret := []byte(strings.Repeat(string(rune(vector.key)), 32))
		plain, err := unseal(secret, []byte("ABCDEFGHIJKLMNOPQRSTUVWX"), sealed, []byte(vector.associated))
		if err != nil || string(plain) != "XAES-256-GCM" {
			t.Error(vector.key, plain, err)
		}
	}
}
