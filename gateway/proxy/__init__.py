"""The gateway's two listeners: what comes in, where it goes, and how errors are said."""
