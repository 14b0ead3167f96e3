package bounded

import (
	"maps"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestCache(t *testing.T) {
	const each = 1000 - overhead
	type cache = Cache[string, int]
	for name, tc := range map[string]struct {
		use  func(*cache, *clocktesting.FakePassiveClock)
		want map[string]int
	}{
		"the one used least lately goes": {use: func(c *cache, _ *clocktesting.FakePassiveClock) {
			c.Add("a", 1, each, time.Minute)
			c.Add("b", 2, each, time.Minute)
			c.Get("a")
			c.Add("c", 3, each, time.Minute)
		}, want: map[string]int{"a": 1, "c": 3}},
		"a large one takes the place of several": {use: func(c *cache, _ *clocktesting.FakePassiveClock) {
			c.Add("a", 1, each, time.Minute)
			c.Add("b", 2, each, time.Minute)
			c.Add("c", 3, 2*each, time.Minute)
		}, want: map[string]int{"c": 3}},
		"one that is too large is not remembered, and puts nobody out": {use: func(c *cache, _ *clocktesting.FakePassiveClock) {
			c.Add("a", 1, each, time.Minute)
			c.Add("b", 2, 3000, time.Minute)
		}, want: map[string]int{"a": 1}},
		"another value of a key counts once": {use: func(c *cache, _ *clocktesting.FakePassiveClock) {
			c.Add("a", 1, each, time.Minute)
			c.Add("b", 2, each, time.Minute)
			c.Add("b", 3, each, time.Minute)
		}, want: map[string]int{"a": 1, "b": 3}},
		"after its time it is forgotten": {use: func(c *cache, clock *clocktesting.FakePassiveClock) {
			c.Add("a", 1, each, time.Minute)
			clock.SetTime(clock.Now().Add(time.Minute))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
			c := New[string, int](2000, clock)
			tc.use(c, clock)
			got := map[string]int{}
			for _, key := range []string{"a", "b", "c"} {
				if v, ok := c.Get(key); ok {
					got[key] = v
				}
			}
			if !maps.Equal(got, tc.want) || c.Len() != len(tc.want) || c.bytes > c.most {
				t.Errorf("%v, want %v; %d entries of %d bytes", got, tc.want, c.Len(), c.bytes)
			}
		})
	}
}

// Nothing that a terminal acts on is left of a text, and what prints stays as it is.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"web 😀 веб \"a\" 'b' \\":     "web 😀 веб \"a\" 'b' \\",
		"\x1b]0;x\x07\r\nProblem: x": `\x1b]0;x\a\r\nProblem: x`,
		"\u009b31m\u202e\u200b":      `\u009b31m\u202e\u200b`,
		"a\xffb\ufffd":               `a\xffb` + "\ufffd",
		"":                           "",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q is printed as %s, want %s", text, got, want)
		}
	}
}

// A name is one word, and no longer than names are.
func TestName(t *testing.T) {
	for name, want := range map[string]string{"web-1": "web-1", "a b\nc\td": `a\x20b\nc\td`, strings.Repeat("x", 300): strings.Repeat("x", 250) + "..."} {
		if got := Name(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}
