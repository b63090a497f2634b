package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// askEvery is how often a waiting deployment looks.
const askEvery = 2 * time.Second

// waiter waits for objects to become what they should be, and says which are, and
// now and then which are not.
type waiter struct {
	say   func(string, ...any)
	ready map[string]bool
}

// sayEvery is how often a person learns what is still waited for.
const sayEvery = 20 * time.Second

// state is how one object stands.
type state struct {
	ready bool
	final bool   // and it will not change: waiting is over
	word  string // for a person
}

// await waits until every one of objects is ready, at most for patience together.
func (w *waiter) await(ctx context.Context, objects []Object, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	said := time.Now()
	for {
		waiting, err := w.look(ctx, objects)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil && len(waiting) == 0 {
			return nil
		}
		if err == nil && time.Since(said) >= sayEvery {
			said = time.Now()
			w.say("waiting for %s", joined(waiting))
		}
		select {
		case <-time.After(askEvery):
		case <-ctx.Done():
			return w.overdue(objects, patience)
		}
	}
}

// late is an object that is not ready, and why.
type late struct {
	object Object
	word   string
}

func joined(waiting []late) string {
	var all []string
	for _, l := range waiting {
		all = append(all, l.object.String())
	}
	return strings.Join(all, ", ") + " (" + waiting[0].object.Name + ": " + waiting[0].word + ")"
}

// look returns the objects that are not ready.
func (w *waiter) look(ctx context.Context, objects []Object) ([]late, error) {
	var waiting []late
	for _, group := range grouped(objects) {
		now, err := fetch(ctx, group)
		if err != nil {
			return nil, err
		}
		for _, o := range group {
			s := judge(o, now[o.Name])
			switch {
			case s.final && !s.ready:
				return nil, fmt.Errorf("%s: %s", o, s.word)
			case !s.ready:
				waiting = append(waiting, late{o, s.word})
			case !w.ready[o.String()]:
				w.ready[o.String()] = true
				w.say("%s: %s", o, s.word)
			}
		}
	}
	return waiting, nil
}

// overdue says what each object still lacks, with what its Pods say.
func (w *waiter) overdue(objects []Object, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // the caller's time is over
	defer cancel()
	waiting, err := w.look(ctx, objects)
	if err != nil {
		return err
	}
	problems := []error{fmt.Errorf("not ready after %s", patience)}
	for _, l := range waiting {
		problems = append(problems, fmt.Errorf("%s: %s%s", l.object, l.word, podTrouble(ctx, l.object)))
	}
	return errors.Join(problems...)
}

// grouped puts objects together that one request can ask for.
func grouped(objects []Object) [][]Object {
	var groups [][]Object
	for _, o := range objects {
		i := slices.IndexFunc(groups, func(g []Object) bool {
			return g[0].APIVersion == o.APIVersion && g[0].Kind == o.Kind && g[0].Namespace == o.Namespace
		})
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], o)
	}
	return groups
}

// fetch returns the objects of one kind and namespace as they are now, by name.
func fetch(ctx context.Context, group []Object) (map[string]map[string]any, error) {
	args := []string{"get", resource(group[0]), "-o", "json", "--ignore-not-found"}
	if group[0].Namespace != "" {
		args = append(args, "-n", group[0].Namespace)
	}
	for _, o := range group {
		args = append(args, o.Name)
	}
	out, err := kubectl(ctx, nil, args...)
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, nil
	}
	var content map[string]any
	if err := json.Unmarshal(out, &content); err != nil {
		return nil, err
	}
	items, isList := content["items"].([]any)
	if !isList {
		items = []any{content}
	}
	now := map[string]map[string]any{}
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			now[text(m, "metadata", "name")] = m
		}
	}
	return now, nil
}

// resource is the object's kind as kubectl takes it without mistaking a Knative
// Service for one of Kubernetes.
func resource(o Object) string {
	group := groupOf(o.APIVersion)
	if group == "" {
		return strings.ToLower(o.Kind)
	}
	_, version, _ := strings.Cut(o.APIVersion, "/")
	return strings.ToLower(o.Kind) + "." + version + "." + group
}

// judge says how an object stands: nil is one that is not there.
func judge(o Object, now map[string]any) state {
	switch {
	case now == nil:
		return state{word: "not there yet"}
	case o.is("apps", "StatefulSet"), o.is("apps", "Deployment"):
		return judgeWorkload(now)
	case o.is("batch", "Job"):
		return judgeJob(now)
	case o.is("apiextensions.k8s.io", "CustomResourceDefinition"):
		return judgeCondition(now, "Established")
	case number(at(now, "status", "observedGeneration")) < number(at(now, "metadata", "generation")):
		return state{word: "its controller has not seen it yet"}
	}
	return judgeCondition(now, "Ready")
}

func judgeCondition(now map[string]any, kind string) state {
	status, why := condition(now, kind)
	switch {
	case status == "True":
		return state{ready: true, word: "ready"}
	case why == "":
		return state{word: "not ready yet"}
	}
	return state{word: "not ready: " + why}
}

func judgeWorkload(now map[string]any) state {
	want := number(at(now, "spec", "replicas"))
	up, updated := number(at(now, "status", "readyReplicas")), number(at(now, "status", "updatedReplicas"))
	seen := number(at(now, "status", "observedGeneration")) >= number(at(now, "metadata", "generation"))
	if seen && up >= want && updated >= want {
		return state{ready: true, word: "ready"}
	}
	return state{word: fmt.Sprintf("%d of %d pods ready", int(up), int(want))}
}

func judgeJob(now map[string]any) state {
	if status, _ := condition(now, "Complete"); status == "True" {
		return state{ready: true, word: "done"}
	}
	if status, why := condition(now, "Failed"); status == "True" {
		return state{final: true, word: "failed: " + why}
	}
	if failed := number(at(now, "status", "failed")); failed > 0 {
		return state{word: fmt.Sprintf("running, after %d failed attempts", int(failed))}
	}
	return state{word: "running"}
}

func condition(now map[string]any, kind string) (status, why string) {
	conditions, _ := at(now, "status", "conditions").([]any)
	for _, c := range conditions {
		if text(c, "type") == kind {
			why = strings.TrimSpace(text(c, "reason") + " " + text(c, "message"))
			return text(c, "status"), why
		}
	}
	return "", ""
}

// number reads what JSON has as a float.
func number(value any) float64 {
	n, _ := value.(float64)
	return n
}

// podTrouble is why the Pods of an object do not run, for those kinds that have
// some.
func podTrouble(ctx context.Context, o Object) string {
	var selector string
	switch {
	case o.is("serving.knative.dev", "Service"):
		selector = "serving.knative.dev/service=" + o.Name
	case o.is("apps", "StatefulSet"), o.is("apps", "Deployment"):
		selector = "app.kubernetes.io/name=" + o.Name
	case o.is("batch", "Job"):
		selector = "batch.kubernetes.io/job-name=" + o.Name
	default:
		return ""
	}
	const reasons = `jsonpath={range .items[*]}{.metadata.name} {.status.phase}` +
		` {.status.conditions[?(@.status=="False")].message}` +
		`{range .status.containerStatuses[*]} {.name}: {.state.waiting.reason} {.state.waiting.message} {.lastState.terminated.reason}{end}{"\n"}{end}`
	out, err := kubectl(ctx, nil, "-n", o.Namespace, "get", "pods", "-l", selector, "-o", reasons)
	if err != nil || len(strings.TrimSpace(string(out))) == 0 {
		return ""
	}
	return "\n    " + strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "\n    ")
}
