"""Every log on a shared record keeps the contract."""

from tests.contracts.sharing import DeathContract, FaultContract, SharingContract


class TestSharing(SharingContract):
    """Several processes."""


class TestDeath(DeathContract):
    """Dead writers."""


class TestFaults(FaultContract):
    """Faults inside a commit."""
