package devcluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
	"github.com/robfig/cron/v3"
	sourcesv1 "knative.dev/eventing/pkg/apis/sources/v1"
)

// sourceRule is how often a source asks before an event of it is lost: five
// short retries. A source has no dead letter sink.
var sourceRule = retryRule{retries: 5, backoff: func(attempt int) time.Duration { return 50 * time.Millisecond << attempt }}

func parseSchedule(spec sourcesv1.PingSourceSpec) (cron.Schedule, error) {
	text := spec.Schedule
	if spec.Timezone != "" {
		text = "CRON_TZ=" + spec.Timezone + " " + text
	}
	return cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor).Parse(text)
}

// checkSources reports sources that could not be honoured.
func (c *Cluster) checkSources() error {
	var problems []error
	for _, p := range c.o.Manifest.Pings {
		_, _, err := c.o.Manifest.Target(p.Spec.Sink)
		problems = append(problems, named("PingSource", p.Name, err))
		_, err = parseSchedule(p.Spec)
		problems = append(problems, named("PingSource", p.Name, err))
		_, err = pingEvent(p)
		problems = append(problems, named("PingSource", p.Name, err))
	}
	for _, s := range c.o.Manifest.ResourceSources {
		_, _, err := c.o.Manifest.Target(s.Spec.Sink)
		if err == nil && (s.Spec.EventMode != sourcesv1.ReferenceMode || s.Spec.ResourceOwner != nil || s.Spec.NamespaceSelector != nil || len(s.Spec.Filters) > 0) {
			err = errors.New("only mode Reference without owner, selectors and filters is supported")
		}
		problems = append(problems, named("ApiServerSource", s.Name, err))
	}
	return errors.Join(problems...)
}

func named(kind, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", kind, name, err)
}

// runCron ticks every PingSource until ctx ends and its ticks are answered. As
// in the real adapter a slow sink does not hold the next tick back.
func (c *Cluster) runCron(ctx context.Context) {
	var ticking sync.WaitGroup
	defer ticking.Wait()
	for _, p := range c.o.Manifest.Pings {
		schedule, err := parseSchedule(p.Spec)
		if err != nil {
			continue // New refused it
		}
		ticking.Go(func() {
			for sleep(ctx, time.Until(schedule.Next(time.Now()))) {
				ticking.Go(func() {
					if err := c.ping(ctx, p); err != nil && ctx.Err() == nil {
						c.o.Log.Warn("tick lost", "source", p.Name, "err", err)
					}
				})
			}
		})
	}
}

// Tick sends one event of the PingSource now and returns when it is answered.
func (c *Cluster) Tick(ctx context.Context, name string) error {
	for _, p := range c.o.Manifest.Pings {
		if p.Name == name {
			return c.ping(ctx, p)
		}
	}
	return fmt.Errorf("there is no PingSource %s", name)
}

func (c *Cluster) ping(ctx context.Context, p *sourcesv1.PingSource) error {
	event, err := pingEvent(p)
	if err != nil {
		return err
	}
	c.counts.add(func(n *Counts) { n.Ticks++ })
	service, path, err := c.o.Manifest.Target(p.Spec.Sink)
	if err != nil {
		return err
	}
	return c.attempts(ctx, p.Name, destination{c.service(service.Name), path}, sourceRule, event, false).err
}

func pingEvent(p *sourcesv1.PingSource) (cloudevents.Event, error) {
	event := cloudevents.New()
	event.SetID(uuid.NewString())
	event.SetType(sourcesv1.PingSourceEventType)
	event.SetSource(sourcesv1.PingSourceSource(p.Namespace, p.Name))
	event.SetTime(time.Now().UTC())
	if o := p.Spec.CloudEventOverrides; o != nil {
		for name, value := range o.Extensions {
			event.SetExtension(name, value)
		}
	}
	data := []byte(p.Spec.Data)
	if p.Spec.DataBase64 != "" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(p.Spec.DataBase64); err != nil {
			return event, err
		}
	}
	if len(data) > 0 {
		if err := event.SetData(p.Spec.ContentType, data); err != nil {
			return event, err
		}
	}
	return event, event.Validate()
}
