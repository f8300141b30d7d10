"""What ``antiphon demo`` shows: a support agent with a scripted offline model and a flaky dependency."""
