package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// sample is a capture of a lab.
const sample = "../picture/testdata/default.pwcap.tar.gz"

// packetwalk returns the program under test: $PACKETWALK, or what 'make build' built.
func packetwalk() string {
	if path := os.Getenv("PACKETWALK"); path != "" {
		return path
	}
	return "../../bin/packetwalk"
}

// browser is a page in Debian's Chromium, with what went wrong in it.
type browser struct {
	context.Context
	mu     sync.Mutex
	faults []string
}

func (b *browser) fault(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, text)
}

// findBrowser returns the path of Chromium, by the names that distributions give it; "" where none is installed.
func findBrowser() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

func openBrowser(t *testing.T, width, height int, more ...chromedp.ExecAllocatorOption) *browser {
	t.Helper()
	path := findBrowser()
	switch {
	case path != "":
	case os.Getenv("CI") != "":
		t.Fatal("no Chromium; run apt-get install chromium")
	default:
		t.Skip("no Chromium; run apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(width, height))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(options, more...)...)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{Context: ctx}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if kind := string(m.Type); m.IsException() || kind == "error" || kind == "warning" {
				b.fault(fmt.Sprintf("%s: %s %s", kind, m.Text, m.URL))
			}
		}
	}()
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.faults) > 0 {
			t.Errorf("faults in the page:\n%s", strings.Join(b.faults, "\n"))
		}
	})
	return b
}

func (b *browser) run(t *testing.T, what string, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, time.Minute)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// value runs an action and returns its value.
func value[T any](t *testing.T, b *browser, what string, action chromedp.Action[T]) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, time.Minute)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return v
}

// text returns the text of an element.
func (b *browser) text(t *testing.T, selector chromedp.CSS) string {
	t.Helper()
	return value(t, b, "read "+string(selector), chromedp.Text(selector))
}

func (b *browser) evaluate(t *testing.T, script string) string {
	t.Helper()
	return value(t, b, "evaluate "+script, chromedp.Evaluate[string]("String("+script+")"))
}

// await waits until a script's value is as wanted.
func (b *browser) await(t *testing.T, script string, want func(string) bool) string {
	t.Helper()
	var got string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = b.evaluate(t, script); want(got) {
			return got
		}
	}
	t.Fatalf("%s stays %q", script, got)
	return ""
}

func (b *browser) shot(t *testing.T, name string) {
	t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	image := value(t, b, "take a screenshot", chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join(dir, name+".png"), image, 0o644); err != nil {
		t.Fatal(err)
	}
}

// serve starts the page's server and returns the printed address.
func serve(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), packetwalk(), append([]string{"ui"}, args...)...)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 10 * time.Second
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "open "))
}

const (
	stepCount = `document.querySelector(".count")?.textContent`
	headline  = `document.querySelector(".headline")?.textContent`
	// smallText lists texts that are shown in less than 12 pixels.
	smallText = `JSON.stringify([...document.querySelectorAll("#app *")].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim() !== "") && !e.closest(".sr"))
		.filter(e => { const svg = e.closest("svg"); const scale = svg ? svg.getScreenCTM().a : 1; return parseFloat(getComputedStyle(e).fontSize) * scale < 11.9 && (!svg || scale < 0.92); })
		.map(e => e.tagName + " " + e.textContent))`
	// wideParts lists elements that make the page scroll sideways.
	wideParts = `document.documentElement.scrollWidth > document.documentElement.clientWidth ? "the page is " + document.documentElement.scrollWidth + " wide" : ""`
)

