package main

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// simulated writes the capture of a cluster on paper, and returns its path.
func simulated(t *testing.T, nodes, pods, services int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "simulated.pwcap.tar.gz")
	c := exec.CommandContext(t.Context(), "go", "run", "./tools/bench", "-write", path,
		"-nodes", strconv.Itoa(nodes), "-pods", strconv.Itoa(pods), "-services", strconv.Itoa(services))
	c.Dir = "../.."
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("simulate a cluster: %v\n%s", err, out)
	}
	return path
}

// TestRules unfolds chains, finds a rule, goes to a chain, and from a step to its rule and back.
func TestRules(t *testing.T) {
	b := openBrowser(t, 1500, 900)
	address := serve(t, "--snapshot", sample)
	b.run(t, "ask", chromedp.Navigate(strings.Replace(address, "#", "#from=internet/client&to=svc/whereami&", 1)), chromedp.WaitVisible(chromedp.CSS(".headline")))
	for range 80 {
		if strings.Contains(b.evaluate(t, `document.querySelector(".panel .title")?.textContent`), "KUBE-SERVICES 3") {
			break
		}
		b.run(t, "step", chromedp.KeyEvent(kb.ArrowRight))
	}
	b.evaluate(t, `[...document.querySelectorAll("aside button")].find(b => b.textContent.includes("show in the rules")).click()`)
	const chosen = `document.querySelector(".rule-row.chosen")?.textContent`
	b.await(t, chosen, func(s string) bool { return strings.Contains(s, "-d 203.0.113.11/32") && strings.Contains(s, "met") })
	panel := b.await(t, `document.querySelector(".rule-panel")?.textContent`, func(s string) bool { return strings.Contains(s, "written by") })
	for _, want := range []string{"KUBE-SERVICES", "rule 3 of", "written byservice proxy", "counted1 packet", "go to KUBE-EXT-", "internet/client → svc/whereami"} {
		if !strings.Contains(panel, want) {
			t.Errorf("the rule's panel does not have %q:\n%s", want, panel)
		}
	}
	b.shot(t, "rules")
	for _, problem := range []string{b.evaluate(t, smallText), b.evaluate(t, wideParts)} {
		if problem != "[]" && problem != "" {
			t.Error(problem)
		}
	}
	b.evaluate(t, `[...document.querySelectorAll(".rule-panel button")].find(b => b.textContent.startsWith("go to KUBE-EXT-")).click()`)
	b.await(t, `document.querySelector(".row.active")?.textContent`, func(s string) bool { return strings.Contains(s, "KUBE-EXT-") })

	b.run(t, "find", chromedp.SendKeys(chromedp.CSS(".rules-search"), "masquerade"+kb.Enter), chromedp.WaitVisible(chromedp.CSS(".hits")))
	if found := b.text(t, ".hits"); !strings.Contains(found, "KUBE-POSTROUTING 3") {
		t.Errorf("found:\n%s", found)
	}
	b.evaluate(t, `[...document.querySelectorAll(".hit")].find(b => b.textContent.includes("KUBE-POSTROUTING 3")).click()`)
	b.await(t, chosen, func(s string) bool { return strings.Contains(s, "MASQUERADE") })
	b.evaluate(t, `document.querySelector(".rule-panel .meetings button").click()`)
	b.await(t, `document.querySelector(".panel .title")?.textContent`, func(s string) bool { return strings.Contains(s, "KUBE-POSTROUTING 3") })
}

// TestManyRules: of a node with the rules of 10,000 Services the page shows a window, and answers while one scrolls and searches.
func TestManyRules(t *testing.T) {
	b := openBrowser(t, 1500, 900)
	address := serve(t, "--snapshot", simulated(t, 3, 9, 10_000))
	b.run(t, "open", chromedp.Navigate(address), chromedp.WaitVisible(chromedp.CSS(".map svg .box")))
	b.run(t, "show the rules", chromedp.KeyEvent("4"), chromedp.WaitVisible(chromedp.CSS(".rows .row")))
	if got := b.evaluate(t, `document.querySelector(".rules .count").textContent`); !strings.HasSuffix(got, " 110003 rules") {
		t.Errorf("%s, want 110003 rules", got)
	}
	b.run(t, "find", chromedp.SendKeys(chromedp.CSS(".rules-search"), "s09876:http cluster"+kb.Enter), chromedp.WaitVisible(chromedp.CSS(".hits")))
	b.evaluate(t, `[...document.querySelectorAll(".hit")].find(b => b.textContent.includes("KUBE-SERVICES")).click()`)
	b.await(t, `document.querySelector(".rule-row.chosen")?.textContent`, func(s string) bool { return strings.Contains(s, "shop/s09876") })
	if n := b.evaluate(t, `document.querySelectorAll(".rows .row").length < 80`); n != "true" {
		t.Error("the document has rows that are not in view")
	}
	b.shot(t, "rules-many")
}
