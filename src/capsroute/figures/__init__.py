"""The paper's figures and those of a run: each function lays out what `capsroute.analysis` computed."""
