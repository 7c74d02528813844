"""A few modules that pipelines are made of."""
