package scripts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestSign: the signature of checksums holds for them alone, as docs/dev/release.md has users check it.
func TestSign(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		kerneltest.Missing(t, "ssh-keygen")
	}
	dir := t.TempDir()
	key, sums := filepath.Join(dir, "key"), filepath.Join(dir, "SHA256SUMS")
	run := func(input string, args ...string) error {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		if input != "" {
			in, err := os.Open(input)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			cmd.Stdin = in
		}
		out, err := cmd.CombinedOutput()
		t.Logf("%v: %s", args, out)
		return err
	}
	const who = "releases@packetwalk.dev"
	err := errors.Join(os.WriteFile(sums, []byte("0 file\n"), 0o644), run("", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", who, "-f", key))
	for range 2 { // a second release of the same version
		err = errors.Join(err, run("", "./sign", key, dir))
	}
	public, readErr := os.ReadFile(key + ".pub")
	signers := filepath.Join(dir, "signers")
	if err := errors.Join(err, readErr, os.WriteFile(signers, []byte(who+" "+string(public)), 0o644)); err != nil {
		t.Fatal(err)
	}
	verify := []string{"ssh-keygen", "-Y", "verify", "-f", signers, "-I", who, "-n", "packetwalk-release", "-s", sums + ".sig"}
	if err := run(sums, verify...); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(sums, []byte("1 file\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if run(sums, verify...) == nil {
		t.Error("it holds for other checksums")
	}
}
