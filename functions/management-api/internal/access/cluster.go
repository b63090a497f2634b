package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"tuluat.ai/harness/shared/harness"
)

// ClusterOptions say whom the API server is asked about.
type ClusterOptions struct {
	Namespace string   // of the agents: Roles there say who may do what
	Audiences []string // whom tokens must be made for; empty: the API server itself
	Now       func() time.Time
}

// Cluster is an Access that asks the API server: TokenReview whose token it is,
// LocalSubjectAccessReview what they may do. Answers are kept for keepGood or
// keepBad, so a token that is revoked, or a right that is taken away, ends within
// half a minute.
type Cluster struct {
	ClusterOptions
	client *rest.RESTClient

	// Strangers' tokens have a share of their own, so that no flood of them keeps
	// those waiting who are known.
	strangers, asking *rate.Limiter

	callers *cache[Caller]
	known   *cache[struct{}] // tokens that were somebody's
	unknown *cache[struct{}] // apart, so that a flood of bad tokens forgets no good one
	allowed *cache[struct{}]
	refused *cache[struct{}]
}

const (
	keepGood = 30 * time.Second
	// A right that was given a moment ago is not refused for long.
	keepBad = 10 * time.Second

	// keepKnown is how long the token of a caller who stays away is no stranger's.
	keepKnown = 4 * time.Hour

	maxCallers, maxKnown, maxUnknown, maxDecisions = 1024, 4096, 4096, 8192

	// askTime bounds one review with everything around it.
	askTime = 5 * time.Second
	// Reviews a second, and at once, of one process: of those who are known, and of
	// others, which is what a flood of bad tokens may cost the API server.
	askRate, askBurst             = 50, 100
	strangersRate, strangersBurst = 25, 50

	tokenReviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
	accessReviews = "/apis/authorization.k8s.io/v1/namespaces/%s/localsubjectaccessreviews"
)

// NewCluster returns the Access of the API server at config. It talks to nobody
// yet.
func NewCluster(config *rest.Config, o ClusterOptions) (*Cluster, error) {
	own := rest.CopyConfig(config)
	known := runtime.NewScheme()
	metav1.AddToGroupVersion(known, schema.GroupVersion{Version: "v1"})
	own.GroupVersion = &schema.GroupVersion{Group: "authentication.k8s.io", Version: "v1"}
	own.APIPath = "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(known).WithoutConversion()
	own.ContentConfig.ContentType, own.ContentConfig.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	own.QPS, own.Timeout, own.UserAgent = -1, askTime, "tuluat-management-api"
	client, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, harness.Wrap(harness.Invalid, err, "the API server's address or credentials cannot be used")
	}
	return &Cluster{
		ClusterOptions: o, client: client,
		strangers: rate.NewLimiter(strangersRate, strangersBurst), asking: rate.NewLimiter(askRate, askBurst), known: newCache[struct{}](maxKnown, keepKnown),
		callers: newCache[Caller](maxCallers, keepGood), unknown: newCache[struct{}](maxUnknown, keepBad),
		allowed: newCache[struct{}](maxDecisions, keepGood), refused: newCache[struct{}](maxDecisions, keepBad),
	}, nil
}

// Close frees idle connections.
func (c *Cluster) Close() { c.client.Client.CloseIdleConnections() }

// tokenReview is authentication.k8s.io/v1, as much of it as is used.
type tokenReview struct {
	APIVersion string             `json:"apiVersion"`
	Kind       string             `json:"kind"`
	Spec       tokenReviewSpec    `json:"spec"`
	Status     *tokenReviewStatus `json:"status,omitempty"`
}

type tokenReviewSpec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences,omitempty"`
}

type tokenReviewStatus struct {
	Authenticated bool     `json:"authenticated"`
	Audiences     []string `json:"audiences"`
	User          struct {
		Username string              `json:"username"`
		UID      string              `json:"uid"`
		Groups   []string            `json:"groups"`
		Extra    map[string][]string `json:"extra"`
	} `json:"user"`
}

// Identify implements Access. No error of it has the token in it, not even one
// that the API server would repeat it in.
func (c *Cluster) Identify(ctx context.Context, token string) (Caller, error) {
	now, key := c.Now(), digest(sha256.Sum256([]byte(token)))
	if caller, ok := c.callers.get(key, now); ok {
		return caller, nil
	}
	if _, ok := c.unknown.get(key, now); ok {
		return Caller{}, errUnknownToken()
	}
	review := tokenReview{
		APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview",
		Spec: tokenReviewSpec{Token: token, Audiences: c.Audiences},
	}
	share := c.strangers
	if _, ok := c.known.get(key, now); ok {
		share = c.asking
	}
	if err := c.ask(ctx, share, tokenReviews, review, &review); err != nil {
		return Caller{}, err
	}
	status := review.Status
	if status == nil || status.Authenticated && status.User.Username == "" {
		return Caller{}, harness.Errorf(harness.Unavailable, "the API server's answer does not say whose token it is")
	}
	if !status.Authenticated || !c.meant(status.Audiences) {
		c.unknown.put(key, struct{}{}, now)
		return Caller{}, errUnknownToken()
	}
	user := status.User
	caller := Caller{Name: user.Username, Groups: user.Groups, uid: user.UID, extra: user.Extra}
	c.callers.put(key, caller, now)
	c.known.put(key, struct{}{}, now)
	return caller, nil
}

