"""Claims, run log and breaker states on Redis or Valkey, with redis-py as the client."""

from antiphon.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
