"""Growth with the cores as one SVG, a panel for each part: the factor over the fewest cores, both axes by powers of 2.

A ring in the color of a line is the factor of independent processes of one core each, the limit of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

LEFT, TOP, SIZE, LEGEND, PANEL = 48, 44, 300, 330, 390
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22", "#e377c2")


def write_svg(
    path: Path,
    parts: Mapping[str, Mapping[int, Mapping[str, Mapping[str, Any]]]],
    limits: Mapping[str, Mapping[int, Mapping[str, float]]],
) -> None:
    """Draw what benchmarks.scale measured, by part and number of cores; ``limits``: the rates of independent processes."""
    width, height = LEFT + SIZE + LEGEND, PANEL * len(parts)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for n, (part, found) in enumerate(parts.items()):
        out.append(f'<g transform="translate(0 {n * PANEL})">')
        out.append(f'<text x="8" y="20" font-weight="bold">{escape(part)}: factor over {min(found)} core(s)</text>')
        out += _panel(found, limits.get(part, {}))
        out.append("</g>")
    out.append("</svg>")
    path.write_text("\n".join(out) + "\n", encoding="utf-8")


def _panel(
    found: Mapping[int, Mapping[str, Mapping[str, Any]]], limits: Mapping[int, Mapping[str, float]]
) -> list[str]:
    least, most = min(found), max(found)
    steps = max(1.0, math.log2(most / least))

    def x(cores: float) -> float:
        return LEFT + SIZE * math.log2(cores / least) / steps

    def y(factor: float) -> float:
        return TOP + SIZE * (1 - max(0.0, min(math.log2(max(factor, 1e-9)), steps)) / steps)

    out = [f'<rect x="{LEFT}" y="{TOP}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#999"/>']
    for cores in found:
        out.append(f'<text x="{x(cores):.1f}" y="{TOP + SIZE + 18}" text-anchor="middle">{cores}</text>')
        factor = cores / least
        out.append(f'<text x="{LEFT - 8}" y="{y(factor) + 4:.1f}" text-anchor="end">{factor:g}</text>')
    ideal = f'x1="{x(least):.1f}" y1="{y(1):.1f}" x2="{x(most):.1f}" y2="{y(most / least):.1f}"'
    out.append(f'<line {ideal} stroke="#999" stroke-dasharray="4 4"/>')
    for n, (name, first) in enumerate(found[least].items()):
        color = COLORS[n % len(COLORS)]
        factors = {cores: measures[name]["rate"] / first["rate"] for cores, measures in found.items()}
        points = " ".join(f"{x(cores):.1f},{y(factor):.1f}" for cores, factor in factors.items())
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        at = TOP + 14 + 18 * n
        out.append(f'<rect x="{LEFT + SIZE + 16}" y="{at - 9}" width="12" height="3" fill="{color}"/>')
        label = f"{name}: {factors[most]:.1f} ×"
        if name in limits.get(most, {}) and most > least:
            factor = limits[most][name] / limits[least][name]
            out.append(f'<circle cx="{x(most):.1f}" cy="{y(factor):.1f}" r="5" fill="none" stroke="{color}"/>')
            label += f" (processes {factor:.1f} ×)"
        out.append(f'<text x="{LEFT + SIZE + 34}" y="{at - 4}">{escape(label)}</text>')
    return out
