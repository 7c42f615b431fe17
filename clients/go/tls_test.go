package windfall

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/windfall-rewards/windfall/clients/go/windfallpb"
)

// authority issues certificates, and writes them and their keys into a folder.
type authority struct {
	folder      string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	own := &authority{folder: t.TempDir()}
	own.certificate, own.key = own.sign(t, "ca", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return own
}

func (a *authority) issue(t *testing.T, name string) (string, string) {
	a.sign(t, name, &x509.Certificate{DNSNames: []string{name}})
	return a.file(name + ".pem"), a.file(name + ".key")
}

func (a *authority) file(name string) string { return filepath.Join(a.folder, name) }

func (a *authority) sign(t *testing.T, name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	issuer, issuerKey := template, key
	if a.certificate != nil {
		issuer, issuerKey = a.certificate, a.key
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, issuer, &key.PublicKey, issuerKey)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: signed}, name + ".key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(a.file(file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	certificate, err := x509.ParseCertificate(signed)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

func TestACertificateIsAsGoodAsAKeyAndStrangersAreNotTrusted(t *testing.T) {
	own := newAuthority(t)
	serverCert, err := tls.LoadX509KeyPair(own.issue(t, "gateway.test"))
	if err != nil {
		t.Fatal(err)
	}
	callers := x509.NewCertPool()
	callers.AddCert(own.certificate)
	server, endpoint := serve(t, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{serverCert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: callers,
	})))
	cert, key := own.issue(t, "rain.test")
	good := Options{
		Endpoints: []string{strings.Replace(endpoint, "http://", "https://", 1)}, CAFile: own.file("ca.pem"),
		ClientCertFile: cert, ClientKeyFile: key, ServerName: "gateway.test", Attempts: 1, ConnectTimeout: 20 * time.Second,
	}
	if _, err := NewGateway(open(t, good)).SendBonus(t.Context(), &windfallpb.SendBonusRequest{}); err != nil {
		t.Error(err)
	}
	distrusted, misnamed, nameless := good, good, good
	distrusted.CAFile = newAuthority(t).file("ca.pem")
	misnamed.ServerName = "another.test"
	nameless.ClientCertFile, nameless.ClientKeyFile = "", ""
	for what, options := range map[string]Options{
		"another authority": distrusted, "another name": misnamed, "no certificate": nameless,
	} {
		_, err := NewGateway(open(t, options)).SendBonus(t.Context(), &windfallpb.SendBonusRequest{})
		if !errors.Is(err, ErrUnanswered) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if server.made() != 1 {
		t.Error(server.made())
	}
}
