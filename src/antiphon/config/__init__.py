"""TOML and environment, wired into objects. The only place where back-ends are chosen."""
