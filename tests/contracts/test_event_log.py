"""Every event log keeps the contract."""

from tests.contracts.event_log import ArchiveContract, EventLogContract, OwnershipContract


class TestEventLog(EventLogContract):
    """Appending, reading, subscribing."""


class TestArchive(ArchiveContract):
    """Headers: chains, cancel flags, deletion, retention."""


class TestOwnership(OwnershipContract):
    """Claiming and releasing."""
