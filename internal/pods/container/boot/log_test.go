package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/pods/container"
)

func testLog(t *testing.T) (*logFile, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLog(dir, filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.file.Close(); l.dir.Close() })
	l.now = func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 60, time.UTC) }
	return l, path
}

func TestLogEntries(t *testing.T) {
	l, path := testLog(t)
	const at = "2026-01-02T03:04:05.000000060Z "
	out, errOut := l.stream("stdout"), l.stream("stderr")
	fmt.Fprint(out, "one\ntwo\nthr")
	fmt.Fprint(errOut, "error\n")
	fmt.Fprint(out, "ee\n\n")
	long := strings.Repeat("x", lineLimit)
	fmt.Fprint(out, long+"y\n")
	fmt.Fprint(out, "no end")
	out.Close()
	errOut.Close()
	want := at + "stdout F one\n" + at + "stdout F two\n" + at + "stderr F error\n" + at + "stdout F three\n" + at + "stdout F \n" +
		at + "stdout P " + long + "\n" + at + "stdout F y\n" + at + "stdout P no end\n"
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestLogRotates(t *testing.T) {
	l, path := testLog(t)
	l.limit = 1000
	out := l.stream("stdout")
	for i := range 100 {
		fmt.Fprintf(out, "line %d\n", i)
	}
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path + container.RotatedSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if len(now) >= 1000 || len(before) < 1000 || len(before) > 1100 || !strings.HasSuffix(string(now), "line 99\n") {
		t.Errorf("%d bytes and %d before", len(now), len(before))
	}
	last := strings.Count(string(before)+string(now), "\n")
	if first := 100 - last; !strings.Contains(string(before), fmt.Sprintf("F line %d\n", first)) {
		t.Errorf("a line is lost: %d lines, the first is not %d", last, first)
	}
}

func TestNoLog(t *testing.T) {
	l, err := (&boot{}).openLog(os.OpenRoot)
	if err != nil {
		t.Fatal(err)
	}
	s := l.stream("stdout")
	if n, err := s.Write([]byte("x")); n != 1 || err != nil || s.Close() != nil {
		t.Error(n, err)
	}
}
