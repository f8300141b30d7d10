"""For tests that use Antiphon: the conformance suite for journals."""
