"""All rows of the suite, by theme."""

from bench.attacks.attack import Attack
from bench.attacks.rows import aborts, bombs, documents, drain, fairness, framing, records

TABLES = (aborts.TABLE, framing.TABLE, bombs.TABLE, documents.TABLE, fairness.TABLE, records.TABLE, drain.TABLE)
ATTACKS: list[Attack] = [attack for table in TABLES for attack in table.rows]
