package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func inode(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

const oneNode = "apiVersion: packetwalk.dev/v1alpha1\nkind: Cluster\n"

func whereami(replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: whereami}
spec:
  replicas: %d
  selector: {matchLabels: {app: whereami}}
  template:
    metadata: {labels: {app: whereami}}
    spec:
      containers:
      - {name: whereami, image: "erjosito/whereami:1.3", ports: [{containerPort: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: whereami}
spec:
  type: LoadBalancer
  ports: [{port: 80}]
  selector: {app: whereami}
`, replicas)
}

// benchAnswer measures from the command `up` to the first HTTP answer on the internet's client, and `down`.
func benchAnswer(n int) error {
	var t table
	for range n {
		if err := answerOnce(&t); err != nil {
			return err
		}
	}
	t.print()
	fmt.Println("  (targets: first answer 6 s, down 3 s; up includes the control plane's own start, which is most of it)")
	return nil
}

var stepLine = regexp.MustCompile(`(?m)^ *([0-9.]+) s  (.*)$`)

func answerOnce(t *table) (err error) {
	l := newLab("answer")
	begin := time.Now()
	since := func() float64 { return time.Since(begin).Seconds() }
	defer func() {
		downBegin := time.Now()
		if e := l.down(); e != nil && err == nil {
			err = e
		}
		t.add("down", "s", time.Since(downBegin).Seconds())
	}()
	out, err := l.up(oneNode)
	if err != nil {
		return err
	}
	for _, m := range stepLine.FindAllStringSubmatch(out, -1) {
		at, _ := strconv.ParseFloat(m[1], 64)
		t.add("up, at: "+strings.SplitN(m[2], "\"", 2)[0], "s", at)
	}
	if err := l.apply(whereami(2)); err != nil {
		return err
	}
	t.add("whereami applied, at", "s", since())
	// The client asks the whole time, as a user who reloads the page; its own program is not what is measured.
	vip := ""
	for vip == "" {
		services, err := l.list("services")
		if err != nil {
			return err
		}
		for _, s := range services {
			if len(s.Status.LoadBalancer.Ingress) > 0 {
				vip = s.Status.LoadBalancer.Ingress[0].IP
			}
		}
	}
	t.add("front end known, at", "s", since())
	if _, err := l.ssh("client", "sh", "-c", "until curl -s -o /dev/null --connect-timeout 0.2 --max-time 1 http://"+vip+"; do sleep 0.02; done"); err != nil {
		return err
	}
	t.add("FIRST ANSWER on the internet host, at", "s", since())
	return nil
}
