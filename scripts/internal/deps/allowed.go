package deps

import "slices"

// Allowed returns the external modules that program may link, nil for a program
// that has no list: tooling may link anything that Rules do not forbid.
func Allowed(program string) []string {
	switch program {
	case prefix + "functions/agent-step":
		return slices.Concat(shell, store, objects, models, cel, mcp, peers)
	case prefix + "functions/sandbox-exec":
		return slices.Concat(shell, store, objects, kube, pods)
	case prefix + "functions/reaper-cron":
		return slices.Concat(shell, store, objects, zstd, kube, pods, cel)
	case prefix + "functions/whatsapp-ingest", prefix + "functions/telegram-ingest":
		return slices.Concat(shell, store, objects, markdown)
	case prefix + "functions/agent-status":
		return slices.Concat(shell, store, yaml, jsonPath, kube, cel, registry)
	case prefix + "functions/management-api", prefix + "functions/management-api/internal/apidoc":
		return slices.Concat(shell, store, objects, zstd, yaml, jsonPath, kube, openAPI, cel, mcp, peers, signIn)
	case prefix + "functions/webhook-ingest":
		return slices.Concat(shell, store, jsonPath)
	case prefix + "functions/dead-letter":
		return slices.Concat(shell, store)
	case prefix + "functions/temporal-bridge":
		return slices.Concat(shell, store, temporal)
	case runner:
		return []string{"golang.org/x/sys"}
	case prefix + "scripts/tuluat":
		return slices.Concat(yaml, jsonPath, []string{
			"github.com/spf13/cobra", "github.com/spf13/pflag",
			"golang.org/x/sys", "golang.org/x/term", // a token is typed unseen
		})
	}
	return nil
}

// What shared/function brings: events in and out, metrics, traces.
var shell = []string{
	"github.com/cloudevents/sdk-go/v2",
	"github.com/json-iterator/go", // the SDK's
	"github.com/modern-go/concurrent",
	"github.com/modern-go/reflect2",
	"go.uber.org/multierr",
	"go.uber.org/zap",

	"github.com/prometheus/client_golang",
	"github.com/beorn7/perks", // Prometheus'
	"github.com/cespare/xxhash/v2",
	"github.com/munnerz/goautoneg",
	"github.com/prometheus/client_model",
	"github.com/prometheus/common",
	"github.com/prometheus/procfs",
	"golang.org/x/sys",
	"google.golang.org/protobuf",

	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace",
	"go.opentelemetry.io/otel/log", // OpenTelemetry's
	"go.opentelemetry.io/otel/metric",
	"go.opentelemetry.io/otel/sdk",
	"go.opentelemetry.io/otel/trace",
	"go.opentelemetry.io/auto/sdk",
	"go.opentelemetry.io/proto/otlp",
	"github.com/go-logr/logr",
	"github.com/go-logr/stdr",
	"github.com/google/uuid",
}

// What shared/postgres brings.
var store = []string{
	"github.com/jackc/pgx/v5",
	"github.com/jackc/pgpassfile", // pgx's
	"github.com/jackc/pgservicefile",
	"github.com/jackc/puddle/v2",
	"golang.org/x/sync",
	"golang.org/x/text",
}

// The official SDK of the Agent2Agent protocol and what it needs.
var peers = []string{
	"github.com/a2aproject/a2a-go",
	"github.com/google/uuid",
	"golang.org/x/sync",
}

// The two providers' official SDKs and what they need.
var models = []string{
	"github.com/anthropics/anthropic-sdk-go/v2",
	"github.com/openai/openai-go/v3",
	"github.com/bahlo/generic-list-go",
	"github.com/buger/jsonparser",
	"github.com/coder/websocket",
	"github.com/go-logr/logr",
	"github.com/go-logr/stdr",
	"github.com/invopop/jsonschema",
	"github.com/pb33f/ordered-map/v2",
	"github.com/standard-webhooks/standard-webhooks/libraries",
	"github.com/tidwall/gjson",
	"github.com/tidwall/match",
	"github.com/tidwall/pretty",
	"github.com/tidwall/sjson",
	"go.opentelemetry.io/auto/sdk",
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/otel/log",
	"go.opentelemetry.io/otel/metric",
	"go.opentelemetry.io/otel/trace",
	"go.yaml.in/yaml/v4",
}

// The official SDK of the Model Context Protocol and what it needs.
var mcp = []string{
	"github.com/modelcontextprotocol/go-sdk",
	"github.com/google/jsonschema-go",
	"github.com/segmentio/asm", // the SDK's JSON
	"github.com/segmentio/encoding",
	"github.com/yosida95/uritemplate/v3",
	"golang.org/x/oauth2",
	"golang.org/x/time",
}

// What the console asks an issuer of sign-ins with.
var signIn = []string{
	"github.com/coreos/go-oidc/v3",
	"github.com/go-jose/go-jose/v4",
	"golang.org/x/oauth2",
}

