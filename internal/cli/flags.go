package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// durationFlag is a flag whose value lies between two bounds.
type durationFlag struct {
	value    *time.Duration
	min, max time.Duration
}

// boundedDuration defines a flag of a duration from min to max.
func boundedDuration(f *pflag.FlagSet, value *time.Duration, name string, standard, min, max time.Duration, usage string) {
	*value = standard
	f.Var(&durationFlag{value, min, max}, name, usage)
}

// Set implements pflag.Value.
func (d *durationFlag) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil || v < d.min || v > d.max {
		return fmt.Errorf("want a duration from %s to %s", d.min, d.max)
	}
	*d.value = v
	return nil
}

// String implements pflag.Value.
func (d *durationFlag) String() string {
	if d.value == nil || *d.value == 0 {
		return ""
	}
	return d.value.String()
}

// Type implements pflag.Value.
func (d *durationFlag) Type() string { return "duration" }

// countFlag is a flag whose value lies between two bounds.
type countFlag struct {
	value    *int
	min, max int
}

// boundedCount defines a flag of a number from min to max.
func boundedCount(f *pflag.FlagSet, value *int, name string, standard, min, max int, usage string) {
	*value = standard
	f.Var(&countFlag{value, min, max}, name, usage)
}

// Set implements pflag.Value.
func (c *countFlag) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < c.min || n > c.max {
		return fmt.Errorf("want a number from %d to %d", c.min, c.max)
	}
	*c.value = n
	return nil
}

// String implements pflag.Value.
func (c *countFlag) String() string {
	if c.value == nil {
		return ""
	}
	return strconv.Itoa(*c.value)
}

// Type implements pflag.Value.
func (c *countFlag) Type() string { return "int" }
