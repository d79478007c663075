package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
)

// liveLab serves the page of the sample as if it were a lab: the stream of its network loses a pod when gone is closed, and a packet that is
// sent parts from the walk on a node. sent counts such packets.
func liveLab(t *testing.T, gone <-chan struct{}, sent *atomic.Int32) (address string) {
	t.Helper()
	behind, err := url.Parse(serve(t, "--snapshot", sample))
	if err != nil {
		t.Fatal(err)
	}
	fragment := behind.Fragment
	behind.Fragment, behind.Path = "", ""
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(behind)
		r.Out.Header.Del("Origin")
	}}
	document := func(w http.ResponseWriter, r *http.Request, path string) map[string]any {
		request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, behind.String()+path+"?"+r.URL.RawQuery, nil)
		if err != nil {
			t.Error(err)
			return nil
		}
		request.URL.RawQuery = strings.ReplaceAll(request.URL.RawQuery, "stream=1", "")
		request.Header = r.Header.Clone()
		request.Header.Del("Origin")
		request.Header.Del("Accept-Encoding")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil // the page is gone
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		all := map[string]any{}
		if response.StatusCode != http.StatusOK || json.Unmarshal(body, &all) != nil {
			w.WriteHeader(response.StatusCode)
			_, _ = w.Write(body)
			return nil
		}
		return all
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/network", func(w http.ResponseWriter, r *http.Request) {
		n := document(w, r, "/api/v1/network")
		if n == nil {
			return
		}
		n["live"], n["sends"] = true, "This sends one real packet."
		boxes := n["picture"].(map[string]any)["boxes"].([]any)
		for _, b := range boxes {
			if b := b.(map[string]any); b["kind"] == "frontend" {
				b["status"], b["alert"] = "probe 0/2", true
				b["now"] = []map[string]string{{"name": "probes of port 80", "value": "0 of 2 succeed"}}
			}
		}
		_ = json.NewEncoder(w).Encode(n)
		if r.URL.Query().Get("stream") != "1" {
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-gone:
		case <-r.Context().Done():
			return
		}
		kept := []any{}
		for _, b := range boxes {
			if !strings.Contains(b.(map[string]any)["id"].(string), "pod/default/client") {
				kept = append(kept, b)
			}
		}
		n["picture"].(map[string]any)["boxes"] = kept
		_ = json.NewEncoder(w).Encode(n)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /api/v1/send", func(w http.ResponseWriter, r *http.Request) {
		sent.Add(1)
		a := document(w, r, "/api/v1/answer")
		if a == nil {
			return
		}
		a["question"].(map[string]any)["live"] = true
		a["kernel"] = map[string]any{
			"steps": 58, "agreed": 57, "complete": false, "summary": "kernel: 57 of 58 steps agree", "agree": []string{"internet/client"},
			"first": map[string]any{"node": "node/aks-nodepool1-31351229-0", "predicted": "nat KUBE-POSTROUTING 3", "observed": "<b>nothing</b>"},
		}
		_ = json.NewEncoder(w).Encode(a)
	})
	mux.Handle("/", proxy)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + "/#" + fragment
}

// TestLive: what goes leaves the map and the rest stays as it is, a packet is sent only after a confirmation, and the step where walk and
// kernel part is shown.
func TestLive(t *testing.T) {
	gone := make(chan struct{})
	var sent atomic.Int32
	b := openBrowser(t, 1500, 900)
	b.run(t, "open", chromedp.Navigate(liveLab(t, gone, &sent)), chromedp.WaitVisible(chromedp.CSS(".map svg .box.pod")))
	const status = `document.querySelector(".map .labels .alert")?.textContent`
	b.await(t, status, func(s string) bool { return s == "probe 0/2" })
	// The element of a box that stays is the same one, so that nothing flickers.
	b.evaluate(t, `(document.querySelector('.box.pod[aria-label*="whereami"]').kept = true)`)
	const clients = `document.querySelectorAll('.box.pod[aria-label*="client-"]').length`
	if n := b.evaluate(t, clients); n != "2" {
		t.Fatalf("%s pods of clients, want 2", n)
	}
	close(gone)
	b.await(t, clients, func(s string) bool { return s == "0" })
	if kept := b.evaluate(t, `document.querySelector('.box.pod[aria-label*="whereami"]').kept`); kept != "true" {
		t.Error("the box of a pod that stays was drawn anew")
	}
	b.shot(t, "live")

	const send = `[...document.querySelectorAll("header button")].find(b => b.textContent.includes("send live"))`
	b.run(t, "ask", chromedp.SendKeys(chromedp.CSS(`input[name="from"]`), "internet/client"), chromedp.SendKeys(chromedp.CSS(`input[name="to"]`), "svc/whereami"))
	b.evaluate(t, send+".click()")
	b.run(t, "see the dialog", chromedp.WaitVisible(chromedp.CSS("dialog.send")))
	if text := b.text(t, "dialog.send"); !strings.Contains(text, "This sends one real packet.") || !strings.Contains(text, "internet/client") {
		t.Errorf("the dialog says %q", text)
	}
	b.shot(t, "send")
	b.evaluate(t, `[...document.querySelectorAll("dialog button")].find(b => b.textContent === "cancel").click()`)
	b.await(t, `document.querySelectorAll("dialog").length`, func(s string) bool { return s == "0" })
	if n := sent.Load(); n != 0 {
		t.Fatalf("%d packets were sent after a cancel", n)
	}
	b.evaluate(t, send+".click()")
	b.run(t, "send", chromedp.WaitVisible(chromedp.CSS("dialog.send .primary")), chromedp.Click(chromedp.CSS("dialog.send .primary")),
		chromedp.WaitVisible(chromedp.CSS(".kernel.parts")))
	report := b.text(t, ".kernel")
	for _, want := range []string{"57 of 58 steps agree", "they part on node aks-nodepool1-31351229-0", "nat KUBE-POSTROUTING 3", "<b>nothing</b>"} {
		if !strings.Contains(report, want) {
			t.Errorf("the report does not have %q:\n%s", want, report)
		}
	}
	if marks := b.evaluate(t, `[...document.querySelectorAll(".machine .mark")].map(m => m.textContent).join("|")`); !strings.Contains(marks, "✓ kernel agrees") ||
		!strings.Contains(marks, "✗ kernel parts here") {
		t.Errorf("marks of machines: %s", marks)
	}
	b.shot(t, "parts")
	b.run(t, "load again", chromedp.Reload(), chromedp.WaitVisible(chromedp.CSS(".headline")))
	if n := sent.Load(); n != 1 {
		t.Errorf("%d packets were sent, want 1: loading the page again sends none", n)
	}
}
