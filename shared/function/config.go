package function

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"tuluat.ai/harness/shared/harness"
)

// Config reads a function's environment and collects every problem, so that a
// person mends them all at once.
type Config struct {
	getenv   func(string) string
	problems []error
}

// NewConfig reads from getenv.
func NewConfig(getenv func(string) string) *Config { return &Config{getenv: getenv} }

// Text returns the variable, or def when it is empty.
func (c *Config) Text(name, def string) string {
	if v := c.getenv(name); v != "" {
		return v
	}
	return def
}

// Required returns the variable; empty is a problem. what says what it is for.
func (c *Config) Required(name, what string) string {
	v := c.getenv(name)
	if v == "" {
		c.Problem(name, "is not set: "+what)
	}
	return v
}

// OneOf returns the variable, or def when empty; anything not allowed is a problem.
func (c *Config) OneOf(name, def string, allowed ...string) string {
	v := c.Text(name, def)
	for _, a := range allowed {
		if v == a {
			return v
		}
	}
	c.Problem(name, fmt.Sprintf("is %q: use one of %q", v, allowed))
	return def
}

// Int returns the variable as a number of at least min, or def when empty.
func (c *Config) Int(name string, def, min int) int {
	v := c.getenv(name)
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < min {
		c.Problem(name, fmt.Sprintf("is %q: a whole number of at least %d is needed", v, min))
		return def
	}
	return n
}

// Duration returns the variable as a positive Go duration such as 90s, or def when empty.
func (c *Config) Duration(name string, def time.Duration) time.Duration {
	v := c.getenv(name)
	if v == "" {
		return def
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		c.Problem(name, fmt.Sprintf("is %q: a duration such as 90s or 10m is needed", v))
		return def
	}
	return d
}

// Secret returns the variable as a Secret; empty is allowed.
func (c *Config) Secret(name string) harness.Secret { return harness.Secret(c.getenv(name)) }

// Problem records that the variable name is wrong. It must not repeat a secret.
func (c *Config) Problem(name, what string) {
	c.problems = append(c.problems, fmt.Errorf("%s %s", name, what))
}

// Err returns every problem found, nil if none.
func (c *Config) Err() error {
	if len(c.problems) == 0 {
		return nil
	}
	return harness.Wrap(harness.Invalid, errors.Join(c.problems...), "configuration")
}
