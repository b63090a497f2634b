package access

import "context"

type contextKey int

const (
	callerKey contextKey = iota
	requestKey
)

// From returns the caller that Middleware found; false outside of it and on
// open paths.
func From(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey).(Caller)
	return c, ok
}

// With returns a context that has a caller, for tests and for what runs on
// behalf of one.
func With(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey, c)
}

// RequestID returns the id of the request that ctx belongs to, "" if it has none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestKey).(string)
	return id
}
