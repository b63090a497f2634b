package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Options say what is installed and where the words go. Overlay, Root and Log are
// needed.
type Options struct {
	Overlay  string        // the folder of a kustomization
	Root     string        // the repository, whose images are built
	Prefix   string        // of the three namespaces; default DefaultPrefix
	Log      io.Writer     // for a person: what is done, line by line
	Patience time.Duration // with everything that must become ready; default ten minutes each
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Patience == 0 {
		o.Patience = 10 * time.Minute
	}
	return o
}

// fieldManager owns what a deployment sets.
const fieldManager = "tuluat-deploy"

// Deploy installs the overlay, or brings what is installed to it, and returns when
// all of it is ready. It may be run again at any time, also after one that failed.
func Deploy(ctx context.Context, o Options) error {
	o = o.withDefaults()
	began := time.Now()
	say := func(format string, args ...any) { fmt.Fprintf(o.Log, "deploy: "+format+"\n", args...) }
	rendered, objects, err := prepare(o)
	if err != nil {
		return err
	}
	if err := missingTools(strings.Contains(string(rendered), koScheme)); err != nil {
		return err
	}
	if err := missingInCluster(ctx, brokerClass(objects)); err != nil {
		return err
	}
	for _, line := range exposed(ctx, objects) {
		say("WARNING: %s", line)
	}
	// What is missing is said before minutes are spent on images.
	spaces := only(objects, func(x Object) bool { return x.is("", "Namespace") })
	say("%d objects from %s into %s", len(objects), o.Overlay, names(spaces))
	if err := apply(ctx, spaces); err != nil {
		return err
	}
	if err := ensureDatabase(ctx, objects, say); err != nil {
		return err
	}
	if err := ensureConsole(ctx, objects, say); err != nil {
		return err
	}
	if err := missingSecrets(ctx, objects); err != nil {
		return fmt.Errorf("a Pod would wait for these forever; make them and deploy again:\n%w", err)
	}
	say("building and pushing the images")
	if rendered, err = Resolve(ctx, o.Root, rendered, o.Log); err != nil {
		return err
	}
	if objects, err = Objects(rendered); err != nil {
		return err
	}
	d := &deployment{options: o, say: say, wait: &waiter{say: say, ready: map[string]bool{}}}
	if err := d.run(ctx, objects); err != nil {
		return err
	}
	say("everything is ready after %s", time.Since(began).Round(time.Second))
	return nil
}

// prepare renders the overlay under the prefix.
func prepare(o Options) ([]byte, []Object, error) {
	rendered, err := Render(o.Overlay)
	if err != nil {
		return nil, nil, err
	}
	if rendered, err = Rename(rendered, o.Prefix); err != nil {
		return nil, nil, err
	}
	objects, err := Objects(rendered)
	return rendered, objects, err
}

type deployment struct {
	options Options
	say     func(string, ...any)
	wait    *waiter
}

// run applies the objects in four steps, each on ready ground: accounts, rights,
// settings and databases; the schema; those who work; those who wake them.
func (d *deployment) run(ctx context.Context, objects []Object) error {
	steps := map[int][]Object{}
	for _, x := range objects {
		s := stepOf(x)
		steps[s] = append(steps[s], x)
	}
	for _, s := range []int{stepGround, stepSchema, stepWork, stepWake} {
		if s == stepSchema { // a Job cannot be changed, only run again
			if err := remove(ctx, steps[s]); err != nil {
				return err
			}
		}
		if err := d.applyPatiently(ctx, steps[s]); err != nil {
			return err
		}
		if err := d.wait.await(ctx, only(steps[s], awaited), d.options.Patience); err != nil {
			return errors.Join(err, jobWords(ctx, steps[s]))
		}
	}
	return nil
}

const (
	stepGround = iota
	stepSchema
	stepWork
	stepWake
)

func stepOf(o Object) int {
	switch {
	case o.is("batch", "Job"):
		return stepSchema
	case o.is("serving.knative.dev", "Service"), o.is("eventing.knative.dev", "Broker"), o.is("apps", "Deployment"):
		return stepWork
	case o.is("eventing.knative.dev", "Trigger"), groupOf(o.APIVersion) == "sources.knative.dev":
		return stepWake
	}
	return stepGround
}

// awaited reports whether an object becomes ready at some time.
func awaited(o Object) bool {
	return stepOf(o) != stepGround || o.is("apps", "StatefulSet") || o.is("apiextensions.k8s.io", "CustomResourceDefinition")
}

// Knative's webhooks admit what is applied, and on a busy node they may just not
// answer; a manifest that is wrong is refused again a little later.
const (
	applyAttempts = 4
	applyPause    = 10 * time.Second
)

func (d *deployment) applyPatiently(ctx context.Context, objects []Object) error {
	for attempt := 1; ; attempt++ {
		err := apply(ctx, objects)
		if err == nil || attempt == applyAttempts || ctx.Err() != nil {
			return err
		}
		d.say("not everything was admitted, once more in %s: %v", applyPause, err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(applyPause):
		}
	}
}

// apply makes the objects what they say. What another manager has set of them is
// taken over: the YAML is what is meant.
func apply(ctx context.Context, objects []Object) error {
	if len(objects) == 0 {
		return nil
	}
	doc, err := list(objects)
	if err != nil {
		return err
	}
	_, err = kubectl(ctx, doc, "apply", "--server-side", "--force-conflicts", "--field-manager="+fieldManager, "-f", "-")
	return err
}

// remove deletes the objects and returns when they are gone.
func remove(ctx context.Context, objects []Object) error {
	if len(objects) == 0 {
		return nil
	}
	doc, err := list(objects)
	if err != nil {
		return err
	}
	_, err = kubectl(ctx, doc, "delete", "--ignore-not-found", "--wait", "--timeout=5m", "-f", "-")
	return err
}

// jobWords is what the Jobs among objects printed last, as an error to read.
func jobWords(ctx context.Context, objects []Object) error {
	var words []error
	for _, x := range only(objects, func(x Object) bool { return x.is("batch", "Job") }) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		out, err := kubectl(ctx, nil, "-n", x.Namespace, "logs", "job/"+x.Name, "--tail=15")
		cancel()
		if err == nil && len(out) > 0 {
			words = append(words, fmt.Errorf("%s said:\n%s", x, strings.TrimSpace(string(out))))
		}
	}
	return errors.Join(words...)
}

func only(objects []Object, keep func(Object) bool) []Object {
	return slices.DeleteFunc(slices.Clone(objects), func(o Object) bool { return !keep(o) })
}

func names(objects []Object) string {
	var all []string
	for _, o := range objects {
		all = append(all, o.Name)
	}
	return strings.Join(all, ", ")
}

func brokerClass(objects []Object) string {
	for _, o := range objects {
		if o.is("eventing.knative.dev", "Broker") {
			return text(o.Content, "metadata", "annotations", "eventing.knative.dev/broker.class")
		}
	}
	return ""
}
