"""Prints the facts of ``explain_json`` as plain text, 118 characters wide. It adds no facts and omits none that matter."""

from __future__ import annotations

from typing import Any

from ctrbox.arguments.numbers import counted
from ctrbox.plan.placement.device_description import shown_bytes

WIDTH = 118  # of the page; a list of features is cut there
CALL_WIDTH = 46  # of an operator's column
ON = {"cuda": "GPU", "cpu": "CPU"}

Facts = dict[str, Any]


def page(facts: Facts) -> str:
    gpu = facts["device"] == "cuda"
    lines = _head(facts)
    for frame in facts["frames"]:
        lines += ["", *_frame_lines(frame, gpu)]
    if gpu and facts["metakernels"]:
        lines += ["", *_kernel_lines(facts["metakernels"], facts["placement"]["filters"])]
    lines += ["", *_placement_lines(facts)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(facts: Facts) -> list[str]:
    roles = [o["role"] for o in facts["outputs"]]
    parts = [f"{roles.count(r)} {r}" for r in ("sparse", "dense", "column") if r in roles]
    parts += [f"{roles.count('task')} labels"] if "task" in roles else []
    parts += [r for r in ("label", "weight", "group") if r in roles]
    sources = [s for f in facts["frames"] for s in f["sources"]]
    read = sum(len(s["columns_read"]) for s in sources)
    total = read + sum(len(s["columns_unread"]) for s in sources)
    sharing = facts["sharing"]
    dropped = f"; {sharing['dropped']:,} unused ones were dropped" if sharing["dropped"] else ""
    layers = [len(f["layers"]) for f in facts["frames"] if f["read"]]
    lines = [
        f"Features   {', '.join(parts)}",
        f"Operators  {sharing['written']:,} as the features are written, {sharing['kept']:,} after sharing "
        f"equal ones{dropped}",
        f"Columns    {read:,} read of {total:,}",
        f"Layers     {layers[0]} of the log"
        + (f", {', '.join(map(str, layers[1:]))} of joined views" if layers[1:] else ""),
        f"Device     {facts['device']}" + (_device(facts) if facts["device"] == "cuda" else ""),
    ]
    if facts["note"]:
        lines.append(f"           {facts['note']}")
    if facts["device"] == "cuda":
        lines += _speed(facts)
    for fit in facts["fits"]:
        settings = ", ".join(f"{k} {v}" for k, v in fit.items() if k not in ("how", "inputs"))
        lines.append(f"Fitted     {fit['how']} of {', '.join(fit['inputs'])}{f' ({settings})' if settings else ''}")
    return lines


def _device(facts: Facts) -> str:
    cores = counted(facts["cores"], "core")
    return (
        f" with {shown_bytes(facts['memory_bytes'])}, beside {cores}; {facts['pcie_bytes_s'] / 1e9:g} GB/s between them"
    )


def _speed(facts: Facts) -> list[str]:
    kernels, found = facts["metakernels"], facts["expected"]
    if found is None:
        return ["Kernels    none: nothing fits on this GPU"]
    count = sum(len(k["operators"]) - k["loads"] for k in kernels)
    more = len(facts["launches"]) - len(kernels)
    lines = [
        f"Kernels    {len(kernels)} meta-kernels per chunk for {count:,} operators, and {more} more to pick rows and "
        "write batches"
    ]
    if found["rows_s"] is not None:
        name = {"copy": "the copy", "kernels": "the kernels", "CPU share": "the CPU's share"}[found["bottleneck"]]
        lines.append(
            f"Expected   {shown_rate(found['rows_s'])}, limited by {name}, with columns in host memory (without "
            "reading files)"
        )
    return lines


def _frame_lines(frame: Facts, placed: bool) -> list[str]:
    role = {"log": "the log", "left": "joined (left)", "inner": "joined (inner)"}[frame["role"]]
    lines = [_rule(f"{frame['name']}: {role}")]
    for source in frame["sources"]:
        if source["merged_on"]:
            lines.append(f"   merged by {source['merged_on']}, row by row, with {source['name']}:")
        rows = "rows unknown" if source["rows"] is None else f"{source['rows']:,} rows"
        size = "" if source["bytes"] is None else f", {shown_bytes(source['bytes'])}"
        count, unread = len(source["columns_read"]), len(source["columns_unread"])
        lines.append(f"   {source['source']}  {rows}{size}, {count} of {count + unread} columns read")
        if source["text"]:
            said = ", ".join(f"{name}={value!r}" for name, value in source["text"].items())
            lines.append(cut(f"   text read with {said}"))
        if count:
            lines.append(cut("   read: " + ", ".join(source["columns_read"])))
        if source["decoded_by_cpu"] is not None:
            left = source["decoded_by_cpu"]
            lines.append(f"   decoded by the GPU: {count - len(left)} of these columns")
            lines += [cut(f"   decoded by the CPU: {name}, because it {reason}") for name, reason in left.items()]
        if unread:
            lines.append(cut("   never read: " + ", ".join(source["columns_unread"])))
    lines += _where_lines(frame["memory"])
    if not frame["read"]:
        return [*lines, "   not read, because no feature needs this view"]
    lines += [cut(f"   filter: {text}") for text in frame["filters"]]
    if frame["hoisted"]:
        factor = frame["hoisted_factor"]
        saved = "" if factor is None else f" (the log has {factor:,.1f} rows for each of them)"
        lines.append(
            f"   hoisted before the join: {frame['hoisted']} operators, which run once per row of this view{saved}"
        )
    return lines + _layer_lines(frame["layers"], placed)


def _where_lines(memory: Facts | None) -> list[str]:
    """Return the lines about where a joined view is stored, if it may be on a disk."""
    if memory is None or memory["spill"] is None:
        return []
    budget = shown_bytes(memory["budget_bytes"])
    if not memory["loaded"]:
        return [f"   in memory, or on disk in {memory['spill']} if it needs more than its budget of {budget}"]
    needed = shown_bytes(memory["needed_bytes"])
    if memory["folder"] is None:
        return [f"   in memory, where it takes {needed} of its budget of {budget}"]
    return [
        f"   on disk in {memory['folder']} ({shown_bytes(memory['file_bytes'])}): in memory it would take {needed}, "
        f"more than its budget of {budget}",
        f"   its index and its cache take {shown_bytes(memory['memory_bytes'])}",
    ]


def _layer_lines(layers: list[list[Facts]], placed: bool) -> list[str]:
    every = [n for layer in layers for n in layer]
    number = max((len(n["id"]) for n in every), default=0)
    call = min(CALL_WIDTH, max((len(n["text"]) for n in every), default=0))
    timed = placed and any(n["measured_ns"] is not None for n in every)
    lines = []
    if placed:
        heading = f"{'':{number + call + 21}} on  {'ns a row':>9}"
        lines.append(heading + (f" {'measured':>9}" if timed else ""))
    for k, layer in enumerate(layers):
        lines.append(f"   layer {k}")
        for n in layer:
            kind = n["kind"] + ("?" if n["nullable"] else "")
            text = n["text"] if len(n["text"]) <= call else n["text"][: call - 1] + "…"
            line = f"     {n['id']:>{number}} = {text:<{call}}  {kind:<11}"
            if placed:
                line += f" {ON[n['device']]} {shown_ns(n['estimated_ns']):>9}"
                line += f" {shown_ns(n['measured_ns']):>9}" if timed else ""
            shown = line + listed(n["features"], WIDTH - len(line))
            lines.append(cut(shown) if placed else shown)
    return lines


# ---- a GPU ------------------------------------------------------------------------------------------------


def _kernel_lines(kernels: list[Facts], filters: str) -> list[str]:
    lines = [_rule("Meta-kernels: one launch for each layer")]
    timed = any(k["measured_ns"] is not None for k in kernels)
    name = max(len(k["name"]) for k in kernels)
    columns = f"   {'':<{name}}  operators  groups  bytes a row  ns a row"
    lines.append(columns + ("   measured" if timed else ""))
    for k in kernels:
        line = f"   {k['name']:<{name}}  {len(k['operators']):>9}  {len(k['groups']):>6}  {k['row_bytes']:>11,.0f}"
        line += f"  {shown_ns(k['estimated_ns']):>8}"
        line += f"  {shown_ns(k['measured_ns']):>9}" if timed else ""
        parts = [f"{k['loads']} load{'s' if k['loads'] > 1 else ''}"] if k["loads"] else []
        parts += [op if count == 1 else f"{op} ×{count}" for op, count in k["counts"].items()]
        lines.append(cut(f"{line}  {', '.join(parts)}"))
    return lines


def _placement_lines(facts: Facts) -> list[str]:
    lines = [_rule("Placement")]
    placement, gpu = facts["placement"], facts["device"] == "cuda"
    operators = [n for f in facts["frames"] for layer in f["layers"] for n in layer]
    if gpu:
        lines += _memory_lines(facts)
    for place_ in ("cuda", "cpu"):
        mine = [n for n in operators if n["device"] == place_]
        reasons: dict[str, list[Facts]] = {}
        for n in mine:
            reasons.setdefault(n["reason"], []).append(n)
        for reason, group in reasons.items():
            some = listed([n["id"] for n in group], 48, arrow="")
            lines.append(cut(f"   {ON[place_]}  {len(group):>4}  {reason}:{some}"))
    if placement["tables"]:
        lines.append("   tables; each table of the GPU is copied once" if gpu else "   tables")
    width = max((len(t["what"]) for t in placement["tables"]), default=0)
    for t in placement["tables"]:
        reason = f"  {t['reason']}" if t["reason"] else ""
        lines.append(cut(f"     {ON[t['device']]}  {t['what']:<{width}}  {shown_bytes(t['bytes']):>9}{reason}"))
    if gpu:
        lines += _copy_lines(placement["copies"])
        lines += _expected_lines(facts)
    return lines


def _memory_lines(facts: Facts) -> list[str]:
    placement = facts["placement"]
    used, memory = placement["used_bytes"], placement["memory"]
    first = f"   {shown_bytes(used)} of {shown_bytes(facts['memory_bytes'])} used"
    if not used:
        return [first]
    parts = ", ".join(f"{name} {shown_bytes(size)}" for name, size in memory.items())
    lines = [f"{first}: {parts}", f"   {placement['slots']} chunks of {placement['chunk_rows']:,} rows in flight"]
    if facts["frames"][0]["filters"]:
        lines[-1] += f"; filters run on the {ON[placement['filters']]}"
    return lines


def _copy_lines(copies: list[Facts]) -> list[str]:
    if not copies:
        return []
    lines = ["   copies to the GPU, of a batch of 65,536 rows"]
    raw = [c for c in copies if c["raw"]]
    if raw:
        largest = sorted(raw, key=lambda c: -c["row_bytes"])
        names = listed([f"{c['what'].removeprefix('column ')} {c['row_bytes']:.4g}" for c in largest], 60, arrow="")
        count = f"{len(raw)} raw column{'s' if len(raw) > 1 else ''}:{names}"
        lines.append(_copy(sum(c["bytes"] for c in raw), sum(c["row_bytes"] for c in raw), count))
    for c in copies:
        if not c["raw"]:
            lines.append(_copy(c["bytes"], c["row_bytes"], f"{c['operator']} = {c['what']}"))
    return lines


def _copy(size: int, row: float, what: str) -> str:
    return cut(f"     H2D  {shown_bytes(size):>9}  {row:>7.1f} B per row  {what}")


def _expected_lines(facts: Facts) -> list[str]:
    found = facts["expected"]
    if found is None:
        return []
    about = {
        "copy": f"{found['copy_row_bytes']:,.1f} B per row at {facts['pcie_bytes_s'] / 1e9:g} GB/s",
        "kernels": f"{len(facts['launches'])} launches per chunk",
        "CPU share": f"{found['cpu_operators']} operators on {counted(facts['cores'], 'core')}"
        if found["cpu_operators"]
        else "no operators, only columns to hand over",
    }
    lines = ["   expected time of each part"]
    for name, ns in found["parts_ns"].items():
        rate = shown_rate(1e9 / ns) if ns else ""
        mark = "  ← the bottleneck" if name == found["bottleneck"] and ns else ""
        lines.append(f"     {name:<9}  {about[name]:<36}  {shown_ns(ns):>9} ns per row  {rate:>20}{mark}")
    return lines


# ---- words and numbers ------------------------------------------------------------------------------------


def _rule(text: str) -> str:
    title = f"── {text} "
    return title + "─" * max(3, WIDTH - len(title))


def shown_ns(ns: float | None) -> str:
    return "" if ns is None else f"{ns:,.3f}" if ns < 100 else f"{ns:,.0f}"


def shown_rate(rows: float) -> str:
    for unit, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if rows >= size:
            return f"{rows / size:.1f} {unit} rows/s"
    return f"{rows:.1f} rows/s"


def cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def listed(names: list[str], room: int, arrow: str = " →") -> str:
    """Return as many names as there is room for, and the number of the others."""
    shown = arrow
    for k, name in enumerate(names):
        more = f" +{len(names) - k}"
        piece = (" " if k == 0 else ", ") + name
        last = k == len(names) - 1
        if len(shown) + len(piece) + (0 if last else len(more)) > room and k:
            return shown + more
        shown += piece
    return shown if names else ""
