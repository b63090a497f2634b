package devcluster

import (
	"fmt"
	"net/http"
	"time"

	"github.com/rickb777/date/period"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
)

// retryRule is eventing's rule of redelivery. It is written out again because
// eventing's package brings 220 more packages with it, a minute of a first
// build; a test compares the two for every status and every delivery spec of
// this project.
type retryRule struct {
	retries int
	timeout time.Duration // of one attempt; 0 is none
	backoff func(attempt int) time.Duration
}

func newRetryRule(spec eventingduckv1.DeliverySpec) (retryRule, error) {
	rule := retryRule{backoff: func(int) time.Duration { return 0 }}
	if spec.Retry != nil {
		rule.retries = int(*spec.Retry)
	}
	if spec.BackoffPolicy != nil && spec.BackoffDelay != nil {
		delay, err := duration(*spec.BackoffDelay)
		if err != nil {
			return rule, fmt.Errorf("backoffDelay: %w", err)
		}
		switch *spec.BackoffPolicy {
		case eventingduckv1.BackoffPolicyExponential:
			rule.backoff = func(attempt int) time.Duration { return delay << attempt }
		case eventingduckv1.BackoffPolicyLinear:
			rule.backoff = func(attempt int) time.Duration { return delay * time.Duration(attempt) }
		}
	}
	if spec.Timeout != nil {
		var err error
		if rule.timeout, err = duration(*spec.Timeout); err != nil {
			return rule, fmt.Errorf("timeout: %w", err)
		}
	}
	return rule, nil
}

// duration reads an ISO 8601 duration such as PT0.5S.
func duration(text string) (time.Duration, error) {
	p, err := period.Parse(text)
	if err != nil {
		return 0, err
	}
	d, _ := p.Duration()
	return d, nil
}

// retried reports whether an answer with this status is asked for again. No
// answer at all always is.
func retried(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}
