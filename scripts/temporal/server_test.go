package temporal_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/schema/sqlite"
	"go.temporal.io/server/temporal"
)

const namespace = "orders"

// server is a Temporal server: all its services in this process, on a file that
// outlives them.
type server struct {
	t       *testing.T
	address string // of its frontend
	ports   []int  // kept over a restart, as an installation's are: gRPC and membership of each service, and metrics
	file    string
	running temporal.Server
}

// newServer returns one that is not started.
func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, ports: freePorts(t, 9), file: filepath.Join(t.TempDir(), "temporal.db")}
	s.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.ports[0]))
	c := s.config()
	sql := c.Persistence.DataStores[sqliteplugin.PluginName].SQL
	if err := sqlite.SetupSchema(sql); err != nil {
		t.Fatal(err)
	}
	ns, err := sqlite.NewNamespaceConfig("active", namespace, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sqlite.CreateNamespaces(sql, ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.running != nil {
			s.stop()
		}
	})
	return s
}

func (s *server) start() {
	s.t.Helper()
	running, err := temporal.NewServer(temporal.ForServices(temporal.DefaultServices), temporal.WithConfig(s.config()), temporal.WithLogger(log.NewNoopLogger()),
		temporal.WithAuthorizer(authorization.NewNoopAuthorizer()))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := running.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.running = running
}

func (s *server) stop() {
	s.t.Helper()
	if err := s.running.Stop(); err != nil {
		s.t.Error(err)
	}
	s.running = nil
}

// config is what Temporal's own development server has, on one file.
func (s *server) config() *config.Config {
	service := func(n int) config.Service {
		return config.Service{RPC: config.RPC{GRPCPort: s.ports[2*n], MembershipPort: s.ports[2*n+1], BindOnIP: "127.0.0.1"}}
	}
	off := config.ArchivalNamespaceDefaults{
		History: config.HistoryArchivalNamespaceDefaults{State: "disabled"}, Visibility: config.VisibilityArchivalNamespaceDefaults{State: "disabled"},
	}
	return &config.Config{
		Global: config.Global{
			Membership: config.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: "127.0.0.1"},
			Metrics:    &metrics.Config{Prometheus: &metrics.PrometheusConfig{ListenAddress: fmt.Sprintf("127.0.0.1:%d", s.ports[8]), HandlerPath: "/metrics"}},
		},
		Persistence: config.Persistence{
			DefaultStore: sqliteplugin.PluginName, VisibilityStore: sqliteplugin.PluginName, NumHistoryShards: 1,
			DataStores: map[string]config.DataStore{sqliteplugin.PluginName: {SQL: &config.SQL{
				PluginName: sqliteplugin.PluginName, DatabaseName: s.file, ConnectAttributes: map[string]string{"mode": "rwc", "_journal_mode": "wal", "_synchronous": "normal"},
			}}},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10, MasterClusterName: "active", CurrentClusterName: "active",
			ClusterInformation: map[string]cluster.ClusterInformation{"active": {Enabled: true, InitialFailoverVersion: 1, RPCAddress: s.address}},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		Services: map[string]config.Service{
			"frontend": service(0), "history": service(1), "matching": service(2), "worker": service(3),
		},
		Archival:          config.Archival{History: config.HistoryArchival{State: "disabled"}, Visibility: config.VisibilityArchival{State: "disabled"}},
		PublicClient:      config.PublicClient{HostPort: s.address},
		NamespaceDefaults: config.NamespaceDefaults{Archival: off},
	}
}

// freePorts returns as many different ones that nobody listens on.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() // only when all are known
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
