"""Local reparameterization in one kernel."""
