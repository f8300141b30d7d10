"""D36: a replay of unchanged code passes whatever it computes on masked values, and a changed one is named."""

from __future__ import annotations

import base64
import enum
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

import antiphon
from antiphon.config.load import unknown_variables
from antiphon.contract.events import Event
from antiphon.errors import MaskedArgument
from antiphon.ops.artifacts import export_run, import_artifact
from antiphon.ops.reports import Report
from antiphon.redact._pointers import viewed
from antiphon.stores import MemoryStore, SQLiteStore
from tests.unit.replay.kit import copied, leaves, memory_app, says

QUIET = {"replay": {"embedder": "lexical"}, "telemetry": {"logs": False}}
IBAN, OTHER_IBAN = "DE89370400440532013000", "GB29NWBK60161331926819"
TOKEN, OTHER_TOKEN = "ghp_" + "a1B2c3D4" * 5, "ghp_" + "Z9y8X7w6" * 5


class Bank:
    """A payment and a look-up; the agent is given as code over both."""

    def __init__(self, app: antiphon.Antiphon | None = None) -> None:
        self.app = app or memory_app()
        self.calls: list[dict[str, Any]] = []

        @self.app.gateway.tool(idempotent=False)
        def pay(recipient: str, note: Any = "") -> dict[str, Any]:
            self.calls.append({"recipient": recipient, "note": note})
            return {"paid": recipient, "contact": "bob@example.org", "note": note}

        @self.app.gateway.tool(idempotent=True, effect="read", reuse="never")
        def find(who: str, token: str = "") -> dict[str, Any]:
            self.calls.append({"who": who, "token": token})
            return {"iban": IBAN, "mail": f"{who}@example.com"}

        self.pay, self.find = pay, find

    def record(self, code: Callable[[str], Any]) -> Any:
        return self.app.record(code, "Order 1042 is late. Mail ada@example.com")

    def replay(self, run: Any, code: Callable[[str], Any], **options: Any) -> Report:
        before = len(self.calls)
        report = antiphon.replay(run, app=self.app, mode="strict", function=code, keep=False, **options)
        assert len(self.calls) == before
        return report


