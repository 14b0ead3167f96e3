// Package browser tests the playground and the site of the documents in headless Chromium. It is a module of its own, because it drives a browser.
package browser
