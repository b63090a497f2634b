package signal_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"tuluat.ai/harness/functions/temporal-bridge/internal/signal"
	"tuluat.ai/harness/shared/harness"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

// sign returns a certificate for name, and its key.
func (a *authority) sign(name string) (cert, key string) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, private.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
}

// A server that asks for a certificate gets ours, and our key; what a file is
// changed to holds from the next request on.
func TestMutualTLSAndAPIKey(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.sign("temporal.test")
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(a.pem)) {
		t.Fatal("no certificate")
	}
	f := serve(t, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12})))
	ourCert, ourKey := a.sign("tuluat")
	file := filepath.Join(t.TempDir(), "key")
	write(t, file, "first\n")
	w := newWorld(t, signal.Connection{
		Address: f.address, TLS: true, ServerName: "temporal.test", ServerCA: signal.Value{Text: harness.Secret(a.pem)}, APIKey: signal.Value{File: file},
		ClientCert: signal.Value{Text: harness.Secret(ourCert)}, ClientKey: signal.Value{Text: harness.Secret(ourKey)},
	})
	w.hear(w.decide("apr_1"))
	if got := strings.Join(f.headers.Get("authorization"), " "); got != "Bearer first" || w.state() != "SENT 1" {
		t.Errorf("authorization %q, %s, %s", got, w.state(), w.Query(`SELECT reason FROM temporal_signals`))
	}
	write(t, file, "second")
	w.hear(w.decide("apr_2"))
	if got := strings.Join(f.headers.Get("authorization"), " "); got != "Bearer second" {
		t.Errorf("authorization %q", got)
	}
	// A server with a certificate of another name is not told anything.
	other := newWorld(t, signal.Connection{
		Address: f.address, TLS: true, ServerName: "other.test", ServerCA: signal.Value{Text: harness.Secret(a.pem)},
		ClientCert: signal.Value{Text: harness.Secret(ourCert)}, ClientKey: signal.Value{Text: harness.Secret(ourKey)},
	})
	other.hear(other.decide("apr_1"))
	if got := other.state(); got != "PENDING 1" {
		t.Errorf("another server: %s", got)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
