// Package cluster is the AiAgents and AiWorkflows of a Kubernetes cluster as
// agent-status sees them.
package cluster

import (
	"context"

	"k8s.io/client-go/rest"

	"tuluat.ai/harness/functions/agent-status/internal/status"
	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/resource"
)

// Cluster is the agents and workflows of one namespace. It is a status.Source
// and status.Resources.
type Cluster struct {
	resources *resource.Cluster
	images    func() status.SkillImages
}

// New returns the Cluster at config; images begins a look at the images of skills.
// It talks to nobody yet.
func New(config *rest.Config, o resource.Options, images func() status.SkillImages) (*Cluster, error) {
	resources, err := resource.NewCluster(config, o)
	if err != nil {
		return nil, err
	}
	return &Cluster{resources: resources, images: images}, nil
}

// Close frees idle connections.
func (c *Cluster) Close() { c.resources.Close() }

// Read implements status.Source. Either all agents were read or nothing is known.
// Workflows that cannot be listed keep nobody from the agents: they keep their
// statuses until the next look.
func (c *Cluster) Read(ctx context.Context) (status.Found, error) {
	limits, err := c.resources.Now()
	if err != nil {
		return status.Found{}, err
	}
	var found status.Found
	skills := c.skills(ctx)
	for _, kind := range []string{v1alpha1.KindAgent, v1alpha1.KindWorkflow} {
		items, err := c.resources.All(ctx, kind)
		if err != nil && kind == v1alpha1.KindWorkflow {
			found.Warnings, found.Unlisted = append(found.Warnings, err.Error()), true
			continue
		}
		if err != nil {
			return status.Found{}, err
		}
		for _, item := range items {
			add(&found, item, c.resources.Namespace, limits, skills)
		}
	}
	return found, nil
}

// add adds one resource to what was found.
func add(found *status.Found, r resource.Resource, namespace string, limits v1alpha1.Limits, skills v1alpha1.SkillFiles) {
	shown := show(r)
	document, problems := resource.Read(r, limits)
	if r.Kind == v1alpha1.KindWorkflow {
		if len(problems) > 0 {
			shown.Problems = problems.Error()
		}
		document.Workflow.Metadata.Name = r.Name // also where nothing could be read
		text := status.WorkflowText(document, problems, namespace+"/"+r.Name, "")
		text.Generation = r.Generation
		found.Workflows, found.Resources = append(found.Workflows, text), append(found.Resources, shown)
		return
	}
	document.Agent.Metadata.Name = r.Name // also where nothing could be read
	text := status.Text(document, problems, namespace+"/"+r.Name, "", limits, skills)
	text.Generation = r.Generation
	found.Texts, found.Resources = append(found.Texts, text), append(found.Resources, shown)
}

func show(r resource.Resource) status.Resource {
	return status.Resource{Kind: r.Kind, Name: r.Name, Generation: r.Generation, Version: r.Version, Status: r.Status()}
}

// Get implements status.Resources.
func (c *Cluster) Get(ctx context.Context, kind, name string) (status.Resource, error) {
	r, err := c.resources.Get(ctx, kind, name)
	return show(r), err
}

// PutStatus implements status.Resources.
func (c *Cluster) PutStatus(ctx context.Context, r status.Resource, next any) error {
	err := c.resources.PutStatus(ctx, resource.StatusOf{Kind: r.Kind, Name: r.Name, Version: r.Version, Is: r.Status}, next)
	if harness.KindOf(err) == harness.Stale {
		return harness.Wrap(harness.Conflict, err, harness.MessageOf(err))
	}
	return err
}