COMPUTED: dict[str, Callable[[str], Any]] = {
    "domain": lambda mail: mail.split("@")[1],
    "hash": lambda mail: hashlib.sha256(mail.encode()).hexdigest(),
    "length": len,
    "slice": lambda mail: mail[1:7],
    "base64": lambda mail: base64.b64encode(mail.encode()).decode(),
    "upper": str.upper,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_unchanged_code_passes_whatever_it_computes(name: str) -> None:
    bank = Bank()

    def code(text: str) -> str:
        mail = text.split()[-1]
        found = bank.pay(recipient=bank.find(who="eve")["iban"], note=COMPUTED[name](mail))
        return f"{found['paid']} {mail}"

    run = bank.record(code)
    assert "ada@example.com" not in str(run.events())
    report = bank.replay(run, code)
    assert report.passed, report.text()
    assert report["masked"] == {"values": report["masked"]["values"], "originals": True, "notCompared": []}
    masked = bank.replay(run, code, masked=True)
    assert masked.passed is (name in ("domain", "length", "slice", "upper")) or name == "slice", masked.text()


def test_a_card_that_is_a_number_stays_one_in_a_replay() -> None:
    bank, card = Bank(), 4539148803436467
    got: list[Any] = []

    def code(text: str, paid_with: int = card) -> int:
        got.append(bank.pay(recipient="eve", note=paid_with)["note"])
        return int(got[-1]) % 10_000

    run = bank.record(code)
    assert str(card) not in str(run.events())
    report = bank.replay(run, code)
    assert report.passed, report.text()
    assert got == [card, card]
    changed = bank.replay(run, lambda text: code(text, 4111111111111111))
    assert not changed.passed
    assert "$.note" in str(changed.divergences)
    assert str(card) not in changed.text()
    bank.replay(run, code, masked=True)
    assert type(got[-1]) is int
    assert got[-1] != card


def test_the_id_of_a_call_is_masked_in_the_log_and_a_repeated_call_is_still_known(tmp_path: Path) -> None:
    bank = Bank()

    def code(text: str) -> list[Any]:
        turn = bank.app.gateway.session("s1").turn()
        asked = {"recipient": "eve", "note": "ada@example.com"}
        return [turn.call("pay", asked, call_id="greeting-ada@example.com").content for _ in range(2)]

    run = bank.record(code)
    assert len(bank.calls) == 1
    first = next(event for event in run.events() if event.type == "call.started")
    assert "ada@example.com" not in str(run.events())
    assert first.meta["callId"] == f"greeting-{first.payload['arguments']['note']}"
    assert first.meta["pseudonyms"] == {first.payload["arguments"]["note"]: "email"}
    assert viewed(first).meta["callId"].startswith("greeting-[email:")
    export_run(bank.app, run.manifest, tmp_path / "a.antiphon")
    assert b"ada@example.com" not in (tmp_path / "a.antiphon").read_bytes()
    report = bank.replay(run, code)
    assert report.passed, report.text()


@pytest.mark.parametrize("masked", [False, True])
def test_a_changed_payee_is_named(masked: bool) -> None:
    bank = Bank()

    def code(text: str, payee: str = IBAN) -> str:
        return str(bank.pay(recipient=payee)["paid"])

    run = bank.record(code)
    report = bank.replay(run, lambda text: code(text, OTHER_IBAN), masked=masked)
    assert not report.passed
    assert IBAN not in report.text() + orjson.dumps(report.to_wire()).decode()
    assert OTHER_IBAN not in report.text()
    message = str(report.divergences)
    assert "ANTIPHON_REPLAY_KEY" in message if masked else "$.recipient" in message


def test_without_the_key_a_value_that_came_in_is_compared() -> None:
    bank = Bank()

    def code(text: str, swap: bool = False) -> str:
        first, second = bank.find(who="eve")["mail"], bank.find(who="eva")["mail"]
        return str(bank.pay(recipient=second if swap else first, note=text.split()[-1])["paid"])

    run = bank.record(code)
    assert bank.replay(run, code, masked=True).passed
    report = bank.replay(run, lambda text: code(text, swap=True), masked=True)
    assert not report.passed
    assert report["masked"]["notCompared"] == []


def test_what_was_not_compared_is_counted_and_fails_for_side_effects_only() -> None:
    bank = Bank()
    run = bank.record(lambda text: str(bank.find(who="x" * 6 + "@example.com")))
    report = bank.replay(run, lambda text: str(bank.find(who="y" * 6 + "@example.com")), masked=True)
    assert [one["path"] for one in report["masked"]["notCompared"]] == ["arguments.who"]
    assert report["masked"]["originals"] is False
    paid = bank.record(lambda text: str(bank.pay(recipient=IBAN)))
    report = bank.replay(paid, lambda text: str(bank.pay(recipient=IBAN)), masked=True)
    assert not report.passed
    assert [one["path"] for one in report["masked"]["notCompared"]] == ["arguments.recipient"]
    assert [found["kind"] for found in report.divergences] == ["masked"]
    assert "ANTIPHON_REPLAY_KEY" in report.divergences[0]["note"]


@dataclass
class Customer:
    mail: str


@pytest.mark.parametrize("masked", [False, True])
def test_typed_arguments_with_masks_are_found_again(masked: bool) -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read")
    def orders(customer: Customer, total: Any) -> int:
        return 1

    def code(total: Any = Decimal("5.10")) -> int:
        return orders(Customer("ada@example.com"), total)

    def replay(code: Callable[[], int]) -> Report:
        return antiphon.replay(run, app=app, mode="strict", function=code, keep=False, masked=masked)

    run = app.record(code)
    report = replay(code)
    assert report.passed, report.text()
    assert [one["path"] for one in report["masked"]["notCompared"]] == ["arguments.customer.mail"] * masked
    changed = replay(lambda: code(Decimal("5.20")))
    assert "$.total" in [field["path"] for field in changed.divergences[0]["fields"]]


@pytest.mark.parametrize("totals", [(Decimal("5.10"), "5.10"), ("5.10", Decimal("5.10"))])
def test_with_the_key_arguments_of_other_types_are_others(totals: tuple[Any, Any]) -> None:
    bank, (recorded, now) = Bank(), totals
    run = bank.record(lambda text: bank.pay(recipient=IBAN, note=recorded)["paid"])
    assert not bank.replay(run, lambda text: bank.pay(recipient=IBAN, note=now)["paid"]).passed


def test_equal_calls_that_are_masked_in_two_ways_are_answered_in_order() -> None:
    bank, dsn = Bank(), "postgres://ada:tr0ub4dor3x@db/pay"
    count = iter(range(9))
    poll = bank.app.gateway.tool("poll", idempotent=True, effect="read", reuse="never")(lambda at: next(count))

    def code(text: str) -> list[Any]:
        seen = [poll(at=dsn)]
        bank.find(who="eve", token=dsn)  # from here on the whole address is a known secret
        return [*seen, poll(at=dsn), poll(at=dsn)]

    run = bank.record(code)
    written = [e.payload["arguments"]["at"] for e in run.events() if e.payload.get("name") == "poll"]
    assert len(set(written)) == 2
    report = bank.replay(run, code)
    assert report.passed, report.text()
    assert run.output == [0, 1, 2]


@pytest.mark.parametrize("masked", [False, True])
def test_another_machine_has_other_credentials(masked: bool) -> None:
    bank = Bank()

    def code(text: str, one: str = TOKEN, two: str = TOKEN) -> str:
        bank.find(who="eve", token=one)
        return str(bank.find(who="eva", token=two)["iban"])

    run = bank.record(code)
    assert bank.replay(run, lambda text: code(text, OTHER_TOKEN, OTHER_TOKEN), masked=masked).passed
    assert not bank.replay(run, lambda text: code(text, OTHER_TOKEN, TOKEN), masked=masked).passed


LOOKS_LIKE_A_KEY = {
    "wallet": ("1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLy"),
    "file": ("1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms", "1sZ8qKf3nYv7Lr2WcXaEo9JtGhPdUbM5iQeV0TyRkHxA"),
    "token": (TOKEN, OTHER_TOKEN),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("given", ["by a tool", "as input", "by a model", "by a stream", "by nobody"])
@pytest.mark.parametrize("name", LOOKS_LIKE_A_KEY)
def test_a_changed_recipient_that_looks_like_a_key_is_named(name: str, given: str, masked: bool) -> None:
    app, (value, other) = memory_app(), LOOKS_LIKE_A_KEY[name]
    sent: list[str] = []

    @app.gateway.tool(idempotent=True, effect="read")
    def wallet_of(who: str) -> dict[str, str]:
        return {"wallet": value}

    @app.gateway.tool(idempotent=False, effect="write")
    def transfer(to: str) -> str:
        sent.append(to)
        return "sent"

    def asked(stream: bool) -> str:
        ask: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "who?"}]}
        run = antiphon.current_run()
        if stream:
            chunks = run.llm({**ask, "stream": True}, lambda body: iter(["pay ", value[:9], value[9:]]))
            return "".join(chunks).removeprefix("pay ")
        answer = run.llm(ask, lambda body: says(f"pay {value}"))
        return str(answer["choices"][0]["message"]["content"]).removeprefix("pay ")

    def code(text: str, instead: str = "") -> str:
        ways = {
            "by a tool": lambda: wallet_of(who="bob")["wallet"],
            "as input": lambda: text,
            "by a model": lambda: asked(False),
            "by a stream": lambda: asked(True),
            "by nobody": lambda: value,
        }
        to = ways[given]()
        return str(transfer(to=instead or to))

    run = app.record(code, value if given == "as input" else "go")
    assert sent == [value]
    for instead, passes in (("", given != "by nobody" or not masked), (other, False)):
        report = antiphon.replay(
            run, app=app, mode="strict", function=lambda text, to=instead: code(text, to), keep=False, masked=masked
        )
        assert report.passed is passes, report.text()
        named = "ANTIPHON_REPLAY_KEY" if masked and given == "by nobody" else "$.to"
        assert passes or named in str(report.divergences)
    assert sent == [value]


