"""What a model costs and how fast it is: capacity before any GPU is rented, measurements on what is here."""
