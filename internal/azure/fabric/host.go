package fabric

import (
	"context"
	"crypto/sha256"
	"encoding/xml"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/serve"
)

// serveHost answers as Azure's host does: on 168.63.129.16:80 as the wire server, which every machine's agent polls, and on
// 169.254.169.254:80 as the Instance Metadata Service. Held: mu.
func (f *Fabric) serveHost(ctx context.Context) error {
	for _, service := range []hostService{
		{"the wire server", netip.AddrPortFrom(vnet.ProbeSource, 80), f.wireServer},
		{"the Instance Metadata Service", netip.AddrPortFrom(vnet.MetadataService, 80), f.metadataService},
	} {
		listen := func() (net.Listener, error) { return f.fabric.Listen(ctx, "tcp", service.address.String()) }
		l, err := listen()
		if err != nil {
			return fmt.Errorf("%s: %w", service.name, err)
		}
		f.done.Go(func() { f.keepServing(ctx, service, l, listen) })
	}
	return nil
}

// hostService is an HTTP server of Azure's host.
type hostService struct {
	name    string
	address netip.AddrPort
	answer  http.HandlerFunc
}

// keepServing answers until ctx ends, and listens again where that fails.
func (f *Fabric) keepServing(ctx context.Context, service hostService, l net.Listener, listen func() (net.Listener, error)) {
	what := "answer as " + service.name
	for {
		server := serve.New(service.answer, slog.NewLogLogger(f.cfg.Log.Handler(), slog.LevelWarn))
		err := server.Serve(ctx, l)
		for ; err != nil; l, err = listen() {
			if f.fault(what, err); !pause.For(ctx, listenAgain) {
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		f.fault(what, nil)
	}
}

const listenAgain = time.Second

// goalState is the wire server's answer to /machine/?comp=goalstate, with the fields that the Linux agent reads
// (azurelinuxagent/common/protocol/goal_state.py).
type goalState struct {
	XMLName     xml.Name `xml:"GoalState"`
	Version     string
	Incarnation int
	State       string   `xml:"Machine>ExpectedState"`
	StopHint    int      `xml:"Machine>StopRolesDeadlineHint"`
	ProbePorts  []int    `xml:"Machine>LBProbePorts>Port"`
	Health      string   `xml:"Machine>ExpectHealthReport"`
	ContainerID string   `xml:"Container>ContainerId"`
	Instances   []string `xml:"Container>RoleInstanceList>RoleInstance>InstanceId"`
}

func (f *Fabric) wireServer(w http.ResponseWriter, r *http.Request) {
	machine := f.machineAt(r.RemoteAddr)
	if r.URL.Path != "/machine/" && r.URL.Path != "/machine" || r.URL.Query().Get("comp") != "goalstate" || machine == "" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	w.Header().Set("Server", "Microsoft-IIS/10.0")
	id := sha256.Sum256([]byte(machine))
	body, err := xml.MarshalIndent(goalState{
		Version: "2012-11-30", Incarnation: 1, State: "Started", StopHint: 300000, ProbePorts: []int{16001}, Health: "FALSE",
		ContainerID: fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16]), Instances: []string{"_" + machine},
	}, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, "%s%s\n", xml.Header, body)
}

// machineAt names the machine that a request came from.
func (f *Fabric) machineAt(remote string) string {
	from, _, _ := net.SplitHostPort(remote)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, nic := range f.network.NICs {
		for _, c := range nic.IPConfigs {
			if c.Address.String() == from {
				return nic.Machine
			}
		}
	}
	return ""
}