SENT: dict[str, Callable[[str], Any]] = {
    "api_token": lambda token: {"api_token": token},
    "headers": lambda token: {"headers": {"Authorization": f"Bearer {token}"}},
    "pairs": lambda token: {"headers": [["Accept", "*/*"], ["Authorization", f"Bearer {token}"]]},
    "named": lambda token: {"headers": [{"name": "Cookie", "value": f"session={token}"}]},
    "text": lambda token: {"text": f"log in with token={token} please"},
    "to": lambda token: {"to": token},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("where", SENT)
def test_a_tool_with_an_effect_takes_the_credential_of_another_machine(where: str, masked: bool) -> None:
    """The name of its argument or header says what it is; the report says that it was not compared."""
    app = memory_app()

    @app.gateway.tool(idempotent=False, effect="write")
    def post(**given: Any) -> Any:
        return given

    def code(token: str = TOKEN) -> str:
        return str([post(number=number, **SENT[where](token)) for number in range(2)])[:2]

    run = app.record(code)
    assert TOKEN not in str(run.events())
    report = antiphon.replay(run, app=app, mode="strict", function=lambda: code(OTHER_TOKEN), masked=masked)
    assert report.passed is (where not in ("text", "to")), report.text()
    left = {one["path"].split(".")[1] for one in report["masked"]["notCompared"]}
    assert left == (set() if where in ("text", "to") and not masked else set(SENT[where](TOKEN)))


@pytest.mark.parametrize("size", [20, 140])
def test_changed_bytes_in_a_request_are_named(size: int) -> None:
    app = memory_app()
    one, two = (base64.b64encode(bytes((7 * at * at + seed) % 256 for at in range(size))).decode() for seed in (1, 2))

    def code(image: str) -> Any:
        message = {"role": "tool", "tool_call_id": "c", "content": orjson.dumps({"png": image}).decode()}
        return antiphon.current_run().llm({"model": "m", "messages": [message]}, lambda body: says("seen"))

    run = app.record(lambda: code(one))
    assert one not in str(run.events())
    assert antiphon.replay(run, app=app, mode="strict", function=lambda: code(one), keep=False).passed
    report = antiphon.replay(run, app=app, mode="strict", function=lambda: code(two), keep=False)
    assert "$.messages[0].content" in str(report.divergences)


def test_a_changed_value_of_a_rule_of_the_user_is_named() -> None:
    rules = {"rules": [{"name": "badge", "pattern": "AB[0-9]{6}"}]}
    app = antiphon.Antiphon({**QUIET, "redact": rules}, store=MemoryStore())

    @app.gateway.tool(idempotent=True, effect="read")
    def look(badge_of: str) -> str:
        return "ok"

    run = app.record(lambda: look("AB123456"))
    assert "AB123456" not in str(run.events())
    assert antiphon.replay(run, app=app, mode="strict", function=lambda: look("AB123456"), keep=False).passed
    assert not antiphon.replay(run, app=app, mode="strict", function=lambda: look("AB654321"), keep=False).passed


def test_a_credential_of_the_environment_is_not_kept_even_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "plain-looking words of a key")
    bank = Bank()
    run = bank.record(lambda text: str(bank.find(who="plain-looking words of a key", token="x")))
    assert "plain-looking words" not in str(run.events())
    manifest = bank.app.journal.manifest(run.id)
    assert manifest is not None
    from antiphon.ops.runs import load_recording

    recording = load_recording(bank.app, manifest)
    assert all("plain-looking words" not in str(recording.event(n).payload) for n in range(recording.length))