// TestPage opens a capture, asks, steps and reads, by the keyboard and by the mouse.
func TestPage(t *testing.T) {
	b := openBrowser(t, 1500, 900)
	address := serve(t, "--snapshot", sample)
	b.run(t, "open", chromedp.Navigate(address), chromedp.WaitVisible(chromedp.CSS(".map svg .box")))
	if hash := b.evaluate(t, "location.hash"); strings.Contains(hash, "token") {
		t.Errorf("the token stays in the address: %s", hash)
	}
	b.shot(t, "network")

	b.run(t, "ask", chromedp.SendKeys(chromedp.CSS(`input[name="from"]`), "internet/client"),
		chromedp.SendKeys(chromedp.CSS(`input[name="to"]`), "svc/whereami"+kb.Enter), chromedp.WaitVisible(chromedp.CSS(".headline")))
	const answer = "destination sees 10.224.0.4:1024-65535, because nat KUBE-POSTROUTING 3: MASQUERADE"
	if got := b.text(t, ".headline"); !strings.Contains(got, answer) {
		t.Errorf("headline %q, want %q", got, answer)
	}
	if n := b.evaluate(t, `document.querySelectorAll(".ways button").length`); n != "4" {
		t.Errorf("%s ways, want 4", n)
	}

	b.evaluate(t, `document.activeElement.blur()`)
	b.run(t, "step", chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowRight))
	b.await(t, stepCount, func(s string) bool { return strings.HasPrefix(s, "step 3 of ") })
	// On to the rule that decides.
	for range 60 {
		if strings.Contains(b.evaluate(t, `document.querySelector(".panel .title")?.textContent`), "KUBE-SERVICES 3") {
			break
		}
		b.run(t, "step", chromedp.KeyEvent(kb.ArrowRight))
	}
	chain := b.text(t, ".chain")
	for _, want := range []string{"KUBE-SERVICES", "does not apply: destination is 10.0.0.1", "not reached here", "-d 203.0.113.11/32"} {
		if !strings.Contains(chain, want) {
			t.Errorf("the chain does not show %q:\n%s", want, chain)
		}
	}
	b.shot(t, "map")
	for _, problem := range []string{b.evaluate(t, smallText), b.evaluate(t, wideParts)} {
		if problem != "[]" && problem != "" {
			t.Error(problem)
		}
	}

	step := b.evaluate(t, stepCount)
	b.run(t, "show the ladder", chromedp.KeyEvent("2"), chromedp.WaitVisible(chromedp.CSS(".ladder .current")))
	if got := b.evaluate(t, stepCount); got != step {
		t.Errorf("the ladder is at %s, the map at %s", got, step)
	}
	b.shot(t, "ladder")
	b.run(t, "show the text", chromedp.KeyEvent("3"), chromedp.WaitVisible(chromedp.CSS(".view pre")))
	want, err := exec.CommandContext(t.Context(), packetwalk(), "walk", "--snapshot", sample, "--from", "internet/client", "--to", "svc/whereami").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := b.evaluate(t, `document.querySelector(".view pre").textContent`); got != string(want) {
		t.Errorf("the text is not what the command prints:\n%s", got)
	}

	b.run(t, "play", chromedp.KeyEvent("1"), chromedp.WaitVisible(chromedp.CSS(".map svg")), chromedp.KeyEvent(" "))
	b.await(t, stepCount, func(s string) bool { return s != step })
	b.run(t, "pause", chromedp.KeyEvent(" "))

	hash := b.evaluate(t, "location.hash")
	for _, want := range []string{"from=internet%2Fclient", "to=svc%2Fwhereami", "step="} {
		if !strings.Contains(hash, want) {
			t.Errorf("the address %q does not have %q", hash, want)
		}
	}
	at := b.evaluate(t, stepCount)
	b.run(t, "load again", chromedp.Reload(), chromedp.WaitVisible(chromedp.CSS(".headline")))
	b.await(t, stepCount, func(s string) bool { return s == at })

	b.run(t, "choose a pod", chromedp.Click(chromedp.CSS(`.box.pod[aria-label*="whereami"]`)), chromedp.WaitVisible(chromedp.CSS(".box-panel")))
	if facts := b.text(t, ".box-panel"); !strings.Contains(facts, "default/whereami") || !strings.Contains(facts, "10.244.") {
		t.Errorf("the pod's facts: %s", facts)
	}
	b.shot(t, "pod")
	b.run(t, "close it", chromedp.KeyEvent(kb.Escape), chromedp.WaitNotPresent(chromedp.CSS(".box-panel")))
	b.run(t, "find", chromedp.KeyEvent("/"))
	b.await(t, `document.activeElement.className`, func(s string) bool { return s == "search" })
	b.run(t, "find", chromedp.KeyEvent("172.20.1.4"))
	b.await(t, `document.querySelectorAll(".box.found").length`, func(s string) bool { return s == "1" })
	b.shot(t, "found")
}

