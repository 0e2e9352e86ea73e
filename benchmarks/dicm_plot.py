"""Bars with intervals as one SVG, a panel a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

BAR, GAP, HEAD, LEFT, PLOT, RIGHT = 22, 8, 34, 150, 420, 80


def write_svg(path: Path, studies: Mapping[str, Sequence[tuple[str, float, float]]]) -> None:
    """``studies``: (name, mean, half the interval) of each; an interval that is none is left out."""
    every = [
        v for bars in studies.values() for _, mean, half in bars for v in (mean - _shown(half), mean + _shown(half))
    ]
    low, high = min(every) - 0.005, max(every) + 0.005
    height = sum(HEAD + len(bars) * (BAR + GAP) for bars in studies.values()) + 20
    width = LEFT + PLOT + RIGHT

    def at(value: float) -> float:
        return LEFT + PLOT * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    y = 8.0
    for study, bars in studies.items():
        parts.append(f'<text x="8" y="{y + 18:.0f}" font-weight="bold">{escape(study)}: GAUC</text>')
        y += HEAD
        for name, mean, half in bars:
            middle = y + BAR / 2
            parts.append(f'<text x="{LEFT - 8}" y="{middle + 4:.0f}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect x="{LEFT}" y="{y:.0f}" width="{at(mean) - LEFT:.1f}" height="{BAR}" fill="#7aa6c2"/>')
            if half == half:
                ends = f'x1="{at(mean - half):.1f}" x2="{at(mean + half):.1f}"'
                parts.append(f'<line {ends} y1="{middle:.1f}" y2="{middle:.1f}" stroke="#222" stroke-width="2"/>')
            parts.append(f'<text x="{at(mean + _shown(half)) + 6:.1f}" y="{middle + 4:.0f}">{mean:.4f}</text>')
            y += BAR + GAP
    parts.append("</svg>")
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _shown(half: float) -> float:
    return half if half == half else 0.0
