// Package logs is how lines of a container's log are asked for, by whoever has one.
package logs

import "time"

// Options select lines of a log (core/v1, PodLogOptions). The zero value is all that there is.
type Options struct {
	Follow     bool      `json:"follow,omitempty"`   // until the container has ended
	Previous   bool      `json:"previous,omitempty"` // of the container's run before this one
	Tail       *int      `json:"tail,omitempty"`     // the last lines; nil is all
	Since      time.Time `json:"since,omitzero"`
	Timestamps bool      `json:"timestamps,omitempty"` // before each line its time, RFC 3339 with nanoseconds, and a space
	LimitBytes int64     `json:"limitBytes,omitempty"` // 0 is no limit
	Stream     string    `json:"stream,omitempty"`     // only "stdout" or "stderr"; "" both
}