// TestProblem: a question without an answer is told in words, and the page goes on.
func TestProblem(t *testing.T) {
	b := openBrowser(t, 1500, 900)
	address := serve(t, "--snapshot", sample)
	b.run(t, "ask", chromedp.Navigate(strings.Replace(address, "#", "#from=pod/none&to=vm/vm&", 1)), chromedp.WaitVisible(chromedp.CSS(".problem")))
	if got := b.text(t, ".problem"); !strings.Contains(got, "none") {
		t.Errorf("problem %q", got)
	}
	b.shot(t, "problem")
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		if !strings.Contains(f, "status of 400") {
			t.Error(f)
		}
	}
	b.faults = nil
}

// TestSavedPage: a saved walk opens from the disk without a network, and steps as the page of the server does.
func TestSavedPage(t *testing.T) {
	page, err := exec.CommandContext(t.Context(), packetwalk(), "walk", "--snapshot", sample, "--from", "internet", "--to", "svc/whereami", "-o", "html").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "walk.html")
	if err := os.WriteFile(file, page, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, size := range [][2]int{{1500, 900}, {420, 900}} {
		t.Run(fmt.Sprint(size[0]), func(t *testing.T) {
			b := openBrowser(t, size[0], size[1], chromedp.ProxyServer("127.0.0.1:9")) // a way to no network
			b.run(t, "open", chromedp.Navigate("file://"+file), chromedp.WaitVisible(chromedp.CSS(".headline")),
				chromedp.WaitVisible(chromedp.CSS(".map svg .box")))
			if got := b.evaluate(t, headline); !strings.Contains(got, "destination sees 10.224.0.4") {
				t.Errorf("headline %q", got)
			}
			first := b.evaluate(t, stepCount)
			b.run(t, "step", chromedp.KeyEvent(kb.ArrowRight))
			b.await(t, stepCount, func(s string) bool { return s != first })
			if problem := b.evaluate(t, wideParts); problem != "" {
				t.Error(problem)
			}
			b.shot(t, fmt.Sprintf("saved-%d", size[0]))
		})
	}
}

// TestAccessible: axe-core finds nothing serious in any view, in light and dark colours.
func TestAccessible(t *testing.T) {
	modules := t.TempDir()
	if _, err := fetchPackage("../../ui/package-lock.json", "axe-core", modules); err != nil {
		t.Fatal(err)
	}
	axe, err := os.ReadFile(filepath.Join(modules, "axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	b := openBrowser(t, 1500, 900)
	address := serve(t, "--snapshot", sample)
	b.run(t, "ask", chromedp.Navigate(strings.Replace(address, "#", "#from=internet/client&to=svc/whereami&step=20&", 1)),
		chromedp.WaitVisible(chromedp.CSS(".headline")))
	value(t, b, "load axe-core", chromedp.Evaluate[int](string(axe)+"\n0"))
	for _, theme := range []string{"light", "dark"} {
		b.evaluate(t, `document.documentElement.dataset.theme = "`+theme+`"`)
		for key, view := range map[string]string{"1": ".map svg", "2": ".ladder", "3": ".view pre", "4": ".rows .row"} {
			b.run(t, "show "+view, chromedp.KeyEvent(key), chromedp.WaitVisible(chromedp.CSS(view)))
			b.shot(t, theme+"-"+key)
			const find = `axe.run().then(r => r.violations.filter(v => ["serious", "critical"].includes(v.impact))
				.map(v => v.id + ": " + v.help + "\n  " + v.nodes.slice(0, 4).map(n => n.target + " " + n.failureSummary.replaceAll("\n", " ")).join("\n  ")).join("\n"))`
			if got := value(t, b, "run axe", chromedp.Evaluate[string](find, chromedp.EvalAwaitPromise)); got != "" {
				t.Errorf("%s colours, view %s:\n%s", theme, key, got)
			}
		}
	}
}
