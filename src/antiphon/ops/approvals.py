"""Deciding on calls that await approval: list, show, approve, deny, withdraw, and links that let somebody decide.

Written once for the host and the commands, like :class:`~antiphon.ops.admin.Admin`. A decision replaces the call's
record by version, so of two people only one decides; then it is audited. Whether an approval or a link has expired is
decided by the store's clock, as everywhere: the clock of the machine that decides may differ.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple, Self

from antiphon._drive import drive
from antiphon._gateway.approval import decided
from antiphon._gateway.ids import Fingerprints
from antiphon._gateway.result_store import masked
from antiphon.contract._base import UNSET
from antiphon.contract.approval import DENIED, GRANTED, REQUIRED, STATES, WITHDRAWN, Approval, Kept, approval_of, read
from antiphon.contract.record import DedupeRecord
from antiphon.errors import ConfigError, InvalidInput, NotFound, Refused, StoreError
from antiphon.ops.admin import Admin, dry, refusal
from antiphon.ops.gateways import declared
from antiphon.ops.resources import Resources
from antiphon.ports import Journal

VERDICTS: Final = {"approve": GRANTED, "deny": DENIED, "withdraw": WITHDRAWN}
_UNSEEN: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)
"""Invisible characters that count as printable: fillers, joiners, variation selectors."""
_LINK: Final = "approval link "
_LINK_DIGITS, _LONGEST_TOKEN, _LONGEST_NAME = 32, 4096, 200
_IS_PAGE: Final = re.compile(r"https?://[^/?#\s][^#\s]*", re.ASCII | re.IGNORECASE).fullmatch


class SelfApproval(Refused):
    """The requester may not approve its own call."""

    code = "self_approval"


class AlreadyDecided(InvalidInput):
    """Somebody has already decided, or the approval has expired."""

    code = "approval_decided"


class Link(NamedTuple):
    """What a signed link contains. Only holders of the store's seal key can make one.

    It is valid for one approval with these arguments, for one person, until the approval expires or somebody decides.
    """

    tenant: str
    approval: str
    digest: str
    """What the approval is bound to: a prefix of its HMAC."""
    expires_at_ms: int
    to: str
    """The person who decides with it."""
    may: tuple[str, ...]
    """What it may be used for: ``approve``, ``deny`` or both."""

    def token(self, fingerprints: Fingerprints) -> str:
        """The link as text for a URL."""
        said = base64.urlsafe_b64encode(json.dumps(self, separators=(",", ":")).encode()).decode().rstrip("=")
        signature = fingerprints.sign(_LINK + said)
        if signature is None:
            raise ConfigError(
                "There is no key to sign links with.",
                hint="Name a key file: [store] seal_key_file.",
                path="store.seal_key_file",
            )
        return f"{said}.{signature}"

    @classmethod
    def read(cls, token: str, fingerprints: Fingerprints) -> Self:
        """The link of a token; a token that was not signed here is refused before its content is read."""
        said, _, signature = token.partition(".")
        try:
            if len(token) > _LONGEST_TOKEN or not fingerprints.signed(_LINK + said, signature):
                raise ValueError
            tenant, approval, digest, expires, to, may = json.loads(
                base64.urlsafe_b64decode(said + "=" * (-len(said) % 4))
            )
        except ValueError:
            raise NotFound("This link is not valid.", hint="Ask for a new one.", code="link_invalid") from None
        return cls(tenant, approval, digest, expires, to, tuple(may))


class Approvals(Admin):
    """The approvals of one tenant, for one person."""

    def __init__(
        self, app: Resources, journal: Journal | None = None, *, actor: str = "cli", where: str = "command line"
    ) -> None:
        """*actor* decides, from *where*."""
        super().__init__(app, journal, actor=actor)
        self._where = where
        self._allow_self: bool = app.config.approvals.allow_self
        self._url: str = app.config.approvals.url

    async def waiting(self, *, state: str = "waiting", tool: str = "", limit: int | None = 100) -> list[dict[str, Any]]:
        """Approvals in one state (``all``: any), newest first; all of them without *limit*."""
        kept = await self._kept(tool)
        now = await self._now(kept[0][0]) if kept else 0
        found = [self._shown_approval(*one, now) for one in kept]
        return [one for one in found if state in ("all", one["state"])][:limit]

    async def show(self, approval: str) -> dict[str, Any]:
        """One approval."""
        record, kept = await self._by_id(approval)
        return self._shown_approval(record, kept, await self._now(record))

    async def link(
        self,
        approval: str,
        *,
        to: str,
        may: Collection[str] = ("approve", "deny"),
        expires_in_s: float | None = None,
        url: str = "",
    ) -> dict[str, Any]:
        """A signed link with which *to* can decide on one approval: opening it shows the call, the form on it decides.

        It expires with the approval, or after *expires_in_s*. *url*: where the page is (default: ``[approvals] url``).
        """
        base = url or self._url
        if not base:
            raise InvalidInput(
                "The address of the approval page is not set.",
                hint="Give --url (in Python: url=), or set [approvals] url.",
                path="$.url",
            )
        if not _IS_PAGE(base):
            raise InvalidInput(
                "The page of signed links has an address with http:// or https://, and no fragment.", path="$.url"
            )
        if not to or len(to) > _LONGEST_NAME or not to.isprintable():
            raise InvalidInput(f"Name who decides with the link, in at most {_LONGEST_NAME} characters.", path="$.to")
        unknown = [one for one in may if one not in ("approve", "deny")]
        if unknown or not may:
            raise InvalidInput("A link allows approve, deny or both.", path="$.may")
        if expires_in_s is not None and not expires_in_s > 0:
            raise InvalidInput("A link must be valid for more than 0 seconds.", path="$.expiresInS")
        record, (code, asked) = await self._by_id(approval)
        now = await self._now(record)
        self._check_open(code, asked, (REQUIRED,), now)
        if "approve" in may:
            self._check_requester(to, asked)
        lasts = asked.expires_at_ms if expires_in_s is None else now + int(expires_in_s * 1000)
        made = Link(
            self.tenant,
            asked.id,
            asked.digest[:_LINK_DIGITS],
            min(lasts, asked.expires_at_ms),
            to,
            tuple(sorted(set(may))),
        )
        token = made.token(self._fingerprints)
        about = {"approval": asked.id, "key": record.key, "tool": record.tool, "to": to, "may": list(made.may)}
        await self._note("link", {**about, "from": self._where, "expiresAtMs": made.expires_at_ms})
        place = f"{base}{'&' if '?' in base else '?'}token={token}"
        return {"id": asked.id, "url": place, "to": to, "may": list(made.may), "expiresAtMs": made.expires_at_ms}

    async def approval_of_link(self, link: Link) -> dict[str, Any]:
        """The approval that a link is for; changes nothing."""
        record, kept = await self._of_link(link)
        now = await self._now(record)
        shown = self._shown_approval(record, kept, now)
        if shown["state"] == "waiting" and now >= link.expires_at_ms:
            shown["state"] = "expired"
        return shown

    async def decide_with(self, link: Link, verdict: str, *, reason: str = "") -> dict[str, Any]:
        """Decide with a link, as the person it was made for."""
        if verdict not in link.may:
            raise InvalidInput(f"This link allows: {', '.join(link.may)}. Nothing was changed.", path="decision")
        record, kept = await self._of_link(link)
        if await self._now(record) >= link.expires_at_ms:
            raise AlreadyDecided("This link has expired. Nothing was changed.", hint="Ask for a new one.")
        return await self._decide(record, kept, verdict, reason, False)

    async def _of_link(self, link: Link) -> tuple[DedupeRecord, Kept]:
        record, kept = await self._by_id(link.approval)
        if kept.approval.digest[:_LINK_DIGITS] != link.digest:
            raise NotFound("The arguments of this call have changed since the link was made.", code="link_invalid")
        return record, kept

    def _check_requester(self, person: str, asked: Approval) -> None:
        if person.strip().casefold() == asked.asker.strip().casefold() and not self._allow_self:
            raise SelfApproval(
                f"{person} made this call and cannot approve it. Nothing was changed.",
                hint="Somebody else must decide, unless the configuration allows it: [approvals] allow_self = true.",
            )

    async def decide(self, approval: str, verdict: str, *, reason: str = "", dry_run: bool = False) -> dict[str, Any]:
        """Approve, deny or withdraw. A decision is final; an approval can be withdrawn until it is spent.

        *dry_run* makes every check and changes nothing.
        """
        _check(verdict)
        return await self._decide(*await self._by_id(approval), verdict, reason, dry_run)

    async def decide_all(
        self, approvals: Collection[str], verdict: str, *, reason: str = "", dry_run: bool = False
    ) -> dict[str, Any]:
        """Decide on several in the same way; one that is refused does not stop the others."""
        _check(verdict)
        found = {kept.approval.id: (record, kept) for record, kept in await self._kept()}
        decided, refused = [], []
        for approval in approvals:
            try:
                if approval not in found:
                    raise self._missing(approval)
                decided.append(await self._decide(*found[approval], verdict, reason, dry_run))
            except (InvalidInput, NotFound, Refused, StoreError) as error:
                refused.append({"id": approval, "message": refusal(error)})
        not_decided = {"refused": refused} if refused else {}
        return {"decision": verdict, "approvals": decided, **not_decided, **dry(dry_run)}

    async def _decide(
        self, record: DedupeRecord, kept: Kept, verdict: str, reason: str, dry_run: bool
    ) -> dict[str, Any]:
        code, asked = kept
        open_codes = (REQUIRED, GRANTED) if verdict == "withdraw" else (REQUIRED,)
        now = await self._now(record)
        self._check_open(code, asked, open_codes, now)
        if verdict == "approve":
            self._check_requester(self.actor, asked)
        clean = self._sanitized(reason)
        if dry_run:
            will = {"state": STATES[VERDICTS[verdict]], "before": STATES[code], "dryRun": True}
            return {**self._shown_approval(record, kept, now), **will}
        settlement = decided(asked, VERDICTS[verdict], by=self.actor, at_ms=now, where=self._where, reason=clean)
        version = await self._journal.settle(record.key, record.version, settlement)
        if version is None:
            raise AlreadyDecided(
                f"Approval {asked.id} changed in the meantime. Nothing was changed by this decision.",
                hint="Check it again: antiphon approvals show.",
                path="$.decision",
            )
        about = {"approval": asked.id, "key": record.key, "tool": record.tool, "asker": asked.asker}
        made = Kept(VERDICTS[verdict], read(bytes(settlement.payload or b"")))
        detail = {**about, "from": self._where, "reason": clean}
        return await self._done(verdict, detail, self._shown_approval(record, made, now))

    def _check_open(self, code: str, asked: Approval, open_codes: Collection[str], now: int) -> None:
        if code not in open_codes:
            by = f" by {asked.decided_by}" if asked.decided_by else ""
            raise AlreadyDecided(
                f"Approval {asked.id} is {STATES[code]}{by}. Nothing was changed.",
                hint="An approval that is not spent yet can be withdrawn." if code == GRANTED else "",
                path="$.decision",
            )
        if now >= asked.expires_at_ms:
            raise AlreadyDecided(
                f"Approval {asked.id} expired {now - asked.expires_at_ms} ms ago. Nothing was changed.",
                hint="The next delivery of the call creates a new request.",
                path="$.decision",
            )

    async def _kept(self, tool: str = "") -> list[tuple[DedupeRecord, Kept]]:
        """All approvals; they are stored among the records of failed calls."""
        failed = self._all(state="failed", tool=tool)
        return [(record, kept) async for record in failed if (kept := approval_of(record)) is not None]

    async def _by_id(self, approval: str) -> tuple[DedupeRecord, Kept]:
        for record, kept in await self._kept() if approval else ():
            if kept.approval.id == approval:
                return record, kept
        raise self._missing(approval)

    def _missing(self, approval: str) -> NotFound:
        return NotFound(
            f"No such approval {approval!r}: the id may be mistyped, or it was used, replaced or has expired.",
            hint="List them: antiphon approvals list",
        )

    def _shown_approval(self, record: DedupeRecord, kept: Kept, now: int) -> dict[str, Any]:
        asked = kept.approval
        request, spec = record.request, declared().get(record.tool)
        return {
            "id": asked.id,
            "state": kept.state(now),
            "tool": record.tool,
            "description": "" if spec is None else visible(spec.description),
            "arguments": visible(self._arguments_of(record, asked)),
            "asker": visible(asked.asker),
            "session": visible(request.session_key),
            "callId": None if request.tool_call_id is UNSET else visible(request.tool_call_id),
            "policy": asked.policy,
            "policyVersion": asked.policy_version,
            "askedAtMs": asked.asked_at_ms,
            "ageMs": max(0, now - asked.asked_at_ms),
            "expiresAtMs": asked.expires_at_ms,
            "decidedBy": asked.decided_by or None,
            "decidedAtMs": asked.decided_at_ms or None,
            "decidedFrom": asked.decided_from or None,
            "reason": asked.reason or None,
        }

    def _arguments_of(self, record: DedupeRecord, asked: Approval) -> str:
        """The arguments as a person may see them, with secrets masked."""
        if not asked.arguments.startswith("s2."):
            return masked(asked.arguments.encode(), self._redactor, None)
        data = self._unsealed(record, asked.arguments)
        if data is None:
            return "(sealed: the seal key of the store is missing)"
        return masked(data, self._redactor, None)


def _check(verdict: str) -> None:
    if verdict not in VERDICTS:
        raise InvalidInput("Decide with approve, deny or withdraw.", path="$.decision")


class Desk:
    """The approvals of one tenant for synchronous code: what one person sees and decides.

    Made by ``app.approvals("grace")``.
    """

    def __init__(self, app: Resources, actor: str, where: str) -> None:
        self._inner = Approvals(app, actor=actor, where=where)

    def list(self, *, state: str = "waiting", tool: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Approvals in one state (``all``: any), newest first."""
        return drive(self._inner.waiting(state=state, tool=tool, limit=limit))

    def show(self, approval: str) -> dict[str, Any]:
        """One approval."""
        return drive(self._inner.show(approval))

    def decide(self, approval: str, verdict: str, *, reason: str = "", dry_run: bool = False) -> dict[str, Any]:
        """``approve``, ``deny`` or ``withdraw``; *dry_run* makes every check and changes nothing."""
        return drive(self._inner.decide(approval, verdict, reason=reason, dry_run=dry_run))

    def decide_all(self, approvals: Collection[str], verdict: str, **options: Any) -> dict[str, Any]:
        """Decide on several in the same way; one that is refused does not stop the others."""
        return drive(self._inner.decide_all(approvals, verdict, **options))

    def link(self, approval: str, *, to: str, **options: Any) -> dict[str, Any]:
        """A signed link with which *to* decides; see :meth:`Approvals.link`."""
        return drive(self._inner.link(approval, to=to, **options))


def visible(text: str) -> str:
    """Text that a person can trust: control, bidirectional and invisible characters are escaped.

    >>> visible("pay\\u202e001")
    'pay\\\\u202e001'
    """
    return "".join(
        one if one.isprintable() and one not in _UNSEEN else one.encode("unicode_escape", "replace").decode()
        for one in text
    )
