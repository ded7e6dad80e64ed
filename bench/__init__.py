"""The numbers of docs/performance.md, on the machine at hand. Run by hand with `make bench`, never asserted."""
