package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Undeploy takes away everything that runs and everything that wakes it. What
// cannot be made again stays (namespaces with their agents and Secrets, volumes,
// the kinds themselves, the callers' roles) unless purge is set. It needs only kubectl.
func Undeploy(ctx context.Context, o Options, purge bool) error {
	o = o.withDefaults()
	say := func(format string, args ...any) { fmt.Fprintf(o.Log, "undeploy: "+format+"\n", args...) }
	_, objects, err := prepare(o)
	if err != nil {
		return err
	}
	if err := missingTools(false); err != nil {
		return err
	}
	data := only(objects, isData)
	rest := only(objects, func(x Object) bool { return !isData(x) })
	// First those who wake, last the ground.
	for _, s := range []int{stepWake, stepWork, stepSchema} {
		gone := only(rest, func(x Object) bool { return stepOf(x) == s })
		say("removing %s", kinds(gone))
		if err := removeKnown(ctx, gone); err != nil {
			return err
		}
	}
	say("ending the sandboxes")
	if _, err := kubectl(ctx, nil, "-n", o.Prefix+"sandbox", "delete", "pods", "--all", "--ignore-not-found", "--timeout=2m"); err != nil {
		return err
	}
	ground := only(rest, func(x Object) bool { return stepOf(x) == stepGround })
	say("removing %s", kinds(ground))
	if err := removeKnown(ctx, ground); err != nil {
		return err
	}
	if !purge {
		say("kept, with what is in them: %s. PURGE=1 removes them: conversations, agents and Secrets are gone then", strings.Join(describe(data), ", "))
		return nil
	}
	return purgeData(ctx, data, say)
}

// isData reports whether an object is, or holds, what cannot be made again.
func isData(o Object) bool {
	return o.is("", "Namespace") || o.is("", "PersistentVolumeClaim") || o.is("", "Secret") || isCommon(o)
}

// isCommon reports whether every install on the cluster uses this one object: the
// kinds, and the callers' roles, which people have bound.
func isCommon(o Object) bool {
	return o.is("apiextensions.k8s.io", "CustomResourceDefinition") ||
		o.is("rbac.authorization.k8s.io", "ClusterRole") && text(o.Content, "metadata", "labels", "app.kubernetes.io/component") == "access"
}

// purgeData removes the namespaces, and what is common unless there is another
// install: removing a kind removes every object of it and breaks every watch.
func purgeData(ctx context.Context, data []Object, say func(string, ...any)) error {
	spaces := only(data, func(x Object) bool { return x.is("", "Namespace") })
	say("removing the namespaces %s", names(spaces))
	if err := remove(ctx, spaces); err != nil {
		return err
	}
	common := only(data, isCommon)
	others, err := kubectl(ctx, nil, "get", "namespaces", "-l", partOf, "-o", "jsonpath={.items[*].metadata.name}")
	if err != nil {
		return err
	}
	if len(others) > 0 {
		say("kept: %s, which the install in %s uses", names(common), others)
		return nil
	}
	say("removing %s", names(common))
	return remove(ctx, common)
}

// partOf selects the namespaces of every install.
const partOf = "app.kubernetes.io/part-of=tuluat-harness"

// removeKnown removes the objects of kinds that the cluster serves: without
// Knative there can be none of its.
func removeKnown(ctx context.Context, objects []Object) error {
	out, err := kubectl(ctx, nil, "get", "--raw", "/apis")
	if err != nil {
		return fmt.Errorf("the cluster of KUBECONFIG (or of the current context) does not answer: %w", err)
	}
	var served struct{ Groups []struct{ Name string } }
	if err := json.Unmarshal(out, &served); err != nil {
		return err
	}
	known := only(objects, func(x Object) bool {
		group := groupOf(x.APIVersion)
		return group == "" || slices.ContainsFunc(served.Groups, func(g struct{ Name string }) bool { return g.Name == group })
	})
	var problems []error
	for _, group := range grouped(known) {
		problems = append(problems, remove(ctx, group))
	}
	return errors.Join(problems...)
}

// kinds counts objects for a person: 18 Triggers, 1 Broker.
func kinds(objects []Object) string {
	count := map[string]int{}
	var order []string
	for _, o := range objects {
		if count[o.Kind]++; count[o.Kind] == 1 {
			order = append(order, o.Kind)
		}
	}
	for i, kind := range order {
		order[i] = fmt.Sprintf("%d %s", count[kind], kind)
	}
	return strings.Join(order, ", ")
}

func describe(objects []Object) []string {
	var all []string
	for _, o := range objects {
		all = append(all, o.String())
	}
	return all
}
