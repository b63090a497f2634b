package main

import (
	"time"

	"k8s.io/client-go/rest"

	"tuluat.ai/harness/functions/management-api/internal/access"
	"tuluat.ai/harness/shared/function"
	"tuluat.ai/harness/shared/resource"
)

// open returns where agents and workflows are kept, and who knows the callers.
func open(cfg config, env function.Env) (resource.Store, access.Access, error) {
	var server *rest.Config
	if cfg.source == sourceKubernetes || cfg.access == accessKubernetes {
		var err error
		if server, err = resource.Config(env.Getenv); err != nil {
			return nil, nil, err
		}
	}
	resources, err := openResources(cfg, env, server)
	if err != nil {
		return nil, nil, err
	}
	callers, err := openAccess(cfg, env, server)
	return resources, callers, err
}

func openResources(cfg config, env function.Env, server *rest.Config) (resource.Store, error) {
	if cfg.source == sourceFolder {
		return resource.Folder{Path: cfg.agentsDir, Limits: cfg.agentLimits}, nil
	}
	cluster, err := resource.NewCluster(server, resource.Options{
		Namespace: cfg.agentsNamespace, Limits: cfg.agentLimits, ImagesDir: cfg.imagesDir, UserAgent: "tuluat-management-api",
	})
	if err != nil {
		return nil, err
	}
	env.OnExit(cluster.Close)
	return cluster, nil
}

func openAccess(cfg config, env function.Env, server *rest.Config) (access.Access, error) {
	if cfg.access == accessStatic {
		return access.NewStatic(cfg.tokens)
	}
	cluster, err := access.NewCluster(server, access.ClusterOptions{Namespace: cfg.agentsNamespace, Audiences: cfg.audiences, Now: time.Now})
	if err != nil {
		return nil, err
	}
	env.OnExit(cluster.Close)
	return cluster, nil
}
