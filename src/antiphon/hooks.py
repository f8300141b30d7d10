"""What before- and after-hooks are given and may answer; ``gateway.before`` and ``gateway.after`` register them."""

from antiphon._gateway.hooks import HookCall, HookReply

__all__ = ["HookCall", "HookReply"]
