// Package browser tests the page of docs/playground in headless Chromium. It is a module of its own, because it drives a browser.
package browser
