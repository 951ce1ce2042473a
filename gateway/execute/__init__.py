"""The use case: an execute request comes in, a request its agent understands goes out."""
