//go:build js && wasm

// Command playground is the program of the page in docs/playground. The page calls the function stowage with a text, an Input of package
// playground in JSON, and gets an Output.
package main

import (
	"context"
	"encoding/json"
	"syscall/js"

	"github.com/stowage-dev/stowage/internal/playground"
)

func main() {
	js.Global().Set("stowage", js.FuncOf(func(_ js.Value, args []js.Value) any {
		var in playground.Input
		if err := json.Unmarshal([]byte(args[0].String()), &in); err != nil {
			return `{"errors":[{"line":0,"text":"the page has sent something else than its state"}]}`
		}
		out, err := json.Marshal(playground.Run(context.Background(), playground.Settings(), in)) //nolint:forbidigo // a page has no context
		if err != nil {
			return `{"errors":[{"line":0,"text":"the answer cannot be shown"}]}`
		}
		return string(out)
	}))
	js.Global().Call("stowageIsReady")
	select {} // the page goes on calling
}
