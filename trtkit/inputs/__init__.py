"""How files become a network's inputs: images, arrays, samples of them."""
