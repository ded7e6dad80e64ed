"""What a bench says: figures with their target and what others need for the same."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. `target` and `others` are free text: a person compares."""

    name: str
    value: float
    unit: str = ""
    target: str = ""
    others: str = ""

    @property
    def shown(self) -> str:
        """The value with its unit, three digits or so."""
        digits = 0 if abs(self.value) >= 100 else 1 if abs(self.value) >= 10 else 2
        return f"{self.value:,.{digits}f} {self.unit}".rstrip()


def show(title: str, figures: Sequence[Figure]) -> None:
    """Print a table."""
    width = max(len(figure.name) for figure in figures)
    sys.stdout.write(f"\n{title}\n")
    for figure in figures:
        target = f"  target {figure.target}" if figure.target else ""
        others = f"  ({figure.others})" if figure.others else ""
        sys.stdout.write(f"  {figure.name:<{width}}  {figure.shown:>14}{target}{others}\n")
    sys.stdout.flush()


def save(path: Path, sections: Sequence[tuple[str, Sequence[Figure]]]) -> None:
    """Write all figures as JSON, for comparing two runs."""
    told = {title: [asdict(figure) for figure in figures] for title, figures in sections}
    path.write_text(json.dumps(told, indent=1))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies. `values` are sorted and not empty."""
    return values[min(len(values) - 1, int(len(values) * share))]
