package lab

import "testing"

// TestFailure: of Azure's answer the problem has the message, of another error all of it.
func TestFailure(t *testing.T) {
	const answer = "Error syncing load balancer: PUT https://198.51.100.2/x\n----\nRESPONSE 400: 400 Bad Request\n" +
		"{\n  \"error\": {\n    \"code\": \"NotSupportedByLab\",\n    \"message\": \"The lab has none.\"\n  }\n}\n"
	for event, want := range map[string]string{answer: "The lab has none.", "no\nway": "no; way"} {
		if got := failure(event); got != want {
			t.Errorf("of %q: %q, not %q", event, got, want)
		}
	}
}
