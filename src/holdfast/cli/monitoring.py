"""`holdfast monitoring`: what Grafana, Prometheus and KEDA need, as files."""

from typing import Annotated

import typer

from holdfast.observe import files

app = typer.Typer(help="Print what Grafana, Prometheus and KEDA need.", no_args_is_help=True)


@app.command("dashboard")
def dashboard_command() -> None:
    """Print the Grafana dashboard as JSON, for import."""
    typer.echo(files.dashboard(), nl=False)


@app.command("alerts")
def alerts_command() -> None:
    """Print the alert rules for Prometheus as YAML."""
    typer.echo(files.alert_rules(), nl=False)


@app.command("keda")
def keda_command(
    queue: Annotated[str, typer.Option("--queue", "-q", help="Whose jobs count.")] = "inbox",
    deployment: Annotated[str, typer.Option(help="The Deployment of the workers.")] = "worker",
    per_worker: Annotated[
        int, typer.Option(min=1, max=10_000, help="Jobs for each worker: its concurrency.")
    ] = 10,
    most: Annotated[int, typer.Option(min=1, max=100_000, help="Workers at most.")] = 20,
) -> None:
    """Print the ScaledObject with which KEDA starts and stops workers, as YAML."""
    typer.echo(files.scaled_object(queue, deployment, per_worker, most), nl=False)
