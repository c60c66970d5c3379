"""Convert files to network inputs: images, arrays and samples of them."""
