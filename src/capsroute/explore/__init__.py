"""The explorer: a page on this machine that shows capsule networks reach consensus. Needs the extra `explore`."""
