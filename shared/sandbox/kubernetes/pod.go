package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"tuluat.ai/harness/shared/harness"
	"tuluat.ai/harness/shared/sandbox"
)

// The names by which sandboxes are found, and which policies of the namespace
// select. Labels hold what is safe in them; the annotation of the same name has
// the whole value.
const (
	labelManaged = "app.kubernetes.io/managed-by"
	labelPart    = "app.kubernetes.io/component"
	labelAgent   = "tuluat.ai/agent"
	labelSession = "tuluat.ai/session"
	labelSandbox = "tuluat.ai/sandbox"
	labelEgress  = "tuluat.ai/egress"

	annotationExpires = "tuluat.ai/expires-at" // RFC 3339: a Pod's hard end

	manager  = "tuluat-harness"
	selector = labelManaged + "=" + manager + "," + labelPart + "=sandbox"

	container     = "sandbox"
	initContainer = "runner"
	runnerDir     = "/opt/tuluat"
	runnerPath    = runnerDir + "/runner"

	// ServiceAccount is the account of sandboxes. It has no rights, and its
	// token is not mounted.
	ServiceAccount = "sandbox"
)

const (
	user = 65532 // uid, gid and fsGroup: numeric, so that no image can name root

	graceSeconds = 5 // from SIGTERM, at which an idle PID 1 ends, to SIGKILL

	// deadlineMargin is between PID 1's own end and the kubelet's, whose clock
	// begins before the image is pulled.
	deadlineMargin = 90 * time.Second

	// idleMargin keeps PID 1's own idle end behind the platform's, which knows of
	// commands that are on their way. It matters only when the platform is down.
	idleMargin = 30 * time.Second

	runnerBytes = 16 << 20 // of the runner's volume
	extraBytes  = 32 << 20 // of a Pod's ephemeral storage beside its volumes: logs

	// maxProcesses is an rlimit, which the kernel counts per uid over the whole
	// node: it is no share, it keeps one sandbox from taking every pid there. A
	// Pod's own bound is the kubelet's podPidsLimit.
	maxProcesses = 4096

	// gateTimeout is how long a network may take to enforce its policy.
	gateTimeout = 15 * time.Second

	metadataAddress = "169.254.169.254:80" // of every large cloud
)

// pod is the Pod of sb. It depends on nothing but its arguments.
func (d *Driver) pod(sb sandbox.Sandbox, image string, now time.Time) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: sb.Name, Namespace: d.Namespace, Labels: labels(sb), Annotations: annotations(sb, sb.ExpiresAt),
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         new(seconds(sb.ExpiresAt.Sub(now) + deadlineMargin)),
			TerminationGracePeriodSeconds: new(int64(graceSeconds)),
			ServiceAccountName:            ServiceAccount,
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)),
				FSGroup: new(int64(user)), FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: container, Image: image,
				Command: []string{runnerPath, "init"}, Args: d.initArgs(sb, now),
				WorkingDir: "/", // PID 1's; commands start in the workspace
				Env:        environment(),
				Resources:  limits(sb.Spec),
				VolumeMounts: []corev1.VolumeMount{
					{Name: "runner", MountPath: runnerDir, ReadOnly: true},
					{Name: "workspace", MountPath: sandbox.Workspace},
					{Name: "tmp", MountPath: "/tmp"},
				},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext:          locked(),
			}},
			Volumes: []corev1.Volume{
				{Name: "runner", VolumeSource: emptyDir(runnerBytes)},
				{Name: "workspace", VolumeSource: workspace(sb)},
				{Name: "tmp", VolumeSource: emptyDir(sb.Spec.VolumeBytes)},
			},
		},
	}
	d.mountRunner(&pod.Spec)
	for _, name := range d.PullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	// A class that a spec names has passed the platform's list before the agent
	// was taken into use.
	class := sb.Spec.RuntimeClass
	if class == "" {
		class = d.RuntimeClass
	}
	if class != "" {
		pod.Spec.RuntimeClassName = &class
	}
	return pod
}

// mountRunner fills the volume of the runner.
func (d *Driver) mountRunner(spec *corev1.PodSpec) {
	if d.RunnerMount == ImageVolume {
		spec.Volumes[0].VolumeSource = corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: d.RunnerImage, PullPolicy: corev1.PullIfNotPresent}}
		spec.Containers[0].VolumeMounts[0].SubPath = "ko-app"
		return
	}
	spec.InitContainers = []corev1.Container{{
		Name: initContainer, Image: d.RunnerImage, ImagePullPolicy: corev1.PullIfNotPresent,
		Args: []string{"install", "--to", runnerDir},
		// The same as the sandbox's, which a Pod needs anyway: less would only
		// make it slower.
		Resources:                spec.Containers[0].Resources,
		VolumeMounts:             []corev1.VolumeMount{{Name: "runner", MountPath: runnerDir}},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext:          locked(),
	}}
}

