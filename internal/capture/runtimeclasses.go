package capture

import (
	"fmt"
	"slices"
	"strings"
)

// RuntimeClassesFile is the file of the RuntimeClasses.
const RuntimeClassesFile = "runtimeclasses.json"

// runtimeClassObject holds what a capture keeps of a RuntimeClass (k8s.io/api node/v1).
type runtimeClassObject struct {
	Metadata metaObject `json:"metadata"`
	Handler  string     `json:"handler"`
}

// UsesNodeNetwork reports whether a handler is one, in its usual name, of a container runtime whose pods use the node's kernel for their
// network.
func UsesNodeNetwork(handler string) bool {
	return slices.Contains([]string{"runc", "crun", "youki"}, handler) || strings.HasPrefix(handler, "nvidia")
}

// sandbox says in which sandbox pods of a runtime class run: "" if in none, because the class is empty or its handler is known to have none.
func sandbox(class string, classes []runtimeClassObject) string {
	if class == "" {
		return ""
	}
	i := slices.IndexFunc(classes, func(c runtimeClassObject) bool { return c.Metadata.Name == class })
	if i < 0 {
		return fmt.Sprintf("runtimeClassName %s, whose handler is unknown", class)
	}
	handler := classes[i].Handler
	if UsesNodeNetwork(handler) {
		return ""
	}
	return fmt.Sprintf("runtimeClassName %s, handler %s", class, handler)
}
