package instances

import (
	"strings"
	"testing"
)

const goodKubeconfig = `apiVersion: v1
kind: Config
preferences: {}
current-context: aks
clusters: [{name: aks, cluster: {server: "https://203.0.113.1", certificate-authority-data: QQ==}}]
users: [{name: node, user: {client-certificate-data: QQ==, client-key-data: Qg==}}]
contexts: [{name: aks, context: {cluster: aks, user: node}}]
`

// What comes over the interface names no program and no file of this machine to the proxy, which runs as root.
func TestOwnKubeconfig(t *testing.T) {
	got, err := ownKubeconfig([]byte(goodKubeconfig))
	if err != nil || !strings.Contains(string(got), "client-key-data: Qg==") {
		t.Fatalf("%s, %v", got, err)
	}
	if again, err := ownKubeconfig(got); err != nil || string(again) != string(got) {
		t.Errorf("%s, %v", again, err)
	}
	for _, bad := range []string{
		"", "a: b", "[]", "kind: Config",
		strings.Replace(goodKubeconfig, "client-key-data: Qg==", "exec: {command: /bin/sh, apiVersion: client.authentication.k8s.io/v1}", 1),
		strings.Replace(goodKubeconfig, "client-key-data: Qg==", "client-key: /etc/ssl/private/key", 1),
		strings.Replace(goodKubeconfig, "client-key-data: Qg==", "tokenFile: /etc/shadow", 1),
		strings.Replace(goodKubeconfig, "client-key-data: Qg==", "auth-provider: {name: gcp, config: {cmd-path: /bin/sh}}", 1),
		strings.Replace(goodKubeconfig, "certificate-authority-data: QQ==", "certificate-authority: /etc/shadow", 1),
		goodKubeconfig + "---\n" + goodKubeconfig,
	} {
		if got, err := ownKubeconfig([]byte(bad)); err == nil {
			t.Errorf("%s\nis taken as %s", bad, got)
		}
	}
}
