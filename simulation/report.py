"""What a simulation says: rows of the result form, tables for people.

Names of measures end in their unit; money carries the currency of the network. What the network or the trace cannot tell
(prices, watts, deadlines) is null with the reason, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from meridian.result import Row
from simulation.compare import Comparison, Figure, missing
from simulation.experiment import Experiment, Run
from simulation.figures import Cell, currency, of_one_seed, of_seeds, unknowable, values_of
from simulation.model import Network

_NAMES = {
    "jobs": "jobs_finished_count",
    "unfinished": "jobs_unfinished_count",
    "given_up": "jobs_given_up_count",
    "not_submitted": "jobs_not_submitted_count",
    "slowdown_mean": "slowdown_mean_ratio",
    "used_share_of_held": "used_of_held_share",
    "deadline_misses": "deadline_misses_count",
    "fairness_jain": "fairness_jain_index",
    "fairness_rho_mean": "fairness_rho_mean_ratio",
    "fairness_rho_p99": "fairness_rho_p99_ratio",
    "interruptions": "interruptions_count",
    "restarts": "restarts_count",
}
_GAP, _GAP_UNPREDICTED = "jct_gap_closed_share", "jct_gap_closed_unpredicted_share"
Column = tuple[str, list[str]]
"""Heading, a text per policy."""


def measure_name(figure: str, network: Network) -> str:
    """The name in result files, with its unit."""
    if figure.endswith("_money"):
        return f"{figure.removesuffix('_money')}_cost_{currency(network) or 'mixed'}"
    return _NAMES.get(figure, figure)


class Report:
    """All figures of all policies, by policy, name and slice; ``rows`` for the result form, tables for people."""

    def __init__(self, experiment: Experiment, runs: Sequence[Run], *, left_out: int = 0) -> None:
        self.experiment = experiment
        self.comparison = Comparison(runs, experiment.seeds[0])
        self.left_out = left_out
        self.figures: dict[str, dict[Cell, Figure]] = {}
        unknown = unknowable(experiment.network)
        seed = experiment.seeds[0]
        for name, each in self.comparison.runs.items():
            values = [values_of(run, experiment.network, unknown) for run in each]
            self.figures[name] = of_one_seed(each[0], values[0], seed) if len(each) == 1 else of_seeds(values, seed)
        self.comparisons = {name: self._compared(name, unknown) for name in self.figures}

    def _compared(self, name: str, unknown: Mapping[str, str]) -> dict[Cell, Figure]:
        comparison, references = self.comparison, self.comparison.references
        found: dict[Cell, Figure] = {}
        others = dict.fromkeys([*references.isolated, references.blind, references.best])
        for other in others:
            if not other or other == name:
                continue
            part = f"against={other}"
            found["jct_mean_reduction_ratio", part] = comparison.jct_reduction(name, other)
            for measure, figure, gain in (
                ("allocated_share_gain_ratio", "allocated_share", True),
                ("makespan_reduction_ratio", "makespan_h", False),
                ("accelerator_cost_reduction_ratio", "accelerator_money", False),
                ("wan_cost_reduction_ratio", "wan_money", False),
            ):
                known = figure not in unknown
                found[measure, part] = (
                    comparison.change(name, other, figure, gain=gain) if known else missing(unknown[figure])
                )
        for measure, reference in ((_GAP, references.blind), (_GAP_UNPREDICTED, references.unpredicted)):
            part = f"from={reference or 'none'} to={references.oracle or 'none'}"
            found[measure, part] = comparison.gap_closed(name, unpredicted=measure == _GAP_UNPREDICTED)
        return found

    def _gaps(self, measure: str) -> list[Figure]:
        """The share of one gap that each policy closes."""
        return [value for cells in self.comparisons.values() for cell, value in cells.items() if cell[0] == measure]

    def rows(self) -> list[Row]:
        """Every figure as a row; with a load, those of the whole run stand under ``load=...`` as well."""
        network, load = self.experiment.network, self.experiment.load
        rows: list[Row] = []
        for name, cells in self.figures.items():
            baseline = self.comparison.runs[name][0].setting.baseline
            for (figure, part), value in cells.items():
                parts = [part] if load is None or part != "all" else [part, f"load={load:g}"]
                rows += [_row(name, measure_name(figure, network), one, value, baseline=baseline) for one in parts]
            rows += [
                _row(name, measure, part, value, baseline=baseline)
                for (measure, part), value in self.comparisons[name].items()
            ]
            rows.append(Row(name, "jobs_left_out_count", float(self.left_out), baseline=baseline))
            skipped = self.experiment.trace.skipped
            rows.append(Row(name, "lines_left_out_count", float(sum(skipped.values())), baseline=baseline))
            rows += [
                Row(name, "lines_left_out_count", float(count), f"reason={reason}", baseline=baseline)
                for reason, count in skipped.items()
            ]
        return rows

    # -- tables ------------------------------------------------------------------------------------------------------

    def tables(self, width: int) -> list[Table]:
        """One row per policy: one table where ``width`` characters suffice, else one per group of columns, or several."""
        groups = [(title, [(head, self._texts(figure)) for head, figure in group]) for title, group in self._groups()]
        whole = [column for _, columns in groups for column in columns]
        if self._width(whole) <= width:
            return [self._table("", whole)]
        tables = []
        for title, columns in groups:
            part: list[Column] = []
            for column in columns:
                if part and self._width([*part, column]) > width:
                    tables.append(self._table(title, part))
                    part = []
                part.append(column)
            tables.append(self._table(title, part))
        return tables

    def _width(self, columns: Iterable[Column]) -> int:
        labels = max(len(self._label(name)) for name in self.figures)
        return labels + 2 + sum(max(len(head), *map(len, texts)) + 2 for head, texts in columns)

    def _texts(self, figure: str) -> list[str]:
        texts = []
        for cells in self.figures.values():
            value = cells.get((figure, "all"), missing(""))
            text = _number(value.value)
            if figure == "jct_mean_h" and value.low is not None and value.high is not None:
                text += f" ({_number(value.low)}-{_number(value.high)})"
            texts.append(text)
        return texts

    def _table(self, title: str, columns: Sequence[Column]) -> Table:
        table = _plain(title)
        table.add_column("policy", no_wrap=True)
        for head, _ in columns:
            table.add_column(head, justify="right")
        for place, name in enumerate(self.figures):
            table.add_row(self._label(name), *(texts[place] for _, texts in columns))
        return table

    def _groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        money = (currency(self.experiment.network) or "mixed").upper()
        processors = next(iter(self.comparison.runs.values()))[0].measures.processors
        unit, short = ("cpu", "CPU") if processors else ("accelerator", "accel.")
        return [
            (
                "Times in hours",
                [
                    ("JCT mean (95 %)", "jct_mean_h"),
                    ("p50", "jct_p50_h"),
                    ("p99", "jct_p99_h"),
                    ("wait", "wait_mean_h"),
                    ("wait p99", "wait_p99_h"),
                    ("slowdown", "slowdown_mean"),
                    ("makespan", "makespan_h"),
                    ("jobs", "jobs"),
                    ("unfinished", "unfinished"),
                ],
            ),
            (
                "Use and cost",
                [
                    (f"{short} h", f"{unit}_hours"),
                    ("allocated", "allocated_share"),
                    ("used of held", "used_share_of_held"),
                    ("WAN GB", "wan_gb"),
                    (f"WAN {money}", "wan_money"),
                    (f"accel. {money}", "accelerator_money"),
                    ("kWh", "energy_kwh"),
                    ("CO2 kg", "carbon_kg"),
                ],
            ),
            (
                "Promises, fairness, restarts, decisions",
                [
                    ("missed", "deadline_misses"),
                    ("Jain", "fairness_jain"),
                    ("rho", "fairness_rho_mean"),
                    ("rho p99", "fairness_rho_p99"),
                    ("interrupted", "interruptions"),
                    ("lost h", f"lost_{unit}_hours"),
                    ("restart h", f"overhead_{unit}_hours"),
                    ("decide p50 ms", "decision_p50_ms"),
                    ("p99 ms", "decision_p99_ms"),
                ],
            ),
        ]

    def _label(self, name: str) -> str:
        return name + (" *" if self.comparison.runs[name][0].setting.baseline else "")

    def comparison_table(self) -> Table | None:
        """What every policy gains in mean JCT over the references, and the share of the gap to the oracle it closes."""
        references = self.comparison.references
        against = [name for name in dict.fromkeys([*references.isolated, references.blind, references.best]) if name]
        gaps: list[Column] = []
        for measure, reference in self._gap_references():
            shares = self._gaps(measure)
            if any(figure.value is not None for figure in shares):
                head = f"gap from {reference} to {references.oracle} closed"
                gaps.append((head, [_percent(figure) for figure in shares]))
        if len(self.figures) < 2 or not (against or gaps):
            return None
        table = _plain("Mean JCT less than that of ... (95 %)")
        table.add_column("policy", no_wrap=True)
        for name in (*against, *(head for head, _ in gaps)):
            table.add_column(name, justify="right")
        for place, (name, cells) in enumerate(self.comparisons.items()):
            texts = [_percent(cells.get(("jct_mean_reduction_ratio", f"against={other}"))) for other in against]
            table.add_row(self._label(name), *texts, *(shares[place] for _, shares in gaps))
        return table

    def _given_up(self) -> list[str]:
        """Who was given up under which policies."""
        notes = []
        for name, runs in self.comparison.runs.items():
            job_ids = [job_id for run in runs for job_id in run.measures.given_up]
            if job_ids:
                most = runs[0].setting.policy.restarts.max_recoveries
                more = f" and {len(job_ids) - 3} more" if len(job_ids) > 3 else ""
                notes.append(
                    f"{name}: {', '.join(job_ids[:3])}{more} lost {most + 1} runs to failures or reclaims and were given up;"
                    " checkpoint_interval_s of a job bounds what a failure takes, restarts: max_recoveries of a policy file how often"
                )
        return notes

    def _gap_references(self) -> list[tuple[str, str]]:
        """The gaps that are printed, each once."""
        references = self.comparison.references
        found = [(_GAP, references.blind)]
        if references.unpredicted != references.blind:
            found.append((_GAP_UNPREDICTED, references.unpredicted))
        return found

    def notes(self) -> list[str]:
        """What must be known to read the tables."""
        experiment, references = self.experiment, self.comparison.references
        notes = ["* baseline; setting: simulated (virtual time)"]
        gaps = self._gaps(_GAP)
        if references.oracle and len(gaps) > 1 and gaps[0].reason:
            notes.append(f"no share of the gap closed: {gaps[0].reason}")
        elif references.blind and references.oracle:
            notes.append(
                f"the gap runs from {references.blind}, the best pooled baseline here that does not know true run times, "
                f"to {references.oracle}, which does"
            )
            if references.unpredicted not in ("", references.blind):
                notes.append(
                    f"the gap from {references.unpredicted}: from the best one that uses no predictor either; "
                    f"{references.blind} predicts as policies here that predict do"
                )
        if len(experiment.seeds) == 1:
            notes.append("intervals: bootstrap over jobs of one run; with --seeds 5 over seeds")
        else:
            few = "; at least 5 are needed for figures to be published" if len(experiment.seeds) < 5 else ""
            notes.append(f"values are means over {len(experiment.seeds)} seeds, intervals a bootstrap over them{few}")
        notes += [
            f"{item.name} follows {item.follows} here, as rates of jobs differ with where they run"
            for item in experiment.settings
            if item.follows
        ]
        if self.left_out:
            notes.append(f"{self.left_out} jobs that can never be placed were left out, for all policies")
        if experiment.trace.skipped:
            notes.append(f"of the trace {experiment.trace.skipped_text()}")
        if any((cells["not_submitted", "all"].value or 0) > 0 for cells in self.figures.values()):
            notes.append("some jobs had not been submitted at the end; no figure knows them")
        if any((cells["unfinished", "all"].value or 0) > 0 for cells in self.figures.values()):
            notes.append("some jobs did not finish: times are those of the jobs that did; shorter may only mean fewer")
        notes += self._given_up()
        declared = [item.name for item in experiment.settings if item.knowledge == "declared"]
        if declared and all(math.isnan(job.estimate_s) for job in experiment.trace.jobs):
            notes.append(
                f"no job of the trace declares a run time: {', '.join(declared)} know nothing of run times here"
            )
        reasons: dict[str, list[str]] = {}
        for cells in self.figures.values():
            for (figure, part), value in cells.items():
                if value.reason and part == "all":
                    names = reasons.setdefault(value.reason, [])
                    name = measure_name(figure, experiment.network)
                    if name not in names:
                        names.append(name)
        notes += [f"no {', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return notes


def _row(subject: str, measure: str, part: str, figure: Figure, *, baseline: bool) -> Row:
    return Row(
        subject, measure, figure.value, part, figure.low, figure.high, figure.n, baseline=baseline, reason=figure.reason
    )


def _plain(title: str) -> Table:
    return Table(
        title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    if magnitude >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.2f}" if magnitude >= 1 else f"{value:.3f}"


def _percent(figure: Figure | None) -> str:
    if figure is None or figure.value is None:
        return "-"
    text = f"{100 * figure.value:.1f} %"
    if figure.low is not None and figure.high is not None:
        text += f" ({100 * figure.low:.1f} to {100 * figure.high:.1f})"
    return text
