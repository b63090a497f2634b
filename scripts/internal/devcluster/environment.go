package devcluster

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"tuluat.ai/harness/scripts/internal/manifest"
)

// inherited are the variables of this machine that a function gets as well: how
// to find programs, and how to reach a model through a proxy.
var inherited = []string{
	"PATH", "HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}

// agentsSource says where a function finds the agents. A folder stands for the
// API server here.
const agentsSource = "AGENTS_SOURCE"

// environment resolves a Service's variables: values, keys of Secrets, folders
// that stand for ConfigMaps, and cluster host names as addresses of this
// machine. Nothing else of this process's environment reaches a function.
func (c *Cluster) environment(spec *manifest.Service) ([]string, error) {
	values := map[string]string{}
	var problems []error
	for _, v := range spec.Env() {
		value, set, err := c.value(spec, v)
		if err != nil {
			problems = append(problems, fmt.Errorf("Service %s, env %s: %w", spec.Name, v.Name, err))
			continue
		}
		if set {
			values[v.Name] = value
		}
	}
	if _, reads := values[agentsSource]; reads && c.o.AgentsDir != "" {
		values[agentsSource], values["AGENTS_DIR"] = "folder", c.o.AgentsDir
	}
	if c.o.Env != nil {
		for name, value := range c.o.Env(spec) {
			values[name] = value
		}
	}
	if err := c.localise(spec, values); err != nil {
		problems = append(problems, err)
	}
	for _, name := range inherited {
		if value, ok := os.LookupEnv(name); ok && values[name] == "" {
			values[name] = value
		}
	}
	values["K_SERVICE"], values["K_CONFIGURATION"], values["K_REVISION"] = spec.Name, spec.Name, spec.Name+"-00001"
	var env []string
	for name, value := range values {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env, errors.Join(problems...)
}

func (c *Cluster) value(spec *manifest.Service, v manifest.EnvVar) (value string, set bool, err error) {
	if v.ValueFrom == nil {
		return v.Value, true, nil
	}
	ref := v.ValueFrom.SecretKeyRef
	value, ok := c.o.Secret(ref.Name, ref.Key)
	if !ok && !ref.Optional {
		return "", false, fmt.Errorf("the Secret %s has no key %s", ref.Name, ref.Key)
	}
	return value, ok, nil
}

// localise replaces cluster host names and mount paths by what stands for them
// on this machine. A cluster host name that nothing stands for is an error.
func (c *Cluster) localise(spec *manifest.Service, values map[string]string) error {
	var pairs []string
	for _, s := range c.services {
		pairs = append(pairs, "http://"+s.spec.Host(), s.endpoint.url())
	}
	pairs = append(pairs, "http://"+manifest.BrokerHost(), c.ingress.url())
	local := strings.NewReplacer(pairs...)
	mounts, err := c.mounts(spec)
	problems := []error{err}
	for name, value := range values {
		if folder, ok := mounts[value]; ok {
			value = folder
			if folder == "" { // optional, and nothing stands for it
				delete(values, name)
				continue
			}
		}
		values[name] = local.Replace(value)
		if strings.Contains(values[name], ".svc.cluster.local") {
			problems = append(problems, fmt.Errorf("Service %s, env %s: %q names nothing that runs here", spec.Name, name, value))
		}
	}
	return errors.Join(problems...)
}

// mounts maps each mount path to the folder that stands for its ConfigMap, empty
// for an optional one that nothing stands for. A process has no mounts of its
// own: only variables that are exactly the path are replaced.
func (c *Cluster) mounts(spec *manifest.Service) (map[string]string, error) {
	template := spec.Spec.Template.Spec
	maps := map[string]manifest.ConfigMapRef{}
	for _, v := range template.Volumes {
		maps[v.Name] = v.ConfigMap
	}
	paths := map[string]string{}
	var problems []error
	for _, m := range template.Containers[0].VolumeMounts {
		var folder string
		ok := false
		if c.o.ConfigMap != nil {
			folder, ok = c.o.ConfigMap(maps[m.Name].Name)
		}
		if !ok && !maps[m.Name].Optional {
			problems = append(problems, fmt.Errorf("Service %s: no folder stands for the ConfigMap %s", spec.Name, maps[m.Name].Name))
			continue
		}
		paths[m.MountPath] = folder
	}
	return paths, errors.Join(problems...)
}
