"""Keys in bytes: every kind is found, none is shown, and what only looks like one is let be."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_world import BASE64, DIGITS, HEX, LETTERS, LOWER, UPPER, draw, private_key

from loadsheet.cloud import secrets
from loadsheet.cloud.secrets import CHUNK, OVERLAP, Scanner, fingerprint, redact, rules

pytestmark = pytest.mark.usefixtures("offline")

SCANNER = Scanner()
URL64 = LETTERS + DIGITS + "-_"


def scan(text: str | bytes) -> list[secrets.Found]:
    """What stands in a text."""
    return SCANNER.scan(text.encode() if isinstance(text, str) else text)


def kinds(text: str | bytes) -> list[str]:
    """The rules that found something."""
    return [entry.rule for entry in scan(text)]


#: rule -> a key of that kind as its maker writes it (formats: gitleaks 8 and the makers' own documentation)
KEYS = {
    "aws-access-key-id": lambda: "AKIA" + draw(16, UPPER + "234567"),
    "google-api-key": lambda: "AIza" + draw(35, URL64.replace("-", "")),
    "google-oauth-secret": lambda: "GOCSPX-" + draw(28),
    "azure-client-secret": lambda: draw(3) + "8Q~" + draw(34),
    "azure-ai-key": lambda: draw(52) + "JQQJ99" + draw(26),
    "hugging-face-token": lambda: "hf_" + draw(34, LETTERS),
    "hugging-face-organisation-token": lambda: "api_org_" + draw(34, LETTERS),
    "wandb-key": lambda: "wandb_v1_" + draw(27) + "_" + draw(49),
    "openai-key": lambda: "sk-proj-" + draw(74, URL64) + "T3BlbkFJ" + draw(74),
    "anthropic-key": lambda: "sk-ant-api03-" + draw(93, URL64) + "AA",
    "openrouter-key": lambda: "sk-or-v1-" + draw(64, HEX),
    "sk-key": lambda: "sk-" + draw(48),
    "github-token": lambda: "ghp_" + draw(36),
    "github-fine-grained-token": lambda: "github_pat_" + draw(22) + "_" + draw(59),
    "gitlab-token": lambda: "glpat-" + draw(20),
    "slack-token": lambda: f"xoxb-{draw(12, DIGITS)}-{draw(12, DIGITS)}-{draw(24)}",
    "slack-webhook": lambda: (
        f"https://hooks.slack.com/services/T{draw(9, UPPER)}/B{draw(9, UPPER)}/{draw(24)}"
    ),
    "databricks-token": lambda: "dapi" + draw(32, HEX),
    "replicate-token": lambda: "r8_" + draw(37),
    "groq-key": lambda: "gsk_" + draw(52),
    "xai-key": lambda: "xai-" + draw(80),
    "perplexity-key": lambda: "pplx-" + draw(48),
    "nvidia-key": lambda: "nvapi-" + draw(64),
    "runpod-key": lambda: "rpa_" + draw(45),
    "digitalocean-token": lambda: "dop_v1_" + draw(64, HEX),
    "docker-token": lambda: "dckr_pat_" + draw(27),
    "npm-token": lambda: "npm_" + draw(36),
    "pypi-token": lambda: "pypi-AgEIcHlwaS5vcmc" + draw(80),
    "stripe-key": lambda: "sk_live_" + draw(24),
    "google-refresh-token": lambda: "1//0" + draw(60, LETTERS + DIGITS),
    "google-access-token": lambda: "ya29." + draw(120),
    "aws-bedrock-key": lambda: "ABSK" + draw(120, BASE64),
}
#: rule -> (a line with a key of that kind, the key): kinds that only their surroundings tell
LINES = {
    "aws-secret-access-key": (lambda k: f'aws_secret_access_key = "{k}"', lambda: draw(40, BASE64)),
    "azure-storage-key": (
        lambda k: (
            f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={k};EndpointSuffix=core.windows.net"
        ),
        lambda: base64.b64encode(bytes(random.Random(1).randrange(256) for _ in range(64))).decode(),
    ),
    "azure-shared-access-key": (
        lambda k: f"Endpoint=sb://x.servicebus.windows.net/;SharedAccessKey={k}",
        lambda: base64.b64encode(bytes(random.Random(2).randrange(256) for _ in range(32))).decode(),
    ),
    "azure-sas": (
        lambda k: (
            f"https://a.blob.core.windows.net/c?sv=2023-11-03&se=2027-01-01T00%3A00Z&sr=c&sp=rl&sig={k}"
        ),
        lambda: draw(43) + "%3D",
    ),
    "wandb-key": (lambda k: f"export WANDB_API_KEY={k}", lambda: draw(40, HEX)),
    "kaggle-key": (lambda k: json.dumps({"username": "ada", "key": k}), lambda: draw(32, HEX)),
    "netrc-password": (lambda k: f"machine api.example.org\n  login ada\n  password {k}", lambda: draw(20)),
    "url-password": (lambda k: f"git clone https://ada:{k}@git.example-host.org/x.git", lambda: draw(12)),
}


@pytest.mark.parametrize("rule", KEYS)
def test_a_key_is_found(rule: str) -> None:
    """In code, in a shell script, in JSON, at the very beginning and end, and never shown."""
    key = KEYS[rule]()
    for text in (f"token = '{key}'\n", f"export X={key}\n", json.dumps({"a": [key]}), key, f"\n\n{key}\n"):
        found = scan(text)
        assert rule in [entry.rule for entry in found], text
        assert key not in repr(found)
        assert all(key not in entry.redacted for entry in found)
        assert {entry.line for entry in found} == {text[: text.index(key[:12])].count("\n") + 1}


@pytest.mark.parametrize("rule", LINES)
def test_a_key_that_its_surroundings_tell(rule: str) -> None:
    """A name before it, or the form of the line, says what it is."""
    line, make = LINES[rule]
    key = make()
    found = scan(line(key))
    assert rule in [entry.rule for entry in found]
    assert key not in repr(found)
    assert make() not in [e.secret.decode() for e in scan(make())] or rule == "azure-storage-key"


def test_every_rule_is_tried_here() -> None:
    """No rule without a key in these tests."""
    special = {"private-key", "gcp-service-account-key"}
    assert {rule.id for rule in rules()} | special == {*KEYS, *LINES} | special


@pytest.mark.parametrize(
    "line",
    [
        "wandb.login(key='{}')", 'WANDB_API_KEY: "{}"', "wandb login {}", '"wandb_api_key": "{}"',
        "machine api.wandb.ai login user password {}", "os.environ['WANDB_API_KEY'] = '{}'", "wandb: {}",
        "-e WANDB_API_KEY={}", "wandb login --relogin {}",
    ],
)  # fmt: skip
def test_forms_of_weights_and_biases(line: str) -> None:
    """40 hexadecimal digits near the name, as people write it."""
    assert set(kinds(line.format(draw(40, HEX)))) & {"wandb-key", "netrc-password"}


@pytest.mark.parametrize(
    "line",
    [
        "wandb @ git+https://github.com/wandb/wandb@{}", "https://github.com/wandb/wandb/commit/{}",
        "{}  wandb-0.1.tar.gz", "commit {}", "sha1: {}", "wandb==0.15 --hash=sha1:{}", "git checkout {}",
    ],
)  # fmt: skip
def test_a_commit_is_no_key(line: str) -> None:
    """40 hexadecimal digits that are a commit or a digest."""
    assert kinds(line.format(draw(40, HEX))) == []


def test_an_aws_secret_beside_its_key_id() -> None:
    """Before or behind it, with no name at all; 40 characters elsewhere are nothing."""
    id_, secret = KEYS["aws-access-key-id"](), draw(40, BASE64)
    for text in (
        f"{id_},{secret}",
        f"{secret}\n{id_}",
        f'a = "{id_}"\n\nb = "{secret}"',
        f"['{secret}', '{id_}']",
    ):
        assert sorted(kinds(text)) == ["aws-access-key-id", "aws-secret-access-key"]
    assert kinds(f"x = '{secret}'") == []
    assert kinds(f"{id_}{' ' * 2000}{secret}") == ["aws-access-key-id"]
    digest = draw(40, HEX)  # a commit beside a key id is no secret
    assert kinds(f"{id_} {digest}") == ["aws-access-key-id"]


@pytest.mark.parametrize("kind", ["RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED ", "DSA "])
def test_private_keys(kind: str) -> None:
    """In PEM, plain, in a string of Python, in JSON, indented; the header alone is none."""
    key = private_key(kind)
    for text in (
        key,
        json.dumps({"k": key}),
        "    ".join(key.splitlines(True)),
        repr(key),
        key.replace("\n", "\r\n"),
    ):
        assert kinds(text) == ["private-key"], text
    assert kinds(key.splitlines()[0]) == []
    assert kinds(f'if "{key.splitlines()[0]}" in text:\n    parse(text)\n') == []
    assert kinds(f"{key.splitlines()[0]}\n...\n") == []


def test_pgp_and_putty_keys() -> None:
    """Two more forms of private keys."""
    body = "\n".join(draw(64, BASE64) for _ in range(6))
    assert kinds(f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n{body}\n") == ["private-key"]
    head = (
        f"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: x\nPublic-Lines: 2\n{body[:129]}\n"
    )
    assert kinds(f"{head}Private-Lines: 1\n{draw(48, BASE64)}\n") == ["private-key"]


def test_a_google_service_account() -> None:
    """The JSON that the console gives, as it is and inside a string."""
    data = {
        "type": "service_account", "project_id": "p", "private_key_id": draw(40, HEX), "private_key": private_key(""),
        "client_email": "x@p.iam.gserviceaccount.com",
    }  # fmt: skip
    for text in (json.dumps(data), json.dumps(data, indent=2), json.dumps({"GOOGLE": json.dumps(data)})):
        assert kinds(text) == ["gcp-service-account-key"]


@pytest.mark.parametrize(
    "text",
    [
        # AWS writes these two in its own documentation
        "aws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "export HF_TOKEN=hf_" + "x" * 34, "HF_TOKEN=hf_your_token_here", "hf_hub_download(repo_id=name, token=token)",
        "OPENAI_API_KEY=sk-" + "." * 48, "sk-learn-contrib-something-long-named-module-for-everything",
        "ghp_" + "*" * 36,
        "AKIA" + "X" * 16, "postgres://user:password@localhost/db", "https://user:${TOKEN}@github.com/x.git",
        "https://{user}:{password}@host.org", "http://host.org:8080/path@v1", "task-" + "a1B2" * 12,
        "disk-" + "a1B2" * 12, "/usr/lib/python3/dist-packages/transformers/models/llama/modeling_llama.py",
        "x = 'data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAAAAUA" * 20 + "'",
        "def machine_learning(login, password): ...", "the machine is for login and password is secret",
        "sha256:" + "0a1b2c3d" * 8, "msg.send(name)", "AccountKey=abc", "sig=1234", "AIzaSy-too-short",
        "hf_config.text_config.num_attention_heads_per_group_total",
        "npm_config_user_agent_string_is_not_a_token_at_all",
    ],
)  # fmt: skip
def test_what_is_no_key(text: str) -> None:
    """Examples of documentation, placeholders, names, paths, hashes, pictures."""
    assert kinds(text) == []


def test_what_a_key_must_be_apart_from() -> None:
    """Characters that go on are another word: base64 that happens to hold the beginning of a key."""
    key = KEYS["aws-access-key-id"]()
    assert kinds(f"x{key}") == kinds(f"{key}Z") == []
    token = KEYS["hugging-face-token"]()
    assert kinds(f"x_{token}") == kinds(f"{token}abcdefghijk") == []


def test_detect_secrets_takes_part() -> None:
    """Kinds for which we have no rule of our own come from its plugins, under its name."""
    sendgrid = f"SG.{draw(22)}.{draw(43)}"
    mailchimp = f"{draw(32, LOWER + DIGITS)}-us12"
    assert kinds(f"key = '{sendgrid}'") == ["detect-secrets/sendgrid"]
    assert kinds(f"key = '{mailchimp}'") == ["detect-secrets/mailchimp"]
    assert Scanner(with_plugins=False).scan(f"key = '{sendgrid}'".encode()) == []
    assert SCANNER.problem == ""
    assert len(SCANNER.plugins) == 21


@pytest.mark.parametrize(
    "line",
    [
        'AWS_KEY="{}"', "AWS_ACCESS_KEY_ID={}", "export AWS_ACCESS_KEY_ID={}", "aws_access_key_id = {}",
        "# for aws: {}", 'key = "{}"',
    ],
)  # fmt: skip
def test_our_rule_says_more_than_a_plugin(line: str) -> None:
    """Where both know a key ours names it, though a keyword of the plugin stands before it."""
    key = KEYS["aws-access-key-id"]()
    (found,) = scan(line.format(key))
    assert (found.rule, found.secret.decode()) == ("aws-access-key-id", key)
    assert found.rotate.startswith("AWS console")


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "S3_PASSWORD"])
def test_a_pair_in_an_env_file(name: str) -> None:
    """The id and its secret, as `.env` and `export` have them: both are of AWS, and the second is of the first."""
    key, secret = KEYS["aws-access-key-id"](), draw(40, LETTERS + DIGITS)
    for text in (f"AWS_ACCESS_KEY_ID={key}\n{name}={secret}\n", f'AWS_KEY="{key}"\n{name}="{secret}"\n'):
        first, second = scan(text)
        assert (first.rule, first.line, first.secret.decode()) == ("aws-access-key-id", 1, key)
        assert (second.rule, second.line, second.secret.decode()) == ("aws-secret-access-key", 2, secret)
        assert "beside its key id" in second.title
        assert first.rotate == second.rotate
        assert first.rotate.startswith("AWS console")


def test_every_plugin_of_a_line_is_tried() -> None:
    """Keys of two makers on one line, known to plugins alone, are both found, whichever comes first."""
    keys = [f"SG.{draw(22)}.{draw(43)}", f"{draw(32, LOWER + DIGITS)}-us12"]
    for first, second in (keys, keys[::-1]):
        assert set(kinds(f"a = '{first}'; b = '{second}'")) == {
            "detect-secrets/sendgrid",
            "detect-secrets/mailchimp",
        }


def test_every_plugin_of_detect_secrets_is_used_or_left_out_on_purpose() -> None:
    """A plugin that a new version brings is noticed here."""
    import pkgutil

    from detect_secrets import plugins

    known = {row["module"] for row in secrets._data()["plugins"]}
    left_out = {
        "base", "high_entropy_strings", "keyword", "ip_public",  # hashes, words, addresses: no keys
        "private_key", "basic_auth",  # ours also look at what follows
    }  # fmt: skip
    assert {m.name for m in pkgutil.iter_modules(plugins.__path__)} == known | left_out


def test_without_detect_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said that its kinds are not looked for; ours are."""

    def gone(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(secrets, "import_module", gone)
    secrets.plugins.cache_clear()
    try:
        scanner = Scanner()
    finally:
        secrets.plugins.cache_clear()
    assert "detect-secrets is not installed" in scanner.problem
    assert [f.rule for f in scanner.scan(KEYS["github-token"]().encode())] == ["github-token"]


# --- allowed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("x = '{}'  # pragma: allowlist secret", True),
        ("x = '{}'  // pragma: allowlist secret", True),
        ("x = '{}'  # pragma: whitelist secret", True),
        ("<!-- {} pragma: allowlist secret -->", True),
        ("# pragma: allowlist nextline secret\nx = '{}'", True),
        ("x = '{}'  # pragma: allowlist nextline secret", False),
        ("# pragma: allowlist secret\nx = '{}'", False),
        ("x = '{}'\n# pragma: allowlist secret", False),
        ("x = '{}'  # allowlist", False),
    ],
)
def test_allowed_by_a_comment(text: str, allowed: bool) -> None:
    """As detect-secrets has it: on the line itself, or on the one before."""
    (found,) = scan(text.format(KEYS["hugging-face-token"]()))
    assert found.allowed is allowed


