package listeners

import (
	"sync"
	"testing"
)

func TestListeners(t *testing.T) {
	var l Listeners[int]
	l.Tell(1) // nobody listens
	var first, second []int
	removeFirst := l.Add(func(n int) { first = append(first, n) })
	l.Tell(2)
	removeSecond := l.Add(func(n int) { second = append(second, n) })
	l.Tell(3)
	removeFirst()
	l.Tell(4)
	removeSecond()
	l.Tell(5)
	if len(first) != 2 || first[0] != 2 || first[1] != 3 || len(second) != 2 || second[0] != 3 || second[1] != 4 {
		t.Errorf("the first was told of %v, the second of %v", first, second)
	}
}

// Who has stopped to listen is not called any more, however many events are under way.
func TestConcurrentRemoval(t *testing.T) {
	var l Listeners[int]
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for n := range 200 {
				l.Tell(n)
			}
		})
		all.Go(func() {
			for range 50 {
				listens := true // the race detector sees a call after remove
				remove := l.Add(func(int) {
					if !listens {
						t.Error("told after it stopped to listen")
					}
				})
				remove()
				listens = false
			}
		})
	}
	all.Wait()
}
