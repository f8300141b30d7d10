"""For those who test with Antiphon: the conformance suite of journals."""
