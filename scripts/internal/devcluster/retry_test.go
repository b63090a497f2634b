package devcluster

import (
	"context"
	"net/http"
	"testing"

	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/eventing/pkg/kncloudevents"
)

// The rule written here is eventing's own.
func TestRetryRuleIsEventings(t *testing.T) {
	for status := 100; status < 600; status++ {
		want, err := kncloudevents.SelectiveRetry(context.Background(), &http.Response{StatusCode: status}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := retried(status); got != want {
			t.Errorf("%d: retried is %t, eventing says %t", status, got, want)
		}
	}
	exponential, linear := eventingduckv1.BackoffPolicyExponential, eventingduckv1.BackoffPolicyLinear
	for name, spec := range map[string]eventingduckv1.DeliverySpec{
		"exponential": {Retry: new(int32(6)), BackoffPolicy: &exponential, BackoffDelay: new("PT0.5S"), Timeout: new("PT330S")},
		"linear":      {Retry: new(int32(3)), BackoffPolicy: &linear, BackoffDelay: new("PT2S"), Timeout: new("PT1M")},
		"retry only":  {Retry: new(int32(3))},
		"nothing":     {},
	} {
		want, err := kncloudevents.RetryConfigFromDeliverySpec(spec)
		if err != nil {
			t.Fatal(err)
		}
		got, err := newRetryRule(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got.retries != want.RetryMax || got.timeout != want.RequestTimeout {
			t.Errorf("%s: %d retries of %s, eventing has %d of %s", name, got.retries, got.timeout, want.RetryMax, want.RequestTimeout)
		}
		for attempt := range got.retries {
			if wait := want.Backoff(attempt, nil); got.backoff(attempt) != wait {
				t.Errorf("%s: waits %s after attempt %d, eventing %s", name, got.backoff(attempt), attempt, wait)
			}
		}
	}
	if _, err := newRetryRule(eventingduckv1.DeliverySpec{BackoffPolicy: &linear, BackoffDelay: new("2s")}); err == nil {
		t.Error("2s is no ISO 8601 duration")
	}
}
