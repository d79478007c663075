package dump

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
)

// recentSource has a file for each list of recent addresses of the namespace of the thread that reads (net/netfilter/xt_recent.c).
const recentSource = "/proc/thread-self/net/xt_recent"

// Bounds of what is read: lists, and bytes of all of them. kube-proxy makes one for each endpoint of a Service with session affinity.
const (
	maxRecentLists = 1 << 17
	maxRecentBytes = 64 << 20
	maxTimerList   = 16 << 20
)

// recentLists reads the lists of recent addresses of a namespace: none without the module.
func recentLists(ns *netns.Namespace) ([]capture.RecentList, error) {
	var lists []capture.RecentList
	err := ns.Do(func() error {
		entries, err := os.ReadDir(recentSource)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if len(entries) > maxRecentLists {
			return fmt.Errorf("%s has %d lists, more than %d", recentSource, len(entries), maxRecentLists)
		}
		left := int64(maxRecentBytes)
		texts := map[string]string{}
		for _, e := range entries {
			text, err := limitio.ReadFile(recentSource+"/"+e.Name(), left)
			if errors.Is(err, fs.ErrNotExist) {
				continue // its last rule has gone
			}
			if err != nil {
				return err
			}
			if left -= int64(len(text)); utf8.ValidString(e.Name()) {
				texts[e.Name()] = string(text)
			}
		}
		timers, err := limitio.ReadFile("/proc/timer_list", maxTimerList)
		if err != nil {
			return fmt.Errorf("find out the present time of xt_recent: %w", err)
		}
		now, err := parseClock(string(timers))
		if err != nil {
			return fmt.Errorf("/proc/timer_list: %w", err)
		}
		for name, text := range texts {
			list, err := parseRecent(text, now)
			if err != nil {
				return fmt.Errorf("%s/%q: %w", recentSource, name, err)
			}
			lists = append(lists, capture.RecentList{List: name, Entries: list})
		}
		return nil
	})
	return lists, err
}

// jiffies is the kernel's clock of ticks.
type jiffies struct {
	now    uint64
	second uint64 // how many a second has (CONFIG_HZ)
}

// ago returns how many milliseconds ago a time was.
func (j jiffies) ago(then uint64) int64 {
	passed := int64(j.now - then) // it goes round
	if passed < 0 {
		return 0 // noted after the clock was read
	}
	return passed/int64(j.second)*1000 + passed%int64(j.second)*1000/int64(j.second)
}

// bootJiffies is how many ticks before zero, in 32 bits, the clock begins, in seconds (INITIAL_JIFFIES, include/linux/jiffies.h).
const bootJiffies = 300

// parseClock reads /proc/timer_list (kernel/time/timer_list.c): "now at N nsecs" since boot, and "jiffies: N". How many ticks a second has
// follows from both.
func parseClock(text string) (jiffies, error) {
	var now, ticks uint64
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "now at "); ok && now == 0 {
			now, _ = strconv.ParseUint(strings.TrimSuffix(rest, " nsecs"), 10, 64)
		}
		if rest, ok := strings.CutPrefix(line, "jiffies: "); ok && ticks == 0 {
			ticks, _ = strconv.ParseUint(rest, 10, 64)
		}
	}
	if now == 0 || ticks == 0 {
		return jiffies{}, errors.New("no clock in it")
	}
	var found []uint64
	for _, hz := range []uint64{100, 250, 300, 1000} { // kernel/Kconfig.hz
		predicted := uint64(uint32(-bootJiffies*int64(hz))) + uint64(float64(now)/1e9*float64(hz))
		if off := int64(ticks - predicted); off > -2*int64(hz) && off < 2*int64(hz) {
			found = append(found, hz)
		}
	}
	if len(found) != 1 {
		return jiffies{}, fmt.Errorf("how many ticks a second has does not follow from %d ticks at %d ns; try again a few seconds later", ticks, now)
	}
	return jiffies{ticks, found[0]}, nil
}

// parseRecent reads a list (recent_seq_show): "src=10.0.0.1 ttl: 64 last_seen: 4295000 oldest_pkt: 2 4294000, 4295000".
func parseRecent(text string, now jiffies) ([]capture.RecentEntry, error) {
	list := []capture.RecentEntry{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(strings.ReplaceAll(line, ",", " "))
		const stamps = 7 // where they begin
		if len(fields) < stamps || fields[1] != "ttl:" || fields[3] != "last_seen:" || fields[5] != "oldest_pkt:" {
			return nil, fmt.Errorf("%q is no entry", strings.TrimSpace(line))
		}
		text, ok := strings.CutPrefix(fields[0], "src=")
		a, err := netip.ParseAddr(text)
		if err != nil || !ok {
			return nil, fmt.Errorf("%q is no address", fields[0])
		}
		e := capture.RecentEntry{Address: a}
		for _, field := range fields[stamps:] {
			stamp, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				return nil, err
			}
			e.Seen = append(e.Seen, now.ago(stamp))
		}
		list = append(list, e)
	}
	return list, nil
}
