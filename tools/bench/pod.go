package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// imageSize is that of benchPod's images, in bytes beside the program.
const imageSize = 50_000_000

// benchPod measures, on one lab of one node, from a pod's creation in the API to Ready: of an image that was just loaded, and of it again.
func benchPod(n int) error {
	return onPods("pod", ofRuntime(1, 110), n, "target of one more pod: 1.2 s",
		func(l *lab, t *table, i int, seen <-chan podSighting) error {
			return l.podTimes(t, fmt.Sprintf("bench-%d:v%d", os.Getpid(), i), seen)
		})
}

// onPods makes a lab, measures n times what becomes of its pods, and prints that.
func onPods(name, config string, n int, targets string, measure func(l *lab, t *table, i int, seen <-chan podSighting) error) (err error) {
	l, err := makeLab(name, config)
	defer l.end(&err)
	if err != nil {
		return err
	}
	seen, stop, err := l.seePods()
	if err != nil {
		return err
	}
	defer stop()
	var t table
	for i := range n {
		if err := measure(l, &t, i, seen); err != nil {
			return err
		}
	}
	t.print()
	fmt.Printf("  (%s)\n", targets)
	return nil
}

// podTimes makes an image, and two pods of it, one after the other.
func (l *lab) podTimes(t *table, image string, seen <-chan podSighting) (err error) {
	begin := time.Now()
	if err := l.makeImage(image); err != nil {
		return err
	}
	t.add("image build, 50 MB", "s", time.Since(begin).Seconds())
	defer func() {
		if _, e := l.packetwalk("image", "rm", image); e != nil && err == nil {
			err = e
		}
	}()
	for _, what := range []string{"first pod of an image", "one more pod of it"} {
		name := fmt.Sprintf("pod-%d", time.Now().UnixNano())
		if err := l.apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: wait, image: %q}]
`, name, image)); err != nil {
			return err
		}
		first, err := firstSeen(name, seen)
		if err != nil {
			return err
		}
		t.add(what+": created to Ready", "s", first["Ready"].Sub(first["created"]).Seconds())
		defer l.kubectl("delete", "pod", name, "--wait=false") //nolint:errcheck // the lab goes down
	}
	return nil
}

// makeImage makes an image of this program, which waits in it, and of a file that no compression makes smaller.
func (l *lab) makeImage(name string) error {
	dir, err := os.MkdirTemp("", "bench-image-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	if _, err := io.CopyN(f, rand.Reader, imageSize); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	_, err = l.packetwalk("image", "build", self, "-t", name, "--add", dir+":/data", "--entrypoint", "/"+filepath.Base(self)+" wait")
	return err
}

// wait is what benchPod's containers do.
func wait([]string) error {
	time.Sleep(time.Hour)
	return nil
}

// podSighting is a pod as it was first seen in a stage.
type podSighting struct {
	name, stage string
	at          time.Time
}

// seePods tells of pods of the namespace default that are created, scheduled and Ready, until it is stopped.
func (l *lab) seePods() (seen <-chan podSighting, stop func(), err error) {
	api, err := l.api()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	all := make(chan podSighting, 1000)
	if err := api.watch(ctx, "/api/v1/namespaces/default/pods", func(r io.Reader) { readPods(r, all) }); err != nil {
		cancel()
		return nil, nil, err
	}
	return all, cancel, nil
}

func readPods(r io.Reader, seen chan<- podSighting) {
	for d := json.NewDecoder(r); ; {
		var e struct{ Object object }
		if d.Decode(&e) != nil {
			return
		}
		o := e.Object
		for stage, is := range map[string]bool{"created": true, "scheduled": o.Spec.NodeName != "", "Ready": o.is("Ready")} {
			if is {
				select {
				case seen <- podSighting{o.Metadata.Name, stage, time.Now()}:
				default: // the reader is gone
				}
			}
		}
	}
}

// firstSeen waits until a pod is Ready, and gives the time of each stage.
func firstSeen(name string, seen <-chan podSighting) (map[string]time.Time, error) {
	first := map[string]time.Time{}
	limit := time.After(time.Minute)
	for first["Ready"].IsZero() {
		select {
		case s := <-seen:
			if s.name == name && first[s.stage].IsZero() {
				first[s.stage] = s.at
			}
		case <-limit:
			return nil, fmt.Errorf("pod %s is not Ready after a minute", name)
		}
	}
	return first, nil
}
