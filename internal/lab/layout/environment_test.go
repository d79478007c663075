package layout

import (
	"slices"
	"testing"
)

func TestClientEnvironment(t *testing.T) {
	got := Dir("/run/packetwalk/a").ClientEnvironment([]string{
		"KUBECONFIG=/other", "HOME=/home/jose", "KUBERNETES_MASTER=http://127.0.0.1:1", "KUBERNETES_SERVICE_HOST=10.0.0.1",
		"KUBERC=/other", "KUBECACHEDIR=/other", "KUBE_EDITOR=vi", "KUBECONFIG=/again",
	})
	want := []string{"HOME=/home/jose", "KUBE_EDITOR=vi",
		"KUBECONFIG=/run/packetwalk/a/kubeconfig", "KUBERC=off", "KUBECACHEDIR=/run/packetwalk/a/kubectl"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestServerEnvironment(t *testing.T) {
	got := ServerEnvironment([]string{"PATH=/bin", "ETCD_DATA_DIR=/other", "KUBE_FEATURE_WatchListClient=false", "KUBECONFIG=/other",
		"KUBERNETES_MASTER=http://127.0.0.1:1", "HTTPS_PROXY=http://127.0.0.1:3128", "http_proxy=http://127.0.0.1:3128", "ALL_PROXY=x",
		"no_proxy=x", "GOTRACEBACK=all"})
	if want := []string{"PATH=/bin", "GOTRACEBACK=all"}; !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestHostEnvironment(t *testing.T) {
	d := Dir("/run/packetwalk/a")
	got := d.HostEnvironment([]string{"PATH=/bin", "https_proxy=http://127.0.0.1:3128", "KUBECONFIG=/other"})
	if want := append([]string{"PATH=/bin"}, d.ClientEnvironment(nil)...); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
