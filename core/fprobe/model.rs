//! Probes against a plain list.