// meant reports whether the token was made for one of ours. An API server that
// does not know of audiences names none.
func (c *Cluster) meant(audiences []string) bool {
	return len(c.Audiences) == 0 || slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(c.Audiences, a) })
}

// accessReview is authorization.k8s.io/v1, as much of it as is used.
type accessReview struct {
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"`
	Metadata   accessReviewMeta    `json:"metadata"`
	Spec       accessReviewSpec    `json:"spec"`
	Status     *accessReviewStatus `json:"status,omitempty"`
}

type accessReviewMeta struct {
	Namespace string `json:"namespace"`
}

type accessReviewSpec struct {
	Attributes resourceAttributes  `json:"resourceAttributes"`
	User       string              `json:"user"`
	Groups     []string            `json:"groups,omitempty"`
	UID        string              `json:"uid,omitempty"`
	Extra      map[string][]string `json:"extra,omitempty"`
}

type resourceAttributes struct {
	Namespace   string `json:"namespace"`
	Verb        string `json:"verb"`
	Group       string `json:"group"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Name        string `json:"name,omitempty"`
}

type accessReviewStatus struct {
	Allowed bool `json:"allowed"`
	Denied  bool `json:"denied"`
}

// Allow implements Access.
func (c *Cluster) Allow(ctx context.Context, caller Caller, r Right) (bool, error) {
	if caller.Static || caller.Name == "" {
		return false, nil
	}
	now, key := c.Now(), decisionKey(caller, r)
	if _, ok := c.allowed.get(key, now); ok {
		return true, nil
	}
	if _, ok := c.refused.get(key, now); ok {
		return false, nil
	}
	resource, sub, _ := strings.Cut(r.Resource, "/")
	review := accessReview{
		APIVersion: "authorization.k8s.io/v1", Kind: "LocalSubjectAccessReview", Metadata: accessReviewMeta{c.Namespace},
		Spec: accessReviewSpec{
			Attributes: resourceAttributes{Namespace: c.Namespace, Verb: r.Verb, Group: Group, Resource: resource, Subresource: sub, Name: r.Name},
			User:       caller.Name, Groups: caller.Groups, UID: caller.uid, Extra: caller.extra,
		},
	}
	if err := c.ask(ctx, c.asking, fmt.Sprintf(accessReviews, c.Namespace), review, &review); err != nil {
		return false, err
	}
	if review.Status == nil {
		return false, harness.Errorf(harness.Unavailable, "the API server's answer does not say what is allowed")
	}
	allowed := review.Status.Allowed && !review.Status.Denied
	if allowed {
		c.allowed.put(key, struct{}{}, now)
	} else {
		c.refused.put(key, struct{}{}, now)
	}
	return allowed, nil
}

// decisionKey tells questions apart: every part is written with its length.
func decisionKey(caller Caller, r Right) digest {
	h := sha256.New()
	write := func(parts ...string) {
		for _, p := range parts {
			fmt.Fprintf(h, "%d:%s", len(p), p)
		}
	}
	write(r.Verb, r.Resource, r.Name, caller.Name, caller.uid, fmt.Sprint(len(caller.Groups)))
	write(caller.Groups...)
	for _, name := range slices.Sorted(maps.Keys(caller.extra)) {
		write(name, fmt.Sprint(len(caller.extra[name])))
		write(caller.extra[name]...)
	}
	return digest(h.Sum(nil))
}

// ask posts a review and reads the answer. Whatever goes wrong is Unavailable:
// who cannot be asked about is not let in, and may try again.
func (c *Cluster) ask(ctx context.Context, share *rate.Limiter, path string, review, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	body, err := json.Marshal(review)
	if err != nil {
		return harness.Errorf(harness.Internal, "a review cannot be written")
	}
	if err := share.Wait(ctx); err != nil {
		return harness.Errorf(harness.Unavailable, "too many callers at once: the API server is not asked about more")
	}
	answer, err := c.client.Post().AbsPath(path).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Raw()
	if err != nil {
		return unanswered(err)
	}
	if json.Unmarshal(answer, into) != nil {
		return harness.Errorf(harness.Unavailable, "the API server's answer cannot be read")
	}
	return nil
}

// unanswered says why there is no review. The API server's own words are left
// out: they may repeat what was asked, and that has a token in it.
func unanswered(err error) error {
	answer, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return harness.Wrap(harness.Unavailable, err, "callers are not known: the API server does not answer")
	}
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return harness.Errorf(harness.Unavailable, "callers are not known: the API server does not let this function ask: check its ClusterRoleBinding and its Role")
	}
	return harness.Errorf(harness.Unavailable, "callers are not known: the API server answers %d", answer.ErrStatus.Code)
}