def test_hash_of_a_baseline() -> None:
    """The SHA-1 of the secret, as detect-secrets writes it into its baseline."""
    key = KEYS["github-token"]()
    (found,) = scan(key)
    assert found.hashed == hashlib.sha1(key.encode()).hexdigest()


# --- nothing is shown ------------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=300))
def test_at_most_four_characters_are_shown(secret: bytes) -> None:
    """And at most a quarter of a short one; with the length."""
    shown, _, rest = redact(secret).partition("… (")
    assert len(shown) <= min(4, len(secret) // 4)
    assert rest == f"{len(secret):,} characters)"


def test_fingerprints_tell_secrets_apart() -> None:
    """The same secret has the same one everywhere, another has another, and it is no plain digest of it."""
    a, b = draw(40).encode(), draw(40).encode()
    assert fingerprint(a) == fingerprint(bytes(a)) != fingerprint(b)
    assert fingerprint(a) not in hashlib.sha256(a).hexdigest()
    assert re.fullmatch("[0-9a-f]{12}", fingerprint(a))


# --- where it stands --------------------------------------------------------------------------------------------


def noise(length: int, seed: int) -> bytes:
    """Bytes that hold no key: prose, code and numbers."""
    r = random.Random(seed)
    words = [
        "model",
        "loss.backward()",
        "0.1234",
        "x" * 30,
        "def f(a, b):",
        "# ----",
        "aws",
        "://",
        "hf_",
        "\\n",
    ]
    out = bytearray()
    while len(out) < length:
        out += r.choice(words).encode() + r.choice([b" ", b"\n", b"\t"])
    return bytes(out[:length])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(KEYS)),
    st.integers(0, 3 * OVERLAP),
    st.integers(-200, 200),
    st.integers(1, 3),
)
def test_a_key_at_any_place_of_a_large_file(rule: str, before: int, shift: int, pieces: int) -> None:
    """However the content is cut into pieces, also through the key itself; and the line is the right one."""
    key = KEYS[rule]().encode()
    data = noise(before, before) + b"\n'" + key + b"'\n" + noise(500, 1)
    cut = max(min(before + shift, len(data) - 1), 1)
    parts = [data[i : i + max(cut // pieces, 1)] for i in range(0, cut, max(cut // pieces, 1))]
    parts = [*(part for part in parts if part), data[sum(map(len, parts)) :]]
    assert b"".join(parts) == data
    found = {(e.rule, e.line) for e in SCANNER.stream(parts)}
    assert found == {(e.rule, e.line) for e in SCANNER.scan(data)}
    assert (rule, data[: data.index(key)].count(b"\n") + 1) in found


def test_lines_of_a_megabyte() -> None:
    """A notebook, minified code: one line, and a key far inside of it."""
    key = KEYS["openai-key"]()
    text = '{"a": "' + "lorem ipsum " * 100_000 + key + " dolor" * 10_000 + '"}'
    assert kinds(text) == ["openai-key"]


def test_more_than_one_piece() -> None:
    """Keys before, at and behind the border of what is read at once, each with its line."""
    keys = [KEYS["github-token"]().encode() for _ in range(3)]
    filler = b"word\n" * (CHUNK // 5)
    data = keys[0] + b"\n" + filler + b"\n" + keys[1] + b"\n" + filler + b"\n" + keys[2]
    pieces = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
    assert len(pieces) == 3
    expected = {(key, data[: data.index(key)].count(b"\n") + 1) for key in keys}
    assert {(e.secret, e.line) for e in SCANNER.stream(pieces)} == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "latin-1", "utf-8"])
def test_encodings(encoding: str) -> None:
    """UTF-16 with its mark is what PowerShell writes; bytes of any other encoding are passed over."""
    key = KEYS["hugging-face-token"]()
    assert kinds(f"schlüssel = '{key}'\n".encode(encoding)) == ["hugging-face-token"]


def test_bytes_that_are_no_text() -> None:
    """A pickle, a compiled module, a database hold their strings as they are."""
    key = KEYS["hugging-face-token"]().encode()
    assert kinds(bytes(range(256)) * 20 + b"\x00" + key + b"\x00" + bytes(range(256))) == [
        "hugging-face-token"
    ]


@given(st.binary(max_size=3000))
def test_any_bytes_at_all(data: bytes) -> None:
    """Nothing is raised; what is found stands in the data."""
    for entry in SCANNER.scan(data):
        assert entry.secret in data or data[:2] in {b"\xff\xfe", b"\xfe\xff"}


# --- no file can make it slow --------------------------------------------------------------------------------------


def test_rules_repeat_with_a_bound() -> None:
    """No pattern of ours has `*` or `+`, or a repetition without an end: the work grows with the size alone."""
    for rule in rules():
        plain = re.sub(r"\\.|\[[^\]]*\]", "c", rule.pattern.pattern.decode())
        assert re.search(r"[*+]|\{\d*,\}", plain.replace("(?<", "").replace("(?i", "")) is None, rule.id


@pytest.mark.parametrize(
    "unit",
    [
        "AKIA", "aws_secret_access_key", "wandb key", "hf_", "sk-", "://", "machine a login b password ", "eyJ",
        "//:_authToken=", "-----BEGIN RSA PRIVATE KEY-----", "ibm_cloud_iam_api_key=", "AccountKey=", "?sv=1&sig=",
        '"username":"', "a" * 63 + "/", "discord ", "twilio AC", "softlayer_key:", "xoxb-1-", "-us1", "SG.",
        "://a:", "0", "=", "JQQJ99", "Q~", "T3BlbkFJ", "PuTTY-User-Key-File-2:\n", "cloudant:", "1//0", "://a:b@",
    ],
)  # fmt: skip
def test_hostile_files_take_time_in_proportion(unit: str) -> None:
    """Twice as much of the worst takes no more than about twice the steps: counted, not timed.

    Steps are what the interpreter of regular expressions cannot count; the processor's own time is the
    nearest, taken as the least of two and with a wide margin, so that only a square shows.
    """
    import time

    def least(size: int) -> float:
        data = (unit * (size // len(unit) + 1)).encode()[:size]
        times = []
        for _ in range(2):
            begun = time.process_time()
            for _ in SCANNER.stream([data]):
                pass
            times.append(time.process_time() - begun)
        return min(times)

    small, large = least(12_000), least(96_000)
    assert large < 24 * max(small, 0.002)  # a square would be 64


def test_our_own_files_hold_no_key() -> None:
    """The sources, tests and documents of this project."""
    top = Path(__file__).parent.parent
    files = [
        p for folder in ("src", "tests", "docs", "tools") for p in (top / folder).rglob("*") if p.is_file()
    ]
    found = [
        (str(p), e.rule, e.line) for p in files if p.suffix != ".pyc" for e in SCANNER.scan(p.read_bytes())
    ]
    assert found == []
    assert len(files) > 200


def test_the_alphabet_of_runs() -> None:
    """Every character that a key of ours consists of counts as part of a run."""
    for make in KEYS.values():
        longest = max(re.findall(r"[^.:%]+", make()), key=len)
        assert secrets._RUN in longest.encode().translate(secrets._KINDS)
    assert set(string.ascii_letters + string.digits) <= {
        chr(c) for c in range(256) if secrets._KINDS[c] == 0x61
    }
