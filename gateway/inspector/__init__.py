"""See, search, export and replay the recorded traffic: the web page, HAR."""
