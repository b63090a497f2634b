package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// kubectl runs it with what it reads on stdin and returns what it prints. What
// it complains of is the error's text: it names objects, never the values of a
// Secret.
func kubectl(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.WaitDelay = 5 * time.Second
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.Bytes(), nil
}

// koScheme begins what stands for an image that is still to be built.
const koScheme = "ko://"

// Resolve builds and pushes an image for every ko:// of the YAML and writes its
// digest there. It runs in root, the repository.
func Resolve(ctx context.Context, root string, rendered []byte, log io.Writer) ([]byte, error) {
	if !bytes.Contains(rendered, []byte(koScheme)) {
		return rendered, nil
	}
	cmd := exec.CommandContext(ctx, "ko", "resolve", "-f", "-")
	words := &koWords{log: log}
	cmd.Dir, cmd.Stdin, cmd.Stderr = root, bytes.NewReader(rendered), words
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("ko resolve: %w\n%s", err, strings.Join(words.last, "\n"))
	}
	return out.Bytes(), nil
}

// koWords passes on which image is being built, and keeps the last lines of all
// the rest for when it fails: ko lists every changed file for every image.
type koWords struct {
	log  io.Writer
	part []byte
	last []string
}

func (w *koWords) Write(p []byte) (int, error) {
	w.part = append(w.part, p...)
	for {
		line, rest, whole := bytes.Cut(w.part, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		w.part = rest
		w.last = append(w.last, string(line))
		w.last = w.last[max(0, len(w.last)-40):]
		if i := bytes.Index(line, []byte("Building ")); i >= 0 {
			fmt.Fprintf(w.log, "deploy:   %s\n", line[i:])
		}
	}
}

// missingTools says which programs and settings are not here, and how to get them.
func missingTools(images bool) error {
	var problems []error
	if _, err := exec.LookPath("kubectl"); err != nil {
		problems = append(problems, errors.New("kubectl is not in PATH: https://kubernetes.io/docs/tasks/tools/"))
	}
	if !images {
		return errors.Join(problems...)
	}
	if _, err := exec.LookPath("ko"); err != nil {
		problems = append(problems, errors.New("ko, which builds the images, is not in PATH: go install github.com/google/ko@latest, or https://ko.build/install/"))
	}
	if os.Getenv("KO_DOCKER_REPO") == "" {
		problems = append(problems, errors.New("KO_DOCKER_REPO is not set: the repository that images are pushed to and the cluster pulls from, as in ghcr.io/you/tuluat; kind.local loads them into a kind cluster"))
	}
	return errors.Join(problems...)
}

// knative has what a cluster must serve, and what serves it.
var knative = []struct{ group, part string }{
	{"serving.knative.dev", "Serving"}, {"eventing.knative.dev", "Eventing"}, {"sources.knative.dev", "Eventing's sources"},
}

// missingInCluster says what the cluster lacks. brokerClass is that of the Broker
// which is about to be applied.
func missingInCluster(ctx context.Context, brokerClass string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := kubectl(ctx, nil, "get", "--raw", "/version", "--request-timeout=15s"); err != nil {
		return fmt.Errorf("the cluster of KUBECONFIG (or of the current context) does not answer: %w", err)
	}
	out, err := kubectl(ctx, nil, "get", "--raw", "/apis", "--request-timeout=15s")
	if err != nil {
		return fmt.Errorf("the cluster does not say what it serves: %w", err)
	}
	var problems []error
	for _, k := range knative {
		if !bytes.Contains(out, []byte(`"name":"`+k.group+`"`)) {
			problems = append(problems, fmt.Errorf("the cluster has no %s: Knative %s is not installed", k.group, k.part))
		}
	}
	if len(problems) > 0 {
		problems = append(problems, errors.New("install Knative: https://knative.dev/docs/install/ (on kind: `kn quickstart kind`), with an ingress and, for the kind overlay, the in-memory channel and the multi-tenant Broker"))
		return errors.Join(problems...)
	}
	return missingBroker(ctx, brokerClass)
}

// brokerParts has the Deployment whose absence leaves a Broker of the class
// without anybody who makes it ready.
var brokerParts = map[string]string{
	"MTChannelBasedBroker": "mt-broker-controller", "Kafka": "kafka-controller", "RabbitMQBroker": "rabbitmq-broker-controller",
}

func missingBroker(ctx context.Context, class string) error {
	part, known := brokerParts[class]
	if !known {
		return nil // somebody's own: its readiness will say
	}
	out, err := kubectl(ctx, nil, "get", "deployments", "-A", "-o", "jsonpath={.items[*].metadata.name}")
	if err != nil || slices.Contains(strings.Fields(string(out)), part) {
		return err
	}
	return fmt.Errorf("the Broker's class is %s, but no Deployment %s runs in the cluster: install that Broker (https://knative.dev/docs/eventing/brokers/broker-types/) or choose another overlay", class, part)
}
