package cloud

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
)

// Faults are what a controller tries in vain, by object. The controllers themselves only log and go on trying. The zero value is ready to
// use.
type Faults struct {
	mu     sync.Mutex
	wanted func(object string) bool // that something is still to be made for it; nil: for all
	errs   map[string]error
}

// note keeps how something went; a success ends the fault. It returns err.
func (f *Faults) note(object string, err error) error {
	if f == nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.errs, object)
		return nil
	}
	if f.errs == nil {
		f.errs = map[string]error{}
	}
	f.errs[object] = err
	return err
}

// Problems say what fails at present, sorted. What is not wanted any more is forgotten.
func (f *Faults) Problems() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.errs, func(object string, _ error) bool { return f.wanted != nil && !f.wanted(object) })
	var lines []string
	for _, object := range slices.Sorted(maps.Keys(f.errs)) {
		lines = append(lines, fmt.Sprintf("%s (this is tried again)", f.errs[object]))
	}
	return lines
}

func (f *Faults) ask(wanted func(object string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wanted = wanted
}

func objectOf(s *v1.Service) string { return s.Namespace + "/" + s.Name }
