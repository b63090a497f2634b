package devcluster

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"go.uber.org/zap"
	eventingv1 "knative.dev/eventing/pkg/apis/eventing/v1"
	"knative.dev/eventing/pkg/eventfilter"
	"knative.dev/eventing/pkg/eventfilter/attributes"
	"knative.dev/eventing/pkg/eventfilter/subscriptionsapi"
	"knative.dev/pkg/logging"

	"tuluat.ai/harness/scripts/internal/manifest"
)

// broker is one Broker: what it takes it offers to each of its triggers.
type broker struct {
	spec     *eventingv1.Broker
	async    bool
	triggers []*trigger
}

// trigger is one Trigger: eventing's own filter and where a match goes.
type trigger struct {
	name   string
	filter eventfilter.Filter
	to     destination
	rule   retryRule
	dead   *destination
}

// destination is a Service and a path on it.
type destination struct {
	service *service
	path    string
}

func (d destination) url() string { return d.service.endpoint.url() + d.path }

// clusterURL is what the destination is called in a cluster.
func (d destination) clusterURL() string { return "http://" + d.service.spec.Host() + d.path }

const (
	maxEventBytes = 1 << 20 // more than any function takes
	defaultTTL    = 255     // replies of replies end here
)

func (c *Cluster) newBroker(spec *eventingv1.Broker) (*broker, error) {
	b := &broker{spec: spec, async: spec.Annotations[manifest.AsyncHandler] == "true"}
	for _, t := range c.o.Manifest.Triggers {
		if t.Namespace != spec.Namespace || t.Spec.Broker != spec.Name {
			continue
		}
		made, err := c.newTrigger(t)
		if err != nil {
			return nil, fmt.Errorf("Trigger %s: %w", t.Name, err)
		}
		b.triggers = append(b.triggers, made)
	}
	return b, nil
}

func (c *Cluster) newTrigger(spec *eventingv1.Trigger) (*trigger, error) {
	service, path, err := c.o.Manifest.Target(spec.Spec.Subscriber)
	if err != nil {
		return nil, err
	}
	t := &trigger{name: spec.Name, filter: newFilter(spec.Spec), to: destination{c.service(service.Name), path}}
	if spec.Spec.Delivery == nil {
		return nil, fmt.Errorf("it sets no delivery")
	}
	if t.rule, err = newRetryRule(*spec.Spec.Delivery); err != nil {
		return nil, err
	}
	if sink := spec.Spec.Delivery.DeadLetterSink; sink != nil {
		service, path, err := c.o.Manifest.Target(*sink)
		if err != nil {
			return nil, err
		}
		t.dead = &destination{c.service(service.Name), path}
	}
	return t, nil
}

// newFilter: filters override filter, as in the broker's own filter.
func newFilter(spec eventingv1.TriggerSpec) eventfilter.Filter {
	if len(spec.Filters) > 0 {
		return subscriptionsapi.CreateSubscriptionsAPIFilters(zap.NewNop(), spec.Filters)
	}
	if spec.Filter == nil {
		return subscriptionsapi.NewNoFilter()
	}
	return attributes.NewAttributesFilter(spec.Filter.Attributes)
}

// serveIngress is the shared entry of every Broker: POST /NAMESPACE/NAME.
func (c *Cluster) serveIngress(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	b := c.brokerAt(r.URL.Path)
	if b == nil {
		c.counts.add(func(n *Counts) { n.Refused++ })
		w.WriteHeader(http.StatusNotFound)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxEventBytes)
	event, err := cehttp.NewEventFromHTTPRequest(r)
	if err == nil {
		err = event.Validate()
	}
	if err != nil {
		c.o.Log.Warn("the broker refused what is no CloudEvent", "err", err)
		c.counts.add(func(n *Counts) { n.Refused++ })
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(c.publish(b, *event, defaultTTL))
}

func (c *Cluster) brokerAt(path string) *broker {
	for _, b := range c.brokers {
		if path == manifest.BrokerPath(b.spec.Namespace, b.spec.Name) {
			return b
		}
	}
	return nil
}

// publish offers the event to every trigger and returns the publisher's answer.
// With the async handler that is 202 at once; without it, the publisher waits
// for every delivery and learns of the ones that failed. Deliveries are not
// bound to the publisher's request in either case.
func (c *Cluster) publish(b *broker, event cloudevents.Event, ttl int) int {
	c.counts.add(func(n *Counts) { n.Published++ })
	if c.o.OnPublish != nil {
		c.o.OnPublish(event.Clone())
	}
	event.SetExtension("knativearrivaltime", time.Now().UTC().Format(time.RFC3339Nano))
	var fanout sync.WaitGroup
	var failed sync.Map
	ctx := logging.WithLogger(c.delivering, zap.NewNop().Sugar())
	for _, t := range b.triggers {
		if t.filter.Filter(ctx, event) == eventfilter.FailFilter {
			continue
		}
		c.counts.add(func(n *Counts) { n.Matched++ })
		for _, delay := range c.faults.deliveries(event, t.name, c.counts) {
			fanout.Add(1)
			c.deliveries.Go(func() {
				defer fanout.Done()
				if !sleep(ctx, delay) {
					return
				}
				reply, err := c.deliver(ctx, t, event.Clone())
				if err != nil {
					failed.Store(t.name, err)
				}
				if reply != nil && ttl > 1 {
					c.publish(b, *reply, ttl-1)
				}
			})
		}
	}
	if b.async {
		return http.StatusAccepted
	}
	fanout.Wait()
	status := http.StatusAccepted
	failed.Range(func(any, any) bool { status = http.StatusInternalServerError; return false })
	return status
}

// sleep returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// newRequest writes the event in binary mode, as the broker's filter sends it.
func newRequest(ctx context.Context, to destination, event cloudevents.Event) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url(), nil)
	if err != nil {
		return nil, err
	}
	if err := cehttp.WriteRequest(binding.WithForceBinary(ctx), binding.ToMessage(&event), request); err != nil {
		return nil, err
	}
	request.Host = to.service.spec.Host()
	request.Header.Set("Prefer", "reply")
	request.Header.Set("Kn-Namespace", to.service.spec.Namespace)
	return request, nil
}
