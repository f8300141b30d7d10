"""Tokens that can be told by their looks: one pattern per provider, and the shapes that everybody uses.

Each pattern has twenty characters of :data:`RUN_CHARS` in a row (or, Azure, ``Q~``): the prefilter looks for those.
"""

from __future__ import annotations

from antiphon.redact._deferred import deferred

RUN_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-"
"""What tokens are made of; a run of at least :data:`MIN_RUN` of them is looked at more closely."""

MIN_RUN = 20

_PROVIDERS: tuple[tuple[str, str], ...] = (
    ("anthropic", r"sk-ant-[A-Za-z0-9_-]{16,}"),
    ("openrouter", r"sk-or-(?:v1-)?[A-Za-z0-9_-]{20,}"),
    ("openai", r"sk-[A-Za-z0-9][A-Za-z0-9_-]{19,}"),
    ("stripe", r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{24,}"),
    ("google", r"AIza[0-9A-Za-z_-]{30,}|ya29\.[0-9A-Za-z_-]{20,}|GOCSPX-[0-9A-Za-z_-]{20,}|1//0[0-9A-Za-z_-]{30,}"),
    ("aws_key_id", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("github", r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{22,}"),
    ("gitlab", r"(?:gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|oas)-|GR1348941)[A-Za-z0-9_-]{20,}(?:\.[0-9a-z.]{4,})?"),
    ("slack", r"xox[abcdeoprs]-[A-Za-z0-9-]{15,}|xapp-[0-9]-[A-Za-z0-9-]{20,}"),
    ("slack", r"(?<=hooks\.slack\.com/services/)T[A-Za-z0-9]{6,}/B[A-Za-z0-9]{6,}/[A-Za-z0-9]{16,}"),
    ("twilio", r"SK[0-9a-f]{32}(?![0-9a-f])"),
    ("sendgrid", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{32,}"),
    ("mailgun", r"key-[0-9a-f]{32}(?![0-9a-f])"),
    ("huggingface", r"(?:hf_|api_org_)[A-Za-z0-9]{24,}"),
    ("npm", r"npm_[A-Za-z0-9]{30,}"),
    ("pypi", r"pypi-[A-Za-z0-9_-]{40,}"),
    ("azure", r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}"),
    ("azure", r"(?<=[?&;]sig=)[A-Za-z0-9%+/=_-]{40,}|(?<=AccountKey=)[A-Za-z0-9+/=_-]{40,}"),
    ("aws_signature", r"(?<=X-Amz-Signature=)[0-9a-f]{64}|(?<=X-Goog-Signature=)[0-9a-f]{64,}"),
    ("groq", r"gsk_[A-Za-z0-9]{30,}"),
    ("xai", r"xai-[A-Za-z0-9]{40,}"),
    ("perplexity", r"pplx-[A-Za-z0-9]{30,}"),
    ("replicate", r"r8_[A-Za-z0-9]{30,}"),
    ("tavily", r"tvly-[A-Za-z0-9_-]{20,}"),
    ("langsmith", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}"),
    ("digitalocean", r"do[opr]_v1_[0-9a-f]{64}"),
    ("shopify", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    ("databricks", r"dapi[0-9a-f]{32}"),
    ("linear", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}"),
    ("notion", r"(?:secret|ntn)_[A-Za-z0-9]{40,}"),
    ("vault", r"hv[sbr]\.[A-Za-z0-9_-]{24,}"),
    ("doppler", r"dp\.(?:pt|st|ct|sa)\.(?:[a-z0-9_-]+\.)?[A-Za-z0-9]{40,}"),
    ("docker", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{24,}"),
    ("atlassian", r"ATATT3[A-Za-z0-9_=-]{40,}"),
    ("grafana", r"glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}|glc_[A-Za-z0-9+/=]{32,}"),
    ("sentry", r"sntry[su]_[A-Za-z0-9+/=_-]{40,}"),
    ("newrelic", r"NRAK-[A-Z0-9]{27}"),
    ("postman", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    ("supabase", r"sbp_[0-9a-f]{40}"),
    ("tailscale", r"tskey-[a-z]+-[A-Za-z0-9]{10,}-[A-Za-z0-9]{20,}"),
    ("telegram", r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{32,33}"),
    ("discord", r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}"),
    ("age", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    ("jwt", r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}(?:\.[A-Za-z0-9_-]+){1,3}"),
    ("jwt", r"eyJ[A-Za-z0-9_-]{17,}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+){1,3}"),
)


TOKEN_KINDS = {f"k{n}": kind for n, (kind, _) in enumerate(_PROVIDERS)}

TOKENS = deferred(
    "(?<![A-Za-z0-9])(?:" + "|".join(f"(?P<k{n}>{pattern})" for n, (_, pattern) in enumerate(_PROVIDERS)) + ")"
)
"""All providers in one pattern; ``TOKEN_KINDS[match.lastgroup]`` is the kind."""

TOKEN_STARTS = deferred(
    r"sk-|[sr]k_(?:live|test)_|whsec_|AIza|GOCSPX-|1//0|A(?:KIA|SIA|BIA|CCA)|gh[pousr]_|github_pat_|gl[a-z]{2,5}-"
    r"|GR1348941|xox[a-z]-|xapp-|services/T|^T|SK[0-9a-f]|key-|hf_|api_org_|npm_|pypi-|gsk_|xai-|pplx-|r8_|tvly-|lsv2_"
    r"|do[opr]_v1_|shp[a-z]{2}_|dapi|lin_|secret_|ntn_|dckr_|ATATT3|glsa_|glc_|sntry|NRAK-|PMAK-|sbp_|tskey-|^AA"
    r"|AGE-SECRET|eyJ|sig=|AccountKey=|-Signature="
)
"""How any of them begins within a run of token characters: cheap, and never narrower than :data:`TOKENS`."""

PRIVATE_KEY = deferred(
    r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?!-----BEGIN)[\s\S])*?(?:-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
"""A private key in PEM armour; one that was cut off counts to the end of the text."""

URL_PASSWORD = deferred(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s/?#:@\"'<>\[\]]{0,256}:(?P<secret>[^\s/?#\"'<>]{1,256})@")
"""``scheme://user:password@host``, the database kind included."""

URL_TOKEN = deferred(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://(?P<secret>[A-Za-z0-9_.~%-]{16,256})@")
"""``https://token@host``."""

HEADER = deferred(
    r"(?i)\b(?:proxy-)?authori[sz]ation\\*[\"'`]?[ \t]*[:=,][ \t]*\\*[\"'`]?[ \t]*"
    r"(?:(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)[ \t]+)?(?P<secret>[^\s\"'`\\,;]{3,})"
)
"""An Authorization header written out in text; the scheme is kept."""

COOKIE = deferred(r"(?i)\b(?:set-)?cookies?:[ \t]*(?P<secret>[A-Za-z0-9_.$-]+=[^\r\n\"'`\\]+)")

SESSION_COOKIE = deferred(
    r"(?i)(?<![A-Za-z0-9])(?:j?sess(?:ion)?_?id|phpsessid|asp\.net_sessionid)[ \t]*=[ \t]*(?P<secret>[^\s;,&\"'`]{8,})"
)

BEARER = deferred(r"\b[Bb]earer (?P<secret>[A-Za-z0-9_+/=-]{20,}[A-Za-z0-9._~+/=-]*)")
BASIC = deferred(r"\b[Bb]asic (?P<secret>[A-Za-z0-9+/]{20,}={0,2})(?![A-Za-z0-9+/=])")

CURL_USER = deferred(r"(?:\s-u|--user|--proxy-user)[ =]?[\"']?[^\s\"':]{1,128}:(?P<secret>[^\s\"']{1,256})")

NETRC = deferred(r"\blogin\s+[^\s\"']{1,128}\s+password\s+(?P<secret>[^\s\"'\\]{3,256})")
"""``login NAME password …``, as in a ``.netrc`` file."""
