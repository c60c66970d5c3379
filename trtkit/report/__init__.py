"""Pages and plots of results, for people."""