def test_a_model_call_with_personal_data_is_found_again() -> None:
    app = memory_app()

    def code(text: str) -> Any:
        ask = {"model": "m", "messages": [{"role": "user", "content": text}]}
        answer = antiphon.current_run().llm(ask, lambda body: says(f"writing to {text.split()[-1]}"))
        return answer["choices"][0]["message"]["content"]

    run = app.record(code, "mail ada@example.com")
    for masked in (False, True):
        report = antiphon.replay(run, app=app, mode="strict", function=code, keep=False, masked=masked)
        assert report.passed, report.text()


def test_a_run_in_memory_has_its_key_before_anybody_has_read_it() -> None:
    """Events in memory are sealed when they are first read; the replay asks for the key before."""
    app = memory_app()

    def code(mail: str) -> None:
        message = {"role": "user", "content": f"write to {mail}"}
        antiphon.current_run().llm({"model": "m", "messages": [message]}, lambda body: says("done"))

    run = app.record(code, "ada@example.com")
    report = antiphon.replay(run, app=app, mode="strict", function=code, keep=False)
    assert report.passed, report.text()
    assert report["masked"]["originals"] is True
    assert report["masked"]["notCompared"] == []


def test_a_call_in_another_order_is_named_though_its_arguments_are_known() -> None:
    bank = Bank()

    def code(text: str, order: str = "ab") -> None:
        for letter in order:
            bank.find(who=letter, token="" if letter == "a" else TOKEN)

    run = bank.record(code)
    assert bank.replay(run, code).passed
    report = bank.replay(run, lambda text: code(text, "ba"))
    assert not report.passed
    assert "who" in report.text()


