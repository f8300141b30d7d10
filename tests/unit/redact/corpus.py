"""Fake secrets, made up at test time so that nothing that looks like one is committed, and things that are none."""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections.abc import Callable
from typing import Any, NamedTuple

ALNUM = string.ascii_letters + string.digits
URLSAFE = ALNUM + "-_"
HEX = "0123456789abcdef"


class Planted(NamedTuple):
    """A text, the secret in it that must vanish, and the kind its mask shows."""

    kind: str
    text: str
    secret: str


class Forge:
    """Makes fake secrets from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def of(self, alphabet: str, length: int) -> str:
        """Random text in which capitals, small letters and digits alternate as they do in real keys."""
        return "".join(self.random.choice(alphabet) for _ in range(length))

    def key(self, length: int, alphabet: str = ALNUM) -> str:
        """Random text with at least two digits, a capital and a small letter, like any real key of this length."""
        while True:
            text = self.of(alphabet, length)
            if sum(c.isdigit() for c in text) >= 2 and text != text.lower() and text != text.upper():
                return text

    def jwt(self) -> str:
        def part(value: object) -> str:
            return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

        body = {"sub": self.of(string.digits, 10), "name": "Ada", "iat": 1516239022}
        return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(body)}.{self.of(URLSAFE, 43)}"

    def pem(self, label: str = "RSA ") -> str:
        lines = "\n".join(self.of(ALNUM + "+/", 64) for _ in range(6))
        return f"-----BEGIN {label}PRIVATE KEY-----\n{lines}\n-----END {label}PRIVATE KEY-----"

    def card(self) -> str:
        digits = "4" + self.of(string.digits, 14)
        return next(digits + d for d in string.digits if _luhn(digits + d))

    def iban(self) -> str:
        account = self.of(string.digits, 11)
        check = 98 - int(account + "232400") % 97
        return f"NO{check:02d}{account}"


def _luhn(digits: str) -> bool:
    doubled = [int(d) * (1 + n % 2) for n, d in enumerate(reversed(digits))]
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0


def tokens(forge: Forge) -> list[Planted]:
    """Tokens that are known by their looks, each alone."""
    key, of = forge.key, forge.of
    made: list[tuple[str, str]] = [
        ("openai", "sk-" + key(48)),
        ("openai", "sk-proj-" + key(74, URLSAFE)),
        ("openai", "sk-svcacct-" + key(60, URLSAFE)),
        ("anthropic", "sk-ant-api03-" + key(93, URLSAFE)),
        ("openrouter", "sk-or-v1-" + of(HEX, 64)),
        ("google", "AIza" + key(35, URLSAFE)),
        ("google", "ya29." + key(60, URLSAFE)),
        ("google", "GOCSPX-" + key(28, URLSAFE)),
        ("aws_key_id", "AKIA" + of(string.ascii_uppercase + "234567", 16)),
        ("aws_key_id", "ASIA" + of(string.ascii_uppercase + "234567", 16)),
        ("github", "ghp_" + key(36)),
        ("github", "gho_" + key(36)),
        ("github", "ghs_" + key(36)),
        ("github", "github_pat_" + key(22) + "_" + key(59)),
        ("gitlab", "glpat-" + key(20, URLSAFE)),
        ("gitlab", "gldt-" + key(20, URLSAFE)),
        ("slack", "xoxb-" + of(string.digits, 12) + "-" + of(string.digits, 12) + "-" + key(24)),
        ("slack", "xoxp-" + of(string.digits, 12) + "-" + key(32)),
        ("slack", "xapp-1-A" + of(string.digits, 10) + "-" + of(string.digits, 13) + "-" + of(HEX, 64)),
        ("stripe", "sk_live_" + key(24)),
        ("stripe", "rk_test_" + key(24)),
        ("stripe", "whsec_" + key(32)),
        ("twilio", "SK" + of(HEX, 32)),
        ("sendgrid", "SG." + key(22, URLSAFE) + "." + key(43, URLSAFE)),
        ("mailgun", "key-" + of(HEX, 32)),
        ("huggingface", "hf_" + of(string.ascii_letters, 34)),
        ("npm", "npm_" + key(36)),
        ("pypi", "pypi-AgEIcHlwaS5vcmc" + key(90, URLSAFE)),
        ("azure", of(ALNUM, 3) + "8Q~" + key(34, URLSAFE + "~.")),
        ("groq", "gsk_" + key(52)),
        ("xai", "xai-" + key(80)),
        ("perplexity", "pplx-" + key(48)),
        ("replicate", "r8_" + key(37)),
        ("tavily", "tvly-" + key(32)),
        ("langsmith", "lsv2_pt_" + of(HEX, 32) + "_" + of(HEX, 10)),
        ("digitalocean", "dop_v1_" + of(HEX, 64)),
        ("shopify", "shpat_" + of(HEX, 32)),
        ("databricks", "dapi" + of(HEX, 32)),
        ("linear", "lin_api_" + key(40)),
        ("notion", "ntn_" + key(46)),
        ("vault", "hvs." + key(24, URLSAFE)),
        ("doppler", "dp.pt." + key(43)),
        ("docker", "dckr_pat_" + key(27, URLSAFE)),
        ("atlassian", "ATATT3" + key(60, URLSAFE)),
        ("grafana", "glsa_" + key(32) + "_" + of(HEX, 8)),
        ("newrelic", "NRAK-" + of(string.ascii_uppercase + string.digits, 27)),
        ("postman", "PMAK-" + of(HEX, 24) + "-" + of(HEX, 34)),
        ("supabase", "sbp_" + of(HEX, 40)),
        ("tailscale", "tskey-auth-" + key(12) + "-" + key(32)),
        ("telegram", of(string.digits[1:], 9) + ":AA" + key(33, URLSAFE)),
        ("discord", "M" + key(23, URLSAFE) + "." + key(6) + "." + key(38, URLSAFE)),
        ("age", "AGE-SECRET-KEY-1" + of(string.ascii_uppercase + string.digits, 58)),
        ("jwt", forge.jwt()),
        ("private_key", forge.pem()),
        ("private_key", forge.pem("OPENSSH ")),
        ("private_key", forge.pem("")),
        ("high_entropy", key(40)),
        ("high_entropy", key(32)),
        ("high_entropy", base64.b64encode(forge.random.randbytes(32)).decode()),
    ]
    return [Planted(kind, secret, secret) for kind, secret in made]


def in_text(forge: Forge) -> list[Planted]:
    """Secrets that are known by what stands around them."""
    pw = "hunter" + forge.of(string.digits, 3)
    key = forge.key(40, ALNUM + "/+")
    token = forge.key(24)
    short = forge.of(string.ascii_lowercase, 9)
    basic = base64.b64encode(f"admin:{pw}".encode()).decode()
    signature = forge.of(HEX, 64)
    pin = forge.of(string.digits[1:], 4)
    made: list[tuple[str, str, str]] = [
        ("password", f"password: {pw}", pw),
        ("password", f"password={short}", short),
        ("password", f"Password: {short}\nnext line", short),
        ("password", f"host=db user=app password={pw} sslmode=require", pw),
        ("password", f"Server=tcp:db,1433;User Id=sa;Password={pw};Encrypt=yes", pw),
        ("password", f"jdbc:mysql://db/app?user=x&password={pw}&tz=UTC", pw),
        ("password", f"mysqldump --password={pw} shop", pw),
        ("password", f"tool login --password {pw} --host a", pw),
        ("password", f"{{'user': 'x', 'password': '{pw} and more'}}", f"{pw} and more"),
        ("password", f'got {{"user":"x","db_password":"{pw}"}} back', pw),
        ("password", f'nested {{\\"password\\": \\"{pw}\\"}} text', pw),
        ("password", f"curl -u admin:{pw} https://api.example.test/v1", pw),
        ("url_password", f"postgres://app:{pw}@db.example.test:5432/app", pw),
        ("url_password", f"redis://:{pw}@cache:6379/0", pw),
        ("url_password", f"mongodb+srv://u:{pw}@cluster0.example.test/db", pw),
        ("url_token", f"git clone https://{token}@git.example.test/a/b.git", token),
        ("api_key", f"export ACME_API_KEY={token}", token),
        ("api_key", f"api_key: {token}", token),
        ("api_key", f"X-Api-Key: {token}", token),
        ("api_key", f"AccountName=x;AccountKey={token};EndpointSuffix=core", token),
        ("api_key", f"The api key: {token}", token),
        ("secret", f"aws_secret_access_key = {key}", key),
        ("secret", f"client_secret={token}&grant_type=client_credentials", token),
        ("token", f"https://api.example.test/v1?access_token={token}&limit=5", token),
        ("token", f"refreshToken: '{token}'", token),
        ("token", f"cli --auth-token {token} run", token),
        ("authorization", f"Authorization: Bearer {short}12", f"{short}12"),
        ("authorization", f"authorization: Basic {basic}", basic),
        ("authorization", f"-H 'Authorization: token {token}'", token),
        ("bearer", f"sent with Bearer {token} and failed", token),
        ("cookie", f"Cookie: sid={token}; theme=dark", token),
        ("cookie", f"Set-Cookie: session={token}; Path=/; HttpOnly", token),
        ("cookie", f"JSESSIONID={token}; other", token),
        ("azure", f"https://x.blob.core.windows.net/c?sv=2022&sig={forge.key(43)}%3D&se=1", "sig=" + "A"),
        ("aws_signature", f"https://b.s3.amazonaws.com/k?X-Amz-Expires=60&X-Amz-Signature={signature}", signature),
        ("slack", f"https://hooks.slack.com/services/T0{forge.key(7)}/B0{forge.key(8)}/{token}", token),
        ("pin", f"pin: {pin}", pin),
        ("otp", f"otp={forge.of(string.digits, 6)}", "otp=1"),
        ("ssn", f"SSN: 078-05-{pin}", f"078-05-{pin}"),
        ("cvv", f"cvv: {pin[:3]}", f"cvv: {pin[:3]}"),
    ]
    return [Planted(kind, text, secret) for kind, text, secret in made if secret in text]


def named(forge: Forge) -> list[tuple[str, str, str]]:
    """(field name, value, kind): secrets that are known by the name they stand under."""
    weak, strong = "tr0ub4dor", forge.key(32)
    return [
        ("password", weak, "password"),
        ("Password", weak, "password"),
        ("user_password", weak, "password"),
        ("passwd", weak, "password"),
        ("pwd", weak, "password"),
        ("passphrase", "four plain words here", "password"),
        ("dbPass", weak, "password"),
        ("client_secret", strong, "secret"),
        ("clientSecret", strong, "secret"),
        ("CLIENT-SECRET", strong, "secret"),
        ("aws_secret_access_key", strong, "secret"),
        ("SecretString", weak, "secret"),
        ("api_key", strong, "api_key"),
        ("apiKey", strong, "api_key"),
        ("X-API-Key", strong, "api_key"),
        ("OPENAI_API_KEY", weak, "api_key"),
        ("AZURE__API__KEY", weak, "api_key"),
        ("private_key", strong, "private_key"),
        ("accessToken", strong, "token"),
        ("refresh_token", strong, "token"),
        ("token", weak, "token"),
        ("csrf-token", weak, "token"),
        ("token_string", weak, "token"),
        ("tokenString", weak, "token"),
        ("accessTokens", weak, "token"),
        ("refresh_tokens", weak, "token"),
        ("authorization", strong, "authorization"),
        ("Proxy-Authorization", strong, "authorization"),
        ("auth", strong, "authorization"),
        ("cookie", "sid=1; a=b", "cookie"),
        ("Set-Cookie", "sid=1; a=b", "cookie"),
        ("credentials", weak, "credential"),
        ("jwt", strong, "jwt"),
        ("ssn", "078-05-1120", "ssn"),
        ("pin", "4821", "pin"),
        ("cardPin", "4821", "pin"),
        ("cvv", "123", "cvv"),
        ("cvc2", "123", "cvv"),
        ("otp", "123456", "otp"),
    ]


def personal(forge: Forge) -> list[Planted]:
    """Personal data in text."""
    card, iban = forge.card(), forge.iban()
    grouped = " ".join(card[n : n + 4] for n in range(0, 16, 4))
    digits = forge.of(string.digits[1:], 8)
    made = [
        ("email", "write to ada.lovelace+work@example.org today", "ada.lovelace+work@example.org"),
        ("email", "<bob@sub.example.co.uk>", "bob@sub.example.co.uk"),
        ("email", "mailto:bob@example.org or users/bob@example.org", "bob@example.org"),
        ("phone", f"call +47 {digits[:3]} {digits[3:5]} {digits[5:]} now", f"{digits[:3]} {digits[3:5]} {digits[5:]}"),
        ("phone", f"tel +1{digits}55", f"+1{digits}55"),
        ("phone", f"(555) 867-{digits[:4]}", f"(555) 867-{digits[:4]}"),
        ("phone", f"phone: {digits}", digits),
        ("card", f"charged {card} once", card),
        ("card", f"charged {grouped} once", grouped),
        ("iban", f"pay to {iban} please", iban),
        ("iban", f"pay to {iban[:4]} {iban[4:8]} {iban[8:12]} {iban[12:]} please", iban[8:12] + " " + iban[12:]),
    ]
    return [Planted(kind, text, secret) for kind, text, secret in made]


KEPT_TEXTS: tuple[str, ...] = (
    # ids of providers, runs and traces
    "550e8400-e29b-41d4-a716-446655440000",
    "01890a5d-ac96-774b-bcce-b302099a8057",
    "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "toolu_01A09q90qw90lq917835lq9",
    "srvtoolu_01WYG3ziw53XMcoyKL4XcZmE",
    "call_Ao02pnFYXD6GN1yzc0uXPsvF",
    "fc_67ca09c5efe0819096d0511c92b8c890096610f474011cc0",
    "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
    "msg_01XFDUDYJgAACzvnptvVoYEL",
    "resp_67ccd2bed1ec8190b14f964abc0542670bb6a6b452d3795b",
    "req_018EeWyXxfu5pfWkrYcMdjWG",
    "run_01J9Z3NDEKTSV4RRFFQ69G5FAV",
    "thread_abc123DEF456ghi789JKL012",
    "file-abc123DEF456ghi789JKL012",
    "cus_NffrFeUfNV2Hib",
    "pi_3MtwBwLkdIwHu7ix28a3tqPa",
    "cs_test_a1B2c3D4e5F6g7H8i9J0k1L2m3",
    "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==",
    "commit 5d41402abc4b2a76b9719d911017c592a1b2c3d4",
    "0x5FbDB2315678afecb367f032d93F642f64180aa3",
    "507f1f77bcf86cd799439011",
    # times, numbers, versions
    "2026-01-02T03:04:05.123456+00:00",
    "20260102T030405Z",
    "1731638800123",
    "3.14159265358979323846",
    "1.2.3-beta.4+build.20260102",
    "10.0.0.0/8 and 192.168.100.200:8080",
    "+/- 5 and 1+1000",
    # names, paths, addresses of the web
    "/usr/local/lib/python3.11/site-packages/antiphon/redact/_text.py",
    "C:/Users/Public/Documents/Report2026Final.docx",
    "sentence-transformers/all-MiniLM-L6-v2",
    "Qwen/Qwen3-VL-235B-A22B-Instruct-FP8",
    "claude-opus-4-5-20251101",
    "gpt-4o-mini-2024-07-18",
    "https://example.org/a/b?limit=10&offset=20#top",
    "https://docs.python.org/3.11/library/re.html#regular-expression-syntax",
    "https://user@example.org/path",
    "git@github.com:org/repo.git",
    "npm install @scope/package@1.2.3",
    "arn:aws:iam::123456789012:role/Deploy",
    "projects/demo/locations/europe-west1/functions/handler",
    "IMG_20240102_123456_HDR.jpg",
    "OAuth2AuthorizationCodeFlowHandler",
    "AbstractSingletonProxyFactoryBean2Impl",
    "test_that_a_secret_is_never_written_to_disk_2",
    "my-service-7d9f8b6c5d-x2x4z",
    "shipping_address_line1",
    "X-Request-Id",
    # words about secrets
    "Password: must be at least 8 characters",
    "Please reset your password.",
    "The token has expired; ask for a new one.",
    "token: Optional[str] = None",
    "def login(user: str, password: str) -> Session:",
    "self.token = token",
    "password = getpass()",
    "api_key=os.environ['OPENAI_API_KEY']",
    "api_key = settings.api_key",
    "password: ********",
    "secret: <redacted>",
    "export TOKEN=$TOKEN",
    "password=${DB_PASSWORD}",
    "token_count=512 max_tokens=1024",
    "Bearer of good news",
    "Basic understanding of cryptography is required",
    "basic authentication and bearer authentication",
    "The author is authorised to sign.",
    "secretary, monkey, survey, turkey, hockey, passenger, pinball, cookbook",
    "key: value, sort_key: name, primary_key: id",
    "What is a cookie? A small text file.",
    # text in general
    "The quick brown fox jumps over the lazy dog 42 times.",
    "Please answer in Norwegian, keep it short and friendly.",
    "Größe: 1,85 m — naïve café, 日本語 テキスト",
    "SELECT id, name FROM users WHERE created_at > '2026-01-01' ORDER BY id LIMIT 10",
    "for (int i = 0; i < n; ++i) { sum += a[i]; }",
    "E = mc^2; a^2 + b^2 = c^2",
    "1234 5678",
    "order 4821 of 2026-11-15, 3 items, 412.00 NOK",
    "[secret:openai:0123456789abcdef] and [secret:pin]",
)

KEPT_VALUES: tuple[object, ...] = (
    {"usage": {"prompt_tokens": 12, "completion_tokens": 30, "total_tokens": 42}},
    {"max_tokens": 1024, "token_type": "bearer", "tokens_per_minute": 90_000},
    {"token": " Hello", "logprob": -0.25, "bytes": [32, 72]},
    {"next_page_token": "page-2", "nextToken": "page-3"},
    {"type": "object", "properties": {"password": {"type": "string", "description": "the password"}}},
    {"has_password": True, "password_policy": "strong", "secret_name": "db/prod", "passwordRequired": False},
    {"sessionKey": "s-1", "idempotencyKey": "order-4821", "keyFingerprint": "ab12cd34", "cacheKey": "k"},
    {"key": "status", "value": "open"},
    {"name": "limit", "value": "25"},
    {"author": "Ada", "authority": "court", "authored_by": "Bob"},
    {"pin": "D13", "gpio_pin": "A0"},
    {"pin": True, "otp": None, "password": None, "token": ""},
    {"credentials": "include", "auth": "none", "authorization": "required"},
    {"id": "1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms"},
    {"source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"}},
    {"thinking": "hm", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"},
    {"numbers": [1, 2.5, -3, 1e300], "flags": [True, None], "nested": {"a": {"b": []}}},
    {"digest": "x" * 300, "hash": "AbC123" * 8},
    ["a", "b"],
    ["limit", "10"],
)

Maker = Callable[[Forge], list[Planted]]


_DIGEST = re.compile(r":[0-9a-f]{4}\]")


def bare(value: Any) -> Any:
    """*value* with masks that show their kind only: ``[pin]`` for ``[pin:3f9a]``."""
    if isinstance(value, str):
        return _DIGEST.sub("]", value)
    if isinstance(value, bytes):
        return bare(value.decode("latin-1")).encode("latin-1")
    if isinstance(value, dict):
        return {bare(key): bare(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(bare(item) for item in value)
    return value
