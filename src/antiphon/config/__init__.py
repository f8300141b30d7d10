"""TOML and environment, wired into objects. Back-ends are chosen only here."""
