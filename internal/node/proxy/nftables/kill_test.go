package nftables

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
)

var kills = flag.Int("kills", 20, "how often TestKilled kills who syncs")

const killedSeed = "PACKETWALK_TEST_KILLED"

func newRandomWorld(seed uint64) *randomWorld {
	return &randomWorld{r: rand.New(rand.NewPCG(seed, 9)), services: map[int]*corev1.Service{}, slices: map[int]*discoveryv1.EndpointSlice{}}
}

// TestMain plays who syncs until it is killed where TestKilled asks for it.
func TestMain(m *testing.M) {
	seed, err := strconv.ParseUint(os.Getenv(killedSeed), 10, 64)
	if err != nil {
		os.Exit(m.Run())
	}
	if err := syncForEver(seed); err != nil {
		log.Fatal(err)
	}
}

// syncForEver syncs one random world after the other, each in several transactions.
func syncForEver(seed uint64) error {
	w := newRandomWorld(seed)
	s := NewSyncer(many, NewRules(&ruleset.NFTables{}))
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		for range 1 + w.r.IntN(4) {
			w.change()
		}
		if s.most = 1 + w.r.IntN(6); w.r.IntN(4) == 0 {
			s.ForceFull()
		}
		if _, err := sync(context.Background(), s, w.ports()); err != nil {
			return err
		}
		fmt.Println("synced")
	}
	return nil
}

// TestKilled: however who syncs is killed (SIGKILL), the next one makes the table what it is to be, and nothing else is left in it.
func TestKilled(t *testing.T) {
	ns := namespace(t, "ns")
	r := rand.New(rand.NewPCG(uint64(*kills), 1))
	syncs := 0
	for seed := range *kills {
		syncs += syncUntilKilled(t, ns, seed, time.Duration(r.IntN(30_000))*time.Microsecond)
		w := newRandomWorld(uint64(seed) + 1<<32)
		for range 12 {
			w.change()
		}
		next := syncerIn(t, ns, many)
		mustSync(t, next, w.ports())
		h, err := next.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(elementsOf(next.state), h.elements); diff != "" {
			t.Fatalf("killed %d: (-wanted +held)\n%s", seed, diff)
		}
		sets, chains := next.state.frame()
		wanted, held := map[string]bool{}, map[string]bool{}
		for i := range sets {
			wanted["set "+sets[i].Name] = true
		}
		for i := range chains {
			wanted["chain "+chains[i].Name] = true
		}
		for name := range h.sets {
			held["set "+name] = true
		}
		for name := range h.chains {
			held["chain "+name] = true
		}
		if diff := cmp.Diff(wanted, held); diff != "" {
			t.Fatalf("killed %d: (-wanted +held)\n%s", seed, diff)
		}
	}
	t.Logf("killed %d times after %d syncs", *kills, syncs)
}

// syncUntilKilled kills who syncs some time after its first sync, and gives how many it made.
func syncUntilKilled(t *testing.T, ns *netns.Namespace, seed int, after time.Duration) (syncs int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", killedSeed, seed))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "synced" {
		t.Log(lines.Text())
	}
	time.Sleep(after)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for syncs = 1; lines.Scan(); syncs++ {
		if lines.Text() != "synced" {
			t.Fatal(lines.Text())
		}
	}
	_ = cmd.Wait() // killed
	return syncs
}