// What reads images of registries.
var registry = []string{
	"github.com/google/go-containerregistry",
	"github.com/docker/cli", // its keychain's
	"github.com/docker/docker-credential-helpers",
	"github.com/klauspost/compress",
	"github.com/mitchellh/go-homedir",
	"github.com/opencontainers/go-digest",
	"github.com/opencontainers/image-spec",
	"github.com/sirupsen/logrus",
	"golang.org/x/sync",
}

// What shared/archive brings: S3.
var objects = []string{
	"github.com/aws/aws-sdk-go-v2",
	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream",
	"github.com/aws/aws-sdk-go-v2/credentials",
	"github.com/aws/aws-sdk-go-v2/internal/configsources",
	"github.com/aws/aws-sdk-go-v2/internal/endpoints/v2",
	"github.com/aws/aws-sdk-go-v2/internal/v4a",
	"github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding",
	"github.com/aws/aws-sdk-go-v2/service/internal/checksum",
	"github.com/aws/aws-sdk-go-v2/service/internal/presigned-url",
	"github.com/aws/aws-sdk-go-v2/service/internal/s3shared",
	"github.com/aws/aws-sdk-go-v2/service/s3",
	"github.com/aws/smithy-go",
}

// What shared/archive/part brings: the archive's objects.
var zstd = []string{"github.com/klauspost/compress"}

// What client-go's rest package brings: the API server's wire.
var kube = []string{
	"k8s.io/client-go",
	"github.com/davecgh/go-spew",
	"github.com/fxamacker/cbor/v2",
	"github.com/go-logr/logr",
	"github.com/spf13/pflag", // clientcmd's
	"github.com/x448/float16",
	"go.yaml.in/yaml/v2",
	"golang.org/x/net",
	"golang.org/x/oauth2",
	"golang.org/x/term",
	"golang.org/x/time",
	"gopkg.in/inf.v0",
	"k8s.io/apimachinery",
	"k8s.io/klog/v2",
	"k8s.io/kube-openapi",
	"k8s.io/utils",
	"sigs.k8s.io/json",
	"sigs.k8s.io/randfill",
	"sigs.k8s.io/structured-merge-diff/v6",
	"sigs.k8s.io/yaml",
}

// What shared/sandbox/kubernetes brings beside it: Pods, and exec into them.
var pods = []string{
	"k8s.io/api",
	"github.com/emicklei/go-restful/v3", // the API's descriptions of itself
	"github.com/go-openapi/jsonpointer",
	"github.com/go-openapi/jsonreference",
	"github.com/go-openapi/swag",
	"github.com/google/gnostic-models",
	"github.com/google/uuid",
	"github.com/josharian/intern",
	"github.com/mailru/easyjson",
	"gopkg.in/evanphx/json-patch.v4",
	"gopkg.in/yaml.v3",
	"go.yaml.in/yaml/v3",
	"github.com/gorilla/websocket", // exec's transports
	"github.com/moby/spdystream",
	"github.com/mxk/go-flowrate",
}

// The REST API's document is made from its types.
var openAPI = []string{"github.com/danielgtaylor/huma/v2"}

// Answers are Markdown; each channel formats them in its own way.
var markdown = []string{"github.com/yuin/goldmark"}

// Temporal's official SDK, of which the client is used, and what it needs.
var temporal = []string{
	"go.temporal.io/api",
	"go.temporal.io/sdk",
	"github.com/facebookgo/clock",
	"github.com/gogo/protobuf",
	"github.com/golang/mock",
	"github.com/google/uuid",
	"github.com/grpc-ecosystem/go-grpc-middleware/v2",
	"github.com/grpc-ecosystem/grpc-gateway/v2",
	"github.com/nexus-rpc/nexus-proto-annotations",
	"github.com/nexus-rpc/sdk-go",
	"github.com/robfig/cron",
	"github.com/stretchr/objx",
	"github.com/stretchr/testify",
	"go.yaml.in/yaml/v3",
	"golang.org/x/net",
	"golang.org/x/time",
	"google.golang.org/genproto/googleapis/api",
	"google.golang.org/genproto/googleapis/rpc",
	"google.golang.org/grpc",
}

// What shared/workflow brings: the expressions and the schedules of workflows.
var cel = []string{
	"github.com/google/cel-go",
	"cel.dev/expr",
	"github.com/antlr4-go/antlr/v4",
	"github.com/stoewer/go-strcase",
	"golang.org/x/exp",
	"golang.org/x/text",
	"google.golang.org/genproto/googleapis/api",
	"google.golang.org/genproto/googleapis/rpc",
	"google.golang.org/protobuf",
	"github.com/robfig/cron/v3",
}

// Agents are written in YAML.
var yaml = []string{"go.yaml.in/yaml/v3"}

// A hook's JSON is mapped by RFC 9535 JSONPath.
var jsonPath = []string{"github.com/theory/jsonpath"}
