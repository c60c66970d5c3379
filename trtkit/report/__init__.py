"""Result pages and plots for people."""
