"""Reading what `/metrics` says."""

from prometheus_client.parser import text_string_to_metric_families


def number(exposition: str, name: str, **labels: str) -> float:
    """The sum of all samples of this name with these labels; 0 when there are none."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def label_values(exposition: str, name: str) -> set[str]:
    """All values that this label has anywhere."""
    return {
        sample.labels[name]
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if name in sample.labels
    }
