"""Pictures of who holds what: `_picture` decides what is shown, `_text` draws it."""
