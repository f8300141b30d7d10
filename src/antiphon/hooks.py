"""What hooks receive and may return; ``gateway.before`` and ``gateway.after`` register them."""

from antiphon._gateway.hooks import HookCall, HookReply

__all__ = ["HookCall", "HookReply"]
