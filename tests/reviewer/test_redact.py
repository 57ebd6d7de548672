from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reviewer.redact import Redactor, redact

A36 = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
BASE64_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BASE64_LINE}\n{BASE64_LINE}\nAbC=\n-----END RSA PRIVATE KEY-----"

# (kind, the text, the part of it that must not survive)
SECRETS = [
    ("github-token", f"GITHUB_TOKEN=ghp_{A36}", A36),
    ("github-token", f"gho_{A36}", A36),
    ("github-token", f"ghu_{A36}", A36),
    ("github-token", f"ghs_{A36}", A36),
    ("github-token", f"ghr_{A36}", A36),
    ("github-token", f"github_pat_11ABCDEFG0_{A36}{A36}", A36),
    ("api-key", f'key = "sk-{A36}"', A36),
    ("api-key", f"sk-proj-{A36}-{A36}_x", A36),
    ("api-key", f"sk-ant-api03-{A36}", A36),
    ("aws-key", "AKIAIOSFODNN7EXAMPLE", "IOSFODNN7EXAMPLE"),
    ("aws-key", "aws:ASIAIOSFODNN7EXAMPLE;", "IOSFODNN7EXAMPLE"),
    ("aws-key", "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
    ("aws-key", '"SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"', "wJalrXUtnFEMI"),
    ("google-key", f"AIza{A36[:35]}", A36[:35]),
    ("huggingface-token", f"HF_TOKEN=hf_{'aBcDeFgHiJkLmNoPq' * 2}", "aBcDeFg"),
    ("slack-token", "xoxb-123456789012-abcdefGHIJKL", "123456789012"),
    ("slack-token", "xapp-1-A0B1C2-123456-deadbeef", "A0B1C2"),
    ("slack-webhook", "https://hooks.slack.com/services/T000/B000/XXXXXXXXXXXX", "XXXXXXXXXXXX"),
    ("jwt", f"token={JWT}", "eyJ"),
    ("jwt", f"session_{JWT}", "eyJ"),
    ("authorization", "Authorization: Bearer abcDEF123456", "abcDEF123456"),
    ("authorization", "authorization: basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("authorization", '{"Authorization": "token 0123456789abcdef"}', "0123456789abcdef"),
    ("authorization", "curl -H 'x: Bearer 0123456789abcdefgh'", "0123456789abcdefgh"),
    ("password", "postgres://app:hunter2@db/prod", "hunter2"),
    ("password", f"https://x-access-token:ghs_{A36}@github.com/o/r", A36),
    ("password", "redis://:hunter2@cache:6379/0", "hunter2"),
    ("password", "https://user:p@ss:w0rd@example.org/x", "p@ss:w0rd"),
    ("private-key", f"before\n{PEM}\nafter", BASE64_LINE),
    ("private-key", PEM.replace("RSA ", "OPENSSH "), BASE64_LINE),
    ("private-key", PEM.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"), BASE64_LINE),
    ("private-key", PEM.replace("\n", "\\n"), BASE64_LINE),
    ("private-key", PEM.replace("\n", "\r\n"), BASE64_LINE),
    ("private-key", "+" + PEM.replace("\n", "\n+"), BASE64_LINE),
    ("private-key", "-" + PEM.replace("\n", "\n-"), BASE64_LINE),
]


@pytest.mark.parametrize(("kind", "text", "secret"), SECRETS)
def test_a_secret_is_replaced_by_its_kind(kind: str, text: str, secret: str) -> None:
    redacted = redact(text)
    assert f"[redacted:{kind}]" in redacted
    assert secret not in redacted


@pytest.mark.parametrize(
    "text",
    [
        "3f786850e387550fdab836ed7e6dc881de23001b",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "index 3f78685..e83c516 100644",
        "123e4567-e89b-12d3-a456-426614174000",
        "the quick brown fox jumps over the lazy dog",
        "ghp_ is the prefix of a personal token",
        "from ghs_client import high_throughput",
        "sk-learn-contrib-imbalanced-learning-tools",
        "task-1234567890123456789012345",
        "disk-usage-of-partition-0000000001",
        "in base64: aB3/AKIAIOSFODNN7EXAMPLE",
        "in base64: AKIAIOSFODNN7EXAMPLEq9/",
        "hf_model_name_or_path and hf_quantizer",
        "AKIA is what an access key begins with",
        "self.secret_access_key = settings.secret_access_key",
        "https://github.com/owner/repo/pull/7#discussion_r123",
        "http://localhost:8080/path@v2",
        "ssh://git@github.com:22/owner/repo.git",
        "git@github.com:owner/repo.git",
        "https://${USER}:${PASSWORD}@example.org",
        "postgres://app:{password}@db/prod",
        "postgres://app:$PGPASSWORD@db/prod",
        "Authorization: Bearer <token>",
        "Authorization: Bearer $TOKEN",
        "authorization: token authentication is missing here",
        "A bearer authentication-middleware is missing",
        "module.submodule.function_name(argument)",
        "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQswCQYDVQQGEwJJ\n-----END CERTIFICATE-----",
        'if line == "-----BEGIN PRIVATE KEY-----":\n    inside = True',
        "审查者一致同意，冒烟测试通过",
    ],
)
def test_what_is_no_secret_is_left_as_it_stands(text: str) -> None:
    assert redact(text) == text


def test_the_text_around_a_secret_survives() -> None:
    assert redact("postgres://app:hunter2@db/prod") == "postgres://app:[redacted:password]@db/prod"
    assert redact("Authorization: Bearer abcDEF123456\nAccept: */*") == (
        "Authorization: Bearer [redacted:authorization]\nAccept: */*"
    )
    assert redact(f"a\n{PEM}\nb") == "a\n[redacted:private-key]\nb"


def test_several_secrets_in_one_text_are_all_replaced() -> None:
    text = redact("\n".join(text for _, text, _ in SECRETS))
    assert [secret for _, _, secret in SECRETS if secret in text] == []


def test_a_private_key_cut_before_its_end_loses_its_body_and_nothing_else() -> None:
    cut = f'"quoted": "-----BEGIN PRIVATE KEY-----\\n{BASE64_LINE}\\n{BASE64_LINE}", "symbols": ["load_key"]'
    assert redact(cut) == '"quoted": "[redacted:private-key]", "symbols": ["load_key"]'


def test_a_private_key_in_one_json_string_does_not_swallow_the_next_string() -> None:
    text = f'["-----BEGIN PRIVATE KEY-----\\n{BASE64_LINE}", "kept", "-----END PRIVATE KEY-----"]'
    assert redact(text) == '["[redacted:private-key]", "kept", "-----END PRIVATE KEY-----"]'


def test_known_values_are_replaced_longest_first_and_taken_literally() -> None:
    redactor = Redactor(["p4ss.word", "p4ss.word-and-more"])
    assert (
        redactor("x p4ss.word-and-more p4ss.word p4ssXword")
        == "x [redacted:known] [redacted:known] p4ssXword"
    )


def test_known_values_too_short_to_tell_from_words_are_left_alone() -> None:
    assert Redactor(["", "none", "EMPTY"])("none is EMPTY") == "none is EMPTY"


@given(st.lists(st.sampled_from([text for _, text, _ in SECRETS]) | st.text(max_size=40), max_size=6))
def test_redacting_twice_changes_nothing_more(parts: list[str]) -> None:
    once = redact(" ".join(parts))
    assert redact(once) == once


HOSTILE = [
    *("sk-", "ghp_", "AKIA", "xoxb-", "://a:", "://a:b@", ".eyJ", "-eyJ", "eyJaaaaaaaa.", "aaaaaaaa.eyJ"),
    *(
        "Bearer a1",
        "authorization: bearer ",
        "secret_access_key=",
        "hooks.slack.com/services/",
        "-",
        "A",
        " ",
    ),
    "-----BEGIN PRIVATE KEY-----",
    f"-----BEGIN PRIVATE KEY-----\n{BASE64_LINE}",
    "-----BEGIN PRIVATE KEY-----" + "+" * 40,
    ".eyJ" + "a" * 300_000,
    "://a:" + "b" * 300_000,
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    # Linear: some 30 ms. Quadratic: 400,000 squared steps, minutes. The bound lies far from both.
    text = unit * (400_000 // len(unit))
    start = time.process_time()
    redact(text)
    assert time.process_time() - start < 3
