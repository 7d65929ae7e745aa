"""The server of the page that looks inside; docs/explore.md and ui/src/lib/types.ts say what it tells."""
