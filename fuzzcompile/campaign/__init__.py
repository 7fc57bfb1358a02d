"""The loop that generates, judges, attributes, reduces and stores."""
