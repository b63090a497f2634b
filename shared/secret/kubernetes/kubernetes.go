// Package kubernetes hands out values of the Secrets of the agents' namespace.
// An agent may have only those that are labelled for it:
//
//	metadata:
//	  labels:
//	    tuluat.ai/agent-access: python-coder   # or: any
//
// It speaks to the API server itself, one GET with the Pod's own token: client-go
// would make each function's image twice as large for that.
package kubernetes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/secret"
)

// Label names the agent that may have a Secret; its value Any means all agents.
const (
	Label = "tuluat.ai/agent-access"
	Any   = "any"
)

const (
	fresh    = 30 * time.Second // a value that changed is seen within this
	stale    = 10 * time.Minute // kept while the API server does not answer
	checked  = 2 * time.Second  // one request serves the checks of many refs
	listTime = 5 * time.Second
	maxList  = 32 << 20 // bytes of one answer
)

// mounted is where a Pod finds its token and the API server's CA.
const mounted = "/var/run/secrets/kubernetes.io/serviceaccount"

// Source reads all labelled Secrets of a namespace with one request and keeps
// them in memory for half a minute.
type Source struct {
	url     string
	space   string // the namespace
	folder  string // of token and ca.crt; read at every request, as both are rotated
	now     func() time.Time
	mu      sync.Mutex
	secrets map[string]object
	read    time.Time
}

// object is what is read of a Secret.
type object struct {
	Metadata struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Data map[string][]byte `json:"data"`
}

// InCluster is a Source for a process in a Pod, with its ServiceAccount. It
// talks to nobody yet.
func InCluster(namespace string, getenv func(string) string, now func() time.Time) (*Source, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, harness.Errorf(harness.Invalid, "SECRETS=kubernetes needs a Pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	return New("https://"+net.JoinHostPort(host, port), mounted, namespace, now), nil
}

// New is a Source for the API server at base, with the credentials of folder.
func New(base, folder, namespace string, now func() time.Time) *Source {
	query := url.Values{"labelSelector": {Label}}
	return &Source{url: base + "/api/v1/namespaces/" + url.PathEscape(namespace) + "/secrets?" + query.Encode(), space: namespace, folder: folder, now: now}
}

// Values implements secret.Source.
func (s *Source) Values(ctx context.Context, agent harness.AgentName, ref harness.SecretRef) ([]harness.Secret, error) {
	text, err := s.Text(ctx, agent, ref)
	return secret.Split(text.Reveal()), err
}

// Text implements secret.Texts.
func (s *Source) Text(ctx context.Context, agent harness.AgentName, ref harness.SecretRef) (harness.Secret, error) {
	secrets, err := s.list(ctx, fresh, stale)
	if err != nil {
		return "", err
	}
	found, ok := secrets[ref.Name]
	if access := found.Metadata.Labels[Label]; !ok || access != string(agent) && access != Any {
		return "", nil
	}
	return harness.Secret(found.Data[ref.Key]), nil
}

// Check implements secret.Source. Whether a Secret without the label exists is
// not known here, as only those with it are read.
func (s *Source) Check(ctx context.Context, agent harness.AgentName, ref harness.SecretRef) (harness.SecretCheck, error) {
	c := harness.SecretCheck{Agent: agent, Ref: ref, State: harness.SecretAvailable}
	secrets, err := s.list(ctx, checked, checked)
	if err != nil {
		return c, err
	}
	found, ok := secrets[ref.Name]
	access := found.Metadata.Labels[Label]
	label := fmt.Sprintf("%s=%s", Label, agent)
	switch {
	case !ok:
		c.State, c.Reason = harness.SecretNotFound, fmt.Sprintf("no Secret %s with the label %s is in %s: create it with key %s, or label it", ref.Name, label, s.space, ref.Key)
	case access != string(agent) && access != Any:
		c.State, c.Reason = harness.SecretDenied, fmt.Sprintf("the Secret %s in %s is labelled for another agent: label one %s, or name another", ref.Name, s.space, label)
	case len(secret.Split(string(found.Data[ref.Key]))) == 0:
		c.State, c.Reason = harness.SecretEmpty, fmt.Sprintf("the Secret %s in %s has no key %s with a value: add it", ref.Name, s.space, ref.Key)
	}
	return c, nil
}

// list returns the Secrets, at most young old, or while the API server does not
// answer at most old. Callers wait for one another: one request serves all.
func (s *Source) list(ctx context.Context, young, old time.Duration) (map[string]object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := s.now().Sub(s.read)
	if s.secrets != nil && age < young {
		return s.secrets, nil
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), listTime, fmt.Errorf("secrets deadline of %s", listTime))
	defer cancel()
	items, err := s.get(ctx)
	if err != nil {
		if s.secrets != nil && age < old {
			return s.secrets, nil
		}
		return nil, err
	}
	s.secrets, s.read = make(map[string]object, len(items)), s.now()
	for _, found := range items {
		s.secrets[found.Metadata.Name] = found
	}
	return s.secrets, nil
}

func (s *Source) get(ctx context.Context) ([]object, error) {
	token, err := os.ReadFile(filepath.Join(s.folder, "token"))
	if err != nil {
		return nil, harness.Wrap(harness.Unavailable, err, "the Pod has no ServiceAccount token: SECRETS=kubernetes needs one")
	}
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, harness.Wrap(harness.Unavailable, err, "the Kubernetes API server does not answer")
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusForbidden, http.StatusUnauthorized:
		return nil, harness.Errorf(harness.Unavailable, "the Kubernetes API server does not let this function list Secrets: check its Role")
	default:
		return nil, harness.Errorf(harness.Unavailable, "the Kubernetes API server answered %d", response.StatusCode)
	}
	var list struct {
		Items []object `json:"items"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxList)).Decode(&list); err != nil {
		// The decoder's own text may quote what it read.
		return nil, harness.Errorf(harness.Unavailable, "the Kubernetes API server's list of Secrets cannot be read")
	}
	return list.Items, nil
}

// client trusts the cluster's own CA, where there is one.
func (s *Source) client() (*http.Client, error) {
	transport := &http.Transport{TLSHandshakeTimeout: listTime}
	ca, err := os.ReadFile(filepath.Join(s.folder, "ca.crt"))
	if err == nil {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(ca) {
			return nil, harness.Errorf(harness.Unavailable, "the Pod's ca.crt holds no certificate")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	} else if !os.IsNotExist(err) {
		return nil, harness.Wrap(harness.Unavailable, err, "the Pod's ca.crt cannot be read")
	}
	return &http.Client{Transport: transport}, nil
}
