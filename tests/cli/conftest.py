from fresh import home, stored, template

__all__ = ["home", "stored", "template"]
