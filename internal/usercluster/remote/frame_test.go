package remote

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// fill gives every field of a value one that is not zero, so that none can be lost on the way.
func fill(t *testing.T, v reflect.Value, number *uint64, within ...reflect.Type) {
	t.Helper()
	*number++
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{10, 0, 0, byte(*number)})))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, 15: byte(*number)}), uint16(*number))))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("text <&> \u2028 " + string(rune('a'+*number%26)))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1<<(v.Type().Bits()-1) + *number) // above what a float64 or a signed number holds
	case reflect.Int:
		v.SetInt(int64(*number))
	case reflect.Pointer:
		if v.Type() == reflect.TypeFor[*packet.Flow]() || slices.Contains(within, v.Type()) {
			return // what is seen or sent has no flow: a walk's has; and a packet in a packet is enough
		}
		within = append(within, v.Type())
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), number, within...)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), number, within...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				t.Fatalf("%s has the field %s, which does not cross", v.Type(), v.Type().Field(i).Name)
			}
			fill(t, v.Field(i), number, within...)
		}
	default:
		t.Fatalf("%s does not cross", v.Type())
	}
}

// TestCrossing: all that crosses is the same on the other side, whole and empty.
func TestCrossing(t *testing.T) {
	for _, value := range []any{
		new(prepareRequest), new(prepareReply), new(watchRequest), new(watchReply), new(stateRequest), new(state), new(result), new(rule), new(greeting), new(question),
		new(answer), new(packet.Packet), new(packet.Tuple), new(witness.TraceEvent), new(witness.CapturedPacket), new(witness.Flow),
		new(lookUpRequest), new(witness.Lookup),
	} {
		for _, whole := range []bool{false, true} {
			v := reflect.ValueOf(value).Elem()
			if whole {
				number := uint64(0)
				fillOrRaw(t, v, &number)
			}
			var stream bytes.Buffer
			if err := writeFrame(&stream, value); err != nil {
				t.Fatal(err)
			}
			got := reflect.New(v.Type())
			if err := readFrame(&stream, got.Interface()); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got.Interface(), value) {
				t.Errorf("%T came as\n%+v, and was\n%+v", value, got.Elem(), v)
			}
		}
	}
}

// fillOrRaw does what fill does, also for messages with a body that is JSON already.
func fillOrRaw(t *testing.T, v reflect.Value, number *uint64) {
	if body := v.FieldByName("Body"); body.IsValid() {
		v.FieldByName("ID").SetUint(1 << 63)
		body.Set(reflect.ValueOf(json.RawMessage(`{"a":[1,2]}`)))
		return
	}
	fill(t, v, number)
}

// TestErrorsCross: text and kind of an error are the same on the other side.
func TestErrorsCross(t *testing.T) {
	for _, err := range []error{witness.ErrUnsendable, &os.PathError{Op: "open", Path: "/x", Err: fs.ErrNotExist}, syscall.ECONNREFUSED} {
		data, _ := json.Marshal(failed(err))
		var got *failure
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		for _, kind := range kinds {
			if errors.Is(err, kind) != errors.Is(got, kind) {
				t.Errorf("%v came as %v, which is no longer, or now, %v", err, got, kind)
			}
		}
		if got.Error() != err.Error() {
			t.Errorf("%q came as %q", err, got)
		}
	}
	long := failure{Text: "\x1b[31m" + strings.Repeat("x", 1<<20)}
	if text := long.Error(); strings.Contains(text, "\x1b") || len(text) > 2*maxText {
		t.Errorf("%d bytes of text", len(text))
	}
}

// TestTooLong: a message that is too long is not written, and so leaves the stream whole.
func TestTooLong(t *testing.T) {
	var stream bytes.Buffer
	if err := writeFrame(&stream, make([]byte, maxFrame)); !errors.Is(err, errTooLong) || stream.Len() > 0 {
		t.Errorf("%d bytes were written, error %v", stream.Len(), err)
	}
}

// frame returns a message's bytes.
func frame(text string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
}

