"""How to say the input so that it arrives: strategies, and their proof. Pure."""
