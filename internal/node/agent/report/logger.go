// Package report tells operators what the agent does and what fails: lines of its log, faults that last, and events of the API.
package report

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
)

// Logger writes formatted lines.
type Logger struct{ *slog.Logger }

// Infof writes a line.
func (l Logger) Infof(format string, args ...any) { l.Info(fmt.Sprintf(format, args...)) }

// Warnf writes a line that an operator should look at.
func (l Logger) Warnf(format string, args ...any) { l.Warn(fmt.Sprintf(format, args...)) }

// WriteJSON answers a request with a value.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // a client that has closed the connection does not need it
}
