package signal

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"

	"tuluat.ai/harness/shared/harness"
)

// Connection is how Temporal is reached.
type Connection struct {
	Address               string // host:port
	TLS                   bool
	APIKey                Value
	ClientCert, ClientKey Value  // PEM, both or none
	ServerCA              Value  // PEM; none: the system's
	ServerName            string // that the server's certificate must have; empty: the host of Address
}

// Value is text, or the file that holds it, which is read each time it is needed:
// what a Secret is changed to holds without a restart.
type Value struct {
	Text harness.Secret
	File string
}

// Set reports whether there is one.
func (v Value) Set() bool { return v.Text != "" || v.File != "" }

// read returns the text. The file's name is in an error, and nothing of its
// content.
func (v Value) read() ([]byte, error) {
	if v.File == "" {
		return []byte(v.Text.Reveal()), nil
	}
	return os.ReadFile(v.File)
}

// Connect returns a client that connects when it is first used: Temporal may be
// down. What cannot be read or is no PEM is harness.Invalid.
func Connect(c Connection, log *slog.Logger) (client.Client, error) {
	o := client.Options{HostPort: c.Address, Logger: temporallog.NewStructuredLogger(log)}
	if c.TLS {
		config, err := c.tls()
		if err != nil {
			return nil, err
		}
		o.ConnectionOptions.TLS = config
	}
	if c.APIKey.Set() {
		o.Credentials = client.NewAPIKeyDynamicCredentials(func(context.Context) (string, error) {
			key, err := c.APIKey.read()
			return strings.TrimSpace(string(key)), err
		})
	}
	lazy, err := client.NewLazyClient(o)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "Temporal cannot be reached like this")
	}
	return lazy, nil
}

func (c Connection) tls() (*tls.Config, error) {
	config := &tls.Config{ServerName: c.ServerName, MinVersion: tls.VersionTLS12}
	if c.ServerCA.Set() {
		text, err := c.ServerCA.read()
		if err != nil {
			return nil, harness.Wrap(harness.Invalid, err, "TEMPORAL_TLS_SERVER_CA_CERT cannot be read")
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, harness.Errorf(harness.Invalid, "TEMPORAL_TLS_SERVER_CA_CERT holds no certificate")
		}
	}
	if !c.ClientCert.Set() {
		return config, nil
	}
	if _, err := c.certificate(); err != nil {
		return nil, err
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.certificate() }
	return config, nil
}

func (c Connection) certificate() (*tls.Certificate, error) {
	cert, err := c.ClientCert.read()
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "TEMPORAL_TLS_CLIENT_CERT cannot be read")
	}
	key, err := c.ClientKey.read()
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "TEMPORAL_TLS_CLIENT_KEY cannot be read")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, fmt.Errorf("client certificate: %w", err), "TEMPORAL_TLS_CLIENT_CERT and TEMPORAL_TLS_CLIENT_KEY are no pair in PEM")
	}
	return &pair, nil
}
