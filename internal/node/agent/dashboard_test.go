package agent

import (
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/node/agent/options"
)

// TestDashboard: the chart's dashboard and alerts ask for nothing but metrics that an agent has.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/chart/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Query string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	text, err = os.ReadFile("../../../deploy/chart/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &alerts); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, backend := range []string{options.BackendIPTables, options.BackendNFTables} {
		o := options.Defaults()
		o.Backend = backend
		a := newAgent(o, slog.New(slog.DiscardHandler))
		a.addMasqAgent(nil)
		maps.Copy(kinds, a.registry.Kinds())
	}
	metric := regexp.MustCompile(`\b(kubeproxy|packetwalk|process|go)_[a-z0-9_]+`)
	asked := 0
	ask := func(where, expr string) {
		for _, name := range metric.FindAllString(expr, -1) {
			asked++
			base, bucket := strings.CutSuffix(name, "_bucket")
			if kind, has := kinds[base]; !has || bucket != (kind == "histogram") {
				t.Errorf("%s: no metric %s", where, name)
			}
			if kinds[base] == "counter" && !strings.Contains(expr, "rate(") && !strings.Contains(expr, "increase(") {
				t.Errorf("%s: %s is a counter", where, name)
			}
		}
	}
	for _, p := range dashboard.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("%s asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			ask(p.Title, target.Expr)
		}
	}
	for _, v := range dashboard.Templating.List {
		ask("a variable", v.Query)
	}
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			ask(r.Alert, r.Expr)
		}
	}
	if len(alerts.Groups) == 0 || asked < len(dashboard.Panels) {
		t.Errorf("%d metrics of %d panels", asked, len(dashboard.Panels))
	}
}
