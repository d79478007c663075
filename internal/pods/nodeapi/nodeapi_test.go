package nodeapi

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/base/logs"
)

func TestLogOptions(t *testing.T) {
	now := time.Unix(1000, 0)
	q, _ := url.ParseQuery("follow=true&tailLines=0&sinceSeconds=10&timestamps=true&limitBytes=5&previous=true")
	got, err := logOptions(q, now)
	want := logs.Options{Follow: true, Previous: true, Tail: new(0), Since: time.Unix(990, 0), Timestamps: true, LimitBytes: 5}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v", got, err)
	}
	if got, _ := logOptions(nil, now); got.Tail != nil {
		t.Errorf("all lines are %d", *got.Tail)
	}
	q, _ = url.ParseQuery("tailLines=-1&follow=perhaps&sinceTime=now")
	if _, err := logOptions(q, now); err == nil || len(strings.Split(err.Error(), "\n")) != 3 {
		t.Errorf("%v", err)
	}
}
