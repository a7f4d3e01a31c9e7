"""The command line as the tests use it: an answer, or a refusal in two lines."""

from __future__ import annotations

import time

from click.testing import CliRunner, Result

from loadsheet.cli import main

TINY = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 100, "intermediate_size": 128, "max_position_embeddings": 128,
}  # fmt: skip


def run(*args: str, **environment: str) -> Result:
    """Run the command line in this process, within two seconds."""
    started = time.process_time()
    result = CliRunner().invoke(main, args, env=environment)
    assert time.process_time() - started < 2
    return result


def answered(*args: str, code: int = 0) -> Result:
    """An answer: the exit status of the verdict, and on stderr nothing but warnings."""
    result = run(*args)
    assert code == result.exit_code, result.stderr
    assert all(line.startswith("warning: ") for line in result.stderr.splitlines())
    assert result.stdout
    return result


def refused(*args: str, words: str = "") -> str:
    """A refusal: exit status 2, one line of error, one line of hint, and nothing on stdout."""
    result = run(*args)
    assert result.exit_code == 2, (result.exit_code, result.stderr, result.exception)
    assert result.stdout == ""
    error, hint = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert len(hint) > len("hint: ")
    assert max(len(error), len(hint)) < 420
    assert result.stderr.replace("\n", "").isprintable()
    assert words in error + " / " + hint, (words, error, hint)
    return error


def plan(*options: str) -> tuple[str, ...]:
    """A small question with options."""
    return ("plan", "gpt2", "--gpu", "h100-sxm", *options)
