"""shares, service-levels, front, objectives."""

from __future__ import annotations

from typing import Any

import click

from meridian.cli.main import Context, json_option
from meridian.cli.output import clock, console, money, print_json, print_table
from meridian.errors import InvalidArgumentError

_TENANT = click.option("--tenant", help="Another tenant than your own (operators).")


@click.command()
@click.option(
    "--windows", default=3, show_default=True, help="So many of the newest windows; the first is not over yet."
)
@json_option
@click.pass_obj
def shares(context: Context, windows: int) -> None:
    """Show planned and promised against given shares of the domains, window by window, and the promise over a day."""
    with context.client() as network:
        found = network.shares(windows=windows)
    if context.as_json:
        print_json(found)
        return
    tolerance = found["plan"]["tolerance"] if found["plan"] else 0.0
    print_table(
        ["FROM", "UNTIL", "DOMAIN", ">PLANNED", ">PROMISED", ">GIVEN", ">DEVIATION", "KEPT"],
        (
            [
                clock(window["from"]).partition(".")[0],
                clock(window["until"]).partition(".")[0],
                row["domain_id"],
                _share(row["planned_share"]),
                _share(row["promised_share"]),
                _share(row["given_share"]),
                _share(row["deviation"]),
                _kept(window, row, tolerance),
            ]
            for window in found["windows"]
            for row in window["domains"]
        ),
        empty="The policy in force plans no shares.",
    )
    period = found["period"]
    if period is not None:
        print_table(
            ["FROM", "UNTIL", "DOMAIN", ">PROMISED", ">GIVEN", ">DEVIATION", ">OWED (ACCELERATOR H)"],
            (
                [
                    clock(period["from"]).partition(".")[0],
                    clock(period["until"]).partition(".")[0],
                    row["domain_id"],
                    _share(row["promised_share"]),
                    _share(row["given_share"]),
                    _share(row["deviation"]),
                    f"{row['owed_accelerator_s'] / 3600:.1f}",
                ]
                for row in period["domains"]
            ),
            empty="",
        )


@click.command("service-levels")
@_TENANT
@json_option
@click.pass_obj
def service_levels(context: Context, tenant: str | None) -> None:
    """Show how service-level objectives stand, and what breaking them has cost."""
    with context.client() as network:
        found = network.service_levels(tenant)
    if context.as_json:
        print_json(found)
        return
    print_table(
        ["TENANT", "OBJECTIVE", ">TARGET", ">WINDOW", ">NOW", "MET", ">OBSERVED", ">VIOLATIONS", ">PENALTY"],
        (
            [
                item["tenant_id"],
                item["kind"],
                f"{item['target']:g}",
                f"{item['window_s']:g} s",
                "" if item["value"] is None else f"{item['value']:.4g}",
                "yes" if item["met"] else "no",
                item["observations"],
                item["violations"],
                money(item["penalty"]),
            ]
            for item in found["items"]
        ),
        empty="Nothing was promised.",
    )


@click.command()
@click.option("--job", "jobs", multiple=True, help="Only these jobs; may be given several times.")
@click.option("--pick", type=click.IntRange(0), help="Weigh objectives as this point does, from the next cycle on.")
@click.option("--explain", type=click.IntRange(0), help="Say what this point gives, and what its neighbours would.")
@_TENANT
@json_option
@click.pass_obj
def front(context: Context, jobs: tuple[str, ...], pick: int | None, explain: int | None, tenant: str | None) -> None:
    """Show the front of your waiting jobs, and pick a point of it."""
    if pick is not None and explain is not None:
        raise click.UsageError("either --pick or --explain")
    index = explain if pick is None else pick
    with context.client() as network:
        found = network.front(tenant=tenant, jobs=jobs, index=index)
        if pick is not None and found["weights"] is None:
            raise InvalidArgumentError("nothing waits, so there is no point to pick")
        applied = network.put_objectives(found["tenant"], found["weights"]) if pick is not None else None
    if context.as_json:
        print_json(found if applied is None else applied)
        return
    if found["choice"] is None:
        _print_points(found)
        return
    console.print(found["choice"]["text"], soft_wrap=True, markup=False)
    if applied is not None:
        _print_objectives(applied)


@click.command()
@click.argument("tenant")
@click.option("--set", "given", multiple=True, metavar="NAME=WEIGHT", help="Weigh so; may be given several times.")
@click.option("--reset", is_flag=True, help="Weigh as the policy says.")
@json_option
@click.pass_obj
def objectives(context: Context, tenant: str, given: tuple[str, ...], reset: bool) -> None:
    """Show or set what TENANT weighs: completion, idle, transfer, energy."""
    if given and reset:
        raise click.UsageError("either --set or --reset")
    weights = dict(map(_weight, given))
    with context.client() as network:
        if reset:
            found = network.delete_objectives(tenant)
        else:
            found = network.put_objectives(tenant, weights) if weights else network.objectives(tenant)
    if context.as_json:
        print_json(found)
    else:
        _print_objectives(found)


def _weight(text: str) -> tuple[str, float]:
    name, sign, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        what = f"{value!r} is no number" if sign else "there is no = in it"
        raise InvalidArgumentError(f"--set {text}: {what}") from None


def _print_points(found: dict[str, Any]) -> None:
    names = [item["name"] for item in found["objectives"]]
    units = {item["name"]: item["unit"] for item in found["objectives"]}
    print_table(
        [">POINT", *(f">{name.upper()} ({units[name]})" for name in names), ">START NOW", ""],
        (
            [
                point["index"],
                *(f"{point['values'][name]:.6g}" for name in names),
                sum(place != "wait" for place in point["assignment"].values()),
                "knee" if point["index"] == found["knee"] else "",
            ]
            for point in found["points"]
        ),
        empty="No job waits.",
    )
    if found["waiting"] > found["looked_at"]:
        console.print(f"the oldest {found['looked_at']} of {found['waiting']} waiting units")


def _print_objectives(found: dict[str, Any]) -> None:
    weights = ", ".join(f"{name} {value:.2f}" for name, value in found["weights"].items())
    whose = "its own" if found["own"] else "the policy's"
    rest = "" if found["in_force"] else "; the policy in force weighs nothing by tenant"
    console.print(
        f"{found['tenant_id']} weighs {weights} ({whose}, policy {found['policy_version']}{rest})", soft_wrap=True
    )


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _kept(window: dict[str, Any], row: dict[str, Any], tolerance: float) -> str:
    if not window["over"]:
        return "open"
    if row["infeasible"]:
        return f"infeasible: {row['infeasible']}"
    return "" if row["kept"] is None else "yes" if row["kept"] else f"no (more than {tolerance:.0%})"