// emptyMachine is a machine without hosts.
type emptyMachine struct{}

func (emptyMachine) Open(string, uint64) (proof.Place, func(), error) {
	return nil, nil, fs.ErrNotExist
}

func (emptyMachine) LookUp(context.Context, string, uint64, string) (witness.Lookup, error) {
	return witness.Lookup{}, fs.ErrNotExist
}

func (emptyMachine) Look(context.Context) (capture.Origin, map[string]string, error) {
	return capture.Origin{
		Hosts: map[string]capture.NetNS{}, Tools: func() map[string]string { return nil },
		Fetch: func(string) (*capture.Raw, error) { return nil, fs.ErrNotExist },
	}, nil, nil
}

// FuzzServe: whatever comes, the server ends with its stream, and writes nothing but answers.
func FuzzServe(f *testing.F) {
	hello := frame(`{"id":1,"op":"hello","body":{}}`)
	f.Add([]byte(hello + frame(`{"id":2,"op":"look-up","body":{"Host":"node/n","Name":"example.com"}}`)))
	for _, rest := range []string{
		"", "GET / HTTP/1.1\r\n", frame(`{"id":2,"op":"hosts"}`) + frame(`{"id":2,"op":"tools"}`) + frame(`{"id":2,"end":true}`),
		frame(`{"id":3,"op":"fetch","body":"node/a"}`), frame(`{"id":4,"op":"watch","body":{"Host":"a"}}`), frame(`{"id":5,"op":"send","body":7}`),
		frame(`{"id":6,"op":"prepare","body":{"Host":"a"}}`), frame(`{"id":7,"op":"now","body":{"Trace":-1}}`), "\x00\x00\x00\x09{}", "\xff\xff\xff\xff",
	} {
		f.Add([]byte(hello + rest))
		f.Add([]byte(rest))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		_ = Serve(t.Context(), bytes.NewReader(in), &out, emptyMachine{}, "v1")
		for out.Len() > 0 {
			var a answer
			if err := readFrame(&out, &a); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// hostileStream is a stream that says what it likes, and takes everything.
type hostileStream struct{ io.Reader }

func (hostileStream) Write(b []byte) (int, error) { return len(b), nil }
func (hostileStream) Close() error                { return nil }

// FuzzOpen checks that no call waits forever or accepts an invalid host name, whatever a node answers.
func FuzzOpen(f *testing.F) {
	hello := frame(`{"id":1,"body":{"protocol":"packetwalk","version":"v1"}}`)
	for _, rest := range []string{
		"", "exec failed\n", frame(`{"id":2,"body":{"node/a":1}}`), frame(`{"id":2,"body":{"../a":1}}`), frame(`{"id":2,"error":{"text":"no"}}`),
		frame(`{"id":2,"body":[]}`), frame(`{"id":2,"body":{}}`) + frame(`{"id":3,"more":true,"body":"AAAA"}`) + frame(`{"id":3}`), "\x00\x00\x00\x09{}",
		frame(`{"id":2,"body":{}}`) + frame(`{"id":3,"body":{}}`) + frame(`{"id":4,"body":{"Handle":1}}`) + frame(`{"id":5,"body":{"Trace":[{}]}}`),
	} {
		f.Add([]byte(hello + rest))
		f.Add([]byte(rest))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		node, err := Open(ctx, hostileStream{bytes.NewReader(in)}, "v1")
		if err != nil {
			return
		}
		defer node.Close()
		hosts, _ := node.Hosts(ctx)
		for name := range hosts {
			if !capture.HostName(name) {
				t.Errorf("host %q", name)
			}
		}
		if raw, err := node.Fetch(ctx, "node/a"); err == nil && raw.Name != "node/a" {
			t.Errorf("host %q", raw.Name)
		}
		if w, err := node.Place("node/a").Watch(ctx, proof.WatchRequest{}, make(chan struct{}, 1)); err == nil {
			_, _ = w.Now(ctx)
		}
		if ctx.Err() != nil {
			t.Error("an end of the stream did not end the conversation")
		}
	})
}
