"""Plugins: discovery, refusals with reasons, and one typed method per hook. The only user of pluggy."""

from __future__ import annotations

from tt_core.plugins.hooks import Plugins

__all__ = ["Plugins"]