def test_streams_come_back_as_they_were() -> None:
    app = memory_app()
    parts = ["write to ada.love", "lace@exam", "ple.com now", ", it is late"]

    def code(text: str) -> str:
        ask = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
        got = list(antiphon.current_run().llm(ask, lambda body: iter(parts)))
        return "".join(got)

    run = app.record(code, "hello")
    log = [event.payload["data"] for event in run.events() if event.type == "call.chunk"]
    assert [len(part) for part in log] == [len(part) for part in parts], "cut where they were cut"
    assert "lovelace" not in "".join(log).replace("|", "")
    for masked in (False, True):
        report = antiphon.replay(run, app=app, mode="strict", function=code, keep=False, masked=masked)
        assert report.passed, report.text()


def test_a_pseudonym_never_reaches_the_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reviewed = tmp_path / "side_effects.yaml"
    reviewed.write_text("tools:\n  find: true\n  pay: false\ndone: true\n")
    monkeypatch.setattr("antiphon.ops.side_effects.file_of", lambda entry: reviewed)
    bank = Bank()

    def code(text: str) -> Any:
        return bank.find(who=text.split()[-1])

    run = bank.record(lambda text: None)
    from antiphon.decide.effects import BoundaryRule, BoundaryTable

    table = BoundaryTable(rules=(BoundaryRule(match="*:tools/find", mode="live"),))
    for masked in (True, False):
        before = len(bank.calls)
        report = antiphon.replay(run, app=bank.app, function=code, mode="explore", table=table, masked=masked)
        assert (len(bank.calls) == before) is masked
        assert ("masked_argument" in str(report.to_wire().get("error"))) is masked
    assert MaskedArgument.code == "masked_argument"


def damaged(events: list[Event]) -> list[Event]:
    """Every original with one character changed."""

    def change(event: Event) -> Event:
        sealed = event.meta.get("sealed")
        if sealed is None:
            return event
        meta = {**event.meta, "sealed": sealed[:-8] + ("A" if sealed[-8] != "A" else "B") + sealed[-7:]}
        meta.pop("sum")
        return msgspec.structs.replace(event, meta=meta)

    return [change(event) for event in events]


