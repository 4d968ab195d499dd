"""How layers reach the pages of the running step; layers that keep latents or recurrent states."""
