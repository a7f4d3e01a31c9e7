"""The results as one page of HTML: no script, nothing loaded from elsewhere, everything escaped."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

from loadsheet.cloud.checklist import MEANING, PHASES, STATES, Check, Phase, Result, State
from loadsheet.cloud.context import Context
from loadsheet.cloud.report import sentence
from loadsheet.errors import one_line

_PHASE: Final[dict[Phase, str]] = {
    "before": "Before you pay",
    "during": "While it runs",
    "after": "When it is over",
}
_WORDS: Final[dict[State, str]] = {"not_applicable": "not applicable"}
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--line:#d5d5d5;--soft:#666;
--ok:#1a6b35;--warn:#8a5a00;--fail:#b3161c;--unknown:#245a8d;--not_applicable:#666}
@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--paper:#161616;--line:#3a3a3a;--soft:#a5a5a5;
--ok:#6fcf8f;--warn:#e8b454;--fail:#ff8a8a;--unknown:#86b8ea;--not_applicable:#a5a5a5}}
body{font:16px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.25rem 0}
article{border-top:1px solid var(--line);padding:.6rem 0;display:grid;
grid-template-columns:8rem minmax(0,1fr);gap:0 1rem}
.state{font-weight:600}.ok{color:var(--ok)}.warn{color:var(--warn)}.fail{color:var(--fail)}
.unknown{color:var(--unknown)}.not_applicable{color:var(--not_applicable)}
code,.id{font-family:ui-monospace,monospace;font-size:.92em}
p,li,.id{overflow-wrap:anywhere}
ul{margin:.25rem 0;padding-left:1.2rem}.why{color:var(--soft)}
@media(max-width:36rem){article{grid-template-columns:1fr}}
@media print{body{max-width:none}article{break-inside:avoid}}
"""


def page(results: Iterable[tuple[Check, Result]], context: Context, version: str) -> str:
    """The whole page; `version` of loadsheet stands in it."""
    results = list(results)
    counts = Counter(result.state for _, result in results)
    order: tuple[State, ...] = ("fail", "warn", "unknown", "ok", "not_applicable")
    total = ", ".join(f"{counts[state]} {_WORDS.get(state, state)}" for state in order if counts[state])
    when = datetime.datetime.fromtimestamp(context.machine.time()).astimezone().strftime("%Y-%m-%d %H:%M %Z")
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Preflight: {escape(total)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Preflight of <code>{escape(one_line(str(context.directory)))}</code></h1>",
        f"<p>{escape(total or 'nothing was asked for')}</p>",
        f'<p class="why">{escape(when)}, loadsheet {escape(version)}</p>',
    ]
    for phase in PHASES:
        inside = [(c, r) for c, r in results if c.phase == phase]
        if inside:
            parts.append(f'<section><h2 id="{phase}">{_PHASE[phase]}</h2>')
            parts += [_article(c, r) for c, r in inside]
            parts.append("</section>")
    parts.append("<section><h2>Inputs</h2><ul>")
    for row in context.inputs.shown():
        star = " (defaulted)" if row["defaulted"] else ""
        value = "none" if row["value"] in (None, []) else str(row["value"])
        parts.append(f"<li><code>{escape(row['name'])}</code>: {escape(one_line(value))}{star}</li>")
    parts.append("</ul></section><section><h2>States</h2><ul>")
    for state in STATES:
        parts.append(
            f'<li><span class="state {state}">{_WORDS.get(state, state)}</span>: {escape(MEANING[state])}</li>'
        )
    parts.append("</ul></section></body></html>\n")
    return "\n".join(parts)


def _fact(row: Mapping[str, Any]) -> str:
    """A piece of evidence, and the command that it names."""
    call = one_line(str(row.get("command", "")))
    return escape(sentence(row)) + (f" <code>{escape(call)}</code>" if call else "")


def _article(entry: Check, result: Result) -> str:
    """One check."""
    facts = [text for text in map(_fact, result.evidence) if text]
    rows = "".join(f"<li>{text}</li>" for text in facts)
    found = f"<ul>{rows}</ul>" if len(facts) > 1 else "".join(f"<p>{text}</p>" for text in facts)
    todo = f"<p><b>Next:</b> {escape(one_line(result.next))}</p>" if result.next else ""
    return (
        f'<article><div><span class="state {result.state}">{_WORDS.get(result.state, result.state)}</span></div>'
        f'<div><span class="id">{escape(entry.id)}</span>{found}{todo}'
        f'<p class="why">{escape(entry.why)}</p></div></article>'
    )
