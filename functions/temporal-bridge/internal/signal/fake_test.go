package signal_test

import (
	"context"
	"net"
	"sync"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// temporal is a Temporal server's frontend that keeps its one promise: of each
// request id, a run takes one signal.
type temporal struct {
	workflowservice.UnimplementedWorkflowServiceServer
	address string

	mu       sync.Mutex
	current  string          // run of workflow w; empty: there is none
	ended    map[string]bool // runs
	taken    map[string]bool // run and request id
	signals  []*workflowservice.SignalWorkflowExecutionRequest
	headers  metadata.MD // of the last request
	answer   error       // instead of looking
	lost     error       // after taking the signal
	hold     chan struct{}
	held     chan struct{} // closed when a request is held
	requests int
}

func serve(t *testing.T, o ...grpc.ServerOption) *temporal {
	t.Helper()
	f := &temporal{current: "run-1", ended: map[string]bool{}, taken: map[string]bool{}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = listener.Addr().String()
	server := grpc.NewServer(append(o, grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		response, err := handler(ctx, request)
		return response, serviceerror.ToStatus(err).Err()
	}))...)
	workflowservice.RegisterWorkflowServiceServer(server, f)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *temporal) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *temporal) sent() []*workflowservice.SignalWorkflowExecutionRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.signals
}

// asked is called under mu.
func (f *temporal) asked(ctx context.Context) error {
	f.requests++
	f.headers, _ = metadata.FromIncomingContext(ctx)
	return f.answer
}

func (f *temporal) DescribeWorkflowExecution(ctx context.Context, in *workflowservice.DescribeWorkflowExecutionRequest) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.asked(ctx); err != nil {
		return nil, err
	}
	if in.Execution.WorkflowId != "w" || f.current == "" {
		return nil, serviceerror.NewNotFound("no such workflow")
	}
	return &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{
		Execution: &commonpb.WorkflowExecution{WorkflowId: "w", RunId: f.current},
	}}, nil
}

func (f *temporal) SignalWorkflowExecution(ctx context.Context, in *workflowservice.SignalWorkflowExecutionRequest) (*workflowservice.SignalWorkflowExecutionResponse, error) {
	f.mu.Lock()
	if f.hold != nil {
		hold := f.hold
		close(f.held)
		f.mu.Unlock()
		select {
		case <-hold:
		case <-ctx.Done():
		}
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	if err := f.asked(ctx); err != nil {
		return nil, err
	}
	run := in.WorkflowExecution.RunId
	if !f.taken[run+in.RequestId] {
		if f.ended[run] {
			return nil, serviceerror.NewNotFound("workflow execution already completed")
		}
		f.taken[run+in.RequestId] = true
		f.signals = append(f.signals, in)
	}
	if f.lost != nil {
		return nil, f.lost
	}
	return &workflowservice.SignalWorkflowExecutionResponse{}, nil
}
