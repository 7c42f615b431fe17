package windfall

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	// The bytes of an answer at most: a full page of the archive.
	answerMaxBytes = 16 << 20
	// The first wait between two attempts, where the server says nothing; it doubles.
	waitFirst = 25 * time.Millisecond
	// The longest wait between two attempts, whatever the server asks for: longer ones are the caller's decision.
	waitMax = time.Second

	keepAliveEvery   = 15 * time.Second
	keepAliveTimeout = 5 * time.Second

	endpointsMax      = 64
	timeoutMax        = time.Minute
	attemptsMax       = 10
	defaultEndpoint   = "http://127.0.0.1:8080"
	connectTimeout    = 500 * time.Millisecond
	attemptTimeout    = time.Second
	attemptsByDefault = 3
)

// ErrOption is what errors of [Open] about options are: one is out of its range, or does not fit another.
var ErrOption = errors.New("option")

// Options say how to reach a service. The zero value of a field stands for its default.
type Options struct {
	// Endpoints are 1 to 64 of https://host:port or http://host:port. Calls use them in turn, and each further attempt of
	// a call uses another one. Default: http://127.0.0.1:8080.
	Endpoints []string
	// BearerKey is this service's key. It is never shown. Either this, or a certificate.
	BearerKey string
	// CAFile has the certificates (PEM) that servers are checked against; https needs it.
	CAFile string
	// ClientCertFile has this service's certificate chain (PEM); it comes with ClientKeyFile.
	ClientCertFile string
	// ClientKeyFile has its private key (PEM).
	ClientKeyFile string
	// ServerName is the name in the servers' certificates, where it is not the endpoints' host.
	ServerName string
	// KeyInPlainText sends the bearer key over http to other machines, too: where something else encrypts.
	KeyInPlainText bool
	// ConnectTimeout is how long making a connection may take: at most a minute; default 500 ms.
	ConnectTimeout time.Duration
	// AttemptTimeout is how long one attempt may take, connecting included: at most a minute; default 1 s. Choose rather
	// more for withdrawals than the wallet waits for a payout, or its answer comes with a later attempt.
	AttemptTimeout time.Duration
	// Attempts is the number of attempts of one call at most, the first included: at most 10; default 3.
	Attempts int
}

// String shows the options without the key.
func (o Options) String() string {
	return fmt.Sprintf("endpoints %q, CA file %q, certificate file %q, server name %q, %v to connect, %d attempts of %v",
		o.Endpoints, o.CAFile, o.ClientCertFile, o.ServerName, o.ConnectTimeout, o.Attempts, o.AttemptTimeout)
}

// GoString shows the options without the key.
func (o Options) GoString() string { return o.String() }

func (o Options) withDefaults() Options {
	if len(o.Endpoints) == 0 {
		o.Endpoints = []string{defaultEndpoint}
	}
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = connectTimeout
	}
	if o.AttemptTimeout == 0 {
		o.AttemptTimeout = attemptTimeout
	}
	if o.Attempts == 0 {
		o.Attempts = attemptsByDefault
	}
	return o
}

func wrongOption(format string, arguments ...any) error {
	return fmt.Errorf("%w %s", ErrOption, fmt.Sprintf(format, arguments...))
}

func (o Options) check() error {
	switch {
	case len(o.Endpoints) > endpointsMax:
		return wrongOption("Endpoints: there are %d; 1 to %d are allowed", len(o.Endpoints), endpointsMax)
	case o.ConnectTimeout < time.Millisecond || o.ConnectTimeout > timeoutMax:
		return wrongOption("ConnectTimeout is %v: 1 ms to %v is allowed", o.ConnectTimeout, timeoutMax)
	case o.AttemptTimeout < time.Millisecond || o.AttemptTimeout > timeoutMax:
		return wrongOption("AttemptTimeout is %v: 1 ms to %v is allowed", o.AttemptTimeout, timeoutMax)
	case o.Attempts < 1 || o.Attempts > attemptsMax:
		return wrongOption("Attempts is %d: 1 to %d is allowed", o.Attempts, attemptsMax)
	case (o.ClientCertFile == "") != (o.ClientKeyFile == ""):
		return wrongOption("ClientCertFile and ClientKeyFile come together")
	case !isVisibleASCII(o.BearerKey):
		// The key itself stays out of the error.
		return wrongOption("BearerKey is not visible ASCII")
	}
	return nil
}

// channels prepares a channel to each endpoint, none of them connected yet.
func (o Options) channels() ([]*grpc.ClientConn, error) {
	secure, err := o.tls()
	if err != nil {
		return nil, err
	}
	var channels []*grpc.ClientConn
	for _, endpoint := range o.Endpoints {
		channel, err := o.channel(endpoint, secure)
		if err != nil {
			closeAll(channels)
			return nil, err
		}
		channels = append(channels, channel)
	}
	return channels, nil
}

func (o Options) channel(endpoint string, secure *tls.Config) (*grpc.ClientConn, error) {
	address, err := url.Parse(endpoint)
	if err != nil || address.Hostname() == "" {
		return nil, wrongOption("Endpoints: %q is neither https://host:port nor http://host:port", endpoint)
	}
	transport := insecure.NewCredentials()
	port := "80"
	switch address.Scheme {
	case "https":
		if secure == nil {
			return nil, wrongOption("Endpoints: %q needs CAFile", endpoint)
		}
		transport, port = credentials.NewTLS(secure), "443"
	case "http":
		if o.ClientCertFile != "" {
			return nil, wrongOption("Endpoints: %q shows no certificate; use https, or leave ClientCertFile out", endpoint)
		}
		if o.BearerKey != "" && !o.KeyInPlainText && !isThisMachine(address.Hostname()) {
			return nil, wrongOption("Endpoints: %q would carry the key in plain text; use https, or set KeyInPlainText", endpoint)
		}
	default:
		return nil, wrongOption("Endpoints: %q is neither https:// nor http://", endpoint)
	}
	if address.Port() != "" {
		port = address.Port()
	}
	// The address is resolved at each dial. Windfall's own rules say what is repeated, so that gRPC's must not.
	return grpc.NewClient("passthrough:///"+net.JoinHostPort(address.Hostname(), port),
		grpc.WithTransportCredentials(transport),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: waitFirst, Multiplier: 2, Jitter: 0.2, MaxDelay: waitMax},
			MinConnectTimeout: o.ConnectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepAliveEvery, Timeout: keepAliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerMaxBytes)),
		grpc.WithStatsHandler(witness{}),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
	)
}

func (o Options) tls() (*tls.Config, error) {
	if o.CAFile == "" {
		return nil, nil
	}
	authorities, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read CAFile: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool(), ServerName: o.ServerName}
	if !config.RootCAs.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("CAFile %s has no certificate", o.CAFile)
	}
	if o.ClientCertFile != "" {
		own, err := tls.LoadX509KeyPair(o.ClientCertFile, o.ClientKeyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot use ClientCertFile and ClientKeyFile: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

func isThisMachine(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

func isVisibleASCII(text string) bool {
	return strings.IndexFunc(text, func(letter rune) bool { return letter < '!' || letter > '~' }) < 0
}
