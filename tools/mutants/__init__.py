"""Do the tests notice when the product is wrong? Random small changes to its code, and who catches them."""
