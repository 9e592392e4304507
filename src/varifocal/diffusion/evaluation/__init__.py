"""How well gates stop, and how much sooner: what `varifocal diffusion` measures and shows."""
