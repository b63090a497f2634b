//go:build e2e

package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
)

// patience is with whatever must happen: a cluster may be small and busy. What is
// late is measured, not failed.
const patience = 5 * time.Minute

// cluster is the one that KUBECONFIG names.
type cluster struct {
	config *rest.Config
	client kubernetes.Interface
}

// connect finds the cluster and what it needs to have.
func connect(ctx context.Context) (*cluster, error) {
	if os.Getenv("KUBECONFIG") == "" {
		return nil, errors.New("KUBECONFIG is not set: these tests need a Kubernetes cluster with Knative Serving and Eventing, and install into it under a prefix of their own")
	}
	for _, tool := range []string{"kubectl", "ko"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%s is not in PATH", tool)
		}
	}
	if os.Getenv("KO_DOCKER_REPO") == "" {
		return nil, errors.New("KO_DOCKER_REPO is not set: name the repository that the cluster pulls from, as in 127.0.0.1:5000/app")
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 50, 100
	config.Timeout = 0 // streams and watches last; each call has its own deadline
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	c := &cluster{config: config, client: client}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return nil, fmt.Errorf("the cluster of KUBECONFIG does not answer: %w", err)
	}
	for _, group := range []string{"serving.knative.dev/v1", "eventing.knative.dev/v1", "sources.knative.dev/v1"} {
		if _, err := client.Discovery().ServerResourcesForGroupVersion(group); err != nil {
			return nil, fmt.Errorf("the cluster has no %s: install Knative Serving and Eventing: %w", group, err)
		}
	}
	return c, nil
}

// kubectl runs it with the YAML on stdin and returns what it prints.
func (c *cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}

// pods lists the Pods of a namespace that a selector finds.
func (c *cluster) pods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// exec runs a command in a container as kubectl does, without any runner.
func (c *cluster) exec(ctx context.Context, namespace, pod, container string, command ...string) (string, error) {
	var out bytes.Buffer
	err := c.execTo(ctx, &out, namespace, pod, container, command...)
	return out.String(), err
}

// execTo is exec with what the command prints for out.
func (c *cluster) execTo(ctx context.Context, out io.Writer, namespace, pod, container string, command ...string) error {
	request := c.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(c.config, "GET", request.URL().String())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: out})
}

// shell runs a person's command, as those that restart parts of the cluster.
func shell(ctx context.Context, command string, out io.Writer) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 5 * time.Second // what it left running may hold its output open
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return err
}

// eventually asks until done says yes, and returns what it said last.
func eventually(ctx context.Context, within time.Duration, done func(context.Context) (bool, string)) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	again := time.NewTicker(250 * time.Millisecond)
	defer again.Stop()
	said := ""
	for {
		ok, state := done(ctx)
		if ok {
			return state, true
		}
		if ctx.Err() == nil {
			said = state
		}
		select {
		case <-ctx.Done():
			return said, false
		case <-again.C:
		}
	}
}

// as is a client that the API server takes for somebody else.
func (c *cluster) as(user string, groups ...string) (kubernetes.Interface, error) {
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return kubernetes.NewForConfig(config)
}
