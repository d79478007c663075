package app

// catalog is every application there is, in no particular order. Names and repositories are unique (a test sees to it).
//
// Applications without programs are images that bring a distribution: what they run is looked for in the container's file system.
var catalog = []App{
	{
		Name: "whereami", Images: []string{"erjosito/whereami"}, Entrypoint: []string{"/whereami"}, Ports: []int{80},
		Programs: []Program{{"/whereami", whereami}},
	},
	{
		Name: "kuard", Images: []string{"gcr.io/kuar-demo/kuard-amd64", "gcr.io/kuar-demo/kuard", "gcr.io/kuar-demo/kuard-arm64"},
		Cmd: []string{"/kuard"}, Ports: []int{8080}, Programs: []Program{{"/kuard", runKuard}},
	},
	{
		Name: "nginx", Images: []string{"nginx", "nginxinc/nginx-unprivileged", "mcr.microsoft.com/oss/nginx/nginx", "bitnami/nginx"},
		Cmd: []string{"nginx", "-g", "daemon off;"}, Env: []string{"NGINX_VERSION=1.27.5"}, Ports: []int{80},
		Programs: []Program{{"/usr/sbin/nginx", nginx}}, Files: []File{{"/usr/share/nginx/html/index.html", nginxWelcome}},
	},
	{
		Name: "httpd", Images: []string{"httpd"}, Cmd: []string{"httpd-foreground"}, Ports: []int{80},
		Programs: []Program{{"/usr/local/bin/httpd-foreground", httpd}},
		Files:    []File{{"/usr/local/apache2/htdocs/index.html", "<html><body><h1>It works!</h1></body></html>\n"}},
	},
	{
		Name: "agnhost", Images: []string{"registry.k8s.io/e2e-test-images/agnhost", "k8s.gcr.io/e2e-test-images/agnhost"},
		Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Programs: []Program{{"/agnhost", agnhost}},
	},
	{Name: "jessie-dnsutils", Images: []string{"registry.k8s.io/e2e-test-images/jessie-dnsutils"}, Cmd: []string{"bash"}},
	{
		Name: "pause", Bare: true, Images: []string{"packetwalk/pause", "registry.k8s.io/pause", "k8s.gcr.io/pause", "mcr.microsoft.com/oss/kubernetes/pause"},
		Entrypoint: []string{"/pause"}, Programs: []Program{{"/pause", pause}},
	},
	{
		Name: "ifconfig.co", Images: []string{"mpolden/echoip"}, Entrypoint: []string{"/opt/echoip/echoip"}, Ports: []int{80},
		Programs: []Program{{"/opt/echoip/echoip", ifconfigCo}},
	},
	{
		Name: "hello", Images: []string{"packetwalk/hello"}, Entrypoint: []string{"/hello"}, Ports: []int{80},
		Programs: []Program{{"/hello", hello}},
	},
	{
		Name: "echo", Images: []string{"packetwalk/echo"}, Entrypoint: []string{"/echo"}, Ports: []int{7, 80},
		Programs: []Program{{"/echo", echo}},
	},
	{
		Name: "dns", Bare: true, Images: []string{"packetwalk/dns"}, Entrypoint: []string{"/dns"}, Ports: []int{53}, Brought: []string{"/dns"},
	},
	{
		Name: "ip-masq-agent", Bare: true, Images: []string{"mcr.microsoft.com/aks/ip-masq-agent-v2", "mcr.microsoft.com/oss/kubernetes/ip-masq-agent"},
		Entrypoint: []string{"/ip-masq-agent"}, Programs: []Program{{"/ip-masq-agent", ipMasqAgent}},
	},
	{
		Name: "coredns", Bare: true, Images: []string{"registry.k8s.io/coredns/coredns", "mcr.microsoft.com/oss/kubernetes/coredns",
			"mcr.microsoft.com/oss/v2/kubernetes/coredns", "coredns/coredns"},
		Entrypoint: []string{"/coredns"}, Brought: []string{"/coredns"},
	},
	{
		Name: "metrics-server", Bare: true, Images: []string{"mcr.microsoft.com/oss/v2/kubernetes/metrics-server",
			"mcr.microsoft.com/oss/kubernetes/metrics-server", "registry.k8s.io/metrics-server/metrics-server"},
		Entrypoint: []string{"/metrics-server"}, Brought: []string{"/metrics-server"},
	},
	{
		Name: "ingress-nginx", Images: []string{"mcr.microsoft.com/oss/kubernetes/ingress/nginx-ingress-controller",
			"registry.k8s.io/ingress-nginx/controller"},
		Entrypoint: []string{"/nginx-ingress-controller"}, Brought: []string{"/nginx-ingress-controller"},
	},
	{
		Name: "defaultbackend", Bare: true, Images: []string{"mcr.microsoft.com/oss/kubernetes/defaultbackend", "registry.k8s.io/defaultbackend-amd64",
			"k8s.gcr.io/defaultbackend-amd64"},
		Entrypoint: []string{"/server"}, Ports: []int{8080}, Programs: []Program{{"/server", defaultBackend}},
	},
	{
		Name: "external-dns", Bare: true, Images: []string{"mcr.microsoft.com/oss/kubernetes/external-dns", "registry.k8s.io/external-dns/external-dns"},
		Entrypoint: []string{"/external-dns"}, Brought: []string{"/external-dns"},
	},
	{
		Name: "virtual-kubelet", Bare: true, Images: []string{"mcr.microsoft.com/oss/virtual-kubelet/virtual-kubelet", "microsoft/virtual-kubelet"},
		Entrypoint: []string{"/virtual-kubelet"}, Brought: []string{"/virtual-kubelet"},
	},
	{
		Name: "sleep", Images: []string{"packetwalk/sleep"}, Entrypoint: []string{"sleep"}, Cmd: []string{"infinity"},
	},
	{Name: "ubuntu", Images: []string{"ubuntu", "mcr.microsoft.com/mirror/docker/library/ubuntu"}, Cmd: []string{"/bin/bash"}},
	{Name: "debian", Images: []string{"debian", "mcr.microsoft.com/mirror/docker/library/debian"}, Cmd: []string{"bash"}},
	{Name: "alpine", Images: []string{"alpine"}, Cmd: []string{"/bin/sh"}},
	{Name: "busybox", Images: []string{"busybox", "mcr.microsoft.com/mirror/docker/library/busybox"}, Cmd: []string{"sh"}},
	{Name: "curl", Images: []string{"curlimages/curl"}, Entrypoint: []string{"curl"}, Cmd: []string{"curl", "-h"}},
	{Name: "netshoot", Images: []string{"nicolaka/netshoot"}, Cmd: []string{"bash"}},
}

// nginxWelcome is the page's title and, like the original of the articles' time, 612 bytes: "200 612" is what their access logs show.
const nginxWelcome = `<!DOCTYPE html>
<html>
<head>
<title>Welcome to nginx!</title>
<style>
body { width: 40em; margin: 2em auto; font-family: sans-serif; }
</style>
</head>
<body>
<h1>Welcome to nginx!</h1>
<p>This is the default page, which a web server shows without any documents
yet. The server is one of packetwalk's built-in applications and stands for
nginx: it answers from /usr/share/nginx/html and logs each request with the
address of the client that it saw.</p>
<p>What to look at next: the pod's log, and the walk that a packet takes
from your client to here.</p>
<p>Thank you for using packetwalk.</p>
</body>
</html>
`