def test_damaged_originals_are_left_out_and_named() -> None:
    bank = Bank()

    def code(text: str) -> str:
        return str(bank.find(who=text.split()[-1])["mail"])

    run = bank.record(code)
    other = copied(bank.app, run, damaged)
    other.keys.kept.update(bank.app.keys.kept)
    report = antiphon.replay(run.id, app=other, mode="strict", function=code, keep=False)
    assert report.passed, report.text()
    assert "cannot be read" in report["masked"]["note"]


def test_an_artifact_replays_with_the_key_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    bank = Bank(antiphon.Antiphon(QUIET, store=SQLiteStore(tmp_path / "a.db")))

    def code(text: str) -> str:
        mail = text.split()[-1]
        return str(bank.pay(recipient=IBAN, note=hashlib.sha256(mail.encode()).hexdigest())["paid"])

    run = bank.record(code)
    file = tmp_path / "run.antiphon"
    manifest = bank.app.journal.manifest(run.id)
    assert manifest is not None
    export_run(bank.app, manifest, file)
    for raw in ("ada@", IBAN[4:], "bob@"):
        assert raw not in file.read_text()
        assert not any(raw.encode() in path.read_bytes() for path in tmp_path.glob("a.db*"))
    elsewhere = Bank(antiphon.Antiphon(QUIET, store=MemoryStore()))
    bank.pay, bank.find = elsewhere.pay, elsewhere.find
    report = elsewhere.replay(file, code)
    assert not report.passed
    assert report["masked"]["originals"] is False
    from antiphon.config.wiring import sealer_of

    monkeypatch.setenv("ANTIPHON_REPLAY_KEY", sealer_of(bank.app.config, bank.app.store)().replay_key.hex())
    trusted = Bank(antiphon.Antiphon(QUIET, store=MemoryStore()))
    bank.pay, bank.find = trusted.pay, trusted.find
    report = trusted.replay(file, code)
    assert report.passed, report.text()
    again = import_artifact(trusted.app, file)
    second = tmp_path / "again.antiphon"
    export_run(trusted.app, again, second)
    mine, theirs = (orjson.loads(path.read_bytes())["events"] for path in (second, file))
    assert mine == theirs, "what comes in goes out equal"


def test_keep_sealed_false_keeps_no_originals(tmp_path: Path) -> None:
    app = antiphon.Antiphon({**QUIET, "redact": {"keep_sealed": False}}, store=SQLiteStore(tmp_path / "a.db"))
    bank = Bank(app)
    run = bank.record(lambda text: text)
    assert all("sealed" not in event.meta for event in run.events())
    report = bank.replay(run, lambda text: text)
    assert report.passed
    assert report["masked"]["originals"] is False


def test_a_golden_that_is_recorded_anew_keeps_its_pseudonyms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_REPLAY_KEY", "ab" * 32)

    def recorded(like: Any) -> tuple[Any, str]:
        app = antiphon.Antiphon(QUIET, store=MemoryStore())
        with app.run("golden", like=like, input="mail ada@example.com") as run:
            run.finish("sent to ada@example.com")
        file = tmp_path / "golden.antiphon"
        export_run(app, run.manifest, file)
        document = orjson.loads(file.read_bytes())
        return document["events"][-1]["payload"]["output"], document["manifest"]["seal"]["run"]

    from antiphon._recording.artifact import read_artifact

    first = recorded(None)
    again = recorded(read_artifact(tmp_path / "golden.antiphon").manifest)
    assert again == first
    assert recorded(None) == first, "the artifact that is there passes its key on"
    (tmp_path / "golden.antiphon").unlink()
    assert recorded(None) != first


