"""See, search, export and replay the traffic: stores of exchanges, the web page, HAR."""
