"""Training loops that people have, with the real libraries, fed by a feed."""