def test_an_export_over_a_golden_keeps_its_key(tmp_path: Path) -> None:
    """A diff of both shows changes only, and the new one replays with the key and without."""
    bank = Bank(antiphon.Antiphon(QUIET, store=SQLiteStore(tmp_path / "a.db")))
    file, other = tmp_path / "golden.antiphon", tmp_path / "other.antiphon"

    def code(text: str) -> str:
        mail = text.split()[-1]
        with antiphon.branch("first"):
            found = bank.find(who=mail, token=TOKEN)
            bank.find(who=TOKEN[:12])
        ask = {"model": "m", "messages": [{"role": "user", "content": f"{mail} {mail[:9]} {found['iban']}"}]}
        answer = antiphon.current_run().llm(ask, lambda body: says(f"pay {found['iban']} or 12{found['iban']}"))
        thread = threading.Thread(target=lambda: bank.pay(recipient=found["iban"], note=mail.upper()))
        thread.start()
        thread.join()
        return str(answer["choices"][0]["message"]["content"]) + mail

    def exported(path: Path) -> dict[str, Any]:
        manifest = bank.app.journal.manifest(bank.record(code).id)
        assert manifest is not None
        export_run(bank.app, manifest, path)
        document: dict[str, Any] = orjson.loads(path.read_bytes())
        for raw in ("ada@", IBAN[4:], "bob@", TOKEN[4:], "ADA@"):
            assert raw not in path.read_text()
        return document

    def told(document: dict[str, Any]) -> list[Any]:
        places = ("type", "lane", "index", "call", "parent", "payload")
        return [[*(event.get(name) for name in places), event["meta"].get("masks")] for event in document["events"]]

    first, again, apart = exported(file), exported(file), exported(other)
    assert told(again) == told(first)
    assert told(apart) != told(first)
    assert again["manifest"]["seal"] == first["manifest"]["seal"]
    for masked in (False, True):
        report = bank.replay(file, code, masked=masked)
        assert report.passed, report.text()
        assert report["masked"]["originals"] is not masked
    assert not bank.replay(file, lambda text: code(text.replace("ada", "eve"))).passed


