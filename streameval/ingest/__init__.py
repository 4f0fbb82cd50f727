"""Event sources, and the stages that events pass before they are counted."""
