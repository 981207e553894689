"""Colossal in other libraries. Import the module of the library: `colossal.integrations.lightning`."""
