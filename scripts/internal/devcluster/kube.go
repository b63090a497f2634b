package devcluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"knative.dev/eventing/pkg/apis/sources"
	sourcesv1 "knative.dev/eventing/pkg/apis/sources/v1"
)

// resource is an object of the watched folder.
type resource struct{ apiVersion, kind, name string }

type fingerprint [sha256.Size]byte

// pollEvery is how soon an edit is seen.
const pollEvery = time.Second

// watchAgents plays every ApiServerSource from the agents folder until ctx
// ends: an object that appears, changes or goes is an event with its name. All
// of it appears at the start, as after kubectl apply.
func (c *Cluster) watchAgents(ctx context.Context) {
	if c.o.AgentsDir == "" || len(c.o.Manifest.ResourceSources) == 0 {
		return
	}
	folder := folderWatch{dir: c.o.AgentsDir, stamps: map[string]stamp{}}
	known := map[resource]fingerprint{}
	for {
		now, err := folder.scan(c.watched())
		if err != nil {
			c.o.Log.Warn("the agents folder cannot be read", "err", err)
		} else {
			for _, change := range differences(known, now) {
				c.announce(ctx, change)
			}
			known = now
		}
		if !sleep(ctx, pollEvery) {
			return
		}
	}
}

// watched returns the kinds that any source asks for.
func (c *Cluster) watched() []sourcesv1.APIVersionKindSelector {
	var all []sourcesv1.APIVersionKindSelector
	for _, s := range c.o.Manifest.ResourceSources {
		all = append(all, s.Spec.Resources...)
	}
	return all
}

type change struct {
	resource  resource
	eventType string
}

func differences(before, after map[resource]fingerprint) []change {
	var changes []change
	for r, mark := range after {
		old, ok := before[r]
		switch {
		case !ok:
			changes = append(changes, change{r, sources.ApiServerSourceAddRefEventType})
		case old != mark:
			changes = append(changes, change{r, sources.ApiServerSourceUpdateRefEventType})
		}
	}
	for r := range before {
		if _, ok := after[r]; !ok {
			changes = append(changes, change{r, sources.ApiServerSourceDeleteRefEventType})
		}
	}
	return changes
}

func (c *Cluster) announce(ctx context.Context, change change) {
	for _, s := range c.o.Manifest.ResourceSources {
		for _, kind := range s.Spec.Resources {
			if kind.APIVersion != change.resource.apiVersion || kind.Kind != change.resource.kind {
				continue
			}
			service, path, err := c.o.Manifest.Target(s.Spec.Sink)
			if err != nil {
				continue // New refused it
			}
			event, err := resourceEvent(change, s.Namespace)
			if err == nil {
				err = c.attempts(ctx, s.Name, destination{c.service(service.Name), path}, sourceRule, event, false).err
			}
			if err != nil && ctx.Err() == nil {
				c.o.Log.Warn("change not announced", "source", s.Name, "kind", kind.Kind, "name", change.resource.name, "err", err)
			}
		}
	}
}

// resourceEvent has the attributes and the data of the real source in mode
// Reference.
func resourceEvent(change change, namespace string) (cloudevents.Event, error) {
	r := change.resource
	event := cloudevents.New()
	event.SetID(uuid.NewString())
	event.SetType(change.eventType)
	event.SetSource("https://127.0.0.1/agents")
	event.SetSubject(fmt.Sprintf("/apis/%s/namespaces/%s/%ss/%s", r.apiVersion, namespace, strings.ToLower(r.kind), r.name))
	event.SetTime(time.Now().UTC())
	for name, value := range map[string]string{"kind": r.kind, "apiversion": r.apiVersion, "name": r.name, "namespace": namespace} {
		event.SetExtension(name, value)
	}
	err := event.SetData(cloudevents.ApplicationJSON, corev1.ObjectReference{APIVersion: r.apiVersion, Kind: r.kind, Namespace: namespace, Name: r.name})
	return event, errors.Join(err, event.Validate())
}

// stamp is what a file looked like when it was last read.
type stamp struct {
	modified time.Time
	size     int64
	objects  map[resource]fingerprint
}

// folderWatch reads only files whose time or size has changed.
type folderWatch struct {
	dir    string
	stamps map[string]stamp
}

func (f *folderWatch) scan(kinds []sourcesv1.APIVersionKindSelector) (map[resource]fingerprint, error) {
	all := map[resource]fingerprint{}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	fresh := map[string]stamp{}
	for _, entry := range entries {
		ext := filepath.Ext(entry.Name())
		info, err := entry.Info()
		if err != nil || entry.IsDir() || (ext != ".yaml" && ext != ".yml" && ext != ".json") {
			continue
		}
		last, ok := f.stamps[entry.Name()]
		if !ok || !last.modified.Equal(info.ModTime()) || last.size != info.Size() {
			text, err := os.ReadFile(filepath.Join(f.dir, entry.Name()))
			if err != nil {
				continue // gone since it was listed
			}
			last = stamp{modified: info.ModTime(), size: info.Size(), objects: objectsIn(entry.Name(), text, kinds)}
		}
		fresh[entry.Name()] = last
		for r, mark := range last.objects {
			if other, twice := all[r]; twice { // defined in two files: either's change is one
				mark = sha256.Sum256(append(other[:], mark[:]...))
			}
			all[r] = mark
		}
	}
	f.stamps = fresh
	return all, nil
}

// objectsIn returns the watched objects of a file. A file that is no YAML
// counts as an object of the first kind named like the file, so that whoever
// validates agents looks at it and says what is wrong.
func objectsIn(file string, text []byte, kinds []sourcesv1.APIVersionKindSelector) map[resource]fingerprint {
	objects := map[resource]fingerprint{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var head struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string `yaml:"kind"`
			Metadata   struct {
				Name string `yaml:"name"`
			} `yaml:"metadata"`
		}
		err := decoder.Decode(&head)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			name := strings.TrimSuffix(file, filepath.Ext(file))
			objects[resource{kinds[0].APIVersion, kinds[0].Kind, name}] = sha256.Sum256(text)
			return objects
		}
		for _, kind := range kinds {
			if head.APIVersion == kind.APIVersion && head.Kind == kind.Kind && head.Metadata.Name != "" {
				// The whole file's mark: an edit of one object announces its
				// neighbours too, which costs a look and nothing else.
				objects[resource{head.APIVersion, head.Kind, head.Metadata.Name}] = sha256.Sum256(text)
			}
		}
	}
}
