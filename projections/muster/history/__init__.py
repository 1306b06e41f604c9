"""The history: every admitted cycle as rows that people may query, in PostgreSQL or in memory."""