func (d *Driver) initArgs(sb sandbox.Sandbox, now time.Time) []string {
	args := []string{
		"--name", sb.Name,
		"--ttl", sb.ExpiresAt.Sub(now).Round(time.Millisecond).String(),
		"--idle", (time.Duration(sb.Spec.IdleSeconds)*time.Second + idleMargin).String(),
		"--run-dir", "", // the root is read-only, and nobody reads it back
		"--file-size", strconv.FormatInt(sb.Spec.VolumeBytes, 10),
		"--processes", strconv.Itoa(maxProcesses),
	}
	if sb.Spec.KeepBackground {
		args = append(args, "--keep-background")
	}
	if d.CheckNetwork {
		args = append(args, "--must-not-reach", apiServer(d.Config.Host)+","+metadataAddress, "--gate-timeout", gateTimeout.String())
	}
	return args
}

// apiServer is the address by which Pods reach the API server. The kubelet
// fills it in: it is in the environment of every container. Only how an address
// with colons is written must be known here, from our own view of it.
func apiServer(host string) string {
	const address, port = "$(KUBERNETES_SERVICE_HOST)", "$(KUBERNETES_SERVICE_PORT)"
	if u, err := url.Parse(host); err == nil && strings.Contains(u.Hostname(), ":") {
		return "[" + address + "]:" + port
	}
	return address + ":" + port
}

func labels(sb sandbox.Sandbox) map[string]string {
	return map[string]string{
		labelManaged: manager, labelPart: "sandbox",
		labelAgent: labelValue(string(sb.Agent)), labelSession: labelValue(string(sb.Session)), labelSandbox: labelValue(string(sb.ID)),
		labelEgress: string(egress(sb.Spec)),
	}
}

func annotations(sb sandbox.Sandbox, expires time.Time) map[string]string {
	return map[string]string{
		labelAgent: string(sb.Agent), labelSession: string(sb.Session), labelSandbox: string(sb.ID),
		annotationExpires: expires.UTC().Format(time.RFC3339),
	}
}

func egress(spec harness.SandboxSpec) harness.Egress {
	if spec.Egress == "" {
		return harness.EgressDefault
	}
	return spec.Egress
}

// labelValue returns v when a label may hold it, else a readable part of it with
// a hash of all of it.
func labelValue(v string) string {
	if len(validation.IsValidLabelValue(v)) == 0 {
		return v
	}
	slug := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, v)
	slug = strings.Trim(slug[:min(len(slug), validation.LabelValueMaxLength-17)], "-")
	if slug == "" {
		return hash(v)
	}
	return slug + "-" + hash(v)
}

func hash(v string) string {
	sum := sha256.Sum256([]byte(v))
	return hex.EncodeToString(sum[:8])
}

func environment() []corev1.EnvVar {
	all := sandbox.Environment()
	env := make([]corev1.EnvVar, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, corev1.EnvVar{Name: name, Value: all[name]})
	}
	return env
}

// limits are what a sandbox gets, no more and no less: it is Guaranteed.
func limits(spec harness.SandboxSpec) corev1.ResourceRequirements {
	disk := spec.VolumeBytes + runnerBytes + extraBytes // /tmp and the rest
	if !persistent(spec) {
		disk += spec.VolumeBytes
	}
	list := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(spec.CPUMillis, resource.DecimalSI),
		corev1.ResourceMemory:           size(spec.MemoryBytes),
		corev1.ResourceEphemeralStorage: size(disk),
	}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

func size(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }

func locked() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Privileged: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func emptyDir(limit int64) corev1.VolumeSource {
	return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(size(limit))}}
}

func workspace(sb sandbox.Sandbox) corev1.VolumeSource {
	if persistent(sb.Spec) {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(sb)}}
	}
	return emptyDir(sb.Spec.VolumeBytes)
}

// seconds rounds up; an API server takes 1 to 2^31-1.
func seconds(d time.Duration) int64 {
	return min(max(int64(math.Ceil(d.Seconds())), 1), math.MaxInt32)
}