def test_planted_bug_a_replay_that_compares_masks_lets_a_changed_payee_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What release 0.1.0 did: both sides are masked, and masks of one kind are equal."""
    monkeypatch.setattr("antiphon._replay.masks.MaskRules._is_of_machine", lambda *_: True)
    with pytest.raises(AssertionError):
        test_a_changed_payee_is_named(masked=False)


def test_the_key_in_the_environment_is_no_misspelt_setting() -> None:
    assert unknown_variables({"ANTIPHON_REPLAY_KEY": "ab" * 32}) == {}


def test_a_run_whose_name_is_masked_replays() -> None:
    app = memory_app()
    with app.run("welcome zaphod.beeblebrox@heartofgold.example") as run:
        run.finish("done")
    assert "zaphod" not in run.manifest.name
    assert antiphon.replay(run, app=app, mode="strict", function=lambda: "done", keep=False).divergences == []
    assert not antiphon.replay(run, app=app, mode="strict", function=lambda: "not done", keep=False).passed


QUOTED: dict[str, Callable[[str, str], str]] = {
    "plain": lambda mail, word: f"no account for {mail} with {word}",
    "repr": lambda mail, word: repr({"mail": mail, "password": word}),
    "url": lambda mail, word: f"GET /?q={mail.replace('@', '%40')}&w={word} failed",
    "long": lambda mail, word: f"{'row ' * 1_000}{mail} {word}",
    "full stop": lambda mail, word: f"no {mail}, {word}...",
    "nothing": lambda mail, word: "no such account.",
}


WAYS: dict[str, dict[str, Any]] = {
    "read": {"idempotent": True, "effect": "read", "retry": {"max_attempts": 1}},
    "write": {"idempotent": False},
    "certain": {"idempotent": False, "certain_errors": (LookupError,)},
}


@pytest.mark.parametrize("passed_on", [True, False], ids=["passed on", "run fails"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", QUOTED)
def test_code_that_passes_on_what_an_exception_quotes(
    shape: str, way: str, store: str, passed_on: bool, tmp_path: Path
) -> None:
    app = memory_app() if store == "memory" else antiphon.Antiphon(store=SQLiteStore(tmp_path / "a.db"), config=QUIET)

    @app.gateway.tool(**WAYS[way])
    def find(mail: str, password: str) -> None:
        raise LookupError(QUOTED[shape](mail, password))

    @app.gateway.tool(idempotent=False)
    def report(text: str) -> str:
        return f"reported: {text}"

    def agent(mail: str, password: str) -> str:
        try:
            find(mail, password)
        except LookupError as error:
            if not passed_on:
                raise RuntimeError(f"gave up: {error}") from None
            return report(str(error))
        return ""

    try:
        app.record(agent, "ada.lovelace@example.org", "hunter2hunter2")
    except RuntimeError:
        assert not passed_on
    (run,) = app.journal.runs(tenant=app.tenant)
    written = repr(app.journal.events(run.id))
    assert "lovelace" not in written
    assert "hunter2" not in written
    said = antiphon.replay(run.id, app=app, mode="strict", function=agent, keep=False)
    assert said.passed, said.text()


def test_a_password_that_only_its_parameter_names_is_masked_in_the_input() -> None:
    app = memory_app()

    def agent(user: str, password: str, *rest: str, pin: str = "") -> str:
        return f"{user} {password[:3]}"

    run = app.record(agent, "ada", "hunter2hunter2", "more", pin="4711")
    written = repr(app.journal.events(run.id))
    assert "hunter2" not in written
    assert "4711" not in written
    assert antiphon.replay(run, app=app, mode="strict", function=agent, keep=False).passed


@pytest.mark.parametrize("where", ["argument", "below a name", "output", "short"])
def test_a_secret_that_only_its_name_marks_is_masked_where_the_replay_differs(where: str) -> None:
    app, word = memory_app(), "1234" if where == "short" else "correct horse battery"

    @app.gateway.tool(idempotent=True, effect="read")
    def login(user: str, password: Any = "", credentials: Any = None) -> str:
        return "welcome"

    def agent() -> Any:
        if where == "output":
            return {"user": "ada", "password": word}
        return login("ada", password={"text": word}) if where == "below a name" else login("ada", password=word)

    run = app.record(agent)
    word = "4711" if where == "short" else "Zx9!quokkaTree77 " * 8
    report = antiphon.replay(run, app=app, mode="strict", function=agent)
    assert not report.passed
    told = f"{report.text()}{report.to_wire()}{report.html()}"
    kept = "".join(str(app.journal.events(one.id)) for one in app.journal.runs(tenant=app.tenant))
    assert word.strip() not in told + kept
    assert "quokka" not in told + kept
    assert "[password:" in told or "[secret:" in told or "[credentials:" in told, told


class Setting(enum.IntEnum):
    PASSWORD = 1
    USER = 2


def test_a_secret_under_a_member_of_an_enum_with_a_number_is_masked() -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read")
    def connect(settings: dict[Setting, str], hosts: list[Any]) -> bool:
        return True

    def main(password: str = "correct horse", user: str = "ada") -> bool:
        return connect({Setting.PASSWORD: password, Setting.USER: user}, hosts=[{Setting.PASSWORD: "battery staple"}])

    run = app.record(main)
    (started,) = [event for event in run.events() if event.type == "call.started"]
    assert started.payload["arguments"]["settings"]["2"] == "ada"
    assert not {"correct horse", "battery staple"} & {leaf for _, leaf in leaves(started.payload)}
    assert antiphon.replay(run, app=app, mode="strict", function=main, keep=False).passed
    other = antiphon.replay(run, app=app, mode="strict", function=lambda: main(user="eve"), keep=False)
    assert not other.passed
