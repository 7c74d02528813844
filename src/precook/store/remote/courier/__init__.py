"""The courier: the process of this machine that talks to a bucket, and how others talk to it."""
