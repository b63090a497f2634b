package cluster

import (
	"context"
	"fmt"
	"strings"

	"tuluat.ai/harness/shared/api/v1alpha1"
	"tuluat.ai/harness/shared/harness"
)

// configMap is what one look found.
type configMap struct {
	data map[string][]byte
	err  error
}

// skills reads the files of skills for one reconcile, each ConfigMap once. Nothing
// watches them: a change is seen at the next tick.
func (c *Cluster) skills(ctx context.Context) v1alpha1.SkillFiles {
	seen := map[string]configMap{}
	images := c.images()
	return func(agent harness.AgentName, s v1alpha1.Skill) (map[string][]byte, string, *v1alpha1.Problem) {
		if s.ImageRef != nil {
			return images.Files(ctx, agent, s)
		}
		ref := s.ConfigMapRef
		if ref == nil {
			return nil, "", &v1alpha1.Problem{Path: "folder", What: "is of agents that are kept as files", Fix: "use configMapRef"}
		}
		found, known := seen[ref.Name]
		if !known {
			found.data, found.err = c.resources.ConfigMap(ctx, ref.Name)
			seen[ref.Name] = found
		}
		files, problem := found.files(*ref, c.resources.Namespace)
		return files, "", problem
	}
}

// files are those of the skill that ref names.
func (found configMap) files(ref v1alpha1.ConfigMapRef, namespace string) (map[string][]byte, *v1alpha1.Problem) {
	switch {
	case harness.KindOf(found.err) == harness.NotFound:
		return nil, &v1alpha1.Problem{
			Path: "configMapRef.name", What: fmt.Sprintf("is %s, and there is no such ConfigMap in %s", ref.Name, namespace), Fix: "create it, or name another",
		}
	case found.err != nil:
		return nil, &v1alpha1.Problem{Path: "configMapRef", What: "has a problem that is not the author's", Fix: harness.MessageOf(found.err)}
	}
	if ref.Key != "" {
		text, written := found.data[ref.Key]
		if !written {
			return nil, &v1alpha1.Problem{Path: "configMapRef.key", What: fmt.Sprintf("is %s, which the ConfigMap %s does not have", ref.Key, ref.Name), Fix: "add it, name another, or leave key out for all of them"}
		}
		return map[string][]byte{harness.SkillManifest: text}, nil
	}
	all := make(map[string][]byte, len(found.data))
	for key, data := range found.data {
		name := strings.ReplaceAll(key, "__", "/") // two keys never come to one name: a key has no slash
		all[name] = data
	}
	return all, nil
}
